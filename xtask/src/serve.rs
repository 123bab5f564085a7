//! `cargo xtask serve`: the default policies, then the server in release, which embeds them. The
//! server's state is kept in the target folder, unless its flags or its file name another.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::code::{self, Build};
use crate::policies;
use crate::process;
use crate::workspace::Workspace;

pub(crate) const PACKAGE: &str = "pointsman-server";
/// The variable that names the state folder, as service managers set it, and the folder's name
/// here.
const STATE: (&str, &str) = ("STATE_DIRECTORY", "state");

/// The folder that a server watches for policies, where nobody names another.
const POLICY_FOLDER: &str = "policies.d";

/// The policies that the server embeds (`host/server/build.rs`).
pub(crate) const DEFAULTS: [&str; 3] = ["aging", "memory-aware", "budget"];

pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    println!("serve: step 1 of 3: the default policies, as WebAssembly");
    policies::build_named(workspace, &DEFAULTS)?;
    make_policy_folder(&workspace.root, &env::current_dir()?)?;
    println!(
        "serve: step 2 of 3: their machine code; the first time the compiler for it takes some minutes to build"
    );
    code::make(workspace, &DEFAULTS, Build::Release)?;
    println!("serve: step 3 of 3: the server, in release; the first time this takes some minutes");
    process::replace(&mut command(workspace, args)?)
}

/// Makes the folder for policies at the root of the repository, if that is where the user stands: a
/// server watches only a folder that is there when it starts.
fn make_policy_folder(root: &Path, here: &Path) -> Result<()> {
    if here == root {
        fs::create_dir_all(root.join(POLICY_FOLDER))?;
    }
    Ok(())
}

/// The command, in the user's current folder, so that relative paths in `args` stay valid.
fn command(workspace: &Workspace, args: &[String]) -> Result<Command> {
    let mut command = process::cargo(workspace);
    command
        .current_dir(env::current_dir()?)
        .env(STATE.0, workspace.target.join(STATE.1))
        .args(["run", "--release", "--package", PACKAGE, "--manifest-path"])
        .arg(workspace.root.join("Cargo.toml"))
        .args(["--", "serve"])
        .args(args);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_default_policies_are_those_that_the_server_embeds() {
        let script = include_str!("../../host/server/build.rs");
        let list = format!("const POLICIES: [&str; 3] = {DEFAULTS:?};");
        assert!(script.contains(&list), "{list}");
    }

    #[test]
    fn a_folder_for_policies_is_made_in_the_repository_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        make_policy_folder(root.path(), &root.path().join("elsewhere")).unwrap();
        assert!(!root.path().join(POLICY_FOLDER).exists());
        make_policy_folder(root.path(), root.path()).unwrap();
        make_policy_folder(root.path(), root.path()).unwrap();
        assert!(root.path().join(POLICY_FOLDER).is_dir());
    }

    #[test]
    fn arguments_reach_the_server_and_paths_are_relative_to_where_the_user_stands() {
        let workspace = Workspace::here().unwrap();
        let args = ["--listen".to_owned(), "[::1]:9000".to_owned()];
        let command = command(&workspace, &args).unwrap();
        let given: Vec<_> = command.get_args().filter_map(|arg| arg.to_str()).collect();
        let [.., dashes, serve, listen, address] = given[..] else {
            panic!("{given:?}");
        };
        assert_eq!(
            [dashes, serve, listen, address],
            ["--", "serve", "--listen", "[::1]:9000"]
        );
        assert!(given.contains(&"--release"));
        let mut variables = command.get_envs();
        let state = variables.find(|(name, _)| *name == STATE.0);
        let state = state.and_then(|(_, value)| value.map(PathBuf::from));
        assert_eq!(state, Some(workspace.target.join("state")));
        assert_eq!(
            command.get_current_dir(),
            env::current_dir().ok().as_deref()
        );
    }
}
