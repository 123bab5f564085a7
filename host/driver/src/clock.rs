//! The one place that reads clocks.
//!
//! Everything else is given the time, as [`Micros`] since the host's start.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a runtime has to read a clock somewhere: here"
)]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pointsman_core::Micros;

/// The host's monotonic clock. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that begins at zero now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Time since the clock's start.
    #[must_use]
    pub fn now(&self) -> Micros {
        let micros = self.start.elapsed().as_micros();
        Micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl SystemClock {
    /// The time of the clock's start, in µs since 1970, as the system has it now. For texts that programs
    /// read; never for decisions.
    #[must_use]
    pub fn start_since_1970(&self) -> Micros {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = since.map_or(0, |since| since.as_micros());
        let now = Micros(u64::try_from(micros).unwrap_or(u64::MAX));
        now.since(self.now())
    }
}

/// Seconds since 1970, for texts that clients and operators read. Never for decisions.
#[must_use]
pub fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Milliseconds since 1970, by which runs are told apart. Never for decisions.
#[must_use]
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
