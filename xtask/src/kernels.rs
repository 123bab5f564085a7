//! The kernels of `host/cuda`, compiled to the PTX beside them by NVIDIA's compilers from PyPI. No GPU,
//! driver or CUDA toolkit is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process;
use crate::python;
use crate::workspace::Workspace;

/// The compilers: of sources to PTX, and of PTX to what a device runs. Another version writes other PTX.
const REQUIREMENTS: &str = "nvidia-cuda-nvrtc-cu12==12.4.127\nnvidia-cuda-nvcc-cu12==12.4.131\n";
/// The devices for which the kernels are checked: A100, and H100 and H200.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];
/// Registers that a thread may take, so that a multiprocessor, which has 65,536, has room for all its 2,048 threads.
const REGISTERS_MAX: u32 = 32;
/// The same for kernels whose names begin so, and which need more: those of attention keep what they read of keys and
/// values in registers, of 256 or 384 threads at once; the choice of a token has one block of 1,024; products with
/// FP8 keep weights and sums there, of two blocks of 256.
const REGISTERS_MAX_OF: [(&str, u32); 4] = [
    ("attention_split", 240),
    ("attention_whole", 168),
    ("choose", 64),
    ("product_fp8", 128),
];

/// Writes the PTX.
pub(crate) fn make(workspace: &Workspace) -> Result<()> {
    let compilers = provide(workspace)?;
    let ptx = compile(workspace, &compilers)?;
    fs::write(ptx_path(workspace), ptx)?;
    assemble(workspace, &compilers)
}

/// Checks that the PTX is that of the sources, and that devices run it as it is meant to be run.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    if !cfg!(target_os = "linux") {
        println!("kernels: not checked: NVIDIA's compilers are for Linux");
        return Ok(());
    }
    let compilers = provide(workspace)?;
    let made = compile(workspace, &compilers)?;
    let path = ptx_path(workspace);
    let kept = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    ensure!(
        kept == made,
        "{} is not what its sources compile to; run `cargo xtask kernels`",
        path.display()
    );
    assemble(workspace, &compilers)
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root.join("host/cuda/kernels")
}

fn ptx_path(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("pointsman.ptx")
}

/// Installs the compilers, and returns the folder of NVIDIA's packages.
fn provide(workspace: &Workspace) -> Result<PathBuf> {
    let environment = workspace.target.join("peers/nvrtc");
    python::provide(&environment, REQUIREMENTS)?;
    let mut folders = fs::read_dir(environment.join("lib"))?;
    let python = folders.next().context("the environment has no Python")??;
    Ok(python.path().join("site-packages/nvidia"))
}

fn compile(workspace: &Workspace, compilers: &Path) -> Result<String> {
    let libraries = compilers.join("cuda_nvrtc/lib");
    let mut python = Command::new("python3");
    python.env("LD_LIBRARY_PATH", &libraries);
    python.arg(folder(workspace).join("compile.py"));
    python.arg(libraries.join("libnvrtc.so.12"));
    let ptx = process::stdout_of(&mut python)?;
    ptx.context("`python3` is not there")
}

/// Assembles the PTX for each architecture, and checks what its kernels take.
fn assemble(workspace: &Workspace, compilers: &Path) -> Result<()> {
    for architecture in ARCHITECTURES {
        let mut ptxas = Command::new(compilers.join("cuda_nvcc/bin/ptxas"));
        ptxas.args(["-v", "--gpu-name", architecture, "--output-file"]);
        ptxas.arg(workspace.target.join("peers/nvrtc/kernels.cubin"));
        let output = ptxas.arg(ptx_path(workspace)).output();
        let output = output.context("`ptxas` cannot be started")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ptxas {architecture}: {said}");
        let usage = usage(&said).with_context(|| format!("ptxas {architecture}"))?;
        println!(
            "kernels: {} for {architecture}, {} registers at most, nothing spilled",
            usage.kernels, usage.registers
        );
    }
    Ok(())
}

/// Kernels, as `ptxas -v` tells of them.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    kernels: usize,
    /// The most registers that a thread takes.
    registers: u32,
}

/// Reads what `ptxas -v` says, and checks it.
fn usage(said: &str) -> Result<Usage> {
    let mut kernel = "";
    let mut usage = Usage {
        kernels: 0,
        registers: 0,
    };
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().unwrap_or_default();
            usage.kernels += 1;
        }
        if line.contains("spill stores") && !line.contains(" 0 bytes spill stores") {
            bail!("{kernel} spills registers: {}", line.trim());
        }
        if let Some((_, rest)) = line.split_once(" Used ") {
            let registers = rest.split(' ').next().unwrap_or_default();
            let registers: u32 = registers.parse().with_context(|| line.to_owned())?;
            let max = registers_max(kernel);
            ensure!(
                registers <= max,
                "{kernel} takes {registers} registers, and may take {max}"
            );
            usage.registers = usage.registers.max(registers);
        }
    }
    ensure!(usage.registers > 0, "it does not say what kernels take");
    Ok(usage)
}

fn registers_max(kernel: &str) -> u32 {
    let mut own = REGISTERS_MAX_OF.iter();
    let own = own.find(|(name, _)| kernel.starts_with(name));
    own.map_or(REGISTERS_MAX, |(_, max)| *max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stores: u32, registers: u32) -> String {
        said_of("embed", stores, registers)
    }

    fn said_of(kernel: &str, stores: u32, registers: u32) -> String {
        format!(
            "ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function '{kernel}' for 'sm_80'\n\
             ptxas info    : Function properties for {kernel}\n    \
             0 bytes stack frame, {stores} bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used {registers} registers, 380 bytes cmem[0]\n"
        )
    }

    #[test]
    fn kernels_keep_within_their_registers() {
        let expected = Usage {
            kernels: 1,
            registers: 32,
        };
        assert_eq!(usage(&said(0, 32)).unwrap(), expected);
        let refusal = |text: &str| usage(text).unwrap_err().to_string();
        assert!(refusal(&said(0, 33)).contains("embed takes 33 registers"));
        assert!(refusal(&said(8, 30)).contains("embed spills registers"));
        assert!(refusal("").contains("does not say"));
        assert!(usage(&said_of("choose", 0, 64)).is_ok());
        let more = said_of("choose", 0, 65);
        assert!(refusal(&more).contains("choose takes 65 registers, and may take 64"));
    }
}
