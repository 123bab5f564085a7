//! The compiler that makes guests, on machines that have little.
//!
//! Only the standard library for `wasm32-unknown-unknown` may be missing. The choices, in order: it
//! is installed; rustup adds it; Debian's compiler for the web builds it from source; or the user
//! is told what to type. The choice is printed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use pointsman_notation::Time;

use super::{TARGET, environment};
use crate::process::{self, Exit};
use crate::workspace::{Workspace, parse_rust_version};

mod debian;

use debian::Debian;

/// Time limit for rustup. It answers in a few seconds, or it has no network.
const RUSTUP_LIMIT: Duration = Duration::from_secs(60);

/// File with the version of the compiler for which `rustup target add` failed.
const MEMORY: &str = ".no-rustup-target";

#[derive(Debug)]
pub(crate) enum Toolchain {
    /// The compiler in use, which has the target, by its version line.
    Installed(String),
    Debian(Debian),
}

/// The result of `rustup target add`.
enum Rustup {
    Added,
    /// The reason, for the user.
    NotAdded(String),
}

pub(crate) fn choose(workspace: &Workspace, builds: &Path) -> Result<Toolchain> {
    let compiler = compiler(&workspace.root)?;
    let compiler_line = first_line(&compiler);
    if has_target(&workspace.root)? {
        return Ok(Toolchain::Installed(compiler_line));
    }
    let reason = match add_target(workspace, builds, &compiler)? {
        Rustup::Added => return Ok(Toolchain::Installed(compiler_line)),
        Rustup::NotAdded(reason) => reason,
    };
    println!("policies: {reason}");
    match Debian::find_or_install(workspace.rust_version()?)? {
        Ok(debian) => {
            remember(builds, &compiler)?;
            Ok(Toolchain::Debian(debian))
        }
        Err(why_not) => {
            let has = |program: &str| process::find_program(program).is_some();
            bail!("{}", advice(&reason, &why_not, has))
        }
    }
}

/// The version text of the compiler in use; empty if there is none.
fn compiler(root: &Path) -> Result<String> {
    let said = process::stdout_of(rustc(root).arg("-vV"))?;
    Ok(said.unwrap_or_default())
}

fn has_target(root: &Path) -> Result<bool> {
    let mut command = rustc(root);
    command.args(["--print", "target-libdir", "--target", TARGET]);
    let folder = process::stdout_of(&mut command)?;
    Ok(folder.is_some_and(|folder| Path::new(folder.trim()).is_dir()))
}

fn add_target(workspace: &Workspace, builds: &Path, compiler: &str) -> Result<Rustup> {
    let memory = builds.join(MEMORY);
    if fs::read_to_string(&memory).is_ok_and(|failed| failed == compiler) {
        let reason = format!(
            "rustup could not add {TARGET} before; remove {} to try again",
            memory.display()
        );
        return Ok(Rustup::NotAdded(reason));
    }
    let mut command = Command::new("rustup");
    command
        .args(["target", "add", TARGET])
        .current_dir(&workspace.root);
    let exit = process::run_within(&mut command, RUSTUP_LIMIT)?;
    let added = matches!(exit, Exit::Success) && has_target(&workspace.root)?;
    Ok(if added {
        Rustup::Added
    } else {
        Rustup::NotAdded(why_not_added(exit))
    })
}

fn why_not_added(exit: Exit) -> String {
    match exit {
        Exit::Success => format!("rustup added {TARGET} to another compiler than `rustc` runs"),
        Exit::Failure(said) => format!("rustup cannot add {TARGET}: {}", last_line(&said)),
        Exit::TimedOut => format!("rustup did not add {TARGET} within {}", Time(RUSTUP_LIMIT)),
        Exit::NotFound => format!("rustc has no {TARGET}, and there is no rustup to add it"),
    }
}

fn remember(builds: &Path, compiler: &str) -> Result<()> {
    fs::create_dir_all(builds)?;
    fs::write(builds.join(MEMORY), compiler)?;
    Ok(())
}

/// The reasons why there is no compiler, and what to do on a machine that `has` these programs.
fn advice(rustup: &str, debian: &str, has: impl Fn(&str) -> bool) -> String {
    let mut text = format!("no compiler for {TARGET}.\n- {rustup}\n- {debian}\n");
    text.push_str(&if has("rustup") {
        format!("With a network, type:\n    rustup target add {TARGET}\n")
    } else {
        format!(
            "Install Rust from https://rustup.rs, or your system's package of the target (Fedora: \
             rust-std-static-{TARGET}, Arch: rust-wasm).\n"
        )
    });
    if has("apt-get") {
        let line = debian::install_line();
        let typed = format!("On Debian without access to rustup's server, type:\n    {line}\n");
        text.push_str(&typed);
    }
    text
}

/// The compiler of the toolchain that this tool runs under.
fn rustc(root: &Path) -> Command {
    let mut command = Command::new("rustc");
    environment::clean(&mut command);
    command.current_dir(root);
    command
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn last_line(text: &str) -> &str {
    text.lines().next_back().unwrap_or("it did not say why")
}

// === impl Toolchain ===

impl Toolchain {
    /// A cargo with a clean environment.
    pub(crate) fn cargo(&self, root: &Path) -> Command {
        let mut command = match self {
            // RUSTUP_TOOLCHAIN stays: that toolchain has the target.
            Self::Installed(_) => Command::new("cargo"),
            Self::Debian(debian) => Command::new(debian.cargo()),
        };
        environment::clean(&mut command);
        command.current_dir(root);
        if let Self::Debian(debian) = self {
            debian.prepare(&mut command);
        }
        command
    }

    pub(crate) fn flags(&self) -> &'static [&'static str] {
        match self {
            Self::Installed(_) => &[],
            Self::Debian(_) => &["-Zbuild-std=std,panic_abort"],
        }
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Installed(version) => write!(f, "{version}"),
            Self::Debian(debian) => write!(f, "{debian}"),
        }
    }
}

/// The linker of a compiler, found by its system root and host.
fn bundled_linker(sysroot: &Path, host: &str) -> Option<PathBuf> {
    let linker = sysroot.join("lib/rustlib").join(host).join("bin/rust-lld");
    linker.is_file().then_some(linker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::TempDir;

    #[test]
    fn a_failed_rustup_is_not_asked_again_for_the_same_compiler() {
        let temp = TempDir::new();
        let workspace = Workspace {
            root: temp.path().to_owned(),
            target: temp.path().to_owned(),
        };
        remember(temp.path(), "rustc 1").unwrap();
        let Rustup::NotAdded(reason) = add_target(&workspace, temp.path(), "rustc 1").unwrap()
        else {
            panic!("remembered a failure and reported success");
        };
        assert!(reason.contains(MEMORY), "{reason}");
    }

    #[test]
    fn the_reason_quotes_what_rustup_said_last() {
        let reason = why_not_added(Exit::Failure("info: x\nerror: no network".to_owned()));
        assert!(reason.ends_with("error: no network"), "{reason}");
        let silent = why_not_added(Exit::Failure(String::new()));
        assert!(silent.ends_with("it did not say why"), "{silent}");
    }

    #[test]
    fn the_advice_says_what_to_type() {
        let advice = advice("rustup is offline", "this is not Debian", |_| true);
        assert!(advice.contains("\n    rustup target add wasm32-unknown-unknown\n"));
        assert!(advice.contains("apt-get install"));
        assert!(advice.contains("rustup is offline") && advice.contains("this is not Debian"));
    }

    #[test]
    fn the_advice_names_no_command_that_is_not_there() {
        let neither = advice("there is no rustup", "this is not Debian", |_| false);
        assert!(!neither.contains("target add") && !neither.contains("apt-get"));
        for way in [
            "https://rustup.rs",
            "Fedora: rust-std-static-wasm32-unknown-unknown",
            "Arch: rust-wasm",
        ] {
            assert!(neither.contains(way), "{neither}");
        }
        let debian = advice("there is no rustup", "not installed", |it| it == "apt-get");
        assert!(!debian.contains("target add"), "{debian}");
        assert!(debian.contains("\n    apt-get update"), "{debian}");
    }

    #[test]
    fn a_linker_that_is_not_there_is_not_found() {
        let temp = TempDir::new();
        assert_eq!(bundled_linker(temp.path(), "host"), None);
        let file = temp.write("lib/rustlib/host/bin/rust-lld", b"");
        assert_eq!(bundled_linker(temp.path(), "host"), Some(file));
    }
}
