//! The policy folder: which policies there are, which shall decide what, and how they come into
//! force without anybody waiting for it.
//!
//! A thread of its own, the keeper, watches the folder, makes policies ready and hands them to the
//! driver in one commit. From outside to inside: `watch` nudges, `listing` looks, `folder` says
//! what has settled, `prepare` makes it ready, `binding` says who shall hold what, `roster` says
//! what is missing for that, [`keeper`] brings it about, [`report`] shows it.
//!
//! # Invariants
//! 1. A file that is no policy, or a bad one, changes nothing but the report
//!    (`tests/reload`, `refused`).
//! 2. Nothing that comes from the folder runs on the driver's thread before it has been started,
//!    configured and told what there is on this one ([`keeper`]).
//!
//! # Not here
//! Swapping itself (`driver`), and what happens to a policy that faults (`pointsman-policy`).

mod attempt;
mod binding;
pub mod eject;
mod folder;
pub mod keeper;
mod listing;
mod maker;
pub mod order;
mod pass;
pub mod port;
mod prepare;
pub mod report;
mod roster;
pub(crate) mod sidecar;
mod tell;
mod watch;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pointsman_core::Micros;
use pointsman_policy::PolicyEngine;
use tokio::sync::watch::Receiver as Watched;

use crate::bell::Bell;
use crate::config::PoliciesConfig;
use crate::embedded::EmbeddedPolicy;
use crate::metrics::Metrics;
use crate::state::State;
use attempt::Now;
use keeper::{Next, PolicyKeeper};
use order::OrderHandle;
use port::PolicyPort;
use report::KeeperReport;
use watch::FolderWatch;

/// What a keeper needs.
pub struct KeeperSpec {
    /// What the operator wants.
    pub policies: PoliciesConfig,
    /// The defaults. Of two that export a hook the first has it.
    pub embedded: Vec<EmbeddedPolicy>,
    /// Compiles and runs policies.
    pub engine: PolicyEngine,
    /// Counts transactions.
    pub metrics: Arc<Metrics>,
    /// Reads the host's clock.
    pub clock: Arc<dyn Fn() -> Micros + Send + Sync>,
    /// What an earlier life of the server knew.
    pub state: State,
    /// Rings where the keeper listens.
    pub bell: Bell,
}

/// Hears a [`Bell`].
#[derive(Debug)]
pub struct Ear(Receiver<()>);

/// A bell, and who hears it. Rings that nobody has heard yet are one.
#[must_use]
pub fn ear() -> (Bell, Ear) {
    let (ring, rung) = sync_channel(1);
    // Full: one that waits already is as good as two.
    let bell = Bell::new(move || ring.try_send(()).unwrap_or_default());
    (bell, Ear(rung))
}

/// A keeper at work. Dropped, it ends after what it is doing.
#[derive(Debug)]
pub struct Keeper {
    /// What it shows.
    pub report: Watched<Arc<KeeperReport>>,
    /// The way to give it orders.
    pub orders: OrderHandle,
    stop: Stop,
    thread: JoinHandle<()>,
}

/// Ends the keeper when it is dropped.
#[derive(Debug)]
struct Stop {
    /// A flag besides the bell, which says nothing.
    stopping: Arc<AtomicBool>,
    bell: Bell,
}

/// Rings within this time are one: a file that is being written gives hundreds.
const RINGS_GATHERED: Micros = Micros(10_000);

/// Compilers and guests are called on the keeper's thread.
const STACK_BYTES: usize = 8 << 20;

/// Starts a keeper, which reaches the policies in force through `port` and hears the bell of its
/// `spec` with `ear`.
///
/// # Errors
/// If there are no threads for it.
pub fn spawn<P: PolicyPort + Send + 'static>(
    spec: KeeperSpec,
    ear: Ear,
    port: P,
) -> io::Result<Keeper> {
    let folder = spec.policies.folder.clone();
    let bell = spec.bell.clone();
    let watch = folder.map(|folder| FolderWatch::new(folder, bell.clone()));
    let clock = Arc::clone(&spec.clock);
    let keeper = PolicyKeeper::new(spec, port)?;
    let (report, orders) = (keeper.subscribe(), keeper.orders());
    let stopping = Arc::new(AtomicBool::new(false));
    let at_work = AtWork {
        keeper,
        watch,
        clock,
        ear,
        stopping: Arc::clone(&stopping),
    };
    let thread = thread::Builder::new()
        .name("policy-keeper".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || at_work.run())?;
    Ok(Keeper {
        report,
        orders,
        stop: Stop { stopping, bell },
        thread,
    })
}

/// What runs on the keeper's thread.
struct AtWork<P> {
    keeper: PolicyKeeper<P>,
    watch: Option<FolderWatch>,
    clock: Now,
    ear: Ear,
    stopping: Arc<AtomicBool>,
}

impl<P: PolicyPort> AtWork<P> {
    fn run(mut self) {
        self.arm();
        let mut next = self.keeper.begin();
        while let Next::At(due) = next {
            self.wait_until(due);
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            self.arm();
            next = self.keeper.tick();
        }
    }

    fn arm(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.arm();
        }
    }

    /// Waits for the bell, at most until `due`.
    fn wait_until(&self, due: Micros) {
        if self.rings_before(due) {
            let gathered = (self.clock)().after(RINGS_GATHERED);
            while !self.stopping.load(Ordering::Acquire) && self.rings_before(gathered) {}
        }
    }

    /// Whether the bell rings before `end`.
    fn rings_before(&self, end: Micros) -> bool {
        let left = end.since((self.clock)());
        match self.ear.0.recv_timeout(Duration::from_micros(left.0)) {
            Ok(()) => true,
            // Without a sender there is nobody left to keep policies for: `stopping` is set.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }
}

// === impl Keeper ===

impl Keeper {
    /// Waits until the first pass is over: the embedded policies, and what is in the folder at the
    /// start, are in force or refused. False: the keeper has ended before.
    pub async fn ready(&mut self) -> bool {
        self.report.wait_for(|report| report.begun).await.is_ok()
    }

    /// Ends it after what it is doing, and waits for that; not for a thread of a runtime.
    ///
    /// # Errors
    /// If the keeper has panicked.
    pub fn join(self) -> thread::Result<()> {
        drop(self.stop);
        self.thread.join()
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl fmt::Debug for KeeperSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeeperSpec")
            .field("policies", &self.policies)
            .field("embedded", &self.embedded)
            .finish_non_exhaustive()
    }
}

/// A duration on the host's clock.
fn micros(duration: Duration) -> Micros {
    Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
