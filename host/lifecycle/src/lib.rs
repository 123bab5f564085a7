//! The lifecycle of policies: the version of each policy that is in force, changed while the host
//! runs and without anybody waiting for it.
//!
//! A thread of its own, the reconciler's, watches the policy folder, makes policies ready and hands
//! them to the host in one commit. From outside to inside: `watch` nudges, `listing` looks,
//! `folder` finds settled files, `preparer` makes policies of them ready, `binding` chooses the
//! holders, `registry` finds the changes still missing, [`reconciler`] makes them, [`report`] shows
//! them.
//!
//! [`spawn`] starts the thread by a [`ReconcilerSpec`], and returns a [`ReconcilerHandle`] with the
//! way to give orders ([`OrderHandle`]). The reconciler reaches the host through a [`PolicyPort`],
//! and remembers orders and good versions in a [`State`] (`pointsman-state`).
//!
//! # Invariants
//! 1. A file that is no policy, or a bad one, changes nothing but the report
//!    (`refused` in `host/server/tests/reload`).
//! 2. No policy from the folder runs on the driver's thread before it has been started, configured
//!    and told the machine's rows on the reconciler's ([`reconciler`]).
//! 3. A file that takes long to be made ready holds up no other change while a thread is free, and the
//!    host's start for a minute at most, or two where last good versions have to be compiled (`orders`
//!    in `host/server/tests/reload`).
//! 4. A reconciler that is to end waits for no compiler (`shown` in `host/server/tests/reload`).
//!
//! # Not here
//! The swap itself, and the treatment of faults (`pointsman-policy`); the host's side of the port
//! (`pointsman-driver`); the interface for orders (`pointsman-admin`, `pointsman-policy-cli`).

#![forbid(unsafe_code)]

mod background;
mod binding;
mod folder;
mod listing;
pub mod order;
pub mod port;
mod preparer;
pub mod reconciler;
mod registry;
pub mod report;
pub mod settings;
mod tell;
mod transactions;
mod watch;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pointsman_component::{EmbeddedPolicy, PolicyEngine};
use pointsman_interface::{Bounds, Micros};
use pointsman_state::State;
use tokio::sync::watch::Receiver as Watched;

use order::OrderHandle;
use port::{HostEnded, PolicyPort};
use reconciler::{LATE_AFTER, Reconciler};
use report::ReconcilerReport;
use settings::LifecycleSettings;
pub use transactions::HostClock;
use watch::FolderWatch;

/// The parts of a reconciler, except its port.
pub struct ReconcilerSpec {
    pub settings: LifecycleSettings,
    /// The bounds of the machine, which every policy is told.
    pub bounds: Bounds,
    /// The default policies. Of two that export a hook the first has the hook.
    pub embedded: Vec<EmbeddedPolicy>,
    /// The engine that compiles and runs policies.
    pub engine: PolicyEngine,
    pub clock: HostClock,
    /// The memory of earlier lives of the server.
    pub state: State,
    /// The waker of the reconciler, as [`waker`] makes one.
    pub waker: Waker,
}

/// A handle to a running reconciler. Once the handle is dropped, the reconciler ends after the work
/// in progress, but for compilations: they end at once.
#[derive(Debug)]
pub struct ReconcilerHandle {
    pub report: Watched<Arc<ReconcilerReport>>,
    /// The way to give orders.
    pub orders: OrderHandle,
    /// True once the reconciler is to end, and its compilers are. The waker alone carries no message.
    stopping: Arc<AtomicBool>,
    waker: Waker,
    /// The reconciler's thread; absent once it is joined.
    thread: Option<JoinHandle<()>>,
}

/// Wakes a thread that reads from a channel.
struct ChannelWaker(SyncSender<()>);

/// Time within which wakes count as one: a file that is being written gives hundreds.
const WAKES_GATHERED: Micros = Micros(10_000);

/// A waker, and the receiver of its wakes. Wakes that were not received yet count as one.
#[must_use]
pub fn waker() -> (Waker, Receiver<()>) {
    let (wakes, woken) = sync_channel(1);
    (Arc::new(ChannelWaker(wakes)).into(), woken)
}

/// Starts a reconciler, which reaches the policies in force through `port`. The wakes of the waker
/// in `spec` arrive at `woken`.
///
/// # Errors
/// If no thread can be started.
pub fn spawn<P: PolicyPort + Send + 'static>(
    mut spec: ReconcilerSpec,
    woken: Receiver<()>,
    port: P,
) -> io::Result<ReconcilerHandle> {
    let folder = spec.settings.folder.clone();
    let waker = spec.waker.clone();
    let watch = folder.map(|folder| FolderWatch::new(folder, waker.clone()));
    let clock = Arc::clone(&spec.clock);
    let stopping = Arc::new(AtomicBool::new(false));
    spec.engine = spec.engine.until(Arc::clone(&stopping));
    let reconciler = Reconciler::new(spec, port)?;
    let (report, orders) = (reconciler.subscribe(), reconciler.orders());
    let at_work = AtWork {
        reconciler,
        watch,
        clock,
        woken,
        stopping: Arc::clone(&stopping),
    };
    let thread = thread::Builder::new()
        .name("reconciler".to_owned())
        .stack_size(background::STACK_BYTES)
        // The host has ended, or the handle was dropped: both are the end.
        .spawn(move || at_work.run().unwrap_or_default())?;
    Ok(ReconcilerHandle {
        report,
        orders,
        stopping,
        waker,
        thread: Some(thread),
    })
}

/// The loop on the reconciler's thread.
struct AtWork<P> {
    reconciler: Reconciler<P>,
    watch: Option<FolderWatch>,
    clock: HostClock,
    woken: Receiver<()>,
    stopping: Arc<AtomicBool>,
}

impl<P: PolicyPort> AtWork<P> {
    fn run(mut self) -> Result<(), HostEnded> {
        self.arm();
        let mut due = self.reconciler.begin_within(LATE_AFTER)?;
        loop {
            self.wait_until(due);
            if self.stopping.load(Ordering::Acquire) {
                return Ok(());
            }
            self.arm();
            due = self.reconciler.tick()?;
        }
    }

    fn arm(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.arm();
        }
    }

    /// Waits to be woken, at most until `due`.
    fn wait_until(&self, due: Micros) {
        if self.is_woken_before(due) {
            let gathered = (self.clock)().after(WAKES_GATHERED);
            while !self.stopping.load(Ordering::Acquire) && self.is_woken_before(gathered) {}
        }
    }

    /// Waits until `end` at most. Returns true if the thread was woken before.
    fn is_woken_before(&self, end: Micros) -> bool {
        let left = end.since((self.clock)());
        // Without a waker there is nobody left to reconcile for: `stopping` is set.
        let woken = self.woken.recv_timeout(Duration::from_micros(left.0));
        woken.is_ok()
    }
}

// === impl ReconcilerHandle ===

impl ReconcilerHandle {
    /// Waits until the first pass is over: the embedded policies, and the files that are in the
    /// folder at the start, are in force or refused, or take so long that they come later. False: the
    /// reconciler has ended before.
    pub async fn ready(&mut self) -> bool {
        self.report.wait_for(|report| report.begun).await.is_ok()
    }

    /// Ends the reconciler after the work in progress, but for compilations, which end at once, and
    /// waits for that. Not to be called on a thread of a runtime.
    ///
    /// # Errors
    /// If the reconciler has panicked.
    pub fn join(mut self) -> thread::Result<()> {
        let thread = self.thread.take();
        drop(self);
        thread.map_or(Ok(()), JoinHandle::join)
    }
}

impl Drop for ReconcilerHandle {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}

impl Wake for ChannelWaker {
    fn wake(self: Arc<Self>) {
        // Full: one that waits already is as good as two.
        self.0.try_send(()).unwrap_or_default();
    }
}

impl fmt::Debug for ReconcilerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconcilerSpec")
            .field("settings", &self.settings)
            .field("embedded", &self.embedded)
            .finish_non_exhaustive()
    }
}

/// A duration on the host's clock.
fn micros(duration: Duration) -> Micros {
    Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
