//! Values as they are written in the file: whole numbers, times with a unit, sizes with a unit.
//!
//! A time or a size carries its unit in the value, `"30s"` or `"64MiB"`, so that no key needs one
//! in its name.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) i64);

/// Microseconds, written `"30s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) u64);

/// Bytes, written `"64MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// A unit's name and what it comes to in the smallest one.
type Units = [(&'static str, u64)];

/// From small to large.
const TIMES: &Units = &[
    ("us", 1),
    ("ms", 1000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
];

/// From small to large.
const SIZES: &Units = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Digits and a unit, nothing else.
fn parse(text: &str, units: &Units) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let (number, unit) = text.split_at(digits.len());
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let signed = number.starts_with('+');
    let number: u64 = number.parse().ok().filter(|_| !signed)?;
    number.checked_mul(*factor)
}

/// In the largest unit that leaves a whole number.
fn show(value: u64, units: &Units, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let whole = |(_, factor): &&(&str, u64)| value >= *factor && value.is_multiple_of(*factor);
    let (name, factor) = units.iter().rev().find(whole).unwrap_or(&units[0]);
    write!(f, "{}{name}", value / factor)
}

// === impl Number ===

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(number))
            }
        }
        deserializer.deserialize_i64(Whole)
    }
}

// === impl Time and Size ===

macro_rules! quantity {
    ($name:ident, $units:ident, $expecting:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                show(self.0, $units, f)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<$name, E> {
                        let value = parse(text, $units).map($name);
                        value.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

quantity!(
    Time,
    TIMES,
    "a time such as \"30s\", in whole us, ms, s, min or h"
);
quantity!(
    Size,
    SIZES,
    "a size such as \"64MiB\", in whole B, KiB, MiB, GiB or TiB"
);

impl Time {
    pub(crate) const fn millis(millis: u64) -> Self {
        Self(millis * 1000)
    }

    pub(crate) const fn secs(secs: u64) -> Self {
        Self(secs * 1_000_000)
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_read_and_shown_in_the_largest_unit_that_fits() {
        for (text, micros, shown) in [
            ("0s", 0, "0us"),
            ("250ms", 250_000, "250ms"),
            ("1000ms", 1_000_000, "1s"),
            ("90s", 90_000_000, "90s"),
            ("2min", 120_000_000, "2min"),
            ("24h", 86_400_000_000, "24h"),
        ] {
            assert_eq!(parse(text, TIMES), Some(micros), "{text}");
            assert_eq!(Time(micros).to_string(), shown);
        }
        for (text, bytes, shown) in [
            ("512B", 512, "512B"),
            ("1536KiB", 1536 << 10, "1536KiB"),
            ("64MiB", 64 << 20, "64MiB"),
            ("1024GiB", 1 << 40, "1TiB"),
        ] {
            assert_eq!(parse(text, SIZES), Some(bytes), "{text}");
            assert_eq!(Size(bytes).to_string(), shown);
        }
    }

    #[test]
    fn anything_but_digits_and_a_unit_is_refused() {
        let overflow = format!("{}h", u64::MAX);
        for text in [
            "", "s", "30", "-1s", "+1s", "1.5s", "1 s", " 1s", "1S", "1sec", "1s1", &overflow,
        ] {
            assert_eq!(parse(text, TIMES), None, "{text:?}");
        }
        for text in ["1MB", "1M", "64mib"] {
            assert_eq!(parse(text, SIZES), None, "{text:?}");
        }
    }
}
