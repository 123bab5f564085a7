//! The reconciler: keeps the policies in force as folder, orders and configuration want them.
//!
//! Each pass hears the host's own changes and the operators' orders, looks at the folder, has
//! settled files made ready, asks the binding rule for the holders, and puts the difference to the
//! host's policies in force by one commit. A version that fails on the way is left out: the version
//! in force stays, or the default steps in, and the rule is asked again.
//!
//! Files that settle in one pass are judged together, whichever is ready first: a commit waits until
//! each of them is ready or refused, and what is ready is no version of use before. One that takes
//! longer than `LATE_AFTER` is *late*: nothing waits for it any longer, and it is judged by itself when
//! it is ready.
//!
//! # Invariants
//! 1. A version that fails at any step changes nothing that is in force
//!    (`refused` in `host/server/tests/reload`).
//! 2. A version that failed is not tried again before its file or its sidecar changes, and one that
//!    the host dropped not before its code, settings or limits do, or it is released
//!    (`host/server/tests/reload`).
//! 3. While a policy is made ready, everything else goes on as long as a thread is free for it: only
//!    files that settled with it wait for it, and a start, and neither longer than `LATE_AFTER`, a start
//!    as long again for last good versions (`orders` in `host/server/tests/reload`).
//! 4. A start without a file that is late has the file's last good version in force, or goes on
//!    without, and gives the file's hooks to no other (`lives` and `orders` in
//!    `host/server/tests/reload`).
//! 5. A version that decides and has proven itself is the one that does after a restart, whichever others
//!    have come and gone since, unless one of them has left admission closed (`good` in
//!    `host/server/tests/reload`).
//!
//! # Not here
//! A thread, a watch and a clock: the caller of [`Reconciler::tick`] has them
//! ([`spawn`](crate::spawn)).

mod commit;
mod host;
mod orders;
mod prepare;
mod publish;

use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use pointsman_component::EmbeddedPolicy;
use pointsman_interface::Micros;
use pointsman_policy::Probation;
use pointsman_state::State;
use tokio::sync::{mpsc, watch};

use super::binding::Conflict;
use super::folder::{Folder, FolderState};
use super::order::{self, OrderHandle, PlacedOrder};
use super::port::{HostEnded, PolicyPort};
use super::preparer::Preparer;
use super::registry::Registry;
use super::report::{ReconcilerReport, TransactionOutcome, Trigger};
use super::transactions::Transactions;
use super::{ReconcilerSpec, listing, micros, tell};

/// The longest that others wait for a file. It is three times what it takes to compile a policy in
/// Python on two busy cores (`policies/README.md`).
pub(crate) const LATE_AFTER: Micros = Micros(60_000_000);

/// The owner of the policy folder, of the policies' entries, and of their history.
pub struct Reconciler<P> {
    // Immutable.
    port: P,
    embedded: Vec<EmbeddedPolicy>,
    path: Option<PathBuf>,
    probation: Probation,
    poll: Micros,
    // Owned state.
    state: State,
    folder: Folder,
    /// Dropped before the preparer, which waits for its jobs then: nobody wants them any more.
    registry: Registry,
    preparer: Preparer,
    conflicts: Vec<Conflict>,
    transactions: Transactions,
    /// The time when the host was last asked for its policies.
    polled_at: Micros,
    // Asked and told.
    orders: OrderHandle,
    inbox: mpsc::Receiver<PlacedOrder>,
    report: watch::Sender<Arc<ReconcilerReport>>,
}

impl<P: PolicyPort> Reconciler<P> {
    /// A reconciler that has not looked at anything yet.
    ///
    /// # Errors
    /// If no thread can be started to make policies ready on.
    pub fn new(spec: ReconcilerSpec, port: P) -> io::Result<Self> {
        let ReconcilerSpec {
            settings,
            bounds,
            embedded,
            engine,
            clock,
            mut state,
            waker,
        } = spec;
        let preparer = Preparer::spawn((&settings, bounds), engine, state.cache(), &waker)?;
        let (orders, inbox) = order::orders(waker);
        let defaults = embedded.iter().map(|policy| policy.name).collect();
        Ok(Self {
            port,
            embedded,
            path: settings.folder,
            probation: settings.probation,
            poll: micros(settings.poll),
            state,
            folder: Folder::new(micros(settings.settle)),
            preparer,
            registry: Registry::new(defaults, settings.bind),
            conflicts: Vec::new(),
            transactions: Transactions::new(clock),
            polled_at: Micros(0),
            orders,
            inbox,
            report: watch::Sender::default(),
        })
    }

    /// The reports from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<ReconcilerReport>> {
        self.report.subscribe()
    }

    /// The handle for orders to this reconciler.
    #[must_use]
    pub fn orders(&self) -> OrderHandle {
        self.orders.clone()
    }

    /// True while a policy is being made ready. The end of that work wakes the waker of the spec.
    #[must_use]
    pub fn is_preparing(&self) -> bool {
        self.preparer.is_busy()
    }

    /// Makes the first pass: the embedded policies, and the folder as it is, settled or not. Waits
    /// for all preparations. Returns the latest time for the first [`Self::tick`].
    ///
    /// # Errors
    /// If the host has ended.
    pub fn begin(&mut self) -> Result<Micros, HostEnded> {
        self.begin_within(Micros(u64::MAX))
    }

    /// Makes the first pass as [`Self::begin`] does, but waits for files no longer than `wait`, and
    /// as long again for the last good versions of those that are late then. What is still being made
    /// ready is no version of use, until it is ready.
    ///
    /// # Errors
    /// If the host has ended.
    pub fn begin_within(&mut self, wait: Micros) -> Result<Micros, HostEnded> {
        self.transactions.begin_pass(Trigger::Start);
        let begun = self.first_pass(wait);
        self.end_pass(begun)
    }

    fn first_pass(&mut self, wait: Micros) -> Result<(), HostEnded> {
        self.polled_at = self.transactions.at;
        self.recall()?;
        self.preparer.load_all(&self.embedded);
        for policy in self.embedded.clone() {
            self.take_embedded(policy);
        }
        self.expect_remembered();
        self.look();
        let changes = self.folder.all();
        self.take_all(changes);
        if *self.folder.state() != FolderState::Watched {
            self.fall_back_on_all();
        }
        self.prepare_until(self.transactions.now().after(wait));
        let end = self.transactions.now().after(wait);
        loop {
            // Before anybody else is given the hooks of a file that is of no use.
            while self.fall_back() {
                self.prepare_until(end);
            }
            self.reconcile()?;
            if !self.fall_back() {
                self.drop_started();
                return Ok(());
            }
            self.prepare_until(end);
        }
    }

    /// Makes a pass: hears the host and the operators, looks at the folder, and acts on the news.
    /// Returns the latest time for the next pass; make it earlier when the waker is woken.
    ///
    /// # Errors
    /// If the host has ended.
    pub fn tick(&mut self) -> Result<Micros, HostEnded> {
        self.transactions.begin_pass(Trigger::Folder);
        let done = self.pass();
        self.end_pass(done)
    }

    fn pass(&mut self) -> Result<(), HostEnded> {
        self.polled_at = self.transactions.at;
        self.ask_host()?;
        self.obey_all()?;
        self.look();
        let changes = self.folder.due(self.transactions.at);
        self.take_all(changes);
        while let Some(finished) = self.preparer.poll() {
            self.take_finished(finished);
        }
        self.prepare_next();
        let now = self.transactions.at;
        self.leave_behind(|settled_at| settled_at.after(LATE_AFTER) <= now);
        self.reconcile()?;
        self.drop_started();
        if self.fall_back() {
            self.prepare_next();
        }
        Ok(())
    }

    fn look(&mut self) {
        let Some(path) = &self.path else {
            return;
        };
        let before = self.folder.state().clone();
        self.folder
            .observe(listing::list(path), self.transactions.at);
        if *self.folder.state() != before {
            tell::folder(path, self.folder.state());
        }
        if let Some(id) = self.folder.id()
            && *self.folder.state() == FolderState::Watched
            && self.state.remembered().folder.as_ref() != Some(id)
        {
            self.state.change(|state| {
                let is_other = state.folder.as_ref().is_some_and(|seen| {
                    seen.path != id.path && (seen.device, seen.inode) != (id.device, id.inode)
                });
                if is_other {
                    // They were ordered for other files.
                    state.modes.clear();
                }
                state.folder = Some(id.clone());
            });
        }
    }

    // === The end of a pass ===

    /// Ends every attempt under way: the policies could be put in force and hold no hook.
    fn end_idle(&mut self) {
        let idle = self.transactions.open();
        if idle.is_empty() {
            return;
        }
        let bindings = self.registry.bindings(self.state.remembered());
        for name in idle {
            let why = bindings.idle_because(&name);
            let idle = TransactionOutcome::Idle { why };
            self.transactions.end(&name, idle, None);
        }
    }

    fn end_pass(&mut self, passed: Result<(), HostEnded>) -> Result<Micros, HostEnded> {
        self.end_idle();
        self.tell();
        self.registry.forget();
        self.publish();
        passed?;
        let now = self.transactions.at;
        let polls_at = self.polled_at.after(self.poll);
        let judges_at = self.registry.ready_since();
        let judges_at = judges_at.map(|at| at.after(LATE_AFTER));
        let others = [self.folder.settles_at(), judges_at];
        let due = others.into_iter().flatten().fold(polls_at, Micros::min);
        Ok(due.max(now))
    }
}

impl<P> fmt::Debug for Reconciler<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler")
            .field("folder", &self.folder)
            .field("registry", &self.registry)
            .field("transactions", &self.transactions)
            .finish_non_exhaustive()
    }
}
