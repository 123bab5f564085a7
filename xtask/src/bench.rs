//! `cargo xtask bench`: the guests, then one benchmark of `tests/benches` in release.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pointsman_notation::instead;

use crate::peers;
use crate::policies;
use crate::process;
use crate::workspace::Workspace;

const PACKAGE: &str = "pointsman-tests";
const FOLDER: &str = "tests/benches";
/// The benchmark that needs other programs.
const GATEWAY: &str = "gateway";

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
    if name == GATEWAY {
        peers::prepare(workspace)?;
    }
    let mut command = process::cargo(&workspace.root);
    command
        .args(["bench", "-p", PACKAGE, "--bench", name, "--"])
        .args(args);
    process::run(&mut command)
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
        if let Some(stem) = stem
            && path.extension().is_some_and(|extension| extension == "rs")
        {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_missing_folder_has_no_benchmarks() {
        assert!(names(Path::new("/no/such/folder")).unwrap().is_empty());
    }
}
