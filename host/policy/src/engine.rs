//! The wasmtime engine that all policies share, and its epoch ticker.
//!
//! # Determinism
//! All features with which two runs of one component could differ are off or canonical: threads,
//! relaxed SIMD, NaN bits. Fuel is on, so that a limit ends a call at the same instruction each
//! time. Epochs are the backstop for work that fuel does not price; see `store`.
//!
//! # Invariants
//! 1. The ticker lives as long as any component or instance made with its engine, and ends when the
//!    last handle to the engine is dropped (`ticker_ends_with_its_engine`).

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::compiler::Compiler;

/// Time between two steps of the epoch.
pub(crate) const TICK: Duration = Duration::from_millis(5);

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
}

#[derive(Debug)]
struct Inner {
    engine: wasmtime::Engine,
    compiler: Compiler,
    ticks: Arc<AtomicU64>,
    /// Dropped with the engine's last handle, which ends the ticker.
    _ticking: mpsc::Sender<()>,
}

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
        let ticks = Arc::default();
        let ticking =
            start_ticker(engine.clone(), Arc::clone(&ticks)).map_err(EngineError::Ticker)?;
        Ok(Self {
            inner: Arc::new(Inner {
                engine,
                compiler,
                ticks,
                _ticking: ticking,
            }),
        })
    }

    /// Number of ticks so far: a clock that is cheap to read.
    pub(crate) fn ticks(&self) -> u64 {
        self.inner.ticks.load(Ordering::Relaxed)
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

/// Counts the epoch up every [`TICK`] until the returned sender is dropped. A late thread skips the
/// ticks it missed, so that a stall of the machine is not taken for a stall of a guest.
fn start_ticker(
    engine: wasmtime::Engine,
    ticks: Arc<AtomicU64>,
) -> std::io::Result<mpsc::Sender<()>> {
    let (ticking, ended) = mpsc::channel::<()>();
    thread::Builder::new()
        .name("policy-epochs".into())
        .spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
                engine.increment_epoch();
                ticks.fetch_add(1, Ordering::Relaxed);
            }
        })?;
    Ok(ticking)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
