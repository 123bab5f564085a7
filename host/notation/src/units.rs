//! Values of a TOML file: durations and sizes with a unit, whole numbers.
//!
//! A duration or a size carries its unit in the text, `"1.5s"` or `"64MiB"`, so that no key needs a
//! unit in its name.

use std::fmt;
use std::time::Duration;

use serde::de::value::StrDeserializer;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

/// A duration, or a time since some beginning, written `250ms`, `1.5s` or `24h`.
///
/// Read: a number, with decimals or without, and one of the units `us`, `ms`, `s`, `min` and `h`,
/// in all a number of whole microseconds.
///
/// Printed: exactly, in the largest unit that needs no fraction below one; minutes and hours only
/// where they are whole. Rounded where a precision is asked for, `{:.1}`, to at most that many
/// decimals of the largest unit that needs no fraction below one. What is printed can be read
/// again, if it is not shorter than a microsecond.
///
/// ```
/// use std::time::Duration;
/// use pointsman_notation::Time;
///
/// let time = Time(Duration::from_millis(4_500_250));
/// assert_eq!(format!("{time}, about {time:.1}"), "4500.25s, about 1.3h");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// A number of bytes, written `64MiB`.
///
/// The units are `B`, `KiB`, `MiB`, `GiB` and `TiB`, without decimals. Printed in the largest unit
/// in which the number is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A whole number of a TOML file, of any sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(pub i64);

/// Names of units, each with its value in the smallest unit, from small to large.
type Units = [(&'static str, u64)];

/// In microseconds.
const TIMES: &Units = &[
    ("us", 1),
    ("ms", 1000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
];

/// In bytes.
const SIZES: &Units = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

const NANOS_PER_MICRO: u128 = 1000;
const MICRO: (&str, u128) = ("us", NANOS_PER_MICRO);
/// Enough for any number of nanoseconds in any unit up to a second.
const DECIMALS_MAX: usize = 9;

/// The value of digits, perhaps with decimals, and a unit; absent if that is not a whole number of
/// the smallest unit.
fn parse(text: &str, units: &Units) -> Option<u64> {
    let unit_at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let scale = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let part = decimals.parse::<u64>().ok()?.checked_mul(*factor)?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(*factor)?;
    if part % scale != 0 {
        return None;
    }
    whole.checked_add(part / scale)
}

// === impl Time ===

impl Time {
    /// A time of so many microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(Duration::from_micros(micros))
    }

    /// A time of so many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A time of so many seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The time that a text says.
    ///
    /// # Errors
    /// If it says none, with what was expected.
    pub fn read(text: &str) -> Result<Self, String> {
        let text = StrDeserializer::<serde::de::value::Error>::new(text);
        Self::deserialize(text).map_err(|error| error.to_string())
    }

    /// The number of whole seconds; absent: there is a part of one besides.
    #[must_use]
    pub fn whole_secs(self) -> Option<u64> {
        (self.0.subsec_nanos() == 0).then_some(self.0.as_secs())
    }

    /// Whole microseconds; `u64::MAX` if there are more.
    #[must_use]
    pub fn as_micros(self) -> u64 {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let text = match f.precision() {
            None => exactly(nanos),
            Some(decimals) => rounded(nanos, decimals),
        };
        // Columns give a width.
        match f.width() {
            Some(width) => write!(f, "{text:>width$}"),
            None => f.write_str(&text),
        }
    }
}

/// Units of time in nanoseconds, from large to small.
fn units_of_time() -> impl Iterator<Item = (&'static str, u128)> {
    let units = TIMES.iter().rev();
    units.map(|(name, micros)| (*name, u128::from(*micros) * NANOS_PER_MICRO))
}

fn exactly(nanos: u128) -> String {
    let fits = |(name, unit): &(&str, u128)| match *name {
        "h" | "min" => nanos.is_multiple_of(*unit),
        _ => nanos >= *unit,
    };
    let unit = units_of_time().find(fits);
    in_unit(nanos, unit.unwrap_or(MICRO), DECIMALS_MAX)
}

fn rounded(nanos: u128, decimals: usize) -> String {
    let decimals = decimals.min(DECIMALS_MAX);
    let largest = |nanos| units_of_time().find(|(_, unit)| nanos >= *unit);
    let (_, unit) = largest(nanos).unwrap_or(MICRO);
    let step = (unit / scale(decimals)).max(1);
    let nanos = (nanos + step / 2) / step * step;
    // A time of 59.96s is one of 1min by now.
    in_unit(nanos, largest(nanos).unwrap_or(MICRO), decimals)
}

/// The time in that unit, without zeros at the end of its decimals.
fn in_unit(nanos: u128, (name, unit): (&str, u128), decimals: usize) -> String {
    let part = nanos % unit * scale(decimals) / unit;
    let part = format!("{part:0decimals$}");
    match (nanos / unit, part.trim_end_matches('0')) {
        (0, "") => "0s".to_owned(),
        (whole, "") => format!("{whole}{name}"),
        (whole, part) => format!("{whole}.{part}{name}"),
    }
}

fn scale(decimals: usize) -> u128 {
    (0..decimals).fold(1, |scale, _| scale * 10)
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Written {
            read: |text| parse(text, TIMES).map(Time::from_micros),
            expected: "a time such as \"250ms\", \"1.5s\" or \"24h\": whole microseconds, in us, \
                       ms, s, min or h",
        })
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Size ===

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = |(_, unit): &&(&str, u64)| self.0 >= *unit && self.0.is_multiple_of(*unit);
        let (name, unit) = SIZES.iter().rev().find(is_whole).unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Written {
            read: |text| parse(text, SIZES).filter(|_| !text.contains('.')).map(Size),
            expected: "a size such as \"64MiB\", in whole B, KiB, MiB, GiB or TiB",
        })
    }
}

// === impl Number ===

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(WholeNumber)
    }
}

struct WholeNumber;

impl Visitor<'_> for WholeNumber {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
        Ok(Number(number))
    }
}

// === impl Written ===

/// Text that `read` understands.
struct Written<T> {
    read: fn(&str) -> Option<T>,
    expected: &'static str,
}

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: [(&str, u64, &str); 14] = [
        ("0s", 0, "0s"),
        ("0h", 0, "0s"),
        ("40us", 40, "40us"),
        ("250ms", 250_000, "250ms"),
        ("0.25s", 250_000, "250ms"),
        ("1000ms", 1_000_000, "1s"),
        ("1.5s", 1_500_000, "1.5s"),
        ("29.999999s", 29_999_999, "29.999999s"),
        ("90s", 90_000_000, "90s"),
        ("1.5min", 90_000_000, "90s"),
        ("120s", 120_000_000, "2min"),
        ("61min", 3_660_000_000, "61min"),
        ("1.5h", 5_400_000_000, "90min"),
        ("24h", 86_400_000_000, "24h"),
    ];

    #[test]
    fn times_are_read_in_any_unit_and_printed_in_the_one_that_fits() {
        for (text, micros, shown) in CASES {
            assert_eq!(parse(text, TIMES), Some(micros), "{text}");
            let time = Time::from_micros(micros);
            assert_eq!(time.to_string(), shown);
            assert_eq!(parse(shown, TIMES), Some(micros), "{shown} is read again");
            assert_eq!(time.as_micros(), micros);
        }
        let below_a_micro = Time(Duration::from_nanos(12_349)).to_string();
        assert_eq!(below_a_micro, "12.349us");
        assert_eq!(Time(Duration::from_nanos(5)).to_string(), "0.005us");
    }

    #[test]
    fn a_measured_time_is_rounded_and_printed_in_the_largest_unit() {
        for (nanos, decimals, shown) in [
            (0, 1, "0s"),
            (4, 2, "0s"),
            (50, 2, "0.05us"),
            (12_349, 2, "12.35us"),
            (12_349, 0, "12us"),
            (1_234_500, 1, "1.2ms"),
            (999_960, 1, "1ms"),
            (57_500_000_000, 1, "57.5s"),
            (59_960_000_000, 1, "1min"),
            (90_000_000_000, 1, "1.5min"),
            (259_200_000_000_000, 1, "72h"),
        ] {
            let time = Time(Duration::from_nanos(nanos));
            assert_eq!(format!("{time:.decimals$}"), shown);
        }
        let time = Time::from_millis(1500);
        assert_eq!(format!("{time:>8.1}|{time:6}|"), "    1.5s|  1.5s|");
    }

    #[test]
    fn a_time_that_is_no_number_of_whole_microseconds_with_a_unit_is_refused() {
        let overflow = format!("{}h", u64::MAX);
        for text in [
            "",
            "s",
            "30",
            "-1s",
            "+1s",
            "1.s",
            ".5s",
            "1,5s",
            "1.5.5s",
            "1 s",
            " 1s",
            "1S",
            "1e3s",
            "1sec",
            "1s1",
            "1µs",
            "5 parsecs",
            "0.5us",
            "0.0000001s",
            &overflow,
        ] {
            assert_eq!(parse(text, TIMES), None, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read_and_printed_in_whole_units() {
        for (text, bytes, shown) in [
            ("512B", 512, "512B"),
            ("1536KiB", 1536 << 10, "1536KiB"),
            ("64MiB", 64 << 20, "64MiB"),
            ("1024GiB", 1 << 40, "1TiB"),
        ] {
            assert_eq!(parse(text, SIZES), Some(bytes), "{text}");
            assert_eq!(Size(bytes).to_string(), shown);
        }
        for text in ["1MB", "1M", "64mib"] {
            assert_eq!(parse(text, SIZES), None, "{text:?}");
        }
        assert_eq!(Size(0).to_string(), "0B");
    }
}
