//! `policy build` where Rust, its target or the crate is not as it has to be.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::place::{Place, Said, can_build};

/// A `rustc` that claims that the libraries of every target are in its own folder.
const RUSTC: &str = "#!/bin/sh\nprintf '%s\\n' \"${0%/*}\"\n";

/// A folder with a crate of this manifest, `mine`.
fn with_manifest(text: &str) -> Place {
    let place = Place::new();
    fs::create_dir_all(place.path("mine/src")).unwrap();
    place.write("mine/Cargo.toml", text);
    place.write("mine/src/lib.rs", "");
    place
}

/// Builds `mine` on a machine that has only these programs.
fn build_with(programs: &[(&str, &str)]) -> Said {
    let place = with_manifest("[package]\nname = 'mine'\n");
    let folder = place.path("bin");
    fs::create_dir(&folder).unwrap();
    for (name, text) in programs {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    Said::of(place.command().args(["build", "mine"]).env("PATH", folder))
}

#[test]
fn without_rust_one_is_told_where_to_get_it() {
    build_with(&[]).says(
        2,
        &["rustc is not there: install Rust, see https://rustup.rs"],
    );
    build_with(&[("rustc", RUSTC)]).says(
        2,
        &["cargo is not there: install Rust, see https://rustup.rs"],
    );
}

#[test]
fn without_the_target_one_is_told_what_to_type() {
    // One that has no library for the target, and one that does not know it.
    for rustc in [
        "#!/bin/sh\necho /nowhere/lib\n",
        "#!/bin/sh\necho 'error: no such target' >&2\nexit 1\n",
    ] {
        build_with(&[("rustc", rustc)]).says(
            2,
            &[
                "cannot build for wasm32-unknown-unknown yet",
                "type `rustup target add wasm32-unknown-unknown`",
            ],
        );
    }
}

#[test]
fn a_crate_that_can_be_no_policy_is_explained() {
    if !can_build() {
        return;
    }
    let build = |manifest: &str| with_manifest(manifest).say("build mine");
    let plain = "[package]\nname = 'mine'\nversion = '0.1.0'\nedition = '2024'\n";
    build(plain).says(
        1,
        &["mine makes no module: `[lib]` of its Cargo.toml needs crate-type = [\"rlib\", \"cdylib\"]"],
    );
    build(&format!("{plain}[lib]\ncrate-type = ['cdylib']\n")).says(
        1,
        &[
            "mine makes no policy: ",
            "to fix it: with the SDK, `export!",
        ],
    );
    build("[workspace]\nmembers = []\n").says(
        2,
        &["has no [package]: name the folder of the policy's own crate"],
    );
    build("[package\n").says(2, &["Cargo.toml:1:"]);
    build("[package]\nname = 'mine'\nversion = '0.1.0'\n[dependencies]\nnowhere = { path = '../nowhere' }\n")
        .says(1, &["mine does not build"]);
}
