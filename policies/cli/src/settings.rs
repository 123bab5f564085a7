//! `--settings`: a file of the form of a sidecar, of any name.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use pointsman_component::Limits;
use serde_json::{Map, Value};

/// The settings and limits that a policy is started with.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) settings: Map<String, Value>,
    pub(crate) limits: Limits,
}

impl Given {
    /// Reads a file; without one there are no settings, and the server's default limits.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let bytes = fs::read(path).with_context(|| format!("settings {}", path.display()))?;
        let sidecar = pointsman_sidecar::parse(path, bytes, &Limits::default())?;
        Ok(Self {
            settings: sidecar.settings.unwrap_or_default(),
            limits: sidecar.limits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sidecar_leaves_out_is_as_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any-name.toml");
        fs::write(&path, "[limits]\ncall-fuel = 1000\n").unwrap();
        let Given { settings, limits } = Given::read(Some(&path)).unwrap();
        assert_eq!((settings, limits.call_fuel), (Map::new(), 1000));
        assert_eq!(limits.row_fuel, Limits::default().row_fuel);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Given::read(Some("nowhere.toml".as_ref())).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.starts_with("settings nowhere.toml: No such"), "{said}");
    }
}
