//! The clock of a measurement. What it shows decides nothing.

use std::time::Duration;

/// Tells the time since it was made.
pub(super) fn stopwatch() -> impl Fn() -> Duration {
    #[expect(clippy::disallowed_types, reason = "what is measured here is time")]
    let start = std::time::Instant::now();
    move || start.elapsed()
}
