//! Virtual environments of Python, below the target folder.
//!
//! `<target>/python` is the one in which tests run real clients, with the packages of
//! `tests/clients/requirements.txt`. An environment is made anew when its packages change.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt;
use crate::process;
use crate::workspace::Workspace;

const REQUIREMENTS: &str = "tests/clients/requirements.txt";
/// Debian packages that virtual environments need.
const PACKAGES: &[&str] = &["python3", "python3-venv"];

/// Makes the environment of the clients, unless it is up to date.
pub(crate) fn prepare(workspace: &Workspace) -> Result<()> {
    provide_file(workspace, "python", REQUIREMENTS)
}

/// Makes the environment `name` below the target folder with the packages that a file of the repository
/// lists, unless it is there.
pub(crate) fn provide_file(workspace: &Workspace, name: &str, file: &str) -> Result<()> {
    let wanted = fs::read_to_string(workspace.root.join(file));
    let wanted = wanted.with_context(|| format!("{file} cannot be read"))?;
    provide(&workspace.target.join(name), &wanted)
}

/// Makes an environment with these packages, written as a file of requirements, unless it is there.
pub(crate) fn provide(folder: &Path, requirements: &str) -> Result<()> {
    let stamp = folder.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == requirements) {
        return Ok(());
    }
    println!("python: installing packages into {}", folder.display());
    make(folder)?;
    let wanted = folder.join("wanted.txt");
    fs::write(&wanted, requirements)?;
    process::run(
        pip(folder)
            .args(["install", "--quiet", "--requirement"])
            .arg(&wanted),
    )?;
    fs::rename(&wanted, &stamp).with_context(|| format!("{} cannot be written", stamp.display()))
}

/// The installer of an environment.
pub(crate) fn pip(folder: &Path) -> Command {
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "--disable-pip-version-check"]);
    pip
}

fn make(folder: &Path) -> Result<()> {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(folder);
    if process::succeeds(&mut venv) {
        return Ok(());
    }
    if !apt::may_install()? {
        bail!(
            "`python3 -m venv` does not work, and tests of real clients need it: {}",
            apt::remedy(PACKAGES)
        );
    }
    apt::install(PACKAGES)?;
    process::run(&mut venv)
}
