//! The text of a scenario, and where in it something stands.

use std::fmt;
use std::path::{Path, PathBuf};

/// A place in a file. Lines and columns count from one, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which file.
    pub file: PathBuf,
    /// Which line.
    pub line: usize,
    /// Which character of the line.
    pub column: usize,
}

/// What is wrong with a scenario's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct FormatError {
    /// Where.
    pub place: Place,
    /// What.
    pub message: String,
}

/// A scenario's text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    file: PathBuf,
    text: String,
}

// === impl Source ===

impl Source {
    pub(crate) fn new(file: &Path, text: &str) -> Self {
        Self {
            file: file.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The place of a byte of the text.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let end = self.text.floor_char_boundary(offset);
        let before = &self.text[..end];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place {
            file: self.file.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    pub(crate) fn error(&self, offset: usize, message: &str) -> FormatError {
        FormatError {
            place: self.place(offset),
            message: message.trim_end().to_owned(),
        }
    }
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column } = self;
        write!(f, "{}:{line}:{column}", file.display())
    }
}
