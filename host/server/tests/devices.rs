//! `pointsman devices` as a process.

#![expect(clippy::unwrap_used, reason = "in tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

use pointsman_cuda::emulation;
use pointsman_cuda::probe::NoDevice;

/// A driver's library that finds no device when it begins.
const REFUSES: &str = r#"extern "C" {
int cuInit(unsigned) { return 100; }
int cuGetErrorName(int, const char** name) {
    *name = "CUDA_ERROR_NO_DEVICE";
    return 0;
}
int cuGetErrorString(int, const char** text) {
    *text = "no CUDA-capable device is detected";
    return 0;
}
}
"#;

/// The lines of `pointsman devices`, which looks for libraries in `folder` first.
fn listed(folder: &Path) -> Vec<String> {
    lines_of(devices(folder))
}

fn devices(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.arg("devices").env("LD_LIBRARY_PATH", folder);
    command
}

fn lines_of(mut command: Command) -> Vec<String> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(str::to_owned).collect()
}

/// Compiles a library without anything in it.
fn compile_empty(library: &Path) {
    compile(library, "");
}

/// Compiles a library of this source.
fn compile(library: &Path, text: &str) {
    let source = library.with_extension("cpp");
    fs::write(&source, text).unwrap();
    let mut compile = Command::new("c++");
    compile.args(["-shared", "-fPIC", "-o"]);
    let compiled = compile.arg(library).arg(source).status().unwrap();
    assert!(compiled.success());
}

#[test]
fn the_devices_are_listed_with_what_they_have() {
    let lines = listed(emulation::install().folder());
    assert!(lines[0].starts_with("cpu: "), "{lines:?}");
    let device = "cuda 0: Emulated device 0, 1.0 GiB, compute capability 9.0";
    assert_eq!(lines[1..], [device]);
}

#[test]
fn a_driver_without_a_device_and_one_that_refuses_say_so() {
    let mut command = devices(emulation::install().folder());
    command.env(emulation::DEVICES, "0");
    assert_eq!(lines_of(command)[1..], ["cuda: the driver has no device"]);

    let folder = tempfile::tempdir().unwrap();
    compile(&folder.path().join("libcuda.so"), REFUSES);
    compile_empty(&folder.path().join("libcublas.so"));
    let said = "no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)";
    let refuses = NoDevice::Driver(said.to_owned());
    assert_eq!(listed(folder.path())[1..], [format!("cuda: {refuses}")]);
}

#[test]
fn a_library_that_is_broken_or_missing_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    compile_empty(&folder.path().join("libcuda.so"));
    compile_empty(&folder.path().join("libcublas.so"));
    let lines = listed(folder.path());
    let broken = "cuda: NVIDIA's driver: its library is broken or too old";
    assert_eq!(lines[1..], [broken]);

    let folder = tempfile::tempdir().unwrap();
    let driver = emulation::install().folder().join("libcuda.so");
    fs::copy(driver, folder.path().join("libcuda.so")).unwrap();
    if !is_installed("libcublas.so.12") && !is_installed("libcublas.so.13") {
        let lines = listed(folder.path());
        assert_eq!(lines[1..], [format!("cuda: {}", NoDevice::NoBlas)]);
    }
    if !is_installed("libcuda.so.1") {
        let lines = listed(Path::new(""));
        assert_eq!(lines[1..], [format!("cuda: {}", NoDevice::NoDriver)]);
    }
}

/// Returns true if the system's loader knows this library.
fn is_installed(library: &str) -> bool {
    let cache = Command::new("ldconfig").arg("-p").output().unwrap();
    String::from_utf8_lossy(&cache.stdout).contains(library)
}
