//! A clock, for benchmarks only.

use std::time::Duration;

/// Starts a clock, which returns the time since then.
pub fn clock() -> impl Fn() -> Duration {
    #[expect(clippy::disallowed_types, reason = "a benchmark reads the clock")]
    let start = std::time::Instant::now();
    move || start.elapsed()
}

/// The time that reading a clock takes, which is in what is measured between two of its readings.
#[derive(Clone, Copy, Debug)]
pub struct ReadingTime {
    /// That of [`Self::READINGS`] readings: one is too short to be counted in whole nanoseconds.
    all: Duration,
}

impl ReadingTime {
    const READINGS: u32 = 1000;
    const TRIES: usize = 21;

    /// Measures it: the median of some tries.
    pub fn of(clock: impl Fn() -> Duration) -> Self {
        let mut tries = [Duration::ZERO; Self::TRIES];
        for time in &mut tries {
            let start = clock();
            for _ in 0..Self::READINGS {
                std::hint::black_box(clock());
            }
            *time = clock() - start;
        }
        tries.sort_unstable();
        Self {
            all: tries[Self::TRIES / 2],
        }
    }

    /// Returns `time` without that of `readings` readings, which it holds.
    #[must_use]
    pub fn taken_off(&self, time: Duration, readings: u32) -> Duration {
        time.saturating_sub(self.all * readings / Self::READINGS)
    }
}

/// A time in milliseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
