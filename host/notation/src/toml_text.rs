//! The text of a TOML file, its way into a type, and the places in it that errors name.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::suggest::instead;

/// A TOML file's text, with the path that errors call it by.
#[derive(Clone, Debug)]
pub struct TomlText {
    file: PathBuf,
    text: String,
}

/// A place in a file. The text there is not kept: it may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The file's path.
    pub file: PathBuf,
    /// The line, counted from one.
    pub line: usize,
    /// The character in the line, counted from one.
    pub column: usize,
}

/// A problem in a TOML file, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {problem}")]
pub struct TomlError {
    /// The place.
    pub location: Location,
    /// The problem.
    pub problem: Box<TomlProblem>,
}

/// A problem in a TOML file. A `key` is the path of a key: `http.body-max`, `models[0].slots`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TomlProblem {
    /// A text that is no TOML, or any other problem that a sentence describes.
    #[error("{0}")]
    Sentence(String),
    /// A key that has no meaning there.
    #[error("unknown key `{key}`; {}", instead(name, known))]
    UnknownKey {
        /// The path of the key.
        key: String,
        /// The last name of the path, which is not known.
        name: String,
        /// The names that have a meaning there.
        known: Vec<String>,
    },
    /// A value of the wrong type or form.
    #[error("{key}: {message}")]
    Value {
        /// The path of the key.
        key: String,
        /// The problem of the value.
        message: String,
    },
    /// A value out of its range.
    #[error("{key} must be from {min} to {max}, not {value}")]
    OutOfRange {
        /// The path of the key.
        key: String,
        /// The value.
        value: String,
        /// The smallest value that is accepted.
        min: String,
        /// The largest value that is accepted.
        max: String,
    },
}

// === impl TomlText ===

impl TomlText {
    /// A file with this text. The file need not exist.
    pub fn new(file: &Path, text: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            text: text.into(),
        }
    }

    /// Deserializes the file.
    ///
    /// # Errors
    /// If the text is no TOML, or does not fit `T`: an unknown key, a value of the wrong type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, TomlError> {
        let document = DeTable::parse(&self.text)
            .map_err(|error| self.error(start_of(&error), error.message()))?;
        let deserializer = toml::Deserializer::from(document.clone());
        T::deserialize(deserializer).map_err(|error| {
            let at = start_of(&error);
            let key = path_in_table(document.get_ref(), at).unwrap_or_default();
            self.error(at, refusal(key, error.message()))
        })
    }

    /// A problem at a byte of the text.
    pub fn error(&self, offset: usize, problem: impl Into<TomlProblem>) -> TomlError {
        TomlError {
            location: self.location(offset),
            problem: Box::new(problem.into()),
        }
    }

    /// The place of a byte of the text.
    #[must_use]
    pub fn location(&self, offset: usize) -> Location {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Location {
            file: self.file.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// A path that the file names, relative to the folder the file is in.
    #[must_use]
    pub fn resolve(&self, path: &str) -> PathBuf {
        let folder = self.file.parent().unwrap_or(Path::new(""));
        folder.join(path)
    }
}

fn start_of(error: &toml::de::Error) -> usize {
    error.span().map_or(0, |span| span.start)
}

/// The problem that a message of serde describes, which puts names between backquotes: first the
/// unknown one, then those it knows.
fn refusal(key: String, message: &str) -> TomlProblem {
    if !message.starts_with("unknown field `") {
        let message = message.trim_end().to_owned();
        return TomlProblem::Value { key, message };
    }
    let mut names = message.split('`').skip(1).step_by(2).map(str::to_owned);
    TomlProblem::UnknownKey {
        key,
        name: names.next().unwrap_or_default(),
        known: names.collect(),
    }
}

/// The path of the innermost key or value at a byte of the text. A table's own span is only its
/// header, so every table is searched.
fn path_in_table(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let here = key.span().contains(&at) || value.span().contains(&at);
        let name = key.get_ref();
        match path_in_value(value, at) {
            Some(inner) if inner.starts_with('[') => Some(format!("{name}{inner}")),
            Some(inner) => Some(format!("{name}.{inner}")),
            None => here.then(|| name.to_string()),
        }
    })
}

fn path_in_value(value: &Spanned<DeValue<'_>>, at: usize) -> Option<String> {
    if let Some(table) = value.get_ref().as_table() {
        return path_in_table(table, at);
    }
    let array = value.get_ref().as_array()?;
    array.iter().enumerate().find_map(|(index, item)| {
        let here = item.span().contains(&at);
        match path_in_value(item, at) {
            Some(inner) => Some(format!("[{index}].{inner}")),
            None => here.then(|| format!("[{index}]")),
        }
    })
}

// === impl TomlProblem ===

impl From<&str> for TomlProblem {
    fn from(sentence: &str) -> Self {
        Self::Sentence(sentence.trim_end().to_owned())
    }
}

impl From<String> for TomlProblem {
    fn from(sentence: String) -> Self {
        Self::from(sentence.as_str())
    }
}

// === impl Location ===

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column } = self;
        write!(f, "{}:{line}:{column}", file.display())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::units::{Number, Time};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct File {
        wait_max: Option<Time>,
        #[serde(default)]
        step: Vec<Step>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Step {
        tokens: Number,
    }

    fn refused(text: &str) -> String {
        let parsed = TomlText::new(Path::new("a.toml"), text).parse::<File>();
        parsed.expect_err("the text is wrong").to_string()
    }

    #[test]
    fn an_error_names_the_place_the_path_of_the_key_and_the_problem() {
        for (text, said) in [
            (
                "wait-max = ",
                "a.toml:1:12: string values must be quoted, expected literal string",
            ),
            (
                "\nwait-mx = '1s'",
                "a.toml:2:1: unknown key `wait-mx`; did you mean `wait-max`?",
            ),
            (
                "[x]",
                "a.toml:1:2: unknown key `x`; there are: wait-max, step",
            ),
            (
                "[[step]]\ntokens = 1\n[[step]]\ntoken = 1",
                "a.toml:4:1: unknown key `step[1].token`; did you mean `tokens`?",
            ),
            (
                "step = [{ tokens = 1.5 }]",
                "a.toml:1:20: step[0].tokens: invalid type: floating point `1.5`, expected a \
                 whole number",
            ),
            (
                "step = 1",
                "a.toml:1:8: step: invalid type: integer `1`, expected a sequence",
            ),
            (
                "wait-max = '5 s'",
                "a.toml:1:12: wait-max: invalid value: string \"5 s\", expected a time such as \
                 \"250ms\", \"1.5s\" or \"24h\": whole microseconds, in us, ms, s, min or h",
            ),
        ] {
            assert_eq!(refused(text), said, "{text}");
        }
    }

    #[test]
    fn columns_count_characters() {
        let text = TomlText::new(Path::new("a.toml"), "ä = 1\nöö = 2");
        let at = text.location("ä = 1\nöö".len());
        assert_eq!(at.to_string(), "a.toml:2:3");
        assert_eq!(text.location(usize::MAX).to_string(), "a.toml:2:7");
        assert_eq!(
            text.location(1).to_string(),
            "a.toml:1:1",
            "inside a character"
        );
    }

    #[test]
    fn a_path_is_relative_to_the_folder_of_the_file() {
        let text = TomlText::new(Path::new("etc/a.toml"), "");
        assert_eq!(text.resolve("keys"), Path::new("etc/keys"));
        assert_eq!(text.resolve("/keys"), Path::new("/keys"));
    }
}
