//! The checkout: its folders, its packages, and their manifests.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pointsman_notation::TomlText;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Prefix of the names of our packages. Tables and file names omit it.
pub(crate) const PREFIX: &str = "pointsman-";

#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// The folder of builds, absolute: `CARGO_TARGET_DIR`, or `target` in the root.
    pub(crate) target: PathBuf,
}

/// A package's manifest, as far as the tasks need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Folder of the package, relative to the root.
    pub(crate) folder: String,
    /// True if the library can be a guest.
    pub(crate) cdylib: bool,
    /// Examples that can be guests.
    pub(crate) cdylib_examples: Vec<String>,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// Name of the package, even if the manifest renames it.
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Needed for the build, including build scripts.
    Normal,
    /// Needed only for tests, benchmarks and examples.
    Dev,
}

// === impl Workspace ===

impl Workspace {
    /// The workspace that this tool was built from.
    pub(crate) fn here() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask has no parent folder")?
            .to_owned();
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => env::current_dir()?.join(folder),
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// All members, in the order of the root manifest.
    pub(crate) fn packages(&self) -> Result<Vec<Package>> {
        let root = self.root_manifest()?;
        let mut packages = Vec::new();
        for member in &root.workspace.members {
            let folders = match member.strip_suffix("/*") {
                Some(parent) => self.folders(parent)?,
                None => vec![member.clone()],
            };
            for folder in folders {
                packages.push(self.package_with(&root, &folder)?);
            }
        }
        Ok(packages)
    }

    /// The folders `PARENT/*` that have a manifest, relative to the root, sorted.
    pub(crate) fn folders(&self, parent: &str) -> Result<Vec<String>> {
        let folder = self.root.join(parent);
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("{} cannot be listed", folder.display()))?;
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.path().join("Cargo.toml").is_file() {
                folders.push(format!("{parent}/{}", entry.file_name().to_string_lossy()));
            }
        }
        folders.sort();
        Ok(folders)
    }

    /// The package in a folder, which is relative to the root.
    pub(crate) fn package(&self, folder: &str) -> Result<Package> {
        self.package_with(&self.root_manifest()?, folder)
    }

    /// The oldest compiler that the workspace supports, such as (1, 95).
    pub(crate) fn rust_version(&self) -> Result<(u32, u32)> {
        let text = self.root_manifest()?.workspace.package.rust_version;
        parse_rust_version(&text)
            .with_context(|| format!("rust-version `{text}` of Cargo.toml is not a version"))
    }

    /// True if the lock file is there, so that builds can insist on it.
    pub(crate) fn is_locked(&self) -> bool {
        self.root.join("Cargo.lock").is_file()
    }

    fn root_manifest(&self) -> Result<RootManifest> {
        parsed(&self.root.join("Cargo.toml"))
    }

    fn package_with(&self, root: &RootManifest, folder: &str) -> Result<Package> {
        let manifest: Manifest = parsed(&self.root.join(folder).join("Cargo.toml"))?;
        Ok(manifest.into_package(folder, &root.workspace.dependencies))
    }
}

// === impl Package ===

impl Package {
    /// The name of the package without our prefix.
    pub(crate) fn short_name(&self) -> &str {
        self.name.strip_prefix(PREFIX).unwrap_or(&self.name)
    }
}

/// Parses the numbers at the start of texts such as `1.95` and `1.96.0-beta.2`.
pub(crate) fn parse_rust_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(['.', '-', ' ']).map(str::parse);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next()?.ok()?;
    Some((major, minor))
}

fn parsed<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(TomlText::new(path, text).parse()?)
}

type Dependencies = BTreeMap<String, toml::Value>;

#[derive(Deserialize)]
struct RootManifest {
    workspace: WorkspaceTable,
}

#[derive(Deserialize)]
struct WorkspaceTable {
    members: Vec<String>,
    package: WorkspacePackage,
    #[serde(default)]
    dependencies: Dependencies,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct WorkspacePackage {
    rust_version: String,
}

#[derive(Deserialize)]
struct Manifest {
    package: PackageTable,
    lib: Option<TargetTable>,
    #[serde(default)]
    example: Vec<TargetTable>,
    #[serde(flatten)]
    everywhere: DependencyTables,
    /// Dependencies per platform.
    #[serde(default)]
    target: BTreeMap<String, DependencyTables>,
}

#[derive(Deserialize)]
struct PackageTable {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct TargetTable {
    #[serde(default)]
    name: String,
    #[serde(default)]
    crate_type: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct DependencyTables {
    #[serde(default)]
    dependencies: Dependencies,
    #[serde(default)]
    build_dependencies: Dependencies,
    #[serde(default)]
    dev_dependencies: Dependencies,
}

// === impl Manifest ===

impl Manifest {
    fn into_package(self, folder: &str, shared: &Dependencies) -> Package {
        let mut dependencies = self.everywhere.list(shared);
        for tables in self.target.values() {
            dependencies.extend(tables.list(shared));
        }
        let examples = self.example.into_iter().filter(TargetTable::is_cdylib);
        Package {
            name: self.package.name,
            folder: folder.to_owned(),
            cdylib: self.lib.is_some_and(|lib| lib.is_cdylib()),
            cdylib_examples: examples.map(|example| example.name).collect(),
            dependencies,
        }
    }
}

// === impl TargetTable ===

impl TargetTable {
    fn is_cdylib(&self) -> bool {
        self.crate_type.iter().any(|kind| kind == "cdylib")
    }
}

// === impl DependencyTables ===

impl DependencyTables {
    fn list(&self, shared: &Dependencies) -> Vec<Dependency> {
        let tables = [
            (&self.dependencies, Kind::Normal),
            (&self.build_dependencies, Kind::Normal),
            (&self.dev_dependencies, Kind::Dev),
        ];
        let mut list = Vec::new();
        for (table, kind) in tables {
            list.extend(table.iter().map(|(key, value)| Dependency {
                name: package_name(key, value, shared),
                kind,
            }));
        }
        list
    }
}

/// The package of a dependency's key: its own `package`, or the workspace's, or the key itself.
fn package_name(key: &str, value: &toml::Value, shared: &Dependencies) -> String {
    let renamed = |value: &toml::Value| Some(value.get("package")?.as_str()?.to_owned());
    renamed(value)
        .or_else(|| shared.get(key).and_then(renamed))
        .unwrap_or_else(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(text: &str) -> Package {
        let shared = toml::from_str("short = { package = 'pointsman-long', path = 'x' }").unwrap();
        let manifest: Manifest = toml::from_str(text).unwrap();
        manifest.into_package("a/b", &shared)
    }

    #[test]
    fn finds_libraries_and_examples_that_can_be_guests() {
        let found = package(
            "[package]\nname = 'pointsman-x'\n\
             [lib]\ncrate-type = ['rlib', 'cdylib']\n\
             [[example]]\nname = 'spin'\ncrate-type = ['cdylib']\n\
             [[example]]\nname = 'plain'\n",
        );
        assert!(found.cdylib);
        assert_eq!(found.cdylib_examples, ["spin"]);
        assert_eq!(found.short_name(), "x");
        assert!(!package("[package]\nname = 'y'\n[lib]\n").cdylib);
    }

    #[test]
    fn lists_dependencies_of_every_table() {
        let found = package(
            "[package]\nname = 'x'\n\
             [dependencies]\none = '1'\nshort.workspace = true\n\
             [build-dependencies]\ntwo = '1'\n\
             [dev-dependencies]\nthree = { package = 'pointsman-three', path = 't' }\n\
             [target.'cfg(unix)'.dependencies]\nfour = '1'\n",
        );
        let names: Vec<_> = found
            .dependencies
            .iter()
            .map(|dependency| (dependency.name.as_str(), dependency.kind))
            .collect();
        let expected = [
            ("one", Kind::Normal),
            ("pointsman-long", Kind::Normal),
            ("two", Kind::Normal),
            ("pointsman-three", Kind::Dev),
            ("four", Kind::Normal),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn reads_compiler_versions() {
        assert_eq!(parse_rust_version("1.95"), Some((1, 95)));
        assert_eq!(parse_rust_version("1.96.0-beta.2"), Some((1, 96)));
        assert_eq!(parse_rust_version("nightly"), None);
    }

    #[test]
    fn reads_this_workspace() {
        let workspace = Workspace::here().unwrap();
        let packages = workspace.packages().unwrap();
        assert!(packages.iter().any(|package| package.name == "xtask"));
        assert!(workspace.rust_version().unwrap() >= (1, 95));
    }
}
