//! `cargo xtask serve`: the guests, then the server in release, which embeds them.

use std::env;
use std::process::Command;

use anyhow::Result;

use crate::policies;
use crate::process;
use crate::workspace::Workspace;

const PACKAGE: &str = "pointsman-server";

pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    policies::build(workspace)?;
    println!("serve: the server is built in release; the first time this takes minutes");
    process::replace(&mut command(workspace, args)?)
}

/// Run where the user stands, so that paths in `args` mean what they say.
fn command(workspace: &Workspace, args: &[String]) -> Result<Command> {
    let mut command = process::cargo(&workspace.root);
    command
        .current_dir(env::current_dir()?)
        .args(["run", "--release", "--package", PACKAGE, "--manifest-path"])
        .arg(workspace.root.join("Cargo.toml"))
        .args(["--", "serve"])
        .args(args);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            command.get_current_dir(),
            env::current_dir().ok().as_deref()
        );
    }
}
