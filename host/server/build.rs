//! Embeds the default policies, where `cargo xtask policies` has built them, and the machine code that
//! `cargo xtask serve`, `test` and `dist` have made of them: each file packed.
//!
//! Where there are no policies, what is built says so when it is run: `cargo check`, clippy and
//! rustdoc work in a fresh clone, in which nothing can have built a guest yet.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// In the order in which they are taken in.
const POLICIES: [&str; 3] = ["aging", "memory-aware", "budget"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let triple = env::var_os("TARGET").expect("cargo sets TARGET");
    let target = pointsman_packed::target_folder(&out, &triple);
    let folder = target.expect("OUT_DIR is in a target folder");
    let folder = folder.join("policies");
    let files = POLICIES.map(|name| folder.join(format!("{name}.wasm")));
    let policies = if watch(&folder, &files) {
        format!("Some(&[{}])", policies(&out, &folder, &files))
    } else {
        "None".to_owned()
    };
    let text = format!("static POLICIES: Option<&[PackedPolicy]> = {policies};\n");
    fs::write(out.join("embedded.rs"), text).expect("OUT_DIR can be written to");
}

/// Has this script run again once `files` are others. Returns whether all are there.
fn watch(folder: &Path, files: &[PathBuf]) -> bool {
    let are_there = files.iter().all(|file| file.is_file());
    if are_there {
        for file in files {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    } else {
        // A watched path that is not there would mean to build again each time.
        fs::create_dir_all(folder).expect("the target folder can be written to");
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    are_there
}

fn policies(out: &Path, folder: &Path, files: &[PathBuf]) -> String {
    let codes = codes(&folder.join("code"));
    let policies = POLICIES
        .iter()
        .zip(files)
        .enumerate()
        .map(|(at, (name, file))| {
            let packed = |file| pointsman_packed::pack_file(file, out).expect("it was built");
            let wasm = packed(file);
            let code = codes.as_ref().map_or_else(
                || "None".to_owned(),
                |codes| format!("Some({})", packed(&codes[at])),
            );
            format!("PackedPolicy {{ name: {name:?}, wasm: {wasm}, code: {code} }}, ")
        });
    policies.collect()
}

/// The machine code of each policy; absent: there is none.
fn codes(folder: &Path) -> Option<[PathBuf; 3]> {
    let files = POLICIES.map(|name| folder.join(format!("{name}.code")));
    watch(folder, &files).then_some(files)
}
