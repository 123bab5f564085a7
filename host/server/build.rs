//! Embeds the default policies, where `cargo xtask policies` has built them.
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
    let folder = target(&out).join("policies");
    let files = POLICIES.map(|name| folder.join(format!("{name}.wasm")));
    let text = if files.iter().all(|file| file.is_file()) {
        for file in &files {
            println!("cargo::rerun-if-changed={}", file.display());
        }
        some(&files)
    } else {
        // A watched path that is not there would mean to build again each time.
        fs::create_dir_all(&folder).expect("the target folder can be written to");
        println!("cargo::rerun-if-changed={}", folder.display());
        "None".to_owned()
    };
    let text = format!("static POLICIES: Option<&[EmbeddedPolicy]> = {text};\n");
    fs::write(out.join("policies.rs"), text).expect("OUT_DIR can be written to");
}

/// The target folder that `out` is in: `<target>[/<triple>]/<profile>/build/<package>/out`.
fn target(out: &Path) -> &Path {
    let above_profile = out
        .ancestors()
        .nth(4)
        .expect("OUT_DIR is in a target folder");
    let triple = env::var_os("TARGET").expect("cargo sets TARGET");
    match above_profile.parent() {
        Some(target) if above_profile.file_name() == Some(&triple) => target,
        _ => above_profile,
    }
}

fn some(files: &[PathBuf]) -> String {
    let policies = POLICIES.iter().zip(files).map(|(name, file)| {
        let file = file
            .to_str()
            .expect("the path of the target folder is UTF-8");
        format!("EmbeddedPolicy {{ name: {name:?}, wasm: include_bytes!({file:?}) }}, ")
    });
    format!("Some(&[{}])", policies.collect::<String>())
}
