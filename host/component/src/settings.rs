//! Settings as a policy describes them: for people, for tools that search them, and for durations, which
//! operators write with a unit and policies get as whole numbers ([`configured`]).
//!
//! # Not here
//! The check of other settings that an operator gives: the policy's own `configure` does that. The check of what a
//! policy describes: `pointsman-policy`.

use std::fmt;
use std::ops::RangeInclusive;

use pointsman_notation::Time;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A setting that a policy takes, as its author describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingSchema {
    /// The key in the table of settings.
    pub key: String,
    /// The meaning, in a sentence.
    pub about: String,
    /// The values that it may have.
    pub values: SettingRange,
    /// The value where it is left out, as JSON; absent: to leave it out means something of its own.
    pub default: Option<String>,
}

/// The values that a setting may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingRange {
    /// Whole numbers.
    Number(RangeInclusive<u64>),
    /// Durations: whole numbers of a unit.
    Duration(TimeUnit, RangeInclusive<u64>),
    /// True or false.
    YesOrNo,
    /// One of these texts.
    Choice(Vec<String>),
    /// Something else, in words.
    Other(String),
}

/// The unit in which a policy gets a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Seconds.
    Seconds,
}

/// A duration that an operator gave and a policy does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {why}")]
pub struct BadDuration {
    key: String,
    why: String,
}

// === impl TimeUnit ===

impl TimeUnit {
    const fn micros(self) -> u64 {
        match self {
            Self::Micros => 1,
            Self::Millis => 1000,
            Self::Seconds => 1_000_000,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Micros => "microseconds",
            Self::Millis => "milliseconds",
            Self::Seconds => "seconds",
        }
    }

    /// So many units, to be printed as operators write them.
    #[must_use]
    pub fn of(self, count: u64) -> Time {
        Time::from_micros(count.saturating_mul(self.micros()))
    }

    /// The number of units in a duration; absent: it is no whole one.
    #[must_use]
    pub fn count(self, time: Time) -> Option<u64> {
        let micros = time.as_micros();
        micros
            .is_multiple_of(self.micros())
            .then_some(micros / self.micros())
    }

    /// The number of units in a duration within `range`, as an operator wrote it.
    fn read(self, written: &Value, range: &RangeInclusive<u64>) -> Result<u64, String> {
        if let Some(count) = written.as_u64() {
            return Err(format!("{count} has no unit; write \"{}\"", self.of(count)));
        }
        let time = Time::deserialize(written).map_err(|error| error.to_string())?;
        let count = self
            .count(time)
            .ok_or_else(|| format!("{time} is no whole number of {}", self.as_str()))?;
        if range.contains(&count) {
            return Ok(count);
        }
        let (least, most) = (self.of(*range.start()), self.of(*range.end()));
        Err(format!("{time} is not between {least} and {most}"))
    }
}

impl SettingRange {
    /// True if the value is one of them, as `configure` would get it. Of values that are told in words,
    /// each one may be.
    #[must_use]
    pub fn has(&self, value: &Value) -> bool {
        match self {
            Self::Number(range) | Self::Duration(_, range) => {
                value.as_u64().is_some_and(|value| range.contains(&value))
            }
            Self::YesOrNo => value.is_boolean(),
            Self::Choice(texts) => texts.iter().any(|text| value == text.as_str()),
            Self::Other(_) => true,
        }
    }
}

impl fmt::Display for SettingRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(range) => write!(f, "{} to {}", range.start(), range.end()),
            Self::Duration(unit, range) => {
                write!(
                    f,
                    "{} to {}",
                    unit.of(*range.start()),
                    unit.of(*range.end())
                )
            }
            Self::YesOrNo => f.write_str("true or false"),
            Self::Choice(texts) => f.write_str(&texts.join(", ")),
            Self::Other(words) => f.write_str(words),
        }
    }
}

// === impl SettingSchema ===

impl SettingSchema {
    /// The default as an operator would write it, as JSON.
    #[must_use]
    pub fn default_written(&self) -> Option<String> {
        let default = self.default.clone()?;
        match &self.values {
            SettingRange::Duration(unit, _) => {
                let count: u64 = default.parse().ok()?;
                Some(Value::from(unit.of(count).to_string()).to_string())
            }
            SettingRange::Number(_)
            | SettingRange::YesOrNo
            | SettingRange::Choice(_)
            | SettingRange::Other(_) => Some(default),
        }
    }
}

/// The settings of an operator as `configure` gets them: durations as whole numbers of the policy's units.
///
/// # Errors
/// The first duration that is none, or is out of its range. A number without a unit is none.
pub fn configured(
    described: &[SettingSchema],
    written: &Map<String, Value>,
) -> Result<Map<String, Value>, BadDuration> {
    let mut settings = written.clone();
    for setting in described {
        if let SettingRange::Duration(unit, range) = &setting.values
            && let Some(value) = settings.get_mut(&setting.key)
        {
            let read = unit.read(value, range);
            let key = || setting.key.clone();
            *value = Value::from(read.map_err(|why| BadDuration { key: key(), why })?);
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::setting;

    fn duration(value: &Value) -> Result<Map<String, Value>, String> {
        let cost = setting(SettingRange::Duration(TimeUnit::Millis, 1..=60_000), None);
        let mut written = Map::new();
        written.insert("cost".to_owned(), value.clone());
        written.insert("other".to_owned(), Value::from("1s"));
        configured(&[cost], &written).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_shown_in_words() {
        let choice = SettingRange::Choice(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(choice.to_string(), "a, b");
        assert_eq!(SettingRange::Number(1..=8).to_string(), "1 to 8");
    }

    #[test]
    fn a_duration_is_written_with_a_unit_and_read_as_a_number() {
        for (written, millis) in [("1ms", 1), ("1.5s", 1500), ("1min", 60_000)] {
            let settings = duration(&Value::from(written)).unwrap();
            assert_eq!(settings["cost"], millis, "{written}");
            assert_eq!(settings["other"], "1s", "it is not described as one");
        }
        let mut described = setting(SettingRange::Duration(TimeUnit::Seconds, 0..=3600), None);
        assert_eq!(described.values.to_string(), "0s to 1h");
        assert_eq!(described.default_written(), None);
        described.default = Some("90".to_owned());
        assert_eq!(described.default_written().unwrap(), "\"90s\"");
    }

    #[test]
    fn what_is_no_duration_is_refused_with_what_to_write() {
        for (written, error) in [
            (
                Value::from(1500),
                "`cost`: 1500 has no unit; write \"1.5s\"",
            ),
            (Value::from("0s"), "`cost`: 0s is not between 1ms and 1min"),
            (
                Value::from("61s"),
                "`cost`: 61s is not between 1ms and 1min",
            ),
            (
                Value::from("1us"),
                "`cost`: 1us is no whole number of milliseconds",
            ),
        ] {
            assert_eq!(duration(&written), Err(error.to_owned()));
        }
        for written in [Value::from("1500"), Value::from(-1), Value::from(true)] {
            let error = duration(&written).unwrap_err();
            assert!(
                error.contains("expected a time such as \"250ms\""),
                "{error}"
            );
        }
    }
}
