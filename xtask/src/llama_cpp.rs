//! `llama-server` of llama.cpp, with the demo model in its format: `<target>/peers/llama-cpp`.
//!
//! PyPI has no program of it, but a package with its sources, `llama-cpp-python`. Building the server
//! takes some ten minutes on two cores.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt;
use crate::process;
use crate::python;
use crate::workspace::Workspace;

const VERSION: &str = "0.3.36";
/// The tools to build with, and the library that writes the format.
const TOOLS: &str = "cmake==4.4.4\nninja==1.13.2\ngguf==0.19.0\nnumpy==2.4.6\n";
/// Only what the server takes; little optimised, since the model is small.
const SETTINGS: &[&str] = &[
    "-GNinja",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
    "-DCMAKE_C_FLAGS_RELEASE=-O2",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_SUBPROCESS=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
];

/// Builds the server and writes the model, unless they are there.
pub(crate) fn prepare(workspace: &Workspace) -> Result<()> {
    let folder = workspace.target.join("peers/llama-cpp");
    let python = folder.join("python");
    python::provide(&python, TOOLS)?;
    let stamp = folder.join("version");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == VERSION) {
        return write_model(workspace, &folder);
    }
    apt::provide(&["c++"], &["g++"])?;
    let sources = unpack(&folder, &python)?;
    let build = folder.join("build");
    let mut configure = cmake(&python);
    configure.arg("-S").arg(sources.join("vendor/llama.cpp"));
    process::run(configure.arg("-B").arg(&build).args(SETTINGS))?;
    let mut compile = cmake(&python);
    compile.arg("--build").arg(&build);
    process::run(compile.args(["--target", "llama-server"]))?;
    fs::copy(build.join("bin/llama-server"), folder.join("llama-server"))
        .context("the build left no server")?;
    // A gigabyte that nobody needs any more.
    fs::remove_dir_all(&build)?;
    fs::remove_dir_all(&sources)?;
    write_model(workspace, &folder)?;
    Ok(fs::write(stamp, VERSION)?)
}

/// Fetches the sources, and returns their folder.
fn unpack(folder: &Path, python: &Path) -> Result<PathBuf> {
    let name = format!("llama_cpp_python-{VERSION}");
    let mut fetch = python::pip(python);
    fetch.args(["download", "--no-deps", "--no-binary", "llama-cpp-python"]);
    fetch.arg(format!("llama-cpp-python=={VERSION}"));
    process::run(fetch.arg("--dest").arg(folder))?;
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&archive).arg("-C").arg(folder);
    process::run(&mut unpack)?;
    fs::remove_file(&archive)?;
    Ok(folder.join(name))
}

/// CMake of an environment, which finds the other tools there.
fn cmake(python: &Path) -> Command {
    let tools = python.join("bin");
    let mut command = Command::new(tools.join("cmake"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::env::split_paths(&path);
    if let Ok(path) = std::env::join_paths(std::iter::once(tools).chain(paths)) {
        command.env("PATH", path);
    }
    command
}

/// Writes the demo model, which takes a second.
fn write_model(workspace: &Workspace, folder: &Path) -> Result<()> {
    let mut write = Command::new(folder.join("python/bin/python"));
    write.arg(workspace.root.join("tests/peers/make_gguf.py"));
    write.arg(workspace.root.join("examples/demo-model"));
    process::run(write.arg(folder.join("demo.gguf")))
}
