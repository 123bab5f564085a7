//! Settings as a policy describes them: for people, and for tools that search them.
//!
//! # Not here
//! The check of settings that an operator gives: the policy's own `configure` does that.

use std::fmt;
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::limits::Limits;
use crate::policy::{DescriptionError, check_text};

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
    /// True or false.
    YesOrNo,
    /// One of these texts.
    Choice(Vec<String>),
    /// Something else, in words.
    Other(String),
}

impl SettingRange {
    /// True if the value is one of them. Of values that are told in words, each one may be.
    #[must_use]
    pub fn has(&self, value: &Value) -> bool {
        match self {
            Self::Number(range) => value.as_u64().is_some_and(|value| range.contains(&value)),
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
            Self::YesOrNo => f.write_str("true or false"),
            Self::Choice(texts) => f.write_str(&texts.join(", ")),
            Self::Other(words) => f.write_str(words),
        }
    }
}

/// Checks the settings that a policy describes.
pub(crate) fn check(all: &[SettingSchema], limits: &Limits) -> Result<(), DescriptionError> {
    check_count(all.len(), limits)?;
    for (idx, setting) in all.iter().enumerate() {
        check_texts(setting, limits)?;
        let is_twice = all[..idx].iter().any(|other| other.key == setting.key);
        if let Some(why) = fault(setting).or(is_twice.then_some("is described twice")) {
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

fn check_texts(setting: &SettingSchema, limits: &Limits) -> Result<(), DescriptionError> {
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
        SettingRange::Number(_) | SettingRange::YesOrNo => Ok(()),
    }
}

/// The fault of a description, if it has one.
fn fault(setting: &SettingSchema) -> Option<&'static str> {
    let is_empty = match &setting.values {
        SettingRange::Number(range) => range.is_empty(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(values: SettingRange, default: Option<&str>) -> SettingSchema {
        SettingSchema {
            key: "cost".to_owned(),
            about: "Of a request.".to_owned(),
            values,
            default: default.map(str::to_owned),
        }
    }

    fn said(all: &[SettingSchema]) -> String {
        match check(all, &Limits::default()) {
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
        assert_eq!(choice.to_string(), "a, b");
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
}
