//! A clock: the one thing a benchmark needs that the rest of the code must not have.

use std::time::Duration;

/// Tells the time since it was made.
pub fn clock() -> impl Fn() -> Duration {
    #[expect(clippy::disallowed_types, reason = "a benchmark reads the clock")]
    let start = std::time::Instant::now();
    move || start.elapsed()
}
