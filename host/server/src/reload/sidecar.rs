//! What an operator may say about a policy beside its file, in `NAME.toml`, and an author with
//! `pointsman policy ... --settings`.
//!
//! ```toml
//! mode = "shadow"       # enforce, shadow, or canary 10%
//! sha256 = "2bb8…"      # of the policy's file: another one is waited for
//! on-failure = { admission = "closed" }   # or fallback
//!
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

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use pointsman_policy::{Digest, Limits, Mode, OnFailure, SetLimitError};
use serde::Deserialize;
use serde_json::{Map, Value};
use toml::Spanned;

use crate::config::nearest::nearest;
use crate::config::settings::to_json;
use crate::config::source::Source;
use crate::config::units::Number;
use crate::config::{ConfigError, Place, Wrong};

/// Bytes of a sidecar that are read.
pub(crate) const SIDECAR_BYTES_MAX: usize = 64 << 10;

/// What a sidecar says.
#[derive(Debug)]
pub(crate) struct Sidecar {
    /// Absent: those of the configuration.
    pub(crate) settings: Option<Map<String, Value>>,
    /// Those of the server where it says nothing.
    pub(crate) limits: Limits,
    /// How far the policy's answers count.
    pub(crate) mode: Mode,
    /// The file it is about; absent: whatever there is.
    pub(crate) sha256: Option<Digest>,
    /// What happens to arrivals that the policy does not answer for.
    pub(crate) on_failure: OnFailure,
}

impl Sidecar {
    /// What holds where nothing is said.
    pub(crate) fn absent(limits: &Limits) -> Self {
        Self {
            settings: None,
            limits: *limits,
            mode: Mode::default(),
            sha256: None,
            on_failure: OnFailure::default(),
        }
    }
}

/// What may be written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct File {
    mode: Option<Spanned<String>>,
    sha256: Option<Spanned<String>>,
    #[serde(default)]
    on_failure: Failing,
    settings: Option<Spanned<toml::Table>>,
    #[serde(default)]
    limits: BTreeMap<Spanned<String>, Spanned<Number>>,
}

/// Only admission can be closed: with any other hook requests would be taken and never served.
#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
struct Failing {
    admission: OnFailure,
}

/// What `bytes` say, where the server allows `ceiling`. Errors call them `file`.
///
/// # Errors
/// If they are no text, no TOML, or say what no policy can be given; with the place.
pub(crate) fn parse(file: &Path, bytes: Vec<u8>, ceiling: &Limits) -> Result<Sidecar, ConfigError> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let wrong = Wrong::Syntax(error.to_string());
        ConfigError::new(Place::File(file.to_owned()), wrong)
    })?;
    let source = Source::new(file, &text);
    let File {
        mode,
        sha256,
        on_failure,
        settings,
        limits,
    } = source.parse()?;
    let settings = settings.map(|given| {
        let span = given.span();
        to_json(given.into_inner()).map_err(|error| {
            let (key, message) = ("settings".to_owned(), error.to_string());
            source.error(Some(span), Wrong::Value { key, message })
        })
    });
    let mut sidecar = Sidecar {
        settings: settings.transpose()?,
        mode: parsed(&source, "mode", mode)?.unwrap_or_default(),
        sha256: parsed(&source, "sha256", sha256)?,
        on_failure: on_failure.admission,
        limits: *ceiling,
    };
    for (name, value) in limits {
        set(&mut sidecar.limits, (&name, &value), ceiling).map_err(|wrong| {
            let unknown = matches!(wrong, Wrong::UnknownKey { .. });
            let span = if unknown { name.span() } else { value.span() };
            source.error(Some(span), wrong)
        })?;
    }
    Ok(sidecar)
}

/// What `given` means, if it is given.
fn parsed<T: FromStr<Err: Display>>(
    source: &Source,
    key: &str,
    given: Option<Spanned<String>>,
) -> Result<Option<T>, ConfigError> {
    let Some(given) = given else {
        return Ok(None);
    };
    given.get_ref().parse().map(Some).map_err(|error: T::Err| {
        let (key, message) = (key.to_owned(), error.to_string());
        source.error(Some(given.span()), Wrong::Value { key, message })
    })
}

fn set(
    limits: &mut Limits,
    (name, value): (&Spanned<String>, &Spanned<Number>),
    ceiling: &Limits,
) -> Result<(), Wrong> {
    let (name, number) = (name.get_ref(), value.get_ref().0);
    let key = format!("limits.{name}");
    // Zero, which no limit may be, stands for all that is less.
    match limits.set(name, u64::try_from(number).unwrap_or(0), ceiling) {
        Ok(()) => Ok(()),
        Err(SetLimitError::Range(range)) => Err(Wrong::OutOfRange {
            key,
            value: number.to_string(),
            min: "1".to_owned(),
            max: range.max.to_string(),
        }),
        Err(_) => Err(Wrong::UnknownKey {
            key,
            meant: nearest(name, Limits::NAMES).map(str::to_owned),
            known: Limits::NAMES.iter().map(|&name| name.to_owned()).collect(),
        }),
    }
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
        parse(Path::new("x.toml"), text.into(), &ceiling).map_err(|error| error.to_string())
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
        for value in ["1001", "0", "-1"] {
            let error = parsed(&format!("[limits]\ncall-fuel = {value}")).unwrap_err();
            let said = format!("limits.call-fuel must be from 1 to 1000, not {value}");
            assert_eq!(error, format!("x.toml:2:13: {said}"));
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (text, said) in [
            (
                "[setting]",
                "1:2: unknown key `setting`; did you mean `settings`?",
            ),
            (
                "\nwhatever = 1",
                "2:1: unknown key `whatever`; there are: mode, sha256, on-failure, settings, limits",
            ),
            (
                "[limits]\n log-lines = 1\n cal-fuel = 1",
                "3:2: unknown key `limits.cal-fuel`; did you mean `call-fuel`?",
            ),
            (
                "limits = { call-fuel = 'x' }",
                "1:24: limits.call-fuel: invalid type: string \"x\", expected a whole number",
            ),
            (
                "settings = 3",
                "1:12: settings: invalid type: integer `3`, expected a map",
            ),
            (
                "[settings]\nx = [nan]",
                "1:1: settings: x is no finite number",
            ),
        ] {
            assert_eq!(
                parsed(text).unwrap_err(),
                format!("x.toml:{said}"),
                "{text}"
            );
        }
    }

    #[test]
    fn mode_pin_and_failing_are_read() {
        let sidecar = parsed("").unwrap();
        assert_eq!((sidecar.mode, sidecar.sha256), (Mode::Enforce, None));
        assert_eq!(sidecar.on_failure, OnFailure::Fallback);
        let digest = Digest::of(b"a policy");
        let text = format!(
            "mode = 'canary 10%'\nsha256 = '{digest}'\non-failure = {{ admission = 'closed' }}"
        );
        let sidecar = parsed(&text).unwrap();
        assert_eq!(sidecar.mode.to_string(), "canary 10%");
        assert_eq!(sidecar.sha256, Some(digest));
        assert_eq!(sidecar.on_failure, OnFailure::Closed);
        for (text, part) in [
            (
                "mode = 'shadows'",
                "1:8: mode: mode is \"shadows\", it must be enforce",
            ),
            (
                "sha256 = 'ab'",
                "1:10: sha256: a SHA-256 has 64 hexadecimal digits",
            ),
            (
                "on-failure = { admission = 'open' }",
                "on-failure.admission: ",
            ),
            (
                "on-failure = { routing = 'closed' }",
                "unknown key `on-failure.routing`",
            ),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_place() {
        let error = parsed("[settings]\nx = \n").unwrap_err();
        assert!(error.starts_with("x.toml:2:5: "), "{error}");
        let error = parse(Path::new("x.toml"), vec![0xff, 0xfe], &Limits::default()).unwrap_err();
        let said = "x.toml: invalid utf-8 sequence of 1 bytes from index 0";
        assert_eq!(error.to_string(), said);
    }
}
