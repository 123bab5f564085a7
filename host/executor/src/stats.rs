//! The counters of an engine, for metrics and benchmarks.
//!
//! The engine's thread alone writes them; anybody may read them, without a lock. A reader may see
//! one counter of a step and not yet another.

use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_events::Progress;

/// Counters over all lives of an engine.
#[derive(Debug, Default)]
pub struct EngineStats {
    /// Steps of the engine so far.
    pub steps: Counter,
    /// Prompt tokens computed; a prompt that is preempted counts again.
    pub prefill_tokens: Counter,
    /// Tokens generated for all sequences.
    pub generated_tokens: Counter,
    /// Times a sequence sat out a step for lack of a block.
    pub sat_out: Counter,
    /// Lives that ended with a failure of the device.
    pub losses: Counter,
    /// Nanoseconds spent on steps.
    pub busy_nanos: Counter,
    /// Nanoseconds in which there were sequences of which none could go on before a command of the driver.
    pub waiting_nanos: Counter,
    /// Nanoseconds spent handing events to the driver, which includes waiting for room for them.
    pub reporting_nanos: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns the count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the count.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Does `work` and counts the nanoseconds it takes.
    #[expect(
        clippy::disallowed_types,
        reason = "nothing is decided by this time: it is only reported"
    )]
    pub fn time<R>(&self, work: impl FnOnce() -> R) -> R {
        let started = std::time::Instant::now();
        let result = work();
        let nanos = started.elapsed().as_nanos();
        self.add(u64::try_from(nanos).unwrap_or(u64::MAX));
        result
    }
}

impl EngineStats {
    /// Counts a step and its tokens.
    pub fn count_step(&self, progress: &[Progress]) {
        self.steps.add(1);
        for made in progress {
            self.prefill_tokens.add(u64::from(made.prefilled));
            self.generated_tokens.add(u64::from(made.generated));
        }
    }
}
