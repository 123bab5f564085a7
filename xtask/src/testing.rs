//! `cargo xtask test`: the guests, the clients and the kernels, then all tests of the workspace.

use std::env;
use std::thread;

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
/// The variable by which tests know the browser's program.
const BROWSER: &str = "POINTSMAN_TEST_BROWSER";
/// The variable by which test programs know how many tests they run at once. `--test-threads` has precedence.
const THREADS: &str = "RUST_TEST_THREADS";
/// Tests that run at once for each processor: most wait for a server for a part of their time.
const THREADS_EACH: usize = 2;
/// Programs of Chromium and of Chrome, one of which tests need. Debian's package has the first.
const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Arguments of cargo and of test programs that choose no tests, and what is between the two.
const HOW: [&str; 15] = [
    "--no-fail-fast",
    "--release",
    "-r",
    "--locked",
    "--offline",
    "--frozen",
    "--verbose",
    "-v",
    "-vv",
    "--quiet",
    "-q",
    "--",
    "--nocapture",
    "--no-capture",
    "--show-output",
];
/// The same with a value, behind `=` or as the next argument.
const HOW_BY: [&str; 5] = ["--jobs", "-j", "--profile", "--color", "--test-threads"];

pub(crate) fn run(workspace: &Workspace, test: &Test) -> Result<()> {
    // Tests build policies in Python and JavaScript, too, with the programs that these provide.
    python::prepare(workspace)?;
    node::prepare(workspace)?;
    apt::provide(node::PROGRAMS, node::PACKAGES)?;
    // Tests compile an emulation of CUDA devices with this compiler.
    apt::provide(&["c++"], &["g++"])?;
    // Tests show the monitor page in this browser.
    let browser = apt::provide_one(&BROWSERS, &["chromium"])?;
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
    let mut command = process::cargo(workspace);
    command.env(WITH, with.join(",")).env(BROWSER, browser);
    if env::var_os(THREADS).is_none() {
        let processors = thread::available_parallelism()?.get();
        command.env(THREADS, (processors * THREADS_EACH).to_string());
    }
    command.args(["test", "--config", &watched()?, "--workspace"]);
    process::run(command.args(&test.args))?;
    // Whoever names tests wants no others.
    match names_tests(&test.args) {
        true => Ok(()),
        false => device::test(workspace),
    }
}

/// Returns whether arguments for cargo choose among the tests, by what they name or in a way that is not known here. Others
/// say only how all of them are run.
fn names_tests(args: &[String]) -> bool {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (option, value) = match arg.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (arg.as_str(), None),
        };
        let jobs = arg.strip_prefix("-j").map(str::parse::<u32>);
        if HOW_BY.contains(&option) {
            if value.is_none() {
                args.next();
            }
        } else if !HOW.contains(&arg.as_str()) && !matches!(jobs, Some(Ok(_))) {
            return true;
        }
    }
    false
}

/// The line of cargo's configuration that has test programs run by `watch-test`.
fn watched() -> Result<String> {
    let this = env::current_exe()?;
    let this = this.to_str().context("this program's path is not UTF-8")?;
    Ok(format!(
        "target.'cfg(all())'.runner = [{this:?}, \"watch-test\"]"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> bool {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        names_tests(&args)
    }

    #[test]
    fn arguments_that_name_no_test_leave_a_device_its_tests() {
        let ci = include_str!("../../.ci/run").lines();
        let ci = ci.filter_map(|line| line.strip_prefix("cargo xtask test"));
        let ci: Vec<&str> = ci.collect();
        assert_eq!(ci, [" --no-fail-fast"]);
        for line in [
            "",
            ci[0],
            "--jobs 4 --release",
            "--jobs=4 -- --nocapture",
            "-j 2 -- --test-threads 1",
            "-j4 -vv",
        ] {
            assert!(!names(line), "{line}");
        }
    }

    #[test]
    fn arguments_that_name_tests_name_all_that_are_run() {
        for line in [
            "-p xtask",
            "--no-fail-fast --test cuda",
            "--lib",
            "--no-run",
            "a_name",
            "-j 2 a_name",
            "-- a_name",
            "--no-fail-fast -- --skip a_name",
        ] {
            assert!(names(line), "{line}");
        }
    }

    #[test]
    fn tests_take_the_browser_that_they_are_told_of_or_debians() {
        let script = include_str!("../../tests/src/browser.rs");
        assert!(script.contains(&format!("const BROWSER: &str = {BROWSER:?};")));
        assert!(script.contains(&format!("{:?}.into()", BROWSERS[0])));
    }
}
