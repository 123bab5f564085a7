//! Crates that the lock file has in more than one version.

use std::collections::BTreeMap;

use anyhow::Result;
use pointsman_notation::TomlText;
use serde::Deserialize;

use super::Problem;
use super::config::{self, Duplicate};

pub(super) const PATH: &str = "Cargo.lock";

#[derive(Deserialize)]
struct Lock {
    #[serde(default)]
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
}

pub(super) fn check(lock: &str, allowed: &[Duplicate]) -> Result<Vec<Problem>> {
    let lock: Lock = TomlText::new(PATH.as_ref(), lock).parse()?;
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in &lock.package {
        versions
            .entry(&package.name)
            .or_default()
            .push(&package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let is_allowed = |name: &str| allowed.iter().any(|entry| entry.name == name);
    let unlisted = versions.iter().filter(|(name, _)| !is_allowed(name));
    let mut problems: Vec<Problem> = unlisted
        .map(|(name, versions)| several(name, versions))
        .collect();
    let stale = allowed
        .iter()
        .filter(|entry| !versions.contains_key(entry.name.as_str()));
    problems.extend(stale.map(|entry| once(&entry.name)));
    Ok(problems)
}

fn several(name: &str, versions: &[&str]) -> Problem {
    let versions = versions.join(" and ");
    let text = format!(
        "`{name}` is there as {versions} (`cargo tree -d` shows why); unify them, or list the \
         crate with the reason in {}",
        config::PATH
    );
    Problem::new(PATH, text)
}

fn once(name: &str) -> Problem {
    let text = format!("`{name}` is listed as a duplicate and no longer is one");
    Problem::new(config::PATH, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::config::Config;
    use crate::tidy::testing::texts;

    const LOCK: &str = "version = 4\n\
                        [[package]]\nname = 'syn'\nversion = '2.0.1'\n\
                        [[package]]\nname = 'syn'\nversion = '3.0.9'\n\
                        [[package]]\nname = 'toml'\nversion = '1.0.0'\n";

    fn said(allowed: &[&str]) -> Vec<String> {
        let entries = allowed
            .iter()
            .map(|name| format!("[[duplicate]]\nname = '{name}'\nreason = 'r'\n"));
        let config = Config::parse(&entries.collect::<String>()).unwrap();
        texts(&check(LOCK, &config.duplicate).unwrap())
    }

    #[test]
    fn an_unlisted_duplicate_is_named_with_its_versions() {
        let said = said(&[]);
        assert_eq!(said.len(), 1);
        assert!(
            said[0].starts_with("Cargo.lock: `syn` is there as 2.0.1 and 3.0.9"),
            "{said:?}"
        );
    }

    #[test]
    fn a_listed_duplicate_is_allowed() {
        assert!(said(&["syn"]).is_empty());
    }

    #[test]
    fn an_entry_without_a_duplicate_is_stale() {
        let said = said(&["syn", "toml"]);
        assert_eq!(
            said,
            ["xtask/tidy.toml: `toml` is listed as a duplicate and no longer is one"]
        );
    }
}
