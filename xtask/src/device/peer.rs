//! The engines that `cargo xtask bench cuda` compares ours with: `<target>/peers/vllm`, or where that cannot be installed,
//! `<target>/peers/transformers`.
//!
//! What is here already, for `python3`, is not installed again. Without a network the benchmark has only that.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::python;
use crate::workspace::Workspace;

/// The argument by which a benchmark compares with none.
const WITHOUT: &str = "--no-peer";

/// Packages that bring a peer.
struct Packages {
    /// The folder of their environment.
    name: &'static str,
    requirements: &'static str,
    /// The modules by which Python has them.
    modules: &'static [&'static str],
}

/// The first that can be had is enough: vLLM brings what transformers needs.
const PEERS: [Packages; 2] = [
    Packages {
        name: "vllm",
        requirements: "vllm==0.33.0",
        modules: &["vllm"],
    },
    Packages {
        name: "transformers",
        requirements: "torch==2.11.0\ntransformers==5.17.0\n",
        modules: &["torch", "transformers"],
    },
];

/// Installs a peer for a benchmark with these arguments, or says why it has none.
pub(super) fn prepare(workspace: &Workspace, args: &[String]) {
    let peers = workspace.target.join("peers");
    let left_out = provide(args, |packages| {
        if is_here(packages.modules) {
            return Ok(());
        }
        python::provide(&peers.join(packages.name), packages.requirements)
    });
    for line in left_out {
        println!("{line}");
    }
}

/// Has the first packages made that can be. Returns why the ones before them are left out.
fn provide(args: &[String], make: impl Fn(&Packages) -> Result<()>) -> Vec<String> {
    let mut left_out = Vec::new();
    if args.iter().any(|arg| arg == WITHOUT) {
        return left_out;
    }
    for packages in &PEERS {
        match make(packages) {
            Ok(()) => break,
            Err(error) => left_out.push(format!("{} is left out: {error:#}", packages.name)),
        }
    }
    left_out
}

/// Returns whether the machine's own Python has these modules.
fn is_here(modules: &[&str]) -> bool {
    let script = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))";
    process::succeeds(Command::new("python3").args(["-c", script]).args(modules))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    /// The packages that are tried where none of `missing` can be had, and what is said.
    fn tried(args: &[&str], missing: &[&str]) -> (Vec<&'static str>, Vec<String>) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let tried = RefCell::new(Vec::new());
        let said = provide(&args, |packages| {
            tried.borrow_mut().push(packages.name);
            match missing.contains(&packages.name) {
                true => bail!("no network"),
                false => Ok(()),
            }
        });
        (tried.into_inner(), said)
    }

    #[test]
    fn transformers_is_installed_where_vllm_cannot_be_and_what_is_missing_is_told() {
        assert_eq!(tried(&[], &[]), (vec!["vllm"], vec![]));
        let vllm = "vllm is left out: no network".to_owned();
        let both = vec!["vllm", "transformers"];
        assert_eq!(tried(&[], &["vllm"]), (both.clone(), vec![vllm.clone()]));
        let transformers = "transformers is left out: no network".to_owned();
        let said = tried(&["--quick"], &["vllm", "transformers"]);
        assert_eq!(said, (both, vec![vllm, transformers]));
    }

    #[test]
    fn no_peer_is_installed_for_a_benchmark_that_wants_none() {
        assert_eq!(tried(&["--quick", WITHOUT], &[]), (vec![], vec![]));
    }

    #[test]
    fn modules_that_python_has_are_not_installed_again() {
        if process::find_program("python3").is_none() {
            println!("skipped: there is no python3 here");
            return;
        }
        assert!(is_here(&["json", "sys"]));
        assert!(!is_here(&["json", "no_such_module_of_ours"]));
    }

    #[test]
    fn the_benchmark_leaves_its_peer_out_for_the_same_argument() {
        let bench = include_str!("../../../tests/benches/cuda.rs");
        assert!(bench.contains(&format!("has({WITHOUT:?})")));
    }
}
