//! The text of a TOML file, its way into a type, and the places in it that errors name.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Place, Wrong};
use super::nearest::nearest;

/// A TOML file.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    pub(crate) fn new(path: &Path, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The file that `--config` names.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self::new(path, &text)),
            Err(error) => {
                let path = path.to_owned();
                let wrong = Wrong::Unreadable { path, error };
                Err(ConfigError::new(Place::Flag("--config"), wrong))
            }
        }
    }

    /// The file as a `T`.
    ///
    /// # Errors
    /// If it is no TOML, or does not fit `T`: an unknown key, a value of the wrong type.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let syntax = |error: toml::de::Error| {
            let message = error.message().to_owned();
            self.error(error.span(), Wrong::Syntax(message))
        };
        let document = DeTable::parse(&self.text).map_err(syntax)?;
        let deserializer = toml::Deserializer::from(document.clone());
        T::deserialize(deserializer).map_err(|error| {
            let span = error.span();
            let at = span.as_ref().map_or(0, |span| span.start);
            let key = path_in_table(document.get_ref(), at).unwrap_or_default();
            self.error(span, refusal(key, error.message()))
        })
    }

    /// What is wrong at some bytes of the text.
    pub(crate) fn error(&self, span: Option<Range<usize>>, wrong: Wrong) -> ConfigError {
        let place = match span {
            Some(span) => self.place(span.start),
            None => Place::File(self.path.clone()),
        };
        ConfigError::new(place, wrong)
    }

    /// A path that the file names, relative to the folder it is in.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        folder.join(path)
    }

    pub(crate) fn place(&self, offset: usize) -> Place {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::At {
            file: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// What a message of serde says, which puts unknown and known names between backquotes.
fn refusal(key: String, message: &str) -> Wrong {
    if !message.starts_with("unknown field `") {
        let message = message.trim_end().to_owned();
        return Wrong::Value { key, message };
    }
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next().unwrap_or_default();
    let known: Vec<&str> = names.collect();
    Wrong::UnknownKey {
        key,
        meant: nearest(unknown, &known).map(str::to_owned),
        known: known.into_iter().map(str::to_owned).collect(),
    }
}

/// The path of the innermost key or value at a byte of the text. A table's own span is only its
/// header, so every one is searched.
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
