//! Embeds the sources that `pointsman policy new` gives to a policy's author.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("vendor.rs"), vendor()).expect("OUT_DIR can be written to");
}

/// The SDK's sources and the interface, by their path in the repository.
fn vendor() -> String {
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let root = Path::new(&here).ancestors().nth(2);
    let root = root.expect("the package is in policies/cli");
    let mut found = Vec::new();
    for (folder, extension) in [("policies/sdk/src", "rs"), ("wit", "wit")] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        walk(&root.join(folder), extension, &mut found);
    }
    found.sort();
    let files = found.iter().map(|file| {
        let name = file.strip_prefix(root).expect("found below the root");
        let (name, file) = (name.to_str(), file.to_str());
        let name = name.expect("our file names are UTF-8");
        let file = file.expect("the path of the repository is UTF-8");
        format!("({name:?}, include_str!({file:?})), ")
    });
    let files = files.collect::<String>();
    format!("static SOURCES: &[(&str, &str)] = &[{files}];\n")
}

fn walk(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is in the repository") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            walk(&path, extension, found);
        } else if path.extension().is_some_and(|is| is == extension) {
            found.push(path);
        }
    }
}
