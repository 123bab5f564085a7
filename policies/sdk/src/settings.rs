//! Settings: JSON text turned into a policy's own type, with errors an operator can act on, and their
//! descriptions.

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::wire::lifecycle::{DurationRange, NumberRange, Setting, SettingValues, TimeUnit};

/// The settings of a policy that has none: any key is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoSettings {}

// === impl Setting ===

impl Setting {
    /// A setting that is a whole number within a range.
    #[must_use]
    pub fn number(
        key: &str,
        range: RangeInclusive<u64>,
        default: impl Into<u64>,
        about: &str,
    ) -> Self {
        let default = default.into().to_string();
        Self::new(key, number(&range), Some(default), about)
    }

    /// A setting that is a whole number within a range, or is left out. [`about`](Self::about) says
    /// what that means.
    #[must_use]
    pub fn optional_number(key: &str, range: RangeInclusive<u64>, about: &str) -> Self {
        Self::new(key, number(&range), None, about)
    }

    /// A setting that is a duration. The operator writes it with a unit, as `"250ms"` or `"1.5s"`; the
    /// policy gets a whole number of `unit`s, in which `range` and `default` are, too.
    #[must_use]
    pub fn duration(
        key: &str,
        (unit, range): (TimeUnit, RangeInclusive<u64>),
        default: impl Into<u64>,
        about: &str,
    ) -> Self {
        let default = default.into().to_string();
        Self::new(key, duration(unit, &range), Some(default), about)
    }

    /// A setting that is a [`duration`](Self::duration), or is left out. [`about`](Self::about) says what
    /// that means.
    #[must_use]
    pub fn optional_duration(
        key: &str,
        (unit, range): (TimeUnit, RangeInclusive<u64>),
        about: &str,
    ) -> Self {
        Self::new(key, duration(unit, &range), None, about)
    }

    /// A setting that is true or false.
    #[must_use]
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "it is the value of the setting"
    )]
    pub fn yes_or_no(key: &str, default: bool, about: &str) -> Self {
        Self::new(
            key,
            SettingValues::YesOrNo,
            Some(default.to_string()),
            about,
        )
    }

    /// A setting that is one of a few texts; the first is the default.
    #[must_use]
    pub fn choice(key: &str, texts: &[&str], about: &str) -> Self {
        let default = texts.first().map(|text| Value::from(*text).to_string());
        let texts = texts.iter().map(|text| (*text).to_owned());
        Self::new(key, SettingValues::Choice(texts.collect()), default, about)
    }

    /// A setting of another kind, which `values` describes. The default is JSON.
    #[must_use]
    pub fn other(key: &str, values: &str, default: &str, about: &str) -> Self {
        let values = SettingValues::Other(values.to_owned());
        Self::new(key, values, Some(default.to_owned()), about)
    }

    fn new(key: &str, values: SettingValues, default: Option<String>, about: &str) -> Self {
        Self {
            key: key.to_owned(),
            about: about.to_owned(),
            values,
            default,
        }
    }

    /// Checks that a value is in the range of the setting, if it has one.
    fn check(&self, value: &Value) -> Result<(), String> {
        let (least, most) = match self.values {
            SettingValues::Number(NumberRange { least, most })
            | SettingValues::Duration(DurationRange { least, most, .. }) => (least, most),
            SettingValues::YesOrNo | SettingValues::Choice(_) | SettingValues::Other(_) => {
                return Ok(());
            }
        };
        match value.as_u64() {
            Some(value) if value < least || value > most => Err(format!(
                "`{}`: {value} is not between {least} and {most}",
                self.key
            )),
            Some(_) | None => Ok(()),
        }
    }
}

fn number(range: &RangeInclusive<u64>) -> SettingValues {
    SettingValues::Number(NumberRange {
        least: *range.start(),
        most: *range.end(),
    })
}

fn duration(unit: TimeUnit, range: &RangeInclusive<u64>) -> SettingValues {
    SettingValues::Duration(DurationRange {
        unit,
        least: *range.start(),
        most: *range.end(),
    })
}

/// Parses `text`. An error names the key it is about; that of an unknown key lists the known
/// ones, if the type refuses unknown keys, and that of a number out of its range has the range.
pub(crate) fn parse<S: DeserializeOwned>(text: &str, described: &[Setting]) -> Result<S, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(table) = value else {
        return Err("settings must be a table".to_owned());
    };
    let settings = S::deserialize(Value::Object(table.clone()))
        .map_err(|error| locate::<S>(table.clone(), &error.to_string()))?;
    for setting in described {
        if let Some(value) = table.get(&setting.key) {
            setting.check(value)?;
        }
    }
    Ok(settings)
}

/// Adds the key to an error of serde's, which names the value alone: a key that fails by itself
/// as all failed together is the culprit.
fn locate<S: DeserializeOwned>(table: Map<String, Value>, error: &str) -> String {
    let culprit = table.into_iter().find_map(|(key, value)| {
        let alone = Map::from_iter([(key.clone(), value)]);
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
    use super::{Setting, TimeUnit, parse};

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

    fn described() -> [Setting; 2] {
        [
            Setting::number("candidates", 1..=8, 3_u32, "Places."),
            Setting::optional_duration("retry-after", (TimeUnit::Seconds, 0..=3600), "Pause."),
        ]
    }

    fn check(text: &str, expected: Result<Settings, &str>) {
        let parsed = parse(text, &described());
        assert_eq!(parsed, expected.map_err(str::to_owned));
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
    fn a_number_out_of_its_range_is_named_with_the_range() {
        for candidates in [1, 8] {
            let text = format!(r#"{{"candidates": {candidates}}}"#);
            let retry_after = 1;
            check(
                &text,
                Ok(Settings {
                    candidates,
                    retry_after,
                }),
            );
        }
        check(
            r#"{"candidates": 9}"#,
            Err("`candidates`: 9 is not between 1 and 8"),
        );
        check(
            r#"{"retry-after": 3601}"#,
            Err("`retry-after`: 3601 is not between 0 and 3600"),
        );
    }
}
