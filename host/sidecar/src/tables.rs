//! The tables `[settings]` and `[limits]` of a policy, in the configuration and in a sidecar.
//!
//! A policy gets its settings as JSON; operators write them as TOML. Limits go by the names of
//! [`NamedLimits::NAMES`].
//!
//! # Invariants
//! 1. No limit exceeds its ceiling (`tests`, and `host/config/tests/config`).

use std::collections::BTreeMap;
use std::fmt;

use pointsman_notation::{NamedLimits, SetLimitError, Time, TomlError, TomlProblem, TomlText};
use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::{Map, Value};
use toml::Spanned;

/// A table of limits as it is written, with the place of each name and value.
pub type LimitsTable = BTreeMap<Spanned<String>, Spanned<LimitValue>>;

/// The value of a limit as it is written: a whole number, or a text for a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitValue {
    /// A whole number, of any sign.
    Number(i64),
    /// A text, which may be a duration.
    Text(String),
}

/// The settings of the table `key`. Dates and times become text.
///
/// # Errors
/// If a setting is a number that JSON has no value for.
pub fn settings(
    source: &TomlText,
    key: &str,
    given: Spanned<toml::Table>,
) -> Result<Map<String, Value>, TomlError> {
    let at = given.span().start;
    to_json(given.into_inner()).map_err(|error| {
        let (key, message) = (key.to_owned(), error.to_string());
        source.error(at, TomlProblem::Value { key, message })
    })
}

/// The limits of the table `key`; those of `rest` where the table says nothing.
///
/// # Errors
/// If there is no such limit, a value is zero, negative or above the `ceiling`, or a duration has no unit.
pub fn limits<L: NamedLimits>(
    source: &TomlText,
    key: &str,
    given: LimitsTable,
    rest: L,
    ceiling: &L,
) -> Result<L, TomlError> {
    let mut limits = rest;
    for (name, value) in given {
        let (at, name) = (name.span().start, name.into_inner());
        let key = format!("{key}.{name}");
        let wrong = |problem| source.error(value.span().start, problem);
        let is_time = L::SECONDS.contains(&name.as_str());
        if !L::NAMES.contains(&name.as_str()) {
            let known = L::NAMES.iter().map(|&name| name.to_owned()).collect();
            return Err(source.error(at, TomlProblem::UnknownKey { key, name, known }));
        }
        let number = if is_time {
            value.get_ref().seconds()
        } else {
            value.get_ref().number()
        };
        let number = number.map_err(|message| {
            let key = key.clone();
            wrong(TomlProblem::Value { key, message })
        })?;
        if let Err(SetLimitError::Range(range)) = limits.set(&name, number, ceiling) {
            let shown = |number| match is_time {
                true => Time::from_secs(number).to_string(),
                false => number.to_string(),
            };
            return Err(wrong(TomlProblem::OutOfRange {
                key,
                value: value.get_ref().to_string(),
                min: shown(1),
                max: shown(range.max),
            }));
        }
    }
    Ok(limits)
}

// === impl LimitValue ===

impl LimitValue {
    /// A whole number. Zero, which no limit may be, stands for all that is less.
    fn number(&self) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(u64::try_from(*number).unwrap_or(0)),
            Self::Text(text) => Err(format!(
                "invalid type: string \"{}\", expected a whole number",
                text.escape_debug()
            )),
        }
    }

    /// The seconds of a duration.
    fn seconds(&self) -> Result<u64, String> {
        match self {
            Self::Number(number) => {
                let meant = Time::from_secs(u64::try_from(*number).unwrap_or(0));
                Err(format!("{number} has no unit; write \"{meant}\""))
            }
            Self::Text(text) => {
                let seconds = Time::read(text)?.whole_secs();
                seconds.ok_or_else(|| format!("{text} is no whole number of seconds"))
            }
        }
    }
}

impl fmt::Display for LimitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for LimitValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText)
    }
}

struct NumberOrText;

impl Visitor<'_> for NumberOrText {
    type Value = LimitValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E>(self, number: i64) -> Result<LimitValue, E> {
        Ok(LimitValue::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<LimitValue, E> {
        Ok(LimitValue::Text(text.to_owned()))
    }
}

fn to_json(settings: toml::Table) -> Result<Map<String, Value>, SettingError> {
    let mut map = Map::new();
    for (name, value) in settings {
        let value = value_to_json(value).map_err(|error| error.within(&name))?;
        map.insert(name, value);
    }
    Ok(map)
}

/// A number that JSON has no value for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is no finite number")]
struct SettingError {
    setting: String,
}
fn value_to_json(value: toml::Value) -> Result<Value, SettingError> {
    match value {
        toml::Value::String(text) => Ok(Value::String(text)),
        toml::Value::Integer(number) => Ok(Value::from(number)),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| SettingError {
                setting: String::new(),
            }),
        toml::Value::Boolean(truth) => Ok(Value::Bool(truth)),
        toml::Value::Datetime(time) => Ok(Value::String(time.to_string())),
        toml::Value::Array(items) => {
            let items = items.into_iter().map(value_to_json);
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        toml::Value::Table(table) => to_json(table).map(Value::Object),
    }
}

impl SettingError {
    /// The same error, named from one table further out.
    fn within(mut self, name: &str) -> Self {
        self.setting = if self.setting.is_empty() {
            name.to_owned()
        } else {
            format!("{name}.{}", self.setting)
        };
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn converted(text: &str) -> Result<Value, String> {
        let table = toml::from_str(text).unwrap();
        let map = to_json(table).map_err(|error| error.to_string())?;
        Ok(Value::Object(map))
    }

    #[test]
    fn settings_keep_their_types() {
        let given = "a = 1\nb = 0.5\nc = true\nd = 'x'\ne = [1, 'y']\nf.g = 1979-05-27";
        let json =
            json!({"a": 1, "b": 0.5, "c": true, "d": "x", "e": [1, "y"], "f": {"g": "1979-05-27"}});
        assert_eq!(converted(given), Ok(json));
    }

    #[test]
    fn what_json_lacks_is_refused_by_name() {
        for (given, message) in [
            ("a.b = nan", "a.b is no finite number"),
            ("c = [1.0, inf]", "c is no finite number"),
        ] {
            assert_eq!(converted(given), Err(message.to_owned()));
        }
    }
}
