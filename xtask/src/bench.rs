//! `cargo xtask bench`: the guests, then one benchmark of `tests/benches`, built as packages are: the figures are those of
//! what operators install. One that needs what nobody else needs is a folder there, a package of its own outside the workspace,
//! in a release of its own.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use pointsman_notation::instead;

use crate::device;
use crate::dist::PROFILE;
use crate::engines;
use crate::peers;
use crate::policies;
use crate::process;
use crate::workspace::Workspace;

const PACKAGE: &str = "pointsman-tests";
const FOLDER: &str = "tests/benches";
const MANIFEST: &str = "Cargo.toml";
/// Benchmarks that need other programs.
const ENGINE: &str = "engine";
const GATEWAY: &str = "gateway";
/// The benchmark before which a device's tests are run: figures of what is wrong are of no use.
const CUDA: &str = "cuda";

pub(crate) fn list(workspace: &Workspace) -> Result<()> {
    let names = names(&workspace.root.join(FOLDER))?;
    if names.is_empty() {
        println!("no benchmarks in {FOLDER}");
    }
    for name in names {
        println!("{name}");
    }
    Ok(())
}

pub(crate) fn run(workspace: &Workspace, name: &str, args: &[String]) -> Result<()> {
    known(name, &names(&workspace.root.join(FOLDER))?)?;
    policies::build_all(workspace)?;
    match name {
        ENGINE => engines::prepare(workspace, args)?,
        GATEWAY => peers::prepare(workspace, args)?,
        CUDA => device::prepare(workspace, args)?,
        _ => {}
    }
    let mut command = process::cargo(workspace);
    let manifest = Path::new(FOLDER).join(name).join(MANIFEST);
    if workspace.root.join(&manifest).is_file() {
        run_apart(&mut command, workspace, &manifest);
    } else {
        command.args(["bench", "--profile", PROFILE]);
        command.args(["-p", PACKAGE, "--bench", name]);
    }
    process::run(command.arg("--").args(args))
}

/// Has cargo run a workspace of its own, which it builds in a folder apart. The program finds the policies by the target
/// folder that cargo was told, and so that stays this workspace's.
fn run_apart(command: &mut Command, workspace: &Workspace, manifest: &Path) {
    let folder = workspace.target.join("benches");
    command.env(process::BUILD_DIR, &folder);
    command.args(["run", "--release", "--locked", "--manifest-path"]);
    command.arg(manifest).arg("--target-dir").arg(folder);
}

/// Refuses an unknown name, before minutes are spent on building.
fn known(name: &str, names: &[String]) -> Result<()> {
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    if names.is_empty() {
        bail!("no benchmark `{name}`: {FOLDER} has none");
    }
    bail!("no benchmark `{name}`; {}", instead(name, names))
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("{FOLDER} cannot be listed")),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        if let Some(stem) = stem
            && (is_file || path.join(MANIFEST).is_file())
        {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::workspace::Kind;

    use super::*;

    fn table(path: &Path) -> toml::Table {
        toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    /// The packages that one in a lock depends on.
    fn locked(entry: &toml::Value) -> BTreeSet<String> {
        let list = entry.get("dependencies").and_then(toml::Value::as_array);
        let name = |it: &toml::Value| it.as_str()?.split(' ').next().map(str::to_owned);
        list.into_iter().flatten().filter_map(name).collect()
    }

    /// The dependencies of a manifest that can be left out. A lock has those of them that are turned on.
    fn optional(manifest: &toml::Table) -> BTreeSet<String> {
        let list = manifest.get("dependencies").and_then(toml::Value::as_table);
        let list = list.into_iter().flatten();
        let optional = list.filter(|(_, it)| it.get("optional").is_some());
        optional.map(|(name, _)| name.clone()).collect()
    }

    /// The dependencies of our crates that the lock of a benchmark apart lacks, or has without need.
    fn out_of_step(workspace: &Workspace, folder: &str) -> Vec<String> {
        let lock = table(&workspace.root.join(folder).join("Cargo.lock"));
        let mut packages = workspace.packages().unwrap();
        packages.push(workspace.package(folder).unwrap());
        let mut found = Vec::new();
        for package in packages {
            let name = package.name.as_str();
            let mut entries = lock["package"].as_array().unwrap().iter();
            let Some(entry) = entries.find(|entry| entry["name"].as_str() == Some(name)) else {
                continue;
            };
            let manifest = workspace.root.join(&package.folder).join(MANIFEST);
            let (has, optional) = (locked(entry), optional(&table(&manifest)));
            let needs = package.dependencies.iter();
            let needs = needs.filter(|it| it.kind == Kind::Normal);
            let needs: BTreeSet<String> = needs.map(|it| it.name.clone()).collect();
            let lacks = needs.difference(&has).filter(|it| !optional.contains(*it));
            found.extend(lacks.map(|it| format!("{name} lacks {it}")));
            found.extend(has.difference(&needs).map(|it| format!("{name} has {it}")));
        }
        found
    }

    #[test]
    fn an_unknown_benchmark_is_refused_with_the_known_ones() {
        let names = ["decide".to_owned(), "reload".to_owned()];
        assert!(known("decide", &names).is_ok());
        let error = known("decid", &names).unwrap_err().to_string();
        assert!(error.contains("did you mean `decide`?"), "{error}");
        let error = known("x", &names).unwrap_err().to_string();
        assert!(error.contains("decide, reload"), "{error}");
        assert!(known("x", &[]).is_err());
    }

    #[test]
    fn a_file_is_a_benchmark_and_so_is_a_package() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["peers", "results"] {
            fs::create_dir(path(name)).unwrap();
        }
        for name in ["decide.rs", "peers/Cargo.toml", "results/decide.md"] {
            fs::write(path(name), "").unwrap();
        }
        assert_eq!(names(folder.path()).unwrap(), ["decide", "peers"]);
    }

    #[test]
    fn a_program_that_is_built_apart_finds_the_policies_of_this_workspace() {
        let workspace = Workspace::here().unwrap();
        let mut command = process::cargo(&workspace);
        run_apart(&mut command, &workspace, Path::new("Cargo.toml"));
        let mut told = command.get_envs();
        let target = told.find(|(name, _)| *name == process::TARGET_DIR);
        let (_, value) = target.unwrap();
        assert_eq!(value, Some(workspace.target.as_os_str()));
        let benches = workspace.target.join("benches");
        assert!(command.get_args().any(|arg| arg == benches));
    }

    /// Such a benchmark is run with its lock as it is.
    #[test]
    fn the_lock_of_a_benchmark_apart_is_in_step_with_our_crates() {
        let workspace = Workspace::here().unwrap();
        let folders = workspace.folders(FOLDER).unwrap();
        assert!(!folders.is_empty());
        for folder in folders {
            let found = out_of_step(&workspace, &folder);
            let mend = format!("cargo update --workspace --manifest-path {folder}/{MANIFEST}");
            assert!(found.is_empty(), "{found:?}: {mend}");
        }
    }

    #[test]
    fn a_missing_folder_has_no_benchmarks() {
        assert!(names(Path::new("/no/such/folder")).unwrap().is_empty());
    }
}
