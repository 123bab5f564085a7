//! The tables `[settings]` and `[limits]` of a policy, in the configuration and in a sidecar.
//!
//! A policy gets its settings as JSON; operators write them as TOML. Limits go by the names of
//! [`NamedLimits::NAMES`].
//!
//! # Invariants
//! 1. No limit exceeds its ceiling (`sidecar::tests`, and `host/server/tests/config`).

use std::collections::BTreeMap;

use pointsman_notation::{NamedLimits, Number, SetLimitError, TomlError, TomlProblem, TomlText};
use serde_json::{Map, Value};
use toml::Spanned;

/// A table of limits as it is written, with the place of each name and value.
pub type LimitsTable = BTreeMap<Spanned<String>, Spanned<Number>>;

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
/// If there is no such limit, or a value is zero, negative or above the `ceiling`.
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
        let number = value.get_ref().0;
        // Zero, which no limit may be, stands for all that is less.
        match limits.set(&name, u64::try_from(number).unwrap_or(0), ceiling) {
            Ok(()) => {}
            Err(SetLimitError::Range(range)) => {
                let problem = TomlProblem::OutOfRange {
                    key,
                    value: number.to_string(),
                    min: "1".to_owned(),
                    max: range.max.to_string(),
                };
                return Err(source.error(value.span().start, problem));
            }
            Err(_) => {
                let known = L::NAMES.iter().map(|&name| name.to_owned()).collect();
                return Err(source.error(at, TomlProblem::UnknownKey { key, name, known }));
            }
        }
    }
    Ok(limits)
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
