//! `cargo xtask lint`: everything that needs no guest and no test run, cheapest first.

use anyhow::Result;

use crate::process;
use crate::tidy;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    process::run(cargo(workspace, "fmt").args(["--all", "--check"]))?;
    tidy::run(workspace)?;
    let clippy = ["--workspace", "--all-targets", "--", "-D", "warnings"];
    process::run(cargo(workspace, "clippy").args(clippy))?;
    process::run(
        cargo(workspace, "doc")
            .args(["--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-Dwarnings"),
    )?;
    deny(workspace)
}

/// Checks advisories, licences and sources, if cargo-deny is installed.
fn deny(workspace: &Workspace) -> Result<()> {
    if !process::succeeds(cargo(workspace, "deny").arg("--version")) {
        println!("lint: cargo-deny is not installed: advisories, licences and sources not checked");
        return Ok(());
    }
    process::run(cargo(workspace, "deny").arg("check"))
}

fn cargo(workspace: &Workspace, subcommand: &str) -> std::process::Command {
    let mut command = process::cargo(workspace);
    command.arg(subcommand);
    command
}
