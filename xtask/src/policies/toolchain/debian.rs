//! Debian's compiler for the web. It has the standard library's source, and so needs no target from
//! rustup.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{bundled_linker, parse_rust_version};
use crate::apt;
use crate::process;

const CARGO: &str = "/usr/bin/cargo";
const RUSTC: &str = "/usr/bin/rustc";
/// A file of the source, which `rust-web-src` installs.
const SOURCE: &str = "/usr/lib/rustlib/src/rust/library/std/Cargo.toml";
const PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];
/// A package with a linker, for machines without rustup's.
const LINKER_PACKAGE: &str = "lld";

#[derive(Debug)]
pub(crate) struct Debian {
    version: String,
    linker: PathBuf,
}

pub(super) fn install_line() -> String {
    let packages: Vec<&str> = PACKAGES.iter().copied().chain([LINKER_PACKAGE]).collect();
    apt::install_line(&packages)
}

// === impl Debian ===

impl Debian {
    /// Finds the compiler, or installs it. The inner error is the reason why there is none.
    pub(super) fn find_or_install(wanted: (u32, u32)) -> Result<Result<Self, String>> {
        let missing = match Self::find(wanted)? {
            Ok(found) => return Ok(Ok(found)),
            Err(missing) => missing,
        };
        if !apt::may_install()? {
            return Ok(Err(missing));
        }
        println!("policies: {missing}; installing it");
        match install() {
            Ok(()) => Self::find(wanted),
            Err(error) => Ok(Err(format!("{missing}, and {error:#}"))),
        }
    }

    fn find(wanted: (u32, u32)) -> Result<Result<Self, String>> {
        if let Some(file) = [CARGO, RUSTC, SOURCE]
            .iter()
            .find(|file| !Path::new(file).is_file())
        {
            return Ok(Err(format!(
                "Debian's compiler for the web is not installed: no {file}"
            )));
        }
        let version = process::stdout_of(Command::new(RUSTC).arg("-V"))?
            .with_context(|| format!("{RUSTC} vanished"))?;
        let version = version.trim().to_owned();
        if !is_recent(&version, wanted) {
            let (major, minor) = wanted;
            return Ok(Err(format!(
                "{RUSTC} is `{version}`, older than {major}.{minor}"
            )));
        }
        Ok(match linker()? {
            Some(linker) => Ok(Self { version, linker }),
            None => Err("there is no linker: neither rustup's rust-lld nor wasm-ld".to_owned()),
        })
    }

    pub(super) fn cargo(&self) -> &'static str {
        CARGO
    }

    /// Sets up an environment in which this compiler builds the standard library too.
    pub(super) fn prepare(&self, command: &mut Command) {
        command
            .env_remove("RUSTUP_TOOLCHAIN")
            // The outer cargo sets this to the libraries of another compiler.
            .env_remove("LD_LIBRARY_PATH")
            .env("RUSTC", RUSTC)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", &self.linker);
    }
}

impl fmt::Display for Debian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Debian's {}, standard library from source", self.version)
    }
}

fn is_recent(version: &str, wanted: (u32, u32)) -> bool {
    let number = version.split(' ').nth(1).and_then(parse_rust_version);
    number.is_some_and(|number| number >= wanted)
}

/// Finds a linker: the one of the compiler on `PATH` (rustup's has one), or else LLVM's.
fn linker() -> Result<Option<PathBuf>> {
    let said = process::stdout_of(Command::new("rustc").arg("-vV"))?;
    let sysroot = process::stdout_of(Command::new("rustc").args(["--print", "sysroot"]))?;
    let bundled = sysroot
        .zip(said.as_deref().and_then(host))
        .and_then(|(sysroot, host)| bundled_linker(Path::new(sysroot.trim()), host));
    Ok(bundled.or_else(|| process::find_program("wasm-ld")))
}

fn host(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.strip_prefix("host: "))
}

fn install() -> Result<()> {
    apt::install(PACKAGES)?;
    if linker()?.is_none() {
        apt::install(&[LINKER_PACKAGE])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_compiler_is_not_used() {
        assert!(is_recent(
            "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)",
            (1, 95)
        ));
        assert!(is_recent("rustc 2.0.0", (1, 95)));
        assert!(!is_recent("rustc 1.63.0", (1, 95)));
        assert!(!is_recent("gibberish", (1, 95)));
    }

    #[test]
    fn reads_the_host_from_the_compilers_words() {
        let said = "rustc 1.96.0\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.96.0\n";
        assert_eq!(host(said), Some("x86_64-unknown-linux-gnu"));
        assert_eq!(host("rustc"), None);
    }

    #[test]
    fn the_line_to_type_names_every_package() {
        let line = install_line();
        for package in PACKAGES {
            assert!(line.contains(package), "{line}");
        }
    }
}
