//! `--settings`: a file of the form of a sidecar, of any name.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use pointsman_component::{Digest, Limits};
use pointsman_notation::NamedLimits as _;
use pointsman_policy::Mode;
use serde_json::{Map, Value};

/// The settings and limits that a policy is started with, and what else a server goes by.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) settings: Map<String, Value>,
    pub(crate) limits: Limits,
    pub(crate) mode: Mode,
    /// The digest of the policy's file; absent: any file will do.
    pub(crate) sha256: Option<Digest>,
}

impl Given {
    /// Reads a file; without one there are no settings, and the server's default limits. Those may be raised, so
    /// a file has any that some server takes.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let bytes = fs::read(path).with_context(|| format!("settings {}", path.display()))?;
        let sidecar = pointsman_sidecar::parse_for_any_server(path, bytes)?;
        Ok(Self {
            settings: sidecar.settings.unwrap_or_default(),
            limits: sidecar.limits,
            mode: sidecar.mode,
            sha256: sidecar.sha256,
        })
    }

    /// Remarks about limits that only a server takes whose own were raised.
    pub(crate) fn raised(&self) -> Vec<String> {
        let defaults = Limits::default();
        let each = self.limits.rows().zip(defaults.rows());
        let raised = each.filter(|((_, given), (_, default))| given > default);
        let remark = |((name, given), (_, default)): ((&str, u64), (&str, u64))| {
            format!(
                "limits.{name} is {given}: a server takes it whose [policies.limits] have as much, by \
                 default {default}"
            )
        };
        raised.map(remark).collect()
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
        let given = Given::read(Some(&path)).unwrap();
        let (settings, limits) = (given.settings, given.limits);
        assert_eq!((settings, limits.call_fuel), (Map::new(), 1000));
        assert_eq!(limits.row_fuel, Limits::default().row_fuel);
    }

    #[test]
    fn limits_are_up_to_those_that_a_server_can_have_and_raised_ones_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("raised.toml");
        let read = |fuel: u64| {
            fs::write(&path, format!("[limits]\ncall-fuel = {fuel}\n")).unwrap();
            Given::read(Some(&path))
        };
        let default = Limits::default().call_fuel;
        let raised = read(default + 1).unwrap();
        assert_eq!(raised.limits.call_fuel, default + 1);
        let remark = format!(
            "limits.call-fuel is {}: a server takes it whose ",
            default + 1
        );
        let remarks = raised.raised();
        assert!(
            remarks.len() == 1 && remarks[0].starts_with(&remark),
            "{remarks:?}"
        );
        assert!(read(default).unwrap().raised().is_empty());
        let beyond = read(Limits::CEILING.call_fuel + 1).unwrap_err();
        let said = format!("{beyond:#}");
        assert!(
            said.contains("limits.call-fuel must be from 1 to"),
            "{said}"
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Given::read(Some("nowhere.toml".as_ref())).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.starts_with("settings nowhere.toml: No such"), "{said}");
    }
}
