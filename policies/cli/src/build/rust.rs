//! Policies in Rust, built by cargo.
//!
//! Cargo names the module that it built, so that target folders, workspaces and toolchains of the
//! author's choice work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use wit_component::ComponentEncoder;

use super::super::facts::AuthorFacts;
use super::super::pitfalls;
use super::{Folder, Raw, not_run};

const TARGET: &str = "wasm32-unknown-unknown";

/// Advice where a program is missing.
const REMEDY: &str = "install Rust, see https://rustup.rs";

/// The output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package's manifest, with the values that the workspace gives it.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    manifest_path: PathBuf,
    description: Option<String>,
    authors: Vec<String>,
    license: Option<String>,
    repository: Option<String>,
}

/// A line of cargo's output during a build. Lines of other kinds lack the fields.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// Makes the component of a crate; the inner error says why it makes none.
pub(super) fn make(folder: Folder<'_>) -> Result<Result<Raw, String>> {
    let folder = folder.path;
    let manifest = folder.join("Cargo.toml");
    ensure_target(folder)?;
    let package = package(folder, &manifest)?;
    let Some(messages) = cargo_build(folder)? else {
        return Ok(Err("does not build".to_owned()));
    };
    let Some(module) = module(&messages, &manifest) else {
        return Ok(Err(
            "makes no module: `[lib]` of its Cargo.toml needs crate-type = [\"rlib\", \"cdylib\"]"
                .to_owned(),
        ));
    };
    let module = fs::read(&module).with_context(|| format!("{} not read", module.display()))?;
    Ok(component(&module).map(|component| Raw {
        facts: package.facts(),
        name: package.name,
        component,
        warnings: pitfalls::warnings(&module),
    }))
}

/// Fails with the command to type, if the compiler has no library for the target.
fn ensure_target(folder: &Path) -> Result<()> {
    let said = output(
        "rustc",
        &["--print", "target-libdir", "--target", TARGET],
        folder,
    )?;
    let libraries = String::from_utf8_lossy(&said.stdout);
    anyhow::ensure!(
        said.status.success() && Path::new(libraries.trim()).is_dir(),
        "the Rust compiler cannot build for {TARGET} yet: type `rustup target add {TARGET}`, or \
         install Rust anew from https://rustup.rs if it came without rustup",
    );
    Ok(())
}

fn package(folder: &Path, manifest: &Path) -> Result<Package> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    let said = output("cargo", &arguments, folder)?;
    if !said.status.success() {
        bail!("{}", String::from_utf8_lossy(&said.stderr).trim());
    }
    let metadata: Metadata = serde_json::from_slice(&said.stdout)?;
    let found = metadata
        .packages
        .into_iter()
        .find(|package| package.manifest_path == manifest);
    found.with_context(|| {
        let shown = manifest.display();
        format!("{shown} has no [package]: name the folder of the policy's own crate")
    })
}

/// Runs cargo, and returns its messages; absent: the build failed, and cargo has printed the
/// reason.
fn cargo_build(folder: &Path) -> Result<Option<Vec<Message>>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--lib", "--target", TARGET]);
    cargo.arg("--message-format=json-render-diagnostics");
    cargo
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let said = cargo.output();
    let said = said.map_err(|error| not_run(&cargo, error, REMEDY))?;
    if !said.status.success() {
        return Ok(None);
    }
    let lines = said
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let messages = lines.map(serde_json::from_slice).collect::<Result<_, _>>();
    Ok(Some(
        messages.context("cargo's messages are not as expected")?,
    ))
}

/// Finds the module that was built from the package with this manifest.
fn module(messages: &[Message], manifest: &Path) -> Option<PathBuf> {
    let own = messages
        .iter()
        .filter(|message| message.manifest_path.as_deref() == Some(manifest));
    let mut files = own.flat_map(|message| &message.filenames);
    files
        .find(|file| file.extension().is_some_and(|is| is == "wasm"))
        .cloned()
}

/// Makes a component of a module; the error has the reason why there is none, and the remedy.
fn component(module: &[u8]) -> Result<Vec<u8>, String> {
    let encoded = ComponentEncoder::default()
        .module(module)
        .and_then(|encoder| encoder.validate(true).encode());
    encoded.map_err(|error| {
        format!(
            "makes no policy: {error:#}\nto fix it: a policy needs nothing but the SDK; what asks for \
             files, a clock or randomness cannot be in it"
        )
    })
}

fn output(program: &str, arguments: &[&str], folder: &Path) -> Result<Output> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    let said = command.output();
    said.map_err(|error| not_run(&command, error, REMEDY))
}

// === impl Package ===

impl Package {
    fn facts(&self) -> AuthorFacts {
        let authors = (!self.authors.is_empty()).then(|| self.authors.join(", "));
        AuthorFacts {
            name: Some(self.name.clone()),
            texts: [
                Some(self.version.clone()),
                self.description.clone(),
                authors,
                self.license.clone(),
                self.repository.clone(),
            ],
        }
    }
}
