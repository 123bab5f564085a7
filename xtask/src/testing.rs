//! `cargo xtask test`: the guests, the clients and the kernels, then all tests of the workspace.

use std::env;

use anyhow::{Context, Result};

use crate::apt;
use crate::cli::{Extra, Guests, Test};
use crate::code::{self, Build};
use crate::device;
use crate::kernels;
use crate::llama_cpp;
use crate::node;
use crate::policies;
use crate::process;
use crate::python;
use crate::serve::DEFAULTS;
use crate::workspace::Workspace;

/// The requirements of the frameworks that some programs of clients are built on.
const FRAMEWORKS: &str = "tests/clients/frameworks.txt";
/// The variable by which tests know what they are run with.
const WITH: &str = "POINTSMAN_TEST_WITH";

pub(crate) fn run(workspace: &Workspace, test: &Test) -> Result<()> {
    // Tests build policies in Python and JavaScript, too, with the programs that these provide.
    python::prepare(workspace)?;
    node::prepare(workspace)?;
    apt::provide(node::PROGRAMS, node::PACKAGES)?;
    // Tests compile an emulation of CUDA devices with this compiler.
    apt::provide(&["c++"], &["g++"])?;
    // Tests show the monitor page in this browser.
    apt::provide(&["chromium"], &["chromium"])?;
    for extra in &test.with {
        match extra {
            Extra::LlamaCpp => llama_cpp::prepare(workspace)?,
            Extra::Frameworks => {
                python::provide_file(workspace, "peers/frameworks", FRAMEWORKS)?;
            }
        }
    }
    match test.guests {
        Guests::Build => {
            policies::build_all(workspace)?;
            kernels::check(workspace)?;
            code::make(workspace, &DEFAULTS, Build::Tests)?;
        }
        Guests::AsTheyAre => {}
    }
    let with: Vec<&str> = test.with.iter().map(|extra| extra.name()).collect();
    let mut command = process::cargo(&workspace.root);
    command.env(WITH, with.join(","));
    command.args(["test", "--config", &watched()?, "--workspace"]);
    process::run(command.args(&test.args))?;
    // Whoever names tests wants no others.
    match test.args.is_empty() {
        true => device::test(workspace),
        false => Ok(()),
    }
}

/// The line of cargo's configuration that has test programs run by `watch-test`.
fn watched() -> Result<String> {
    let this = env::current_exe()?;
    let this = this.to_str().context("this program's path is not UTF-8")?;
    Ok(format!(
        "target.'cfg(all())'.runner = [{this:?}, \"watch-test\"]"
    ))
}
