//! `policy new`: a folder with a policy that builds and passes its scenarios.
//!
//! A crate in Rust builds with plain cargo: `hooks` has the parts that each hook brings, `vendor` the SDK
//! and the interface, which are in the binary. `examples` has the policies in other languages, which are
//! those of the repository. `name` has the rules for names.
//!
//! # Invariants
//! 1. No file that is there is written over (`nothing_is_written_over`).
//! 2. A new policy builds, is good and passes its scenarios, for every hook in Rust, and in every other
//!    language (`host/server/tests/policy_cli`).

mod examples;
mod hooks;
mod name;
mod vendor;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Done;
use super::hooks::Hook;
use super::language::Language;
use name::Name;

pub(super) use vendor::interface;

/// Arguments of `policy new`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The policy's name: lower-case letters, digits and hyphens
    name: Name,
    /// The language it is written in
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
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
    let files = match args.language {
        Language::Rust => [files(name, &hooks), vendor::files()?].concat(),
        Language::JavaScript => examples::JAVASCRIPT.files(name, &hooks)?,
        Language::Python => examples::PYTHON.files(name, &hooks)?,
    };
    write(&folder, &files)?;
    let shown = folder.display();
    Ok(Done::good(format!(
        "{shown}: a policy for {}\nnext: cd {shown} && pointsman policy build\n",
        listed(&hooks),
    )))
}

/// The author's own files of a crate.
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
        files.push((
            format!("src/{hook_name}.rs").into(),
            hook.part().module.into(),
        ));
        if let Some(scenario) = hook.part().scenario {
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
    fn a_name_stands_wherever_the_example_has_its_own() {
        for example in [&examples::JAVASCRIPT, &examples::PYTHON] {
            let files = example.files("mine", &[Hook::Routing]).unwrap();
            for (path, text) in &files {
                for word in ["javascript-policy", "python-policy", "NAME", "first-policy"] {
                    assert!(!text.contains(word), "{word} in {}", path.display());
                }
            }
            let scenario = files.iter().find(|(path, _)| path.starts_with("scenarios"));
            assert!(scenario.unwrap().1.contains("[policy.mine]"));
            let more = example.files("mine", &[Hook::Admission, Hook::Routing]);
            let error = more.unwrap_err().to_string();
            assert!(error.contains("leave out --hooks"), "{error}");
        }
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
