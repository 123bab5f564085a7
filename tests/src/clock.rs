//! A clock, for benchmarks only.

use std::time::Duration;

/// Starts a clock, which returns the time since then.
pub fn clock() -> impl Fn() -> Duration {
    #[expect(clippy::disallowed_types, reason = "a benchmark reads the clock")]
    let start = std::time::Instant::now();
    move || start.elapsed()
}

/// A time in milliseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
