//! The policy keeper: what shall be in force, and how it gets there.
//!
//! Each pass looks at the folder, makes ready what has settled, asks the binding rule who shall
//! hold what, and puts the difference to what the host has in force by one commit. What fails on
//! the way is done without: the version in force stays, or the default steps in, and the rule is
//! asked again.
//!
//! # Invariants
//! 1. A version that fails at any step changes nothing of what is in force
//!    (`tests/reload`, `refused`).
//! 2. A version that failed, or that the host dropped, is not tried again before its file or
//!    its sidecar changes (`tests/reload`).
//! 3. What is believed to be in force is what the host said last (`roster`).
//!
//! # Not here
//! A thread, a watch and a clock (`reload`): whoever calls [`PolicyKeeper::tick`] has them.

mod commit;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use pointsman_core::{Hook, Micros};
use tokio::sync::watch;

use super::binding::Conflict;
use super::folder::{Change, Folder, Pair};
use super::pass::{History, Pass};
use super::port::PolicyPort;
use super::prepare::{Failure, Now, Setback, Workshop};
use super::report::{FolderReport, KeeperReport, Outcome, Refusal, Step};
use super::roster::{Lost, Roster};
use super::{KeeperSpec, listing, micros, tell};
use crate::driver::message::{Commit, CommitError};
use crate::embedded::EmbeddedPolicy;
use crate::metrics::{self, Metrics};

/// Owns what is in the folder, what shall be in force, and the history of how it got there.
pub struct PolicyKeeper<P> {
    // Immutable.
    port: P,
    clock: Now,
    metrics: Arc<Metrics>,
    embedded: Vec<EmbeddedPolicy>,
    path: Option<PathBuf>,
    bound: Vec<(Hook, String)>,
    poll: Micros,
    // Owned state.
    folder: Folder,
    workshop: Workshop,
    roster: Roster,
    conflicts: Vec<Conflict>,
    history: History,
    /// When the host was last asked what it has.
    polled_at: Micros,
    // Told what is.
    report: watch::Sender<Arc<KeeperReport>>,
}

/// When to call [`PolicyKeeper::tick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At this time at the latest, or when something happened in the folder.
    At(Micros),
    /// Never again: the host has ended.
    Ended,
}

/// The host has ended.
struct Ended;

impl<P: PolicyPort> PolicyKeeper<P> {
    /// A keeper that has not looked at anything yet.
    #[must_use]
    pub fn new(spec: KeeperSpec, port: P) -> Self {
        let policies = spec.policies;
        let settings = policies.settings.into_iter().collect();
        let defaults = spec.embedded.iter().map(|policy| policy.name).collect();
        Self {
            port,
            clock: spec.clock,
            metrics: spec.metrics,
            embedded: spec.embedded,
            path: policies.folder,
            bound: policies.bind,
            poll: micros(policies.poll),
            folder: Folder::new(micros(policies.settle)),
            workshop: Workshop::new(spec.engine, policies.limits, settings),
            roster: Roster::new(defaults),
            conflicts: Vec::new(),
            history: History::default(),
            polled_at: Micros(0),
            report: watch::Sender::default(),
        }
    }

    /// What the keeper shows, from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<KeeperReport>> {
        self.report.subscribe()
    }

    /// The first pass: the embedded policies, and the folder as it is, settled or not.
    pub fn begin(&mut self) -> Next {
        let mut pass = Pass::new(&self.clock);
        self.polled_at = pass.at;
        let embedded = std::mem::take(&mut self.embedded);
        let codes: Vec<&[u8]> = embedded.iter().map(|policy| policy.wasm).collect();
        self.workshop.compile_ahead(&codes);
        for policy in embedded {
            self.take_embedded(policy, &mut pass);
        }
        self.look(pass.at);
        let changes = self.folder.all();
        self.take_all(changes, &mut pass);
        let reconciled = self.reconcile(&mut pass);
        self.end(pass, reconciled)
    }

    /// Looks at the folder and, now and then, at the host, and does what is to be done.
    pub fn tick(&mut self) -> Next {
        let mut pass = Pass::new(&self.clock);
        self.look(pass.at);
        let changes = self.folder.due(pass.at);
        let polls = pass.at.since(self.polled_at) >= self.poll;
        let mut reconciled = Ok(());
        if polls {
            self.polled_at = pass.at;
            reconciled = self.ask_host(&mut pass);
        }
        let changed = !changes.is_empty();
        self.take_all(changes, &mut pass);
        if reconciled.is_ok() && (changed || polls) {
            reconciled = self.reconcile(&mut pass);
        }
        self.end(pass, reconciled)
    }

    // === What there is ===

    fn look(&mut self, now: Micros) {
        let Some(path) = &self.path else {
            return;
        };
        let before = self.folder.state().clone();
        self.folder.observe(listing::list(path), now);
        if *self.folder.state() != before {
            tell::folder(path, self.folder.state());
        }
    }

    fn take_embedded(&mut self, policy: EmbeddedPolicy, pass: &mut Pass) {
        let EmbeddedPolicy { name, wasm } = policy;
        match self.workshop.embedded(name, wasm, pass.open(name)) {
            Ok(ready) => {
                self.roster.entry(name).embedded = Some(Arc::clone(&ready.version));
                pass.keep(name, ready);
            }
            Err(failure) => self.refuse(name, failure, pass),
        }
    }

    fn take_all(&mut self, changes: Vec<Change>, pass: &mut Pass) {
        for change in changes {
            match change {
                Change::Offered { name, pair } => self.take_offered(&name, &pair, pass),
                Change::Withdrawn { name } => self.take_withdrawn(&name, pass),
            }
        }
    }

    fn take_offered(&mut self, name: &str, pair: &Pair, pass: &mut Pass) {
        let Some(folder) = &self.path else {
            return;
        };
        let path = folder.join(format!("{name}.wasm"));
        let known = self.roster.entry(name);
        let file = known.file.get_or_insert_default();
        let attempt = pass.open(name);
        match self
            .workshop
            .file((name, path), pair, &mut file.loaded, attempt)
        {
            Ok(ready) => {
                known.refusal = None;
                let in_use = file.version.as_ref();
                if in_use.is_some_and(|version| version.is_same(&ready.version)) {
                    return pass.forgo(name);
                }
                file.version = Some(Arc::clone(&ready.version));
                pass.keep(name, ready);
            }
            Err(Setback::Changed) => {
                self.folder.unsettle(name, pass.at);
                pass.forgo(name);
            }
            Err(Setback::Failed(failure)) => self.refuse(name, failure, pass),
        }
    }

    fn take_withdrawn(&mut self, name: &str, pass: &mut Pass) {
        let known = self.roster.entry(name);
        if let Some(file) = known.file.take() {
            known.refusal = None;
            let version = file.version.as_ref();
            pass.attempt(name).digest = version.map(|version| version.source.digest());
            pass.finish(name, Outcome::Removed, None);
        }
    }

    /// The newest of `name` is of no use.
    fn refuse(&mut self, name: &str, failure: Failure, pass: &mut Pass) {
        let Failure { step, why } = failure;
        let refused = metrics::Transaction::Refused {
            step: step.as_str(),
        };
        self.metrics.policy_transaction(refused);
        self.roster.entry(name).refusal = Some(Refusal {
            step,
            why: why.clone(),
            digest: pass.attempt(name).digest,
            at: pass.at,
        });
        pass.finish(name, Outcome::Refused { step, why }, None);
    }

    // === What the host has ===

    /// Asks the host what it has.
    fn ask_host(&mut self, pass: &mut Pass) -> Result<(), Ended> {
        match self.port.commit(Commit::default()) {
            Ok(committed) => {
                let lost = self.roster.note(&committed.held, |_| true);
                self.lose(lost, pass);
                Ok(())
            }
            // There is nothing in it to be refused.
            Err(CommitError::Bind(_)) => Ok(()),
            Err(CommitError::Closed) => Err(Ended),
        }
    }

    /// The host has dropped these.
    fn lose(&mut self, lost: Vec<Lost>, pass: &mut Pass) {
        for Lost { name, version } in lost {
            let known = self.roster.entry(&name);
            known.do_without(&version);
            let digest = Some(version.source.digest());
            known.refusal = Some(Refusal {
                step: Step::Serve,
                why: "the host dropped it: it faulted too often".to_owned(),
                digest,
                at: pass.at,
            });
            pass.attempt(&name).digest = digest;
            pass.finish(&name, Outcome::Dropped, None);
        }
    }

    // === What it came to ===

    fn end(&mut self, pass: Pass, made: Result<(), Ended>) -> Next {
        let now = pass.at;
        let transactions = pass.end();
        for transaction in &transactions {
            tell::transaction(transaction, self.roster.get(&transaction.policy));
        }
        self.history.extend(transactions);
        self.roster.forget();
        self.publish();
        if made.is_err() {
            return Next::Ended;
        }
        let polls_at = self.polled_at.after(self.poll);
        let settles_at = self.folder.settles_at();
        Next::At(settles_at.map_or(polls_at, |at| at.min(polls_at)).max(now))
    }

    fn publish(&self) {
        let report = KeeperReport {
            begun: true,
            policies: self.roster.reports().collect(),
            refused: self.roster.refusals().collect(),
            conflicts: self.conflicts.clone(),
            folder: FolderReport {
                path: self.path.clone(),
                state: self.folder.state().clone(),
                left_out: self.folder.left_out().to_vec(),
            },
            transactions: self.history.kept().clone(),
            compiled: self.workshop.compiled(),
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
