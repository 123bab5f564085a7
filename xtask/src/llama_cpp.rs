//! Programs of llama.cpp, and models in its format: `<target>/peers/llama-cpp` has its server with the demo
//! model.
//!
//! PyPI has no program of it, but a package with its sources, `llama-cpp-python`. Building one takes some ten
//! minutes on two cores.

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
/// Only what one program takes.
const SETTINGS: &[&str] = &[
    "-GNinja",
    "-DCMAKE_BUILD_TYPE=Release",
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

/// A program of llama.cpp, and the way in which it is built.
pub(crate) struct Program {
    name: &'static str,
    settings: &'static [&'static str],
}

/// The server, little optimised, since the model of tests is small.
const SERVER: Program = Program {
    name: "llama-server",
    settings: &[
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
        "-DCMAKE_C_FLAGS_RELEASE=-O2",
    ],
};

/// The benchmark of batches, as fast as it is on this machine's processors.
pub(crate) const BENCH: Program = Program {
    name: "llama-batched-bench",
    settings: &[
        "-DCMAKE_CXX_FLAGS_RELEASE=-O3",
        "-DCMAKE_C_FLAGS_RELEASE=-O3",
        "-DGGML_NATIVE=ON",
    ],
};

/// The numbers of a model in llama.cpp's format.
#[derive(Clone, Copy)]
pub(crate) enum Numbers {
    F32,
    Bf16,
}

/// Builds the server and writes the model, unless they are there.
pub(crate) fn prepare(workspace: &Workspace) -> Result<()> {
    let folder = folder(workspace);
    provide(workspace, &SERVER, &folder)?;
    let demo = workspace.root.join("examples/demo-model");
    write_model(workspace, &demo, &folder.join("demo.gguf"), Numbers::F32)
}

/// Builds a program, unless it is there, and puts it into `to`.
pub(crate) fn provide(workspace: &Workspace, program: &Program, to: &Path) -> Result<()> {
    let folder = folder(workspace);
    let python = folder.join("python");
    python::provide(&python, TOOLS)?;
    let stamp = to.join(format!("{}.version", program.name));
    if fs::read_to_string(&stamp).is_ok_and(|made| made == VERSION) {
        return Ok(());
    }
    apt::provide(&["c++"], &["g++"])?;
    let sources = unpack(&folder, &python)?;
    let build = folder.join("build");
    let mut configure = cmake(&python);
    configure.arg("-S").arg(sources.join("vendor/llama.cpp"));
    configure.arg("-B").arg(&build).args(SETTINGS);
    process::run(configure.args(program.settings))?;
    let mut compile = cmake(&python);
    compile.arg("--build").arg(&build);
    process::run(compile.args(["--target", program.name]))?;
    fs::copy(build.join("bin").join(program.name), to.join(program.name))
        .with_context(|| format!("the build left no {}", program.name))?;
    // A gigabyte that nobody needs any more.
    fs::remove_dir_all(&build)?;
    fs::remove_dir_all(&sources)?;
    Ok(fs::write(stamp, VERSION)?)
}

/// The interpreter that runs the scripts which write models. It is there with any program.
pub(crate) fn python(workspace: &Workspace) -> Command {
    Command::new(folder(workspace).join("python/bin/python"))
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("peers/llama-cpp")
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

/// Writes a model of a folder in llama.cpp's format.
pub(crate) fn write_model(
    workspace: &Workspace,
    model: &Path,
    to: &Path,
    numbers: Numbers,
) -> Result<()> {
    let mut write = python(workspace);
    write.arg(workspace.root.join("tests/peers/make_gguf.py"));
    write.arg(model).arg(to);
    match numbers {
        Numbers::F32 => {}
        Numbers::Bf16 => {
            write.arg("bf16");
        }
    }
    process::run(&mut write)
}
