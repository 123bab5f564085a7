//! The check of a policy's description of itself, within the limits that it has.
//!
//! # Not here
//! The values that an operator gives to settings: [`pointsman_component::configured`], and the policy's own
//! `configure`.

use pointsman_component::{Limits, PolicyDescription, SettingRange, SettingSchema};
use pointsman_core::{Hook, HookSet, RowKind};
use pointsman_notation::untrusted;
use serde_json::Value;

use crate::name::is_of_name_letters;

/// A fault of a policy's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// The name is empty.
    #[error("name is empty")]
    NoName,
    /// The name has other characters than those of file names.
    #[error("name {0:?} has other characters than letters, digits, '-', '_' and '.'")]
    Name(String),
    /// A text has characters that are not shown.
    #[error("{0} has control characters or turns the direction of writing")]
    Hidden(&'static str),
    /// A text is too long.
    #[error("{what} has {bytes} bytes, {max} are allowed")]
    TooLong {
        /// Name of the text.
        what: &'static str,
        /// Size of the text in bytes.
        bytes: usize,
        /// Largest allowed size in bytes.
        max: usize,
    },
    /// The number of reasons is above the limit.
    #[error("{count} reasons, {max} are allowed")]
    TooManyReasons {
        /// Number of reasons.
        count: usize,
        /// Largest allowed number.
        max: u32,
    },
    /// A setting is described in a way that is of no use.
    #[error("setting {key:?} {why}")]
    Setting {
        /// Key of the setting.
        key: String,
        /// The fault of its description.
        why: &'static str,
    },
    /// The number of settings, or of the texts of one, is above the limit.
    #[error("{count} settings or texts of one, {max} are allowed")]
    TooManySettings {
        /// Number of them.
        count: usize,
        /// Largest allowed number.
        max: u32,
    },
    /// The policy exports no hook.
    #[error("makes no decision: it has no hook")]
    NoHooks,
    /// The policy lacks rows that one of its hooks needs.
    #[error("exports {hook} but does not ask to be fed {feed}")]
    FeedMissing {
        /// Name of the hook.
        hook: &'static str,
        /// Name of the feed that is missing.
        feed: &'static str,
    },
}

/// Checks the description of a policy that exports `hooks`.
///
/// # Errors
/// The first fault that it has.
pub(crate) fn check(
    said: &PolicyDescription,
    hooks: HookSet,
    limits: &Limits,
) -> Result<(), DescriptionError> {
    check_texts(said, limits)?;
    check_settings(&said.settings, limits)?;
    check_hooks(said, hooks)
}

fn check_texts(said: &PolicyDescription, limits: &Limits) -> Result<(), DescriptionError> {
    if said.name.is_empty() {
        return Err(DescriptionError::NoName);
    }
    if u32::try_from(said.reasons.len()).is_ok_and(|count| count <= limits.reasons) {
        let max = usize::try_from(limits.text_bytes).unwrap_or(usize::MAX);
        check_text("name", &said.name, max)?;
        check_name(&said.name)?;
        check_text("version", &said.version, max)?;
        check_text("summary", &said.summary, max.saturating_mul(4))?;
        let mut reasons = said.reasons.iter();
        return reasons.try_for_each(|reason| check_text("a reason", reason, max));
    }
    Err(DescriptionError::TooManyReasons {
        count: said.reasons.len(),
        max: limits.reasons,
    })
}

fn check_text(what: &'static str, text: &str, max: usize) -> Result<(), DescriptionError> {
    let bytes = text.len();
    if bytes > max {
        return Err(DescriptionError::TooLong { what, bytes, max });
    }
    if !untrusted::is_line(text) {
        return Err(DescriptionError::Hidden(what));
    }
    Ok(())
}

/// Checks that a policy's own name has no characters that the name of its file, beside which it is
/// shown, cannot have.
fn check_name(name: &str) -> Result<(), DescriptionError> {
    if is_of_name_letters(name) {
        return Ok(());
    }
    Err(DescriptionError::Name(name.to_owned()))
}

/// Checks the settings that a policy describes.
fn check_settings(all: &[SettingSchema], limits: &Limits) -> Result<(), DescriptionError> {
    check_count(all.len(), limits)?;
    for (idx, setting) in all.iter().enumerate() {
        check_setting_texts(setting, limits)?;
        let is_twice = all[..idx].iter().any(|other| other.key == setting.key);
        if let Some(why) = fault_of(setting).or(is_twice.then_some("is described twice")) {
            let key = setting.key.clone();
            return Err(DescriptionError::Setting { key, why });
        }
    }
    Ok(())
}

fn check_count(count: usize, limits: &Limits) -> Result<(), DescriptionError> {
    let max = limits.reasons;
    if u32::try_from(count).is_ok_and(|count| count <= max) {
        return Ok(());
    }
    Err(DescriptionError::TooManySettings { count, max })
}

fn check_setting_texts(setting: &SettingSchema, limits: &Limits) -> Result<(), DescriptionError> {
    let max = usize::try_from(limits.text_bytes).unwrap_or(usize::MAX);
    check_text("a setting's key", &setting.key, max)?;
    check_text("a setting's meaning", &setting.about, max)?;
    let default = setting.default.as_deref().unwrap_or_default();
    check_text("a setting's default", default, max)?;
    match &setting.values {
        SettingRange::Choice(texts) => {
            check_count(texts.len(), limits)?;
            let mut texts = texts.iter();
            texts.try_for_each(|text| check_text("a setting's value", text, max))
        }
        SettingRange::Other(words) => check_text("a setting's values", words, max),
        SettingRange::Number(_) | SettingRange::Duration(..) | SettingRange::YesOrNo => Ok(()),
    }
}

/// The fault of a setting's description, if it has one.
fn fault_of(setting: &SettingSchema) -> Option<&'static str> {
    let is_empty = match &setting.values {
        SettingRange::Number(range) | SettingRange::Duration(_, range) => range.is_empty(),
        SettingRange::Choice(texts) => texts.is_empty(),
        SettingRange::YesOrNo | SettingRange::Other(_) => false,
    };
    let default = setting
        .default
        .as_deref()
        .map(serde_json::from_str::<Value>);
    if setting.key.is_empty() {
        Some("has no key")
    } else if is_empty {
        Some("has no value that it may have")
    } else {
        match default {
            Some(Err(_)) => Some("has a default that is no JSON"),
            Some(Ok(value)) if !setting.values.has(&value) => {
                Some("has a default that it may not have")
            }
            Some(Ok(_)) | None => None,
        }
    }
}

/// Victims cannot be named without their feed. The other hooks are passed the ids that their
/// answers are about.
fn check_hooks(said: &PolicyDescription, hooks: HookSet) -> Result<(), DescriptionError> {
    if hooks.is_empty() {
        return Err(DescriptionError::NoHooks);
    }
    let needs = said.needs.of(Hook::Preemption);
    if hooks.contains(Hook::Preemption) && !needs.contains(RowKind::Sequence) {
        return Err(DescriptionError::FeedMissing {
            hook: Hook::Preemption.as_str(),
            feed: RowKind::Sequence.as_str(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pointsman_component::TimeUnit;
    use pointsman_component::fixture::setting;

    use super::*;

    fn said(all: &[SettingSchema]) -> String {
        match check_settings(all, &Limits::default()) {
            Ok(()) => "good".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_default_is_one_of_the_values() {
        let number = |default| said(&[setting(SettingRange::Number(1..=8), default)]);
        assert_eq!(number(Some("8")), "good");
        assert_eq!(number(None), "good");
        assert_eq!(
            number(Some("9")),
            "setting \"cost\" has a default that it may not have"
        );
        assert_eq!(
            number(Some("nine")),
            "setting \"cost\" has a default that is no JSON"
        );
        let choice = SettingRange::Choice(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(said(&[setting(choice.clone(), Some("\"b\""))]), "good");
        assert!(said(&[setting(choice, Some("\"c\""))]).ends_with("may not have"));
        let list = SettingRange::Other("two numbers".to_owned());
        assert_eq!(said(&[setting(list, Some("[1, 2]"))]), "good");
    }

    #[test]
    fn what_is_of_no_use_is_refused() {
        let one = setting(SettingRange::YesOrNo, Some("true"));
        let twice = said(&[one.clone(), one.clone()]);
        assert_eq!(twice, "setting \"cost\" is described twice");
        let empty = setting(SettingRange::Choice(Vec::new()), None);
        assert!(said(&[empty]).ends_with("has no value that it may have"));
        let many = vec![one.clone(); 257];
        assert_eq!(said(&many), "257 settings or texts of one, 256 are allowed");
        let long = SettingSchema {
            about: "x".repeat(257),
            ..one
        };
        assert!(said(&[long]).starts_with("a setting's meaning has 257 bytes"));
    }

    #[test]
    fn a_duration_has_a_number_of_its_unit_by_default() {
        let values = || SettingRange::Duration(TimeUnit::Seconds, 0..=3600);
        assert_eq!(said(&[setting(values(), Some("90"))]), "good");
        assert!(said(&[setting(values(), Some("\"90s\""))]).ends_with("may not have"));
    }
}
