//! The wasmtime engine that all policies share, and its epoch ticker.
//!
//! # Determinism
//! All features with which two runs of one component could differ are off or canonical: threads,
//! relaxed SIMD, NaN bits. Fuel is on, so that a limit ends a call at the same instruction each
//! time. Epochs are the backstop for work that fuel does not price; see `store`.
//!
//! # Invariants
//! 1. The ticker ticks while a call runs (`the_ticker_sleeps_while_nothing_runs_and_ticks_while_a_call_does`).
//! 2. The ticker lives as long as any component or instance made with its engine, and ends when the
//!    last handle to the engine is dropped (`ticker_ends_with_its_engine`).

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvError, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::compiler::Compiler;

/// Time between two steps of the epoch.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// Ticks without a call after which the ticker sleeps, so that an idle host costs nothing: a second.
const IDLE_TICKS: u32 = 200;

/// Size of a guest's stack. The calling thread's own stack must be at least four times as large.
const WASM_STACK_BYTES: usize = 512 << 10;

/// Number of frames that are kept of a trap's backtrace.
const BACKTRACE_FRAMES: NonZeroUsize = NonZeroUsize::new(20).expect("20 is not zero");

/// The release of wasmtime that runs policies. Another release may count fuel differently.
pub const WASMTIME_VERSION: &str = "48.0.8";

/// Compiles and runs policies. Cheap to clone; one per process is enough.
#[derive(Clone, Debug)]
pub struct PolicyEngine {
    inner: Arc<Inner>,
    /// Signs that end the compilations of this handle, once one of them is true.
    over: Vec<Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Inner {
    engine: wasmtime::Engine,
    compiler: Compiler,
    clock: Arc<EpochClock>,
    /// Wakes the ticker. Dropped with the engine's last handle, which ends it.
    ticking: mpsc::Sender<()>,
}

/// The state that the ticker and those who call guests share.
#[derive(Debug, Default)]
struct EpochClock {
    ticks: AtomicU64,
    /// Calls that run.
    running: AtomicU32,
    /// True once a call has begun since the last tick.
    has_begun: AtomicBool,
    is_asleep: AtomicBool,
}

/// A call that runs, during which the epoch is counted up.
#[derive(Debug)]
pub(crate) struct RunningCall<'e>(&'e EpochClock);

/// A reason why there is no engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// This machine cannot run compiled guests as configured.
    #[error("no engine for this machine: {0}")]
    Unsupported(String),
    /// The operating system gave no thread for the ticker.
    #[error("no thread for the epoch ticker")]
    Ticker(#[source] std::io::Error),
}

impl PolicyEngine {
    /// Makes an engine that compiles in this process, and starts its ticker, a thread of its own.
    ///
    /// # Errors
    /// As [`Self::with_compiler`].
    pub fn new() -> Result<Self, EngineError> {
        Self::with_compiler(Compiler::default())
    }

    /// Makes an engine whose components `compiler` compiles, and starts its ticker, a thread of its
    /// own.
    ///
    /// # Errors
    /// If the machine is not supported, or no thread can be started.
    pub fn with_compiler(compiler: Compiler) -> Result<Self, EngineError> {
        let engine = wasmtime::Engine::new(&config())
            .map_err(|error| EngineError::Unsupported(format!("{error:#}")))?;
        let clock = Arc::default();
        let ticking =
            start_ticker(engine.clone(), Arc::clone(&clock)).map_err(EngineError::Ticker)?;
        Ok(Self {
            inner: Arc::new(Inner {
                engine,
                compiler,
                clock,
                ticking,
            }),
            over: Vec::new(),
        })
    }

    /// A handle to the same engine that ends its compilations, those in a process of their own, once
    /// `over` is true: what they make is not wanted any more.
    #[must_use]
    pub fn until(&self, over: Arc<AtomicBool>) -> Self {
        let mut until = self.clone();
        until.over.push(over);
        until
    }

    /// True once what this handle compiles is not wanted any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.iter().any(|over| over.load(Ordering::Relaxed))
    }

    /// Number of ticks so far: a clock that is cheap to read, and stands still while no call runs.
    pub(crate) fn ticks(&self) -> u64 {
        self.inner.clock.ticks.load(Ordering::Relaxed)
    }

    /// Notes that a call begins, and has the epoch counted up until it has ended.
    pub(crate) fn begin_call(&self) -> RunningCall<'_> {
        let Inner { clock, ticking, .. } = &*self.inner;
        // The ticker says that it sleeps before it looks for calls, and a call counts before it looks
        // for the ticker: one of them sees the other.
        clock.running.fetch_add(1, Ordering::SeqCst);
        clock.has_begun.store(true, Ordering::Relaxed);
        if clock.is_asleep.load(Ordering::SeqCst) && clock.is_asleep.swap(false, Ordering::SeqCst) {
            let told = ticking.send(());
            debug_assert!(told.is_ok(), "the ticker lives as long as its engine");
        }
        RunningCall(clock)
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.inner.compiler
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.inner.engine
    }
}

/// The configuration of every engine: code that one has made runs on any other.
pub(crate) fn config() -> wasmtime::Config {
    let mut config = wasmtime::Config::new();
    config
        .consume_fuel(true)
        .epoch_interruption(true)
        .cranelift_nan_canonicalization(true)
        .concurrency_support(false)
        .wasm_relaxed_simd(false)
        .wasm_shared_everything_threads(false)
        .wasm_memory64(false)
        .wasm_gc(false)
        .wasm_backtrace_max_frames(Some(BACKTRACE_FRAMES))
        // Registering it is quadratic over frequent reloads; backtraces do not need it.
        .native_unwind_info(false)
        .max_wasm_stack(WASM_STACK_BYTES)
        .allocation_strategy(wasmtime::InstanceAllocationStrategy::OnDemand);
    config
}

/// Counts the epoch up every [`TICK`] until the returned sender is dropped, and sleeps where no call
/// has begun for [`IDLE_TICKS`], until the sender wakes it. A late thread skips the ticks it missed, so
/// that a stall of the machine is not taken for a stall of a guest.
fn start_ticker(
    engine: wasmtime::Engine,
    clock: Arc<EpochClock>,
) -> std::io::Result<mpsc::Sender<()>> {
    let (ticking, woken) = mpsc::channel::<()>();
    thread::Builder::new()
        .name("policy-epochs".into())
        .spawn(move || {
            let mut idle_ticks = 0;
            loop {
                match woken.recv_timeout(TICK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    // A word that came when the ticker had woken by itself.
                    Ok(()) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                engine.increment_epoch();
                clock.ticks.fetch_add(1, Ordering::Relaxed);
                idle_ticks = if clock.is_in_use() { 0 } else { idle_ticks + 1 };
                if idle_ticks >= IDLE_TICKS && clock.sleep(&woken).is_err() {
                    return;
                }
            }
        })?;
    Ok(ticking)
}

// === impl EpochClock ===

impl EpochClock {
    /// True if a call runs, or has begun since the last tick.
    fn is_in_use(&self) -> bool {
        self.has_begun.swap(false, Ordering::Relaxed) || self.running.load(Ordering::Relaxed) > 0
    }

    /// Sleeps until a call wakes the ticker, unless one has just begun.
    ///
    /// # Errors
    /// If the engine is gone.
    fn sleep(&self, woken: &mpsc::Receiver<()>) -> Result<(), RecvError> {
        self.is_asleep.store(true, Ordering::SeqCst);
        if self.running.load(Ordering::SeqCst) == 0 {
            woken.recv()?;
        }
        self.is_asleep.store(false, Ordering::SeqCst);
        Ok(())
    }
}

// === impl RunningCall ===

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Journals name the release of wasmtime, so the constant must be the release that is built in.
    #[test]
    fn the_release_of_wasmtime_is_the_one_in_the_lock_file() {
        let lock = include_str!("../../../Cargo.lock");
        let entry = format!("name = \"wasmtime\"\nversion = \"{WASMTIME_VERSION}\"");
        assert!(lock.contains(&entry), "{entry}");
    }

    #[test]
    fn ticker_ends_with_its_engine() {
        let engine = PolicyEngine::new().unwrap();
        let weak = engine.wasmtime().weak();
        let other = engine.clone();
        drop(engine);
        assert!(weak.upgrade().is_some());
        drop(other);
        // The ticker drops its own handle when it ends.
        while weak.upgrade().is_some() {
            thread::yield_now();
        }
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the ticker goes by the machine's clock"
    )]
    fn the_ticker_sleeps_while_nothing_runs_and_ticks_while_a_call_does() {
        let engine = PolicyEngine::new().unwrap();
        let clock = &engine.inner.clock;
        for _ in 0..2 {
            while !clock.is_asleep.load(Ordering::SeqCst) {
                thread::sleep(TICK);
            }
            let asleep = engine.ticks();
            assert!(asleep >= IDLE_TICKS.into());
            thread::sleep(TICK * 4);
            assert_eq!(engine.ticks(), asleep);
            // Longer than it takes to fall asleep.
            let call = engine.begin_call();
            while engine.ticks() < asleep + u64::from(IDLE_TICKS) + 10 {
                thread::sleep(TICK);
            }
            drop(call);
        }
        // One that sleeps ends, too.
        while !clock.is_asleep.load(Ordering::SeqCst) {
            thread::sleep(TICK);
        }
        let weak = engine.wasmtime().weak();
        drop(engine);
        while weak.upgrade().is_some() {
            thread::yield_now();
        }
    }
}
