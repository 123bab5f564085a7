//! Packs the kernels' PTX, which the program has in itself.

use std::env;
use std::path::{Path, PathBuf};

const PTX: &str = "kernels/pointsman.ptx";

fn main() {
    println!("cargo::rerun-if-changed={PTX}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let packed = pointsman_packed::pack_file(Path::new(PTX), &out);
    packed.expect("the PTX is in the repository");
}
