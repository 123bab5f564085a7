//! The SDK and the interface, as files for a crate outside our workspace.
//!
//! The files lie below `vendor` as they do in the repository, since the SDK finds the interface by
//! its path. In the repository the SDK's manifest takes values from the workspace; here it has them
//! itself.

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::File;

// `static SOURCES: &[(&str, &str)]`, path in the repository and text, by build.rs.
include!(concat!(env!("OUT_DIR"), "/vendor.rs"));

const MANIFEST: &str = include_str!("../../../../policies/sdk/Cargo.toml");
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

/// The files of the SDK and of the interface.
///
/// # Errors
/// If our own manifests do not fit together.
pub(super) fn files() -> Result<Vec<File>> {
    let mut files = vec![("vendor/policies/sdk/Cargo.toml".into(), manifest()?)];
    let sources = SOURCES.iter();
    files.extend(sources.map(|(path, text)| (format!("vendor/{path}").into(), (*text).to_owned())));
    Ok(files)
}

/// The files of the interface, by their names.
pub(crate) fn interface() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_this_release = |(path, text): &(&'static str, &'static str)| {
        let name = path.strip_prefix("wit/")?;
        (!name.contains('/')).then_some((name, *text))
    };
    SOURCES.iter().filter_map(of_this_release)
}

fn manifest() -> Result<String> {
    let workspace: Table = WORKSPACE.parse()?;
    let workspace = workspace.get("workspace").and_then(Value::as_table);
    let workspace = workspace.context("the root manifest is no workspace")?;
    let mut manifest: Table = MANIFEST.parse()?;
    for (section, table) in &mut manifest {
        // `lints` is inherited as a whole, the others key by key.
        inherit(table, workspace.get(section))
            .with_context(|| format!("[{section}] of the SDK"))?;
    }
    Ok(toml::to_string(&manifest)?)
}

/// Replaces each `workspace = true` by the workspace's value.
fn inherit(value: &mut Value, inherited: Option<&Value>) -> Result<()> {
    let Value::Table(table) = value else {
        return Ok(());
    };
    if table.get("workspace") == Some(&Value::Boolean(true)) {
        anyhow::ensure!(table.len() == 1, "adds to what it inherits");
        *value = inherited.context("inherits what is not there")?.clone();
        return Ok(());
    }
    for (key, value) in table {
        inherit(value, inherited.and_then(|inherited| inherited.get(key)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sdks_manifest_stands_on_its_own() {
        let manifest = manifest().unwrap();
        assert!(!manifest.contains("workspace"), "{manifest}");
        let manifest: Table = manifest.parse().unwrap();
        let workspace: Table = WORKSPACE.parse().unwrap();
        let same = |one: &[&str], other: &[&str]| {
            let find = |table: &Table, path: &[&str]| {
                let (first, rest) = path.split_first().unwrap();
                rest.iter()
                    .fold(table[*first].clone(), |value, key| value[*key].clone())
            };
            assert_eq!(find(&manifest, one), find(&workspace, other));
        };
        same(
            &["package", "version"],
            &["workspace", "package", "version"],
        );
        same(
            &["dependencies", "serde"],
            &["workspace", "dependencies", "serde"],
        );
        same(&["lints"], &["workspace", "lints"]);
    }

    #[test]
    fn the_whole_sdk_and_the_interface_are_in_it() {
        let files = files().unwrap();
        let paths: Vec<_> = files
            .iter()
            .map(|(path, _)| path.to_str().unwrap())
            .collect();
        for path in [
            "vendor/policies/sdk/Cargo.toml",
            "vendor/policies/sdk/src/lib.rs",
            "vendor/policies/sdk/src/mirror/tests.rs",
            "vendor/wit/hooks.wit",
            "vendor/wit/types.wit",
        ] {
            assert!(paths.contains(&path), "{path} not in {paths:?}");
        }
        let interface: Vec<_> = interface().map(|(name, _)| name).collect();
        assert_eq!(interface, ["hooks.wit", "types.wit"]);
    }
}
