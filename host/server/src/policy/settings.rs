//! `--settings`: what may stand beside a policy in the policy folder, from a file of any name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use pointsman_policy::Limits;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::SettingsArg;
use crate::config::settings::to_json;

/// What a policy is started with.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) settings: Map<String, Value>,
    pub(super) limits: Limits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    settings: toml::Table,
    #[serde(default)]
    limits: BTreeMap<String, u64>,
}

/// What the argument names; without it no settings and the server's limits.
pub(super) fn given(arg: &SettingsArg) -> Result<Given> {
    match &arg.settings {
        None => Ok(Given::default()),
        Some(path) => read(path).with_context(|| format!("settings {}", path.display())),
    }
}

fn read(path: &Path) -> Result<Given> {
    parse(&fs::read_to_string(path)?)
}

fn parse(text: &str) -> Result<Given> {
    let File { settings, limits } = toml::from_str(text)?;
    let mut given = Given {
        settings: to_json(settings)?,
        limits: Limits::default(),
    };
    for (name, value) in limits {
        given.limits.set(&name, value, &Limits::default())?;
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", parse(text).unwrap_err())
    }

    #[test]
    fn settings_and_limits_are_those_of_a_file_in_the_policy_folder() {
        let given = parse("[settings]\nbonus = 2\n[limits]\ncall-fuel = 1000\n").unwrap();
        assert_eq!(
            Value::Object(given.settings),
            serde_json::json!({ "bonus": 2 })
        );
        assert_eq!(given.limits.call_fuel, 1000);
        assert_eq!(given.limits.row_fuel, Limits::default().row_fuel);
    }

    #[test]
    fn what_is_malformed_is_refused_with_line_and_column() {
        let said = refused("[settings]\nbonus = \n");
        assert!(said.contains("line 2, column"), "{said}");
        let said = refused("bonus = 2\n");
        assert!(said.contains("expected `settings` or `limits`"), "{said}");
    }

    #[test]
    fn a_limit_is_known_and_at_most_the_servers() {
        assert_eq!(refused("[limits]\nfuel = 1"), "no limit is called fuel");
        let said = refused("[limits]\nmemory-bytes = 1_000_000_000");
        assert!(
            said.starts_with("limit memory-bytes is 1000000000, it must be"),
            "{said}"
        );
    }
}
