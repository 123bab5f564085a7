//! `xtask/tidy.toml`: exceptions to the rules, each with its reason.

use anyhow::Result;
use pointsman_notation::TomlText;
use serde::Deserialize;

use super::Problem;

pub(super) const PATH: &str = "xtask/tidy.toml";

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Config {
    pub(super) duplicate: Vec<Duplicate>,
    pub(super) long_file: Vec<LongFile>,
    pub(super) debug: Vec<Debugged>,
    pub(super) reserved: Vec<Reserved>,
    pub(super) frugal: Vec<Frugal>,
}

/// A crate that may be in the lock file in several versions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Duplicate {
    pub(super) name: String,
    reason: String,
}

/// A file that may be longer than the rule says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LongFile {
    pub(super) path: String,
    reason: String,
}

/// A file whose texts for people may have as many values as `Debug` writes them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Debugged {
    pub(super) path: String,
    pub(super) count: usize,
    pub(super) reason: String,
}

/// An external crate, with its family (`wasmtime-*`), that few packages may depend on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reserved {
    pub(super) name: String,
    pub(super) packages: Vec<String>,
    reason: String,
}

/// A package of ours that may depend on few external crates.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Frugal {
    pub(super) package: String,
    pub(super) dependencies: Vec<String>,
    #[serde(default)]
    pub(super) dev_dependencies: Vec<String>,
    reason: String,
}

// === impl Config ===

impl Config {
    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(TomlText::new(PATH.as_ref(), text).parse()?)
    }

    /// Every entry has a reason.
    pub(super) fn check(&self) -> Vec<Problem> {
        let duplicates = self.duplicate.iter().map(|e| (&e.name, &e.reason));
        let long_files = self.long_file.iter().map(|e| (&e.path, &e.reason));
        let debugged = self.debug.iter().map(|e| (&e.path, &e.reason));
        let reserved = self.reserved.iter().map(|e| (&e.name, &e.reason));
        let frugal = self.frugal.iter().map(|e| (&e.package, &e.reason));
        duplicates
            .chain(long_files)
            .chain(debugged)
            .chain(reserved)
            .chain(frugal)
            .filter(|(_, reason)| reason.trim().is_empty())
            .map(|(what, _)| Problem::new(PATH, format!("the entry for `{what}` has no reason")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::texts;

    #[test]
    fn an_entry_needs_a_reason() {
        let text = "[[duplicate]]\nname = 'syn'\nreason = ' '\n\
                    [[long-file]]\npath = 'a.rs'\nreason = 'a table'\n";
        let problems = Config::parse(text).unwrap().check();
        assert_eq!(
            texts(&problems),
            ["xtask/tidy.toml: the entry for `syn` has no reason"]
        );
        assert!(Config::parse("[[duplicate]]\nname = 'syn'\n").is_err());
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = Config::parse("[[long_file]]\npath = 'a'\nreason = 'b'\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "xtask/tidy.toml:1:3: unknown key `long_file[0]`; did you mean `long-file`?"
        );
    }
}
