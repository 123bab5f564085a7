//! Processor time against fuel: a guest that takes far more time than its fuel is worth is found out.
//!
//! Fuel prices instructions alike, and a square root, or a load that no cache holds, takes the time of
//! dozens. Reading a thread's processor time is too slow for every call. So a call is first judged by the ticks of
//! the engine, and only a guest whose last call looked slow has its processor time taken.

use std::time::Duration;

use crate::engine::{PolicyEngine, TICK};
use crate::store::thread_time;

/// Time that a call may take beyond what its fuel is worth.
const GRACE: Duration = TICK.saturating_mul(2);

/// The judgement of one instance's calls.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// True if the last call looked slow.
    is_suspect: bool,
}

/// The beginning of a call.
pub(super) struct Begun {
    ticks: u64,
    /// Processor time of the thread; `None`: the guest is not suspect.
    processor: Option<Duration>,
}

impl Pace {
    pub(super) fn begin(&self, engine: &PolicyEngine) -> Begun {
        Begun {
            ticks: engine.ticks(),
            processor: self.is_suspect.then(thread_time),
        }
    }

    /// Ends a call whose fuel is worth `allowed`. Returns the call's processor time if that is more
    /// than a suspect may take.
    pub(super) fn end(
        &mut self,
        begun: &Begun,
        engine: &PolicyEngine,
        allowed: Duration,
    ) -> Option<Duration> {
        let allowed = allowed.saturating_add(GRACE);
        let ticks = engine.ticks().saturating_sub(begun.ticks);
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
        // The first tick may have come at once.
        self.is_suspect = TICK.saturating_mul(ticks.saturating_sub(1)) > allowed;
        if !self.is_suspect {
            return None;
        }
        let taken = thread_time().saturating_sub(begun.processor?);
        (taken > allowed).then_some(taken)
    }
}
