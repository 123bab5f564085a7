//! The files that a model's text side is read from.

use std::borrow::Cow;
use std::error::Error;

/// A model's files, by the names that they have in a Hugging Face folder.
pub trait TextFiles {
    /// Reads the file `name`; absent where it does not exist.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, UnreadFile>;

    /// Returns the name of the file `name` in errors.
    fn describe(&self, name: &str) -> String;
}

/// The reason for which a file that exists cannot be read.
pub type UnreadFile = Box<dyn Error + Send + Sync>;
