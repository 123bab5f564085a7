//! Settings of policies: TOML as the operator writes them, JSON as policies get them.

use serde_json::{Map, Value};

/// A table of settings as JSON. Dates and times become text.
///
/// # Errors
/// Names the first setting that JSON has no value for.
pub(crate) fn to_json(settings: toml::Table) -> Result<Map<String, Value>, SettingError> {
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
pub(crate) struct SettingError {
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
    /// The same, one table further out.
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
