//! `policy new`: a folder with a policy that builds with plain cargo and passes its scenarios.
//!
//! `hooks` has the parts that each hook brings, `name` the rules for names, `vendor` the SDK and
//! the interface, which are in the binary.
//!
//! # Invariants
//! 1. No file that is there is written over (`nothing_is_written_over`).
//! 2. A new policy builds, is good and passes its scenarios, for every hook
//!    (`host/server/tests/policy_cli`).

mod hooks;
mod name;
mod vendor;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Done;
use hooks::Hook;
use name::Name;

/// Arguments of `policy new`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The policy's name: lower-case letters, digits and hyphens
    name: Name,
    /// The questions that the policy answers
    #[arg(long, value_enum, value_delimiter = ',', default_value = "routing")]
    hooks: Vec<Hook>,
    /// The folder to make [default: NAME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A file to write, by its path in the folder.
type File = (PathBuf, String);

pub(super) fn run(args: &Args) -> Result<Done> {
    let name = args.name.as_str();
    let hooks = hooks::chosen(&args.hooks)?;
    let folder = args.dir.clone().unwrap_or_else(|| name.into());
    let mut files = files(name, &hooks);
    files.extend(vendor::files()?);
    write(&folder, &files)?;
    let shown = folder.display();
    Ok(Done::good(format!(
        "{shown}: a policy for {}\nnext: cd {shown} && pointsman policy build\n",
        listed(&hooks),
    )))
}

/// The author's own files.
fn files(name: &str, hooks: &[Hook]) -> Vec<File> {
    let description = format!("A policy for {}.", listed(hooks));
    let manifest = include_str!("templates/Cargo.toml.txt")
        .replace("NAME", name)
        .replace("DESCRIPTION", &description);
    let readme = include_str!("templates/README.md.txt")
        .replace("NAME", name)
        .replace("HOOKS", &listed(hooks));
    let mut files = vec![
        ("Cargo.toml".into(), manifest),
        ("README.md".into(), readme),
        (".gitignore".into(), "/target\n/*.wasm\n".into()),
        ("src/lib.rs".into(), hooks::library(hooks)),
    ];
    for hook in hooks::with_module(hooks) {
        let hook_name = hook.as_str();
        files.push((format!("src/{hook_name}.rs").into(), hook.module().into()));
        if let Some(scenario) = hook.scenario() {
            let scenario = scenario.replace("NAME", name);
            files.push((format!("scenarios/{hook_name}.toml").into(), scenario));
        }
    }
    files
}

fn listed(hooks: &[Hook]) -> String {
    let names: Vec<_> = hooks.iter().map(|hook| hook.as_str()).collect();
    names.join(", ")
}

/// Writes all files, if the folder is not there yet or is empty.
fn write(folder: &Path, files: &[File]) -> Result<()> {
    let shown = folder.display();
    match fs::read_dir(folder) {
        Ok(mut entries) => anyhow::ensure!(
            entries.next().is_none(),
            "{shown} is there and not empty: nothing is written over, so name another with --dir",
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("{shown} is of no use")),
    }
    for (path, text) in files {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text))
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_over() {
        let temp = tempfile::tempdir().unwrap();
        let files = [("deep/file".into(), "text".to_owned())];
        let folder = temp.path().join("new");
        write(&folder, &files).unwrap();
        assert_eq!(
            fs::read_to_string(folder.join("deep/file")).unwrap(),
            "text"
        );
        let again = write(&folder, &files).unwrap_err().to_string();
        assert!(again.contains("is there and not empty"), "{again}");
        // A file is no folder either.
        assert!(write(&folder.join("deep/file"), &files).is_err());
    }

    #[test]
    fn no_placeholder_is_left_in_what_is_made() {
        let hooks = hooks::chosen(&[Hook::Routing, Hook::Admission]).unwrap();
        for (path, text) in files("mine", &hooks) {
            for word in [
                "NAME",
                "HOOKS",
                "DESCRIPTION",
                "MODULES",
                "EXPORTS",
                "EXPORTED",
                "IMPORTS",
                "FEED",
                "REASONS",
            ] {
                let left = text
                    .replace("CARGO_PKG_NAME", "")
                    .replace("CARGO_PKG_DESCRIPTION", "");
                assert!(!left.contains(word), "{word} in {}", path.display());
            }
        }
    }
}
