//! The engines that `cargo xtask bench engine -- --peers` compares ours with: `<target>/peers/engines`.

use std::fs;

use anyhow::Result;

use crate::llama_cpp::{self, Numbers};
use crate::process;
use crate::python;
use crate::workspace::Workspace;

/// The argument that asks for them.
const WITH: &str = "--peers";
const MISTRAL_RS: &str = "mistralrs==0.9.5";

/// Installs the engines and writes the models that they share, where a benchmark with these arguments compares
/// them.
pub(crate) fn prepare(workspace: &Workspace, args: &[String]) -> Result<()> {
    if !args.iter().any(|arg| arg == WITH) {
        return Ok(());
    }
    let peers = workspace.target.join("peers");
    let engines = peers.join("engines");
    fs::create_dir_all(&engines)?;
    python::provide(&peers.join("mistralrs"), MISTRAL_RS)?;
    llama_cpp::provide(workspace, &llama_cpp::BENCH, &engines)?;
    let demo = workspace.root.join("examples/demo-model");
    llama_cpp::write_model(workspace, &demo, &engines.join("demo.gguf"), Numbers::Bf16)?;
    let (large, gguf) = (engines.join("1B"), engines.join("1B.gguf"));
    if gguf.is_file() {
        return Ok(());
    }
    let mut write = llama_cpp::python(workspace);
    write.arg(workspace.root.join("tests/peers/make_random.py"));
    process::run(write.arg(&demo).arg(&large))?;
    // One that was cut short is no model.
    let part = engines.join("1B.gguf.part");
    llama_cpp::write_model(workspace, &large, &part, Numbers::Bf16)?;
    Ok(fs::rename(part, gguf)?)
}
