//! `cargo xtask tidy`: the project's own rules, checked on the files of the checkout.
//!
//! Each rule is a pure function from files to [`Problem`]s, in a module of its own. Exceptions (a
//! long file, two versions of a crate) are listed with their reasons in `xtask/tidy.toml`; an
//! exception that is no longer needed is a problem too. The rules also run as a test of this crate.

mod arrows;
mod config;
mod contract;
mod debugged;
mod deciders;
mod duplicates;
mod external;
mod files;
mod hooks;
mod layout;
mod names;
mod prose;
mod released;
mod shown;
#[cfg(test)]
pub(crate) mod testing;
mod words;

use std::fmt;

use anyhow::{Context, Result, bail};

use crate::workspace::{Package, Workspace};
use config::Config;
use files::File;

/// A broken rule: its place, and advice.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    /// Path of a file, with its line if that is known.
    place: String,
    text: String,
}

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let problems = check(workspace)?;
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => {
            println!("tidy: nothing to complain about");
            Ok(())
        }
        n => bail!("tidy found {n} problem{}", if n == 1 { "" } else { "s" }),
    }
}

fn check(workspace: &Workspace) -> Result<Vec<Problem>> {
    let files = files::list(&workspace.root)?;
    let packages = workspace.packages()?;
    let config = Config::parse(text_of(&files, config::PATH)?)?;
    let mut problems = config.check();
    problems.extend(check_packages(&files, &packages, &config)?);
    let book = text_of(&files, shown::PATH)?;
    problems.extend(shown::check(book, &files));
    problems.extend(deciders::check(book, &files));
    problems.extend(hooks::check(text_of(&files, hooks::PATH)?, &files));
    let example = text_of(&files, contract::EXAMPLE)?;
    problems.extend(contract::check_keys(&files, example));
    problems.extend(check_files(&files, &config));
    Ok(problems)
}

fn check_packages(files: &[File], packages: &[Package], config: &Config) -> Result<Vec<Problem>> {
    let mut problems = arrows::check(text_of(files, arrows::PATH)?, packages);
    problems.extend(external::check(packages, config));
    let lock = text_of(files, duplicates::PATH)?;
    problems.extend(duplicates::check(lock, &config.duplicate)?);
    Ok(problems)
}

fn check_files(files: &[File], config: &Config) -> Vec<Problem> {
    let mut problems = released::check(files);
    problems.extend(layout::length(files, &config.long_file));
    problems.extend(names::check(files));
    problems.extend(debugged::check(files, &config.debug));
    for file in files {
        problems.extend(layout::module_doc(file));
        problems.extend(layout::whitespace(file));
        problems.extend(prose::check(file));
        problems.extend(words::check(file));
        problems.extend(contract::check(file));
    }
    problems
}

fn text_of<'a>(files: &'a [File], path: &str) -> Result<&'a str> {
    let file = files.iter().find(|file| file.path == path);
    file.and_then(File::text)
        .with_context(|| format!("there is no text file {path}"))
}

// === impl Problem ===

impl Problem {
    fn new(place: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            text: text.into(),
        }
    }

    /// Makes a problem in a file, at an index of its lines.
    fn at_line(path: &str, line_idx: usize, text: impl Into<String>) -> Self {
        Self::new(format!("{path}:{}", line_idx + 1), text)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_checkout_is_tidy() {
        let problems = check(&Workspace::here().unwrap()).unwrap();
        let list: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert!(list.is_empty(), "\n{}\n", list.join("\n"));
    }

    #[test]
    fn a_problem_names_its_line_counted_from_one() {
        let problem = Problem::at_line("a.rs", 0, "no");
        assert_eq!(problem.to_string(), "a.rs:1: no");
    }
}
