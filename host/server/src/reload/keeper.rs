//! The policy keeper: what shall be in force, and how it gets there.
//!
//! Each pass hears what the host has done by itself and what operators have ordered, looks at the
//! folder, has made ready what has settled, asks the binding rule who shall hold what, and puts
//! the difference to what the host has in force by one commit. What fails on the way is done
//! without: the version in force stays, or the default steps in, and the rule is asked again.
//!
//! # Invariants
//! 1. A version that fails at any step changes nothing of what is in force
//!    (`tests/reload`, `refused`).
//! 2. A version that failed, or that the host dropped, is not tried again before its file or
//!    its sidecar changes, or it is released (`tests/reload`).
//! 3. What is believed to be in force is what the host said last (`roster`).
//! 4. While a policy is made ready, everything else goes on (`tests/reload`, `orders`).
//!
//! # Not here
//! A thread, a watch and a clock (`reload`): whoever calls [`PolicyKeeper::tick`] has them.

mod commit;
mod host;
mod orders;
mod take;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use pointsman_core::Micros;
use pointsman_policy::Probation;
use tokio::sync::watch;

use super::attempt::Now;
use super::binding::Conflict;
use super::folder::{Folder, FolderId};
use super::maker::Maker;
use super::order::{self, OrderHandle, Orders};
use super::pass::{History, Pass};
use super::port::PolicyPort;
use super::prepare::Workshop;
use super::report::{FolderReport, FolderState, KeeperReport, Transaction, Trigger};
use super::roster::Roster;
use super::{KeeperSpec, listing, micros, tell};
use crate::embedded::EmbeddedPolicy;
use crate::metrics::Metrics;
use crate::state::{SeenFolder, State};
use take::{Errand, Finished, InHand};

/// Owns what is in the folder, what shall be in force, and the history of how it got there.
pub struct PolicyKeeper<P> {
    // Immutable.
    port: P,
    clock: Now,
    metrics: Arc<Metrics>,
    embedded: Vec<EmbeddedPolicy>,
    path: Option<PathBuf>,
    probation: Probation,
    poll: Micros,
    // Owned state.
    state: State,
    folder: Folder,
    workshop: Workshop,
    maker: Maker,
    /// What is to be made ready, by policy.
    line: BTreeMap<String, Errand>,
    in_hand: Option<InHand>,
    /// What is ready and waits for the rest of the line: what settles together comes into force
    /// together.
    made: Vec<Finished>,
    roster: Roster,
    conflicts: Vec<Conflict>,
    history: History,
    /// When the host was last asked what it has.
    polled_at: Micros,
    // Asked and told.
    orders: OrderHandle,
    inbox: Orders,
    report: watch::Sender<Arc<KeeperReport>>,
}

/// When to call [`PolicyKeeper::tick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At this time at the latest, or when something happened in the folder, or the bell rings.
    At(Micros),
    /// Never again: the host has ended.
    Ended,
}

/// The host has ended.
struct Ended;

impl<P: PolicyPort> PolicyKeeper<P> {
    /// A keeper that has not looked at anything yet.
    ///
    /// # Errors
    /// If there is no thread for it to make policies ready on.
    pub fn new(spec: KeeperSpec, port: P) -> io::Result<Self> {
        let policies = spec.policies;
        let mut state = spec.state;
        let settings = policies.settings.into_iter().collect();
        let workshop = Workshop::new(spec.engine, policies.limits, settings);
        let defaults = spec.embedded.iter().map(|policy| policy.name).collect();
        let maker = Maker::spawn(spec.bell.clone())?;
        let (orders, inbox) = order::orders(spec.bell);
        Ok(Self {
            port,
            clock: spec.clock,
            metrics: spec.metrics,
            embedded: spec.embedded,
            path: policies.folder,
            probation: policies.probation,
            poll: micros(policies.poll),
            workshop: workshop.with_cache(state.cache()),
            state,
            folder: Folder::new(micros(policies.settle)),
            maker,
            line: BTreeMap::new(),
            in_hand: None,
            made: Vec::new(),
            roster: Roster::new(defaults, policies.bind),
            conflicts: Vec::new(),
            history: History::default(),
            polled_at: Micros(0),
            orders,
            inbox,
            report: watch::Sender::default(),
        })
    }

    /// What the keeper shows, from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<KeeperReport>> {
        self.report.subscribe()
    }

    /// The way to give it orders.
    #[must_use]
    pub fn orders(&self) -> OrderHandle {
        self.orders.clone()
    }

    /// Whether a policy is being made ready. The bell rings when it is.
    #[must_use]
    pub fn is_making(&self) -> bool {
        self.in_hand.is_some()
    }

    /// The first pass: the embedded policies, and the folder as it is, settled or not. It waits
    /// for what it has made ready.
    pub fn begin(&mut self) -> Next {
        let mut pass = Pass::new(&self.clock, Trigger::Start);
        let begun = self.first_pass(&mut pass);
        self.end(pass, begun)
    }

    fn first_pass(&mut self, pass: &mut Pass) -> Result<(), Ended> {
        self.polled_at = pass.at;
        self.recall()?;
        let codes: Vec<&[u8]> = self.embedded.iter().map(|policy| policy.wasm).collect();
        self.workshop.compile_ahead(&codes);
        for policy in self.embedded.clone() {
            self.take_embedded(policy, pass);
        }
        self.expect_remembered(pass.at);
        self.look(pass.at);
        let changes = self.folder.all();
        self.take_all(changes, pass);
        if *self.folder.state() != FolderState::Watched {
            self.fall_back_on_all();
        }
        loop {
            self.make_all(pass);
            self.reconcile(pass)?;
            if !self.fall_back() {
                return Ok(());
            }
        }
    }

    /// Hears the host and the operators, looks at the folder, and does what is to be done.
    pub fn tick(&mut self) -> Next {
        let mut pass = Pass::new(&self.clock, Trigger::Folder);
        let done = self.pass(&mut pass);
        self.end(pass, done)
    }

    fn pass(&mut self, pass: &mut Pass) -> Result<(), Ended> {
        self.polled_at = pass.at;
        let lost = self.ask_host(pass)? > 0;
        self.obey_all(pass)?;
        self.look(pass.at);
        let changes = self.folder.due(pass.at);
        self.take_all(changes, pass);
        if let Some(made) = self.maker.poll() {
            self.take_made(made, pass);
        }
        self.make_next(pass);
        if self.in_hand.is_none() || lost {
            self.reconcile(pass)?;
        }
        if self.fall_back() {
            self.make_next(pass);
        }
        Ok(())
    }

    fn look(&mut self, now: Micros) {
        let Some(path) = &self.path else {
            return;
        };
        let before = self.folder.state().clone();
        self.folder.observe(listing::list(path), now);
        if *self.folder.state() != before {
            tell::folder(path, self.folder.state());
        }
        let id = self.folder.id();
        if let Some(FolderId { device, inode }) = id
            && *self.folder.state() == FolderState::Watched
        {
            let path = path.clone();
            let seen = SeenFolder {
                path,
                device,
                inode,
            };
            if self.state.remembered().folder.as_ref() != Some(&seen) {
                self.state.change(|state| state.folder = Some(seen));
            }
        }
    }

    // === What it came to ===

    fn end(&mut self, pass: Pass, made: Result<(), Ended>) -> Next {
        let now = pass.at;
        self.note(pass.end());
        self.roster.forget();
        self.publish();
        if made.is_err() {
            return Next::Ended;
        }
        let polls_at = self.polled_at.after(self.poll);
        let settles_at = self.folder.settles_at();
        Next::At(settles_at.map_or(polls_at, |at| at.min(polls_at)).max(now))
    }

    fn note(&mut self, transactions: Vec<Transaction>) {
        for transaction in &transactions {
            tell::transaction(transaction, self.roster.get(&transaction.policy));
        }
        self.history.extend(transactions);
    }

    fn publish(&self) {
        let remembered = self.state.remembered();
        let report = KeeperReport {
            begun: true,
            policies: self.roster.reports(remembered).collect(),
            refused: self.roster.refusals().collect(),
            conflicts: self.conflicts.clone(),
            folder: FolderReport {
                path: self.path.clone(),
                state: self.folder.state().clone(),
                left_out: self.folder.left_out().to_vec(),
            },
            transactions: self.history.kept().clone(),
            compiled: self.workshop.compiled(),
            cached: self.workshop.cached(),
            quarantine: remembered.quarantine.clone(),
            ordered: remembered.bindings.clone(),
            state: self.state.report().clone(),
        };
        self.report.send_if_modified(|shown| {
            let changed = **shown != report;
            if changed {
                *shown = Arc::new(report);
            }
            changed
        });
    }
}

impl<P> fmt::Debug for PolicyKeeper<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyKeeper")
            .field("folder", &self.folder)
            .field("roster", &self.roster)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}
