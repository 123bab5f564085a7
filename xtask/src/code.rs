//! Machine code of the default policies, which the server has in itself, so that its first start is as quick as any
//! other. Tests start hundreds.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::dist::PROFILE;
use crate::process;
use crate::serve::PACKAGE;
use crate::workspace::Workspace;

/// The package and the program that makes the code.
const COMPILER: (&str, &str) = ("pointsman-component", "pointsman-precompile");
/// The test of that program.
const TEST: &str = "precompile";

/// The build that the compiler is a part of. It is of the same crates with the same features as what is built
/// afterwards, so that nothing is built twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// The release of the server.
    Release,
    /// The server as packages have it.
    Packaged,
    /// The tests of the workspace.
    Tests,
}

/// Makes `<target>/policies/code/NAME.code` of each component, unless it is newer than the component and the
/// compiler.
pub(crate) fn make(workspace: &Workspace, names: &[&str], build: Build) -> Result<()> {
    let compiler = process::build_program(&mut build.command(workspace), COMPILER.1)?;
    let policies = workspace.target.join("policies");
    let folder = policies.join("code");
    fs::create_dir_all(&folder)?;
    for name in names {
        let component = policies.join(name).with_extension("wasm");
        let code = folder.join(name).with_extension("code");
        if is_newer(&code, &[&component, &compiler])? {
            println!("code: {} (unchanged)", code.display());
            continue;
        }
        // In one step: half of a file would be newer, too.
        let draft = code.with_extension("draft");
        process::run(Command::new(&compiler).arg(&component).arg(&draft))?;
        fs::rename(&draft, &code)?;
    }
    Ok(())
}

impl Build {
    /// The command that builds the compiler.
    fn command(self, workspace: &Workspace) -> Command {
        let mut command = process::cargo(workspace);
        let mut in_profile = |profile| {
            command.args(["build", "--profile", profile, "--package", PACKAGE]);
            command.args(["--package", COMPILER.0, "--bin", COMPILER.1]);
        };
        match self {
            Self::Release => in_profile("release"),
            Self::Packaged => in_profile(PROFILE),
            // Built by itself it would lack the features that only tests ask for.
            Self::Tests => {
                command.args(["test", "--workspace", "--no-run", "--test", TEST]);
            }
        }
        if workspace.is_locked() {
            command.arg("--locked");
        }
        command
    }
}

/// Returns whether a file is there and newer than all `others`.
fn is_newer(file: &Path, others: &[&Path]) -> Result<bool> {
    if !file.is_file() {
        return Ok(false);
    }
    let time = modified(file)?;
    for other in others {
        if modified(other)? >= time {
            return Ok(false);
        }
    }
    Ok(true)
}

fn modified(path: &Path) -> Result<SystemTime> {
    let time = fs::metadata(path).and_then(|facts| facts.modified());
    time.with_context(|| format!("{} has no time of change", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    #[test]
    fn code_is_made_where_it_is_missing_or_not_newer() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str, seconds| {
            let path = folder.path().join(name);
            let file = File::create(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
                .unwrap();
            path
        };
        let (component, compiler) = (at("a.wasm", 5), at("compiler", 7));
        let others = [component.as_path(), compiler.as_path()];
        let is_newer = |code: &Path| is_newer(code, &others).unwrap();
        assert!(!is_newer(&folder.path().join("none")));
        assert!(!is_newer(&at("old.code", 6)));
        assert!(!is_newer(&at("same.code", 7)));
        assert!(is_newer(&at("new.code", 8)));
    }

    #[test]
    fn the_servers_script_embeds_code_from_where_it_is_made() {
        let script = include_str!("../../host/server/build.rs");
        assert!(script.contains(r#"folder.join("code")"#));
        assert!(script.contains(r#"format!("{name}.code")"#));
        assert!(
            Path::new("../host/component/src/bin")
                .join(COMPILER.1)
                .with_extension("rs")
                .is_file()
        );
    }
}
