//! `--settings`: what may stand beside a policy in the policy folder, from a file of any name.

use std::fs;

use anyhow::{Context, Result};
use pointsman_policy::Limits;
use serde_json::{Map, Value};

use super::SettingsArg;
use crate::reload::sidecar;

/// What a policy is started with.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) settings: Map<String, Value>,
    pub(super) limits: Limits,
}

/// What the argument names; without it no settings and the server's limits.
pub(super) fn given(arg: &SettingsArg) -> Result<Given> {
    let Some(path) = &arg.settings else {
        return Ok(Given::default());
    };
    let bytes = fs::read(path).with_context(|| format!("settings {}", path.display()))?;
    let said = sidecar::parse(path, bytes, &Limits::default())?;
    Ok(Given {
        settings: said.settings.unwrap_or_default(),
        limits: said.limits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sidecar_leaves_out_is_as_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any-name.toml");
        fs::write(&path, "[limits]\ncall-fuel = 1000\n").unwrap();
        let arg = SettingsArg {
            settings: Some(path),
        };
        let Given { settings, limits } = given(&arg).unwrap();
        assert_eq!((settings, limits.call_fuel), (Map::new(), 1000));
        assert_eq!(limits.row_fuel, Limits::default().row_fuel);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let arg = SettingsArg {
            settings: Some("nowhere.toml".into()),
        };
        let said = format!("{:#}", given(&arg).unwrap_err());
        assert!(said.starts_with("settings nowhere.toml: No such"), "{said}");
    }
}
