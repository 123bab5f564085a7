//! `cargo xtask test`: the guests, the clients and the twins, then all tests of the workspace.

use std::env;

use anyhow::{Context, Result};

use crate::apt;
use crate::cli::Guests;
use crate::policies;
use crate::process;
use crate::python;
use crate::twins;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, guests: Guests, args: &[String]) -> Result<()> {
    // First, because a twin needs packages that this may install.
    python::prepare(workspace)?;
    // Tests show the monitor page in this browser.
    apt::provide(&["chromium"], &["chromium"])?;
    match guests {
        Guests::Build => {
            policies::build_all(workspace)?;
            twins::build(workspace)?;
        }
        Guests::AsTheyAre => {}
    }
    let mut command = process::cargo(&workspace.root);
    command.args(["test", "--config", &watched()?, "--workspace"]);
    process::run(command.args(args))
}

/// The line of cargo's configuration that has test programs run by `watch-test`.
fn watched() -> Result<String> {
    let this = env::current_exe()?;
    let this = this.to_str().context("this program's path is not UTF-8")?;
    Ok(format!(
        "target.'cfg(all())'.runner = [{this:?}, \"watch-test\"]"
    ))
}
