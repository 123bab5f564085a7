//! `policy build`: from a policy's folder to its component.
//!
//! The manifest in the folder tells the language, `rust`, `javascript` or `python`; `guest` has what the
//! two interpreted ones share. Each calls the tools of its language. The author's facts in the manifest
//! go into the component.
//!
//! # Invariants
//! 1. What is written is a policy that a host of this release loads, whatever the language; anything
//!    else is refused with the reason (`host/server/tests/policy_cli`).

mod guest;
mod javascript;
mod python;
mod rust;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::facts::AuthorFacts;
use super::language::Language;
use super::{Done, file};
use pointsman_notation::grouped;

/// Arguments of `policy build`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folder of the policy
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// File for the component [default: NAME.wasm in the folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The folder of a policy.
#[derive(Clone, Copy)]
struct Folder<'a> {
    /// The folder, as its user named it.
    shown: &'a Path,
    /// Its whole path.
    path: &'a Path,
}

/// A component that a language's tools have made, without the author's facts.
struct Raw {
    /// The policy's name in the manifest.
    name: String,
    facts: AuthorFacts,
    component: Vec<u8>,
    /// Warnings about what will panic or vanish.
    warnings: Vec<&'static str>,
}

/// A component that was built.
pub(super) struct Built {
    pub(super) path: PathBuf,
    size: usize,
    warnings: Vec<&'static str>,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    Ok(match build(&args.dir, args.output.as_deref())? {
        Ok(built) => Done::good(built.text()),
        Err(why) => Done::not_good(why),
    })
}

/// Builds the policy of a folder; the inner error says in a line why it makes none.
pub(super) fn build(dir: &Path, output: Option<&Path>) -> Result<Result<Built, String>> {
    let shown = dir.display();
    let path = fs::canonicalize(dir).with_context(|| format!("no folder {shown}"))?;
    let folder = Folder {
        shown: dir,
        path: &path,
    };
    let raw = match Language::of(dir)? {
        Language::Rust => rust::make(folder)?,
        Language::JavaScript => javascript::make(folder)?,
        Language::Python => python::make(folder)?,
    };
    let mut raw = match raw {
        Ok(raw) => raw,
        Err(why) => return Ok(Err(format!("{shown} {why}\n"))),
    };
    raw.facts.append_to(&mut raw.component);
    if let Err(why) = file::load(&raw.component)? {
        return Ok(Err(format!("{shown} makes no policy: {why}\n")));
    }
    let path = output.map_or_else(|| dir.join(format!("{}.wasm", raw.name)), Path::to_owned);
    replace(&path, &raw.component).with_context(|| format!("{} not written", path.display()))?;
    Ok(Ok(Built {
        path,
        size: raw.component.len(),
        warnings: raw.warnings,
    }))
}

/// Writes a file in one step, so that no server that watches the folder reads half of it.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(format!("wasm.{}", std::process::id()));
    fs::write(&draft, bytes)?;
    fs::rename(&draft, path)
}

/// The error of a program that did not start, with the remedy where it is not there.
fn not_run(program: &Command, error: io::Error, remedy: &str) -> anyhow::Error {
    let missing = error.kind() == ErrorKind::NotFound;
    let (error, program) = (anyhow::Error::from(error), program.get_program().display());
    if missing {
        return error.context(format!("{program} is not there: {remedy}"));
    }
    error.context(format!("{program} cannot be run"))
}

// === impl Built ===

impl Built {
    /// The file with its size, and the warnings, in lines.
    pub(super) fn text(&self) -> String {
        let size = grouped(u64::try_from(self.size).unwrap_or(u64::MAX));
        let mut text = format!("{}: {size} bytes\n", self.path.display());
        for warning in &self.warnings {
            text.push_str(&format!("warning: {warning}\n"));
        }
        text
    }
}
