//! The results of the benchmark `cuda`: what it prints, in a file as well.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// The file that is written where a device is.
pub const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/results/cuda.txt");

/// Lines that are printed and written into a file, one after the other: of a benchmark that breaks off, those are there
/// that it came to.
#[derive(Debug)]
pub struct Results {
    file: File,
}

impl Results {
    /// Begins such a file in the place of an earlier one, with the command, the date and the commit of its figures.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path, command: &str) -> Result<Self> {
        // Before the file is changed, which git may know.
        let commit = said("git", &["describe", "--always", "--dirty", "--exclude=*"]);
        let date = said("date", &["--utc", "+%F"]);
        let file = File::create(path);
        let file = file.with_context(|| format!("{} cannot be written", path.display()))?;
        let mut results = Self { file };
        results.say(&format!("{command}, {date}, commit {commit}"))?;
        Ok(results)
    }

    /// Prints a line, and writes it down.
    ///
    /// # Errors
    /// If it cannot be written.
    #[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
    pub fn say(&mut self, line: &str) -> Result<()> {
        let line = line.trim_end();
        println!("{line}");
        writeln!(self.file, "{line}").context("the results cannot be written")
    }
}

/// The word that a program says in this repository, or that it is unknown.
fn said(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    let done = command
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let done = done.ok().filter(|done| done.status.success());
    let said = done.and_then(|done| String::from_utf8(done.stdout).ok());
    said.map_or_else(|| "unknown".to_owned(), |said| said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_in_the_file_as_they_come_without_white_space_at_their_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cuda.txt");
        std::fs::write(&path, "an earlier one\n").unwrap();
        let mut results = Results::create(&path, "bench").unwrap();
        results.say("").unwrap();
        results.say("step     ms  ").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.split('\n').collect();
        assert!(lines[0].starts_with("bench, 20"), "{text}");
        assert!(lines[0].contains(", commit "), "{text}");
        assert_eq!(lines[1..], ["", "step     ms", ""]);
    }

    #[test]
    fn what_no_program_says_is_unknown() {
        assert_eq!(said("no-such-program-of-ours", &[]), "unknown");
        assert_eq!(said("false", &[]), "unknown");
        assert_eq!(said("echo", &["7101f773"]), "7101f773");
    }
}
