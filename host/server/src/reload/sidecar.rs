//! What an operator may say about a policy beside its file, in `NAME.toml`.
//!
//! ```toml
//! [settings]            # for the policy, in its own words
//! affinity-bonus = 200
//!
//! [limits]              # up to what the server allows
//! call-fuel = 1_000_000
//! ```
//!
//! # Invariants
//! 1. No limit exceeds the server's (`limits_are_up_to_those_of_the_server`).
//! 2. What is not known is refused, not passed over (`what_is_not_known_is_refused`).

use pointsman_policy::{Limits, SetLimitError};
use serde_json::{Map, Value};

use crate::config::nearest::nearest;
use crate::config::settings::{SettingError, to_json};

/// Bytes of a sidecar that are read.
pub(crate) const SIDECAR_BYTES_MAX: usize = 64 << 10;

const KNOWN: [&str; 2] = ["settings", "limits"];

/// What a sidecar says.
#[derive(Debug)]
pub(crate) struct Sidecar {
    /// Absent: those of the configuration.
    pub(crate) settings: Option<Map<String, Value>>,
    /// Those of the server where it says nothing.
    pub(crate) limits: Limits,
}

/// Why a sidecar is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SidecarError {
    /// It is not text.
    #[error("not UTF-8 text")]
    NotText(#[from] std::string::FromUtf8Error),
    /// It is not TOML.
    #[error("line {line}: {message}")]
    Syntax {
        /// Counted from one.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// It says what nobody asks.
    #[error("unknown key {key}{}", meant(.nearest))]
    Unknown {
        /// What it says.
        key: String,
        /// What it may have meant.
        nearest: Option<&'static str>,
    },
    /// A value of another type is needed.
    #[error("{key} is {found}, it must be {wanted}")]
    Type {
        /// Where.
        key: String,
        /// What is there.
        found: &'static str,
        /// What should be.
        wanted: &'static str,
    },
    /// JSON has no value for a setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The server does not allow the limit.
    #[error(transparent)]
    Limit(#[from] SetLimitError),
}

fn meant(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", did you mean {name}?"))
}

/// What `bytes` say, where the server allows `ceiling`.
pub(crate) fn parse(bytes: Vec<u8>, ceiling: &Limits) -> Result<Sidecar, SidecarError> {
    let text = String::from_utf8(bytes)?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| syntax(&text, &error))?;
    let mut sidecar = Sidecar {
        settings: None,
        limits: *ceiling,
    };
    for (key, value) in table {
        match key.as_str() {
            "settings" => sidecar.settings = Some(to_json(of_table(key, value)?)?),
            "limits" => set_limits(&mut sidecar.limits, of_table(key, value)?, ceiling)?,
            _ => return Err(unknown(key, &KNOWN)),
        }
    }
    Ok(sidecar)
}

fn syntax(text: &str, error: &toml::de::Error) -> SidecarError {
    let before = error.span().and_then(|span| text.get(..span.start));
    SidecarError::Syntax {
        line: before.unwrap_or_default().matches('\n').count() + 1,
        message: error.message().replace('\n', ", "),
    }
}

fn unknown(key: String, known: &[&'static str]) -> SidecarError {
    SidecarError::Unknown {
        nearest: nearest(&key, known),
        key,
    }
}

fn of_table(key: String, value: toml::Value) -> Result<toml::Table, SidecarError> {
    let found = value.type_str();
    if let toml::Value::Table(table) = value {
        return Ok(table);
    }
    Err(SidecarError::Type {
        key,
        found,
        wanted: "a table",
    })
}

fn set_limits(
    limits: &mut Limits,
    table: toml::Table,
    ceiling: &Limits,
) -> Result<(), SidecarError> {
    for (name, value) in table {
        if !Limits::NAMES.contains(&name.as_str()) {
            return Err(unknown(name, Limits::NAMES));
        }
        let number = value.as_integer().map(u64::try_from);
        let number = number
            .and_then(Result::ok)
            .ok_or_else(|| SidecarError::Type {
                key: name.clone(),
                found: number.map_or(value.type_str(), |_| "negative"),
                wanted: "a positive integer",
            })?;
        limits.set(&name, number, ceiling)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(text: &str) -> Result<Sidecar, String> {
        let ceiling = Limits {
            call_fuel: 1000,
            ..Limits::default()
        };
        parse(text.into(), &ceiling).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_passed_on_as_json() {
        let sidecar = parsed("[settings]\nbonus = 2\n[settings.deep]\nx = 1\n");
        let expected = json!({"bonus": 2, "deep": {"x": 1}});
        assert_eq!(sidecar.unwrap().settings.map(Value::Object), Some(expected));
    }

    #[test]
    fn settings_that_are_not_there_are_not_empty_ones() {
        assert_eq!(parsed("").unwrap().settings, None);
        assert_eq!(parsed("[settings]").unwrap().settings, Some(Map::new()));
    }

    #[test]
    fn limits_are_up_to_those_of_the_server() {
        let limits = parsed("[limits]\ncall-fuel = 1000\nlog-lines = 1")
            .unwrap()
            .limits;
        assert_eq!((limits.call_fuel, limits.log_lines), (1000, 1));
        assert_eq!(limits.row_fuel, Limits::default().row_fuel);
        for (value, said) in [
            ("1001", "limit call-fuel is 1001, it must be from 1 to 1000"),
            ("0", "limit call-fuel is 0, it must be from 1 to 1000"),
            ("-1", "call-fuel is negative, it must be a positive integer"),
            ("'x'", "call-fuel is string, it must be a positive integer"),
        ] {
            let error = parsed(&format!("[limits]\ncall-fuel = {value}")).unwrap_err();
            assert_eq!(error, said);
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (text, said) in [
            ("[setting]", "unknown key setting, did you mean settings?"),
            ("mode = 'shadow'", "unknown key mode"),
            ("sha256 = 'ab'", "unknown key sha256"),
            (
                "[limits]\ncal-fuel = 1",
                "unknown key cal-fuel, did you mean call-fuel?",
            ),
            ("settings = 3", "settings is integer, it must be a table"),
            ("[settings]\nx = [nan]", "x is no finite number"),
        ] {
            assert_eq!(parsed(text).unwrap_err(), said, "{text}");
        }
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_line() {
        let error = parsed("[settings]\nx = \n").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
        let error = parse(vec![0xff, 0xfe], &Limits::default()).unwrap_err();
        assert_eq!(error.to_string(), "not UTF-8 text");
    }
}
