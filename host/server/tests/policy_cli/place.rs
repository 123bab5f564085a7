//! A folder in no workspace, and `pointsman policy` run in it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::said::Said;

/// A folder for policies, in which commands run.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

/// The folder for what is kept from one run of the tests to the next.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("policy-cli")
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn text(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path(name));
        text.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The folder of compiled code.
    pub(crate) fn code(&self) -> PathBuf {
        kept().join("cache/pointsman/code")
    }

    /// Runs `pointsman policy`. Cargo's builds and compiled code are kept from one run of the tests to
    /// the next.
    pub(crate) fn policy<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        let mut command = self.command();
        Said::of(command.args(arguments))
    }

    /// `pointsman policy`, not run yet.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.pointsman();
        command.arg("policy");
        command
    }

    /// `pointsman`, not run yet.
    pub(crate) fn pointsman(&self) -> Command {
        let kept = kept();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
        command
            .current_dir(self.folder.path())
            .env("XDG_CACHE_HOME", kept.join("cache"))
            .env("CARGO_TARGET_DIR", kept)
            .env("CARGO_NET_OFFLINE", "true")
            // Those of the build that runs this test are none of the policy's.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        command
    }

    pub(crate) fn say(&self, line: &str) -> Said {
        self.policy(line.split_whitespace())
    }
}

/// True if the Rust compiler on this machine has the library for policies. It has not where `cargo
/// xtask` compiles the shipped ones with Debian's compiler instead.
pub(crate) fn can_build() -> bool {
    let said = Command::new("rustc")
        .args(["--print", "target-libdir", "--target"])
        .arg("wasm32-unknown-unknown")
        .output()
        .unwrap();
    let libraries = String::from_utf8(said.stdout).unwrap();
    let can = said.status.success() && Path::new(libraries.trim()).is_dir();
    if !can {
        println!("skipped: rustc has no wasm32-unknown-unknown on this machine");
    }
    can
}
