//! `cargo xtask policies`: every guest, compiled to WebAssembly and made a component.
//!
//! A guest is a library of a crate in `policies/` that can be a cdylib, or the library or an
//! example of `tests/guests`. The first kind ends up as `<target>/policies/NAME.wasm`, the
//! second as `<target>/policies/test/NAME.wasm`. Whether something must be compiled again is
//! left to cargo; a component is written only where its bytes changed.

mod component;
mod environment;
mod guest;
mod toolchain;

use std::path::Path;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;
use component::Written;
use guest::Guest;
use toolchain::Toolchain;

const TARGET: &str = "wasm32-unknown-unknown";
/// Defined in the root manifest.
const PROFILE: &str = "guest";

pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let builds = workspace.target.join("guests");
    let toolchain = toolchain::choose(workspace, &builds)?;
    println!("policies: compiled with {toolchain}");
    let guests = guest::discover(workspace)?;
    let folder = workspace.target.join("policies");
    for guest in &guests {
        build_one(workspace, &toolchain, guest)?;
        let module = guest.module(&builds.join(TARGET).join(PROFILE));
        let component = folder.join(&guest.component);
        report(guest, &folder, &component::write(&module, &component)?);
    }
    let current: Vec<_> = guests
        .iter()
        .map(|guest| guest.component.as_path())
        .collect();
    component::prune(&folder, &current)
}

/// One cargo call per guest. `rustc --crate-type cdylib` rather than `build`: a library that
/// is an rlib too is left out of link-time optimisation.
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
    command.args(["--crate-type", "cdylib"]);
    process::run(&mut command)
}

fn report(guest: &Guest, folder: &Path, written: &Written) {
    let path = folder.join(&guest.component);
    match written {
        Written::Changed(bytes) => println!("policies: {} ({bytes} bytes)", path.display()),
        Written::Unchanged => println!("policies: {} (unchanged)", path.display()),
    }
}
