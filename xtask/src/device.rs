//! The tests of CUDA devices on a real one, where there is one: what they are run on otherwise is emulated.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// The variable by which tests run on a real device.
const TESTS: &str = "POINTSMAN_CUDA_TESTS";
const PACKAGE: &str = "pointsman-cuda";

/// Runs the tests of CUDA devices on this machine's, or says that it has none.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let listed = Command::new("nvidia-smi").arg("-L").output();
    let is_there = listed.is_ok_and(|listed| listed.status.success() && !listed.stdout.is_empty());
    if !is_there {
        println!("SKIPPED: the tests of CUDA on a real device, for `nvidia-smi -L` lists none");
        return Ok(());
    }
    let mut command = process::cargo(&workspace.root);
    command.env(TESTS, "device");
    // What loses and counts devices is for the emulation alone.
    let tests = [
        "--test", "backend", "--test", "choice", "--test", "contract",
    ];
    process::run(command.args(["test", "-p", PACKAGE]).args(tests))
}
