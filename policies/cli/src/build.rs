//! `policy build`: from a policy's crate to its component.
//!
//! Cargo names the module that it built, so that target folders, workspaces and toolchains of the
//! author's choice work. The author's facts in the manifest go into the component.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use wit_component::ComponentEncoder;

use super::facts::AuthorFacts;
use super::table::grouped;
use super::{Done, file, pitfalls};

const TARGET: &str = "wasm32-unknown-unknown";

/// Arguments of `policy build`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The folder of the policy's crate
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// File for the component [default: NAME.wasm in the folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

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

/// A component that was built.
pub(super) struct Built {
    pub(super) path: PathBuf,
    size: usize,
    /// Warnings about what will panic or vanish.
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
    let folder = fs::canonicalize(dir).with_context(|| format!("no folder {shown}"))?;
    let manifest = folder.join("Cargo.toml");
    anyhow::ensure!(
        manifest.is_file(),
        "{shown} has no Cargo.toml: `pointsman policy new NAME` makes a folder that has one",
    );
    ensure_target(&folder)?;
    let package = package(&folder, &manifest)?;
    let Some(messages) = cargo_build(&folder)? else {
        return Ok(Err(format!("{shown} does not build\n")));
    };
    let Some(module) = module(&messages, &manifest) else {
        return Ok(Err(format!(
            "{shown} makes no module: `[lib]` of its Cargo.toml needs crate-type = [\"rlib\", \"cdylib\"]\n"
        )));
    };
    let module = fs::read(&module).with_context(|| format!("{} not read", module.display()))?;
    let component = match component(&module, &package.facts())? {
        Ok(component) => component,
        Err(why) => return Ok(Err(format!("{shown} makes no policy: {why}\n"))),
    };
    let path = output.map_or_else(
        || dir.join(format!("{}.wasm", package.name)),
        Path::to_owned,
    );
    replace(&path, &component).with_context(|| format!("{} not written", path.display()))?;
    Ok(Ok(Built {
        path,
        size: component.len(),
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
    let said = cargo.output().map_err(|error| not_run("cargo", error))?;
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

/// Makes a component that a host loads; the inner error has the reason why there is none, and the
/// remedy.
fn component(module: &[u8], facts: &AuthorFacts) -> Result<Result<Vec<u8>, String>> {
    let encoded = ComponentEncoder::default()
        .module(module)
        .and_then(|encoder| encoder.validate(true).encode());
    let mut component = match encoded {
        Ok(component) => component,
        Err(error) => {
            return Ok(Err(format!(
                "{error:#}\nto fix it: a policy needs nothing but the SDK; what asks for files, a clock or \
                 randomness cannot be in it"
            )));
        }
    };
    facts.append_to(&mut component);
    Ok(file::load(&component)?.map(|_| component))
}

/// Writes a file in one step, so that no server that watches the folder reads half of it.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(format!("wasm.{}", std::process::id()));
    fs::write(&draft, bytes)?;
    fs::rename(&draft, path)
}

fn output(program: &str, arguments: &[&str], folder: &Path) -> Result<std::process::Output> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    command.output().map_err(|error| not_run(program, error))
}

fn not_run(program: &str, error: io::Error) -> anyhow::Error {
    let missing = error.kind() == ErrorKind::NotFound;
    let error = anyhow::Error::from(error);
    if missing {
        return error.context(format!(
            "{program} is not there: install Rust, see https://rustup.rs"
        ));
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
