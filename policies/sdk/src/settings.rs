//! Settings: JSON text turned into a policy's own type, with errors an operator can act on.

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The settings of a policy that has none: any key is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoSettings {}

/// Checks that the value of a setting is in its range, for [`Policy::new`](crate::Policy::new).
///
/// # Errors
///
/// A sentence for the operator, with the range.
pub fn check_range(key: &str, value: u32, range: RangeInclusive<u32>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(format!(
        "`{key}`: {value} is not between {least} and {most}"
    ))
}

/// Parses `text`. An error names the key it is about; that of an unknown key lists the known
/// ones, if the type refuses unknown keys.
pub(crate) fn parse<S: DeserializeOwned>(text: &str) -> Result<S, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(table) = value else {
        return Err("settings must be a table".to_owned());
    };
    let keys: Vec<(String, Value)> = table.clone().into_iter().collect();
    S::deserialize(Value::Object(table)).map_err(|error| locate::<S>(keys, &error.to_string()))
}

/// Adds the key to an error of serde's, which names the value alone: a key that fails by itself
/// as all failed together is the culprit.
fn locate<S: DeserializeOwned>(keys: Vec<(String, Value)>, error: &str) -> String {
    let culprit = keys.into_iter().find_map(|(key, value)| {
        let alone = serde_json::Map::from_iter([(key.clone(), value)]);
        let failed = S::deserialize(Value::Object(alone)).err()?;
        (failed.to_string() == error).then_some(key)
    });
    match culprit {
        Some(key) if !error.contains(&format!("`{key}`")) => format!("`{key}`: {error}"),
        _ => error.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{check_range, parse};

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
    struct Settings {
        candidates: u32,
        retry_after: u32,
    }

    impl Default for Settings {
        fn default() -> Self {
            Self {
                candidates: 3,
                retry_after: 1,
            }
        }
    }

    fn check(text: &str, expected: Result<Settings, &str>) {
        assert_eq!(parse(text), expected.map_err(str::to_owned));
    }

    #[test]
    fn absent_keys_take_their_defaults() {
        check("{}", Ok(Settings::default()));
        check(
            r#"{"retry-after": 7}"#,
            Ok(Settings {
                candidates: 3,
                retry_after: 7,
            }),
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_the_known_ones() {
        check(
            r#"{"candidate": 2, "retry-after": 1}"#,
            Err("unknown field `candidate`, expected `candidates` or `retry-after`"),
        );
    }

    #[test]
    fn a_wrong_value_is_reported_with_its_key() {
        check(
            r#"{"candidates": 2, "retry-after": -1}"#,
            Err("`retry-after`: invalid value: integer `-1`, expected u32"),
        );
        check(
            r#"{"candidates": "2"}"#,
            Err(r#"`candidates`: invalid type: string "2", expected u32"#),
        );
    }

    #[test]
    fn what_is_no_table_is_refused() {
        check("3", Err("settings must be a table"));
    }

    #[test]
    fn a_value_out_of_its_range_is_named_with_the_range() {
        assert_eq!(check_range("candidates", 1, 1..=8), Ok(()));
        assert_eq!(check_range("candidates", 8, 1..=8), Ok(()));
        let error = check_range("candidates", 9, 1..=8).unwrap_err();
        assert_eq!(error, "`candidates`: 9 is not between 1 and 8");
    }
}
