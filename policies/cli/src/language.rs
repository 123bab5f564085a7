//! The languages in which policies are written.

use std::path::Path;

use anyhow::{Result, bail};

/// A language that this tool builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    /// Small and fast components, with the SDK
    Rust,
    /// A component with QuickJS in it
    #[value(name = "javascript")]
    JavaScript,
    /// A component with CPython in it
    Python,
}

// === impl Language ===

impl Language {
    const ALL: [Self; 3] = [Self::Rust, Self::JavaScript, Self::Python];

    /// The language of the policy in a folder.
    ///
    /// # Errors
    /// If the folder has no manifest, or those of several languages.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let shown = folder.display();
        let found = Self::ALL.map(|language| (language, folder.join(language.manifest())));
        let mut found = found.iter().filter(|(_, manifest)| manifest.is_file());
        match (found.next(), found.next()) {
            (Some((language, _)), None) => Ok(*language),
            (Some((one, _)), Some((other, _))) => bail!(
                "{shown} has {} and {}: a policy is in one language, so move the other to a folder \
                 of its own",
                one.manifest(),
                other.manifest(),
            ),
            (None, _) => bail!(
                "{shown} has no Cargo.toml, package.json or pyproject.toml: `pointsman policy new \
                 NAME` makes a folder that has one",
            ),
        }
    }

    /// The file that says what the policy is called.
    fn manifest(self) -> &'static str {
        match self {
            Self::Rust => "Cargo.toml",
            Self::JavaScript => "package.json",
            Self::Python => "pyproject.toml",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_manifest_tells_the_language_and_there_is_one() {
        for (files, expected) in [
            (&["Cargo.toml"][..], Ok(Language::Rust)),
            (&["package.json"], Ok(Language::JavaScript)),
            (&["pyproject.toml"], Ok(Language::Python)),
            (
                &[],
                Err(
                    "has no Cargo.toml, package.json or pyproject.toml: `pointsman policy new NAME`",
                ),
            ),
            (
                &["package.json", "Cargo.toml"],
                Err("has Cargo.toml and package.json: a policy is in one language"),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                fs::write(folder.path().join(file), "").unwrap();
            }
            match (Language::of(folder.path()), expected) {
                (Ok(language), Ok(expected)) => assert_eq!(language, expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, expected) => panic!("{files:?}: {found:?} instead of {expected:?}"),
            }
        }
    }
}
