//! Numbers turned into others: times and counts from floating point, and back.
//!
//! Speeds and distributions are in floating point, which is the same on every machine as long as it
//! is added, multiplied and divided only. Everything the machine is told is in integers.

use pointsman_core::Micros;

/// Milliseconds as whole microseconds, half up; at least 0.
#[must_use]
pub fn from_millis(millis: f64) -> Micros {
    Micros(whole(millis * 1000.0))
}

/// Seconds as whole microseconds, half up; at least 0.
#[must_use]
pub fn from_secs(secs: f64) -> Micros {
    Micros(whole(secs * 1_000_000.0))
}

/// A time in milliseconds.
#[must_use]
pub fn millis(time: Micros) -> f64 {
    float(time.0) / 1000.0
}

/// A time in seconds.
#[must_use]
pub fn secs(time: Micros) -> f64 {
    float(time.0) / 1_000_000.0
}

/// A number as floating point. Above 2^53 it is the nearest one there is.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "counts and times of a simulation are below 2^53"
)]
pub fn float(number: u64) -> f64 {
    number as f64
}

/// A length as floating point.
#[must_use]
pub fn float_len(length: usize) -> f64 {
    float(length as u64)
}

/// The nearest whole number, half up; 0 below it, and for what is no number.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "such a cast saturates, and makes 0 of what is no number"
)]
pub fn whole(number: f64) -> u64 {
    (number + 0.5) as u64
}

/// The nearest whole number within 32 bits, at least `least`.
#[must_use]
pub fn whole_at_least(number: f64, least: u32) -> u32 {
    narrow(whole(number)).max(least)
}

/// A count within 32 bits; the largest one where it is above.
#[must_use]
pub fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A length within 32 bits; the largest one where it is above.
#[must_use]
pub fn narrow_len(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_the_nearest_microsecond() {
        assert_eq!(from_millis(1.0005), Micros(1001));
        assert_eq!(from_millis(1.0004), Micros(1000));
        assert_eq!(from_secs(-1.0), Micros(0));
        assert_eq!(from_millis(f64::NAN), Micros(0));
        assert_eq!(millis(Micros(1500)), 1.5);
        assert_eq!(whole_at_least(0.2, 1), 1);
        assert_eq!(narrow(u64::MAX), u32::MAX);
    }
}
