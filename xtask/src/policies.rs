//! `cargo xtask policies`: guests, compiled to WebAssembly and made components.
//!
//! A guest is a library of a crate in `policies/` or `examples/` that can be a cdylib, or the
//! example of `tests/guests`. The first kind becomes `<target>/policies/NAME.wasm`,
//! the second `<target>/policies/test/NAME.wasm`. Cargo decides what is compiled again; a component
//! is written only if its bytes changed.

mod component;
mod environment;
mod guest;
mod toolchain;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;
use component::Written;
use guest::Guest;
use toolchain::Toolchain;

const TARGET: &str = "wasm32-unknown-unknown";
/// A profile of the root manifest.
const PROFILE: &str = "guest";

/// Builds every guest, and removes components that no guest makes any more.
pub(crate) fn build_all(workspace: &Workspace) -> Result<()> {
    let guests = guest::discover(workspace)?;
    build(workspace, &guests)?;
    let current: Vec<_> = guests
        .iter()
        .map(|guest| guest.component.as_path())
        .collect();
    component::prune(&folder(workspace), &current)
}

/// Builds the guests of these names, and leaves the other components as they are.
pub(crate) fn build_named<S: AsRef<str>>(workspace: &Workspace, names: &[S]) -> Result<()> {
    let guests = guest::select(guest::discover(workspace)?, names)?;
    build(workspace, &guests)
}

fn build(workspace: &Workspace, guests: &[Guest]) -> Result<()> {
    let builds = workspace.target.join("guests");
    let toolchain = toolchain::choose(workspace, &builds)?;
    println!("policies: compiled with {toolchain}");
    let folder = folder(workspace);
    for (idx, guest) in guests.iter().enumerate() {
        let (number, total) = (idx + 1, guests.len());
        println!("policies: {number} of {total}: {}", guest.name());
        build_one(workspace, &toolchain, guest)?;
        let module = guest.module(&builds.join(TARGET).join(PROFILE));
        let component = folder.join(&guest.component);
        report(guest, &folder, &component::write(&module, &component)?);
    }
    Ok(())
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("policies")
}

/// Builds one guest. `rustc --crate-type cdylib` rather than `build`, because link-time
/// optimisation skips a library that is an rlib too.
fn build_one(workspace: &Workspace, toolchain: &Toolchain, guest: &Guest) -> Result<()> {
    let mut command = toolchain.cargo(&workspace.root);
    command
        .args(["rustc", "--package", &guest.package])
        .args(guest.target.flags())
        .args(["--profile", PROFILE, "--target", TARGET])
        .args(toolchain.flags())
        .arg("--target-dir")
        .arg(workspace.target.join("guests"));
    if workspace.is_locked() {
        command.arg("--locked");
    }
    command.args(["--crate-type", "cdylib", "--"]);
    process::run(command.args(guest.target.rustc_flags()))
}

fn report(guest: &Guest, folder: &Path, written: &Written) {
    let path = folder.join(&guest.component);
    match written {
        Written::Changed(bytes) => println!("policies: {} ({bytes} bytes)", path.display()),
        Written::Unchanged => println!("policies: {} (unchanged)", path.display()),
    }
}
