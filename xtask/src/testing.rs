//! `cargo xtask test`: the guests and the clients, then every test of the workspace.

use anyhow::Result;

use crate::cli::Guests;
use crate::policies;
use crate::process;
use crate::python;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, guests: Guests, args: &[String]) -> Result<()> {
    match guests {
        Guests::Build => policies::build(workspace)?,
        Guests::AsTheyAre => {}
    }
    python::prepare(workspace)?;
    let mut command = process::cargo(&workspace.root);
    command.args(["test", "--workspace"]).args(args);
    process::run(&mut command)
}
