//! `pointsman devices` as a process.

#![expect(clippy::unwrap_used, reason = "in tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

use pointsman_cuda::emulation;
use pointsman_cuda::probe::NoDevice;

/// The lines of `pointsman devices`, which looks for libraries in `folder` first.
fn listed(folder: &Path) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .arg("devices")
        .env("LD_LIBRARY_PATH", folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(str::to_owned).collect()
}

/// Compiles a library without anything in it.
fn compile_empty(library: &Path) {
    let source = library.with_extension("c");
    fs::write(&source, "").unwrap();
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
