//! The clock of a measurement. No decision depends on it.

use std::time::Duration;

/// Starts a clock, which returns the time since this call.
pub(super) fn stopwatch() -> impl Fn() -> Duration {
    #[expect(clippy::disallowed_types, reason = "what is measured here is time")]
    let start = std::time::Instant::now();
    move || start.elapsed()
}
