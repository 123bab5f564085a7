//! Packs the kernels' PTX, which the program has in itself.

use std::env;
use std::fs;
use std::path::PathBuf;

const PTX: &str = "kernels/pointsman.ptx";

fn main() {
    println!("cargo::rerun-if-changed={PTX}");
    let ptx = fs::read(PTX).expect("the PTX is in the repository");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let packed = pointsman_packed::pack(&ptx);
    fs::write(out.join("pointsman.ptx.packed"), packed).expect("OUT_DIR can be written to");
}
