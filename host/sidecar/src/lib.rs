//! The file `NAME.toml` beside a policy, by which an operator says how the policy is run, and the
//! file of an author's `pointsman policy ... --settings`.
//!
//! ```toml
//! mode = "shadow"       # enforce, shadow, or canary 10%
//! sha256 = "2bb8…"      # of the policy's file: another one is waited for
//! on-failure = { admission = "closed" }   # or fallback
//!
//! [settings]            # for the policy, in its own words
//! affinity-bonus = 200
//!
//! [limits]              # up to a ceiling: a server's is its own limits
//! call-fuel = 1_000_000
//! ```
//!
//! # Invariants
//! 1. No limit exceeds the ceiling, and what is left out is as it is without a sidecar
//!    (`limits_are_up_to_a_ceiling`).
//! 2. An unknown key is refused, not passed over (`what_is_not_known_is_refused`).
//!
//! # Not here
//! Finding and reading the file (`pointsman-lifecycle`); the meaning of settings, which policies check.

#![forbid(unsafe_code)]

pub mod tables;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::string::FromUtf8Error;

use pointsman_component::{Digest, Limits, PolicyComponent};
use pointsman_interface::Bounds;
use pointsman_notation::{NamedLimits as _, TomlError, TomlProblem, TomlText};
use pointsman_policy::{Mode, OnFailure, PolicySource};
use serde::Deserialize;
use serde_json::{Map, Value};
use toml::Spanned;

use crate::tables::LimitsTable;

/// The most bytes of a sidecar.
pub const SIDECAR_BYTES_MAX: usize = 64 << 10;

/// A sidecar that has been read.
#[derive(Debug)]
pub struct Sidecar {
    /// The policy's settings; absent: those of the configuration.
    pub settings: Option<Map<String, Value>>,
    /// The policy's limits; those of policies without a sidecar where it names none.
    pub limits: Limits,
    /// The part that the policy's answers have in decisions.
    pub mode: Mode,
    /// The digest of the policy's file; absent: any file will do.
    pub sha256: Option<Digest>,
    /// The treatment of arrivals that the policy does not answer for.
    pub on_failure: OnFailure,
}

/// A sidecar that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// The file is no text.
    #[error("{}: {error}", file.display())]
    NotText { file: PathBuf, error: FromUtf8Error },
    /// Something in the text is wrong.
    #[error(transparent)]
    Toml(#[from] TomlError),
}

impl Sidecar {
    /// The sidecar of a policy that has none.
    pub fn absent(limits: &Limits) -> Self {
        Self {
            settings: None,
            limits: *limits,
            mode: Mode::default(),
            sha256: None,
            on_failure: OnFailure::default(),
        }
    }

    /// The source of instances of `component` with these settings, on a machine with these bounds.
    pub fn source(&self, component: &PolicyComponent, bounds: Bounds) -> PolicySource {
        let plain = Map::new();
        let settings = self.settings.as_ref().unwrap_or(&plain);
        PolicySource::component(component, settings, self.limits).within(bounds)
    }
}

/// The keys of a sidecar, unchecked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
struct File {
    mode: Option<Spanned<String>>,
    sha256: Option<Spanned<String>>,
    #[serde(default)]
    on_failure: Failing,
    settings: Option<Spanned<toml::Table>>,
    #[serde(default)]
    limits: LimitsTable,
}

/// The table `on-failure`. Only admission can be closed: with any other hook requests would be
/// taken and never served.
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

/// Reads a sidecar for a server with these `limits`: the policy has those that the sidecar does not name, and none
/// above them. Errors call it `file`.
///
/// # Errors
/// If the bytes are no text or no TOML, or have a value that no policy can be given; the error has
/// the place.
pub fn parse(file: &Path, bytes: Vec<u8>, limits: &Limits) -> Result<Sidecar, SidecarError> {
    parse_within(file, bytes, limits, limits)
}

/// Reads a sidecar that some server takes: limits that it does not name are the defaults, and the others at most
/// what those of a server can be raised to. Errors call it `file`.
///
/// # Errors
/// As those of [`parse`].
pub fn parse_for_any_server(file: &Path, bytes: Vec<u8>) -> Result<Sidecar, SidecarError> {
    parse_within(file, bytes, &Limits::default(), &Limits::CEILING)
}

/// Reads a sidecar. Limits that it does not name are those of `rest`, and none may be above `ceiling`.
fn parse_within(
    file: &Path,
    bytes: Vec<u8>,
    rest: &Limits,
    ceiling: &Limits,
) -> Result<Sidecar, SidecarError> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let file = file.to_owned();
        SidecarError::NotText { file, error }
    })?;
    let source = TomlText::new(file, text);
    let given: File = source.parse()?;
    let settings = given
        .settings
        .map(|table| tables::settings(&source, "settings", table));
    Ok(Sidecar {
        settings: settings.transpose()?,
        mode: parsed(&source, "mode", given.mode)?.unwrap_or_default(),
        sha256: parsed(&source, "sha256", given.sha256)?,
        on_failure: given.on_failure.admission,
        limits: tables::limits(&source, "limits", given.limits, *rest, ceiling)?,
    })
}

fn parsed<T: FromStr<Err: Display>>(
    source: &TomlText,
    key: &str,
    given: Option<Spanned<String>>,
) -> Result<Option<T>, TomlError> {
    let Some(given) = given else {
        return Ok(None);
    };
    given.get_ref().parse().map(Some).map_err(|error: T::Err| {
        let (key, message) = (key.to_owned(), error.to_string());
        source.error(given.span().start, TomlProblem::Value { key, message })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(text: &str) -> Result<Sidecar, String> {
        let rest = Limits {
            call_fuel: 500,
            ..Limits::default()
        };
        let ceiling = Limits {
            call_fuel: 1000,
            ..Limits::default()
        };
        let read = parse_within(Path::new("x.toml"), text.into(), &rest, &ceiling);
        read.map_err(|error| error.to_string())
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
    fn limits_are_up_to_a_ceiling() {
        assert_eq!(parsed("").unwrap().limits.call_fuel, 500);
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
        let limits = Limits::default();
        let error = parse(Path::new("x.toml"), vec![0xff, 0xfe], &limits).unwrap_err();
        let said = "x.toml: invalid utf-8 sequence of 1 bytes from index 0";
        assert_eq!(error.to_string(), said);
    }
}
