//! `cargo xtask test`: the guests, the clients and the twins, then all tests of the workspace.

use anyhow::Result;

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
    command.args(["test", "--workspace"]).args(args);
    process::run(&mut command)
}
