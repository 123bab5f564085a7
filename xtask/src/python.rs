//! The Python environment in which tests run real clients.
//!
//! `<target>/python` is a virtual environment with the packages in
//! `tests/clients/requirements.txt`. It is made anew when that file changes.

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

/// Makes the environment, unless it is up to date.
pub(crate) fn prepare(workspace: &Workspace) -> Result<()> {
    let wanted = fs::read_to_string(workspace.root.join(REQUIREMENTS))
        .with_context(|| format!("{REQUIREMENTS} cannot be read"))?;
    let folder = workspace.target.join("python");
    let stamp = folder.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    println!(
        "clients: installing {REQUIREMENTS} into {}",
        folder.display()
    );
    make(&folder)?;
    let mut install = Command::new(folder.join("bin/python"));
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    install.arg("--requirement");
    process::run(install.arg(workspace.root.join(REQUIREMENTS)))?;
    fs::write(&stamp, wanted).with_context(|| format!("{} cannot be written", stamp.display()))
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
            apt::install_line(PACKAGES)
        );
    }
    apt::install(PACKAGES)?;
    process::run(&mut venv)
}
