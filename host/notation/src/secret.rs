//! Texts that nothing prints.

use std::fmt;
use std::ops::Deref;

/// A text that nothing prints.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being printed.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
