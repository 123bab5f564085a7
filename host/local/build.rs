//! Embeds the demo model, each file packed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of the demo model that a server reads.
const DEMO_MODEL: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let model = match env::var_os("CARGO_FEATURE_DEMO_MODEL") {
        Some(_) => format!("Some(&[{}])", demo_model(&out)),
        None => "None".to_owned(),
    };
    let text = format!("static DEMO_MODEL: Option<&[Packed]> = {model};\n");
    fs::write(out.join("demo.rs"), text).expect("OUT_DIR can be written to");
}

fn demo_model(out: &Path) -> String {
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let folder = Path::new(&root).join("../../examples/demo-model");
    let files = DEMO_MODEL.iter().map(|name| {
        let file = folder.join(name);
        println!("cargo::rerun-if-changed={}", file.display());
        let packed = pointsman_packed::pack_file(&file, out);
        packed.expect("the demo model is in the repository") + ", "
    });
    files.collect()
}
