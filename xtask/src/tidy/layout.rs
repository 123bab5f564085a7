//! The looks of a file: its length, its first line, its white space.

use super::Problem;
use super::config::{self, LongFile};
use super::files::File;

/// A file that needs more is two files.
const LINES_MAX: usize = 600;

/// Rust files of at most [`LINES_MAX`] lines, or listed.
pub(super) fn length(files: &[File], allowed: &[LongFile]) -> Vec<Problem> {
    let is_allowed = |path: &str| allowed.iter().any(|entry| entry.path == path);
    let long: Vec<(&File, usize)> = files
        .iter()
        .filter(|file| file.has_extension("rs"))
        .filter_map(|file| Some((file, file.text()?.lines().count())))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .collect();
    let is_long = |path: &str| long.iter().any(|(file, _)| file.path == path);
    let unlisted = long.iter().filter(|(file, _)| !is_allowed(&file.path));
    let stale = allowed.iter().filter(|entry| !is_long(&entry.path));
    unlisted
        .map(|(file, lines)| too_long(file, *lines))
        .chain(stale.map(|entry| no_longer_long(&entry.path)))
        .collect()
}

fn too_long(file: &File, lines: usize) -> Problem {
    let text = format!(
        "has {lines} lines, more than {LINES_MAX}; split it, or list it with the reason in {}",
        config::PATH
    );
    Problem::new(&file.path, text)
}

fn no_longer_long(path: &str) -> Problem {
    let text = format!("`{path}` is listed as a long file and is none");
    Problem::new(config::PATH, text)
}

/// Each source file of a package begins with what it is for.
pub(super) fn module_doc(file: &File) -> Option<Problem> {
    if !is_source(&file.path) || file.text()?.starts_with("//!") {
        return None;
    }
    Some(Problem::at_line(
        &file.path,
        0,
        "a module begins with its `//!` documentation",
    ))
}

fn is_source(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let in_source = matches!(
        parts.as_slice(),
        ["host" | "policies", _, "src", ..] | ["xtask", "src", ..]
    );
    in_source && path.ends_with(".rs")
}

/// No white space at the ends of lines, no tabs in Rust, a newline at the end.
pub(super) fn whitespace(file: &File) -> Vec<Problem> {
    let Some(text) = file.text().filter(|text| !text.is_empty()) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let tabs_matter = file.has_extension("rs");
    for (line_idx, line) in text.split('\n').enumerate() {
        if line.trim_end() != line {
            let text = "white space at the end of the line";
            problems.push(Problem::at_line(&file.path, line_idx, text));
        }
        if tabs_matter && line.contains('\t') {
            problems.push(Problem::at_line(&file.path, line_idx, "a tab"));
        }
    }
    if !text.ends_with('\n') {
        problems.push(Problem::new(&file.path, "does not end in a newline"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::config::Config;
    use crate::tidy::testing::{file, texts};

    fn length_said(lines: usize, allowed: &[&str]) -> Vec<String> {
        let entries = allowed
            .iter()
            .map(|path| format!("[[long-file]]\npath = '{path}'\nreason = 'r'\n"));
        let config = Config::parse(&entries.collect::<String>()).unwrap();
        let text = "//\n".repeat(lines);
        let files = [file("a.rs", &text), file("b.md", &text)];
        texts(&length(&files, &config.long_file))
    }

    #[test]
    fn a_long_file_is_refused_unless_listed() {
        assert!(length_said(600, &[]).is_empty());
        let said = length_said(601, &[]);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("a.rs: has 601 lines"), "{said:?}");
        assert!(length_said(601, &["a.rs"]).is_empty());
    }

    #[test]
    fn an_entry_for_a_short_file_is_stale() {
        let said = length_said(600, &["a.rs"]);
        assert_eq!(
            said,
            ["xtask/tidy.toml: `a.rs` is listed as a long file and is none"]
        );
    }

    #[test]
    fn a_source_file_begins_with_its_documentation() {
        let refused = |path, text| module_doc(&file(path, text)).is_some();
        for path in [
            "host/core/src/a.rs",
            "policies/sdk/src/a/b.rs",
            "xtask/src/main.rs",
        ] {
            assert!(refused(path, "use std::fs;\n"), "{path}");
            assert!(refused(path, ""), "{path}");
            assert!(!refused(path, "//! What.\n"), "{path}");
        }
        for path in [
            "host/core/tests/a.rs",
            "host/core/src/a.txt",
            "tests/src/a.rs",
        ] {
            assert!(!refused(path, "use std::fs;\n"), "{path}");
        }
    }

    #[test]
    fn stray_white_space_is_refused() {
        let said = |path, text| texts(&whitespace(&file(path, text)));
        assert!(said("a.rs", "fn a() {\n    b();\n}\n").is_empty());
        assert!(said("a.rs", "").is_empty());
        assert_eq!(
            said("a.md", "x\ny \n"),
            ["a.md:2: white space at the end of the line"]
        );
        assert_eq!(
            said("a.md", "x\r\n"),
            ["a.md:1: white space at the end of the line"]
        );
        assert_eq!(said("a.rs", "\tx\n"), ["a.rs:1: a tab"]);
        assert!(said("Makefile", "a:\n\tb\n").is_empty());
        assert_eq!(said("a.md", "x"), ["a.md: does not end in a newline"]);
    }
}
