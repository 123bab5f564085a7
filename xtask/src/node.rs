//! The folder in which tests run real clients for Node: `<target>/node`, with the files of
//! `tests/clients/node` and the packages that these name.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt;
use crate::process;
use crate::workspace::Workspace;

const FILES: &[&str] = &["package.json", "package-lock.json", "openai_chat.mjs"];
/// The file that says which packages are installed.
const LOCK: &str = "package-lock.json";

/// Programs of Node.js, and the Debian packages that have them.
pub(crate) const PROGRAMS: &[&str] = &["node", "npm"];
pub(crate) const PACKAGES: &[&str] = &["nodejs", "npm"];

/// Copies the files, and installs the packages unless they are there.
pub(crate) fn prepare(workspace: &Workspace) -> Result<()> {
    let folder = workspace.target.join("node");
    fs::create_dir_all(&folder)?;
    let from = workspace.root.join("tests/clients/node");
    for name in FILES {
        let copied = fs::copy(from.join(name), folder.join(name));
        copied.with_context(|| format!("{name} was not copied"))?;
    }
    let wanted = fs::read(folder.join(LOCK))?;
    let stamp = folder.join("installed");
    if fs::read(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    apt::provide(PROGRAMS, PACKAGES)?;
    let mut install = Command::new("npm");
    install.args(["ci", "--no-audit", "--no-fund"]);
    process::run(install.current_dir(&folder))?;
    Ok(fs::write(stamp, wanted)?)
}
