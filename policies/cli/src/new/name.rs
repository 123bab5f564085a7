//! The names that a policy's crate may have.

use std::str::FromStr;

/// The most letters of a name. No later step cuts a longer name, so it is refused here.
const LENGTH_MAX: usize = 64;

/// Names that cargo refuses for a package, or that another crate of the build has.
const TAKEN: [&str; 57] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "pointsman-sdk",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "self",
    "serde",
    "serde-json",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "use",
    "where",
    "while",
    "wit-bindgen",
];

/// A name that a crate can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(String);

/// The reason why a crate cannot have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NameError {
    #[error("a name begins with a lower-case letter")]
    Beginning,
    #[error("a name ends with a letter or digit, and no two hyphens stand side by side")]
    Hyphen,
    #[error("{0:?} in it: a name is of lower-case letters, digits and hyphens")]
    Letter(char),
    #[error("longer than {LENGTH_MAX} letters")]
    Length,
    #[error("Rust, or another crate of the build, has that name for itself")]
    Taken,
}

// === impl Name ===

impl Name {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
        if let Some(letter) = text.chars().find(|letter| !allowed(*letter)) {
            return Err(NameError::Letter(letter));
        }
        if !text.starts_with(|first: char| first.is_ascii_lowercase()) {
            return Err(NameError::Beginning);
        }
        if text.ends_with('-') || text.contains("--") {
            return Err(NameError::Hyphen);
        }
        if text.len() > LENGTH_MAX {
            return Err(NameError::Length);
        }
        if TAKEN.contains(&text) {
            return Err(NameError::Taken);
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_crate_can_have_is_refused() {
        for (text, error) in [
            ("", NameError::Beginning),
            ("9lives", NameError::Beginning),
            ("-x", NameError::Beginning),
            ("x-", NameError::Hyphen),
            ("a--b", NameError::Hyphen),
            ("My", NameError::Letter('M')),
            ("../x", NameError::Letter('.')),
            ("a b", NameError::Letter(' ')),
            ("fn", NameError::Taken),
            ("wit-bindgen", NameError::Taken),
        ] {
            assert_eq!(text.parse::<Name>(), Err(error), "{text}");
        }
        assert_eq!("x".repeat(65).parse::<Name>(), Err(NameError::Length));
        for text in ["x", "my-policy-2", &"x".repeat(64)] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
    }
}
