//! Texts for people: no value stands there as `Debug` writes it, which is for us. Assertions and panics are for us,
//! and tests.

use super::Problem;
use super::config::{self, Debugged};
use super::files::File;

/// Macros whose texts are for us.
const OURS: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "panic",
    "unreachable",
];

/// Checks each source file, but for as many places as are listed.
pub(super) fn check(files: &[File], allowed: &[Debugged]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_checked(&file.path)) {
        let lines = places(file.text().unwrap_or_default());
        let entry = allowed.iter().find(|entry| entry.path == file.path);
        if lines.len() != entry.map_or(0, |entry| entry.count) {
            problems.push(miscounted(file, &lines, entry));
        }
    }
    let is_there = |path: &str| files.iter().any(|file| file.path == path);
    let gone = allowed.iter().filter(|entry| !is_there(&entry.path));
    problems.extend(gone.map(|entry| {
        let text = format!("`{}` is listed and is not there", entry.path);
        Problem::new(config::PATH, text)
    }));
    problems
}

fn is_checked(path: &str) -> bool {
    let is_source = path.ends_with(".rs") && path.contains("/src/") && !path.starts_with("tests/");
    let for_tests = ["/tests", "/test_util", "/fixture", "/emulation"];
    is_source && !for_tests.iter().any(|part| path.contains(part))
}

fn miscounted(file: &File, lines: &[usize], entry: Option<&Debugged>) -> Problem {
    let allowed = entry.map_or(0, |entry| entry.count);
    let lines: Vec<String> = lines.iter().map(|line| (line + 1).to_string()).collect();
    let text = format!(
        "has values as `Debug` writes them in {} texts (lines {}), and {allowed} are listed in {}; say them in words",
        lines.len(),
        lines.join(", "),
        config::PATH
    );
    Problem::new(&file.path, text)
}

/// Indices of the lines that have such a value in a text for people.
fn places(text: &str) -> Vec<usize> {
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    let by_format = text.match_indices(":?}").chain(text.match_indices(":#?}"));
    let by_format = by_format
        .map(|(at, _)| at)
        .filter(|at| !is_ours(&text[..*at]));
    let by_field = text.match_indices("= ?").map(|(at, _)| at);
    let by_field =
        by_field.filter(|at| text[at + 3..].starts_with(|c: char| c.is_ascii_lowercase()));
    let mut lines: Vec<usize> = by_format
        .chain(by_field)
        .map(|at| text[..at].matches('\n').count())
        .collect();
    lines.sort_unstable();
    lines
}

/// Returns whether the macro that was called last before the end of `text` is one of ours.
fn is_ours(text: &str) -> bool {
    let Some(call) = text.rfind("!(") else {
        return false;
    };
    let name = text[..call].rsplit(|c: char| !c.is_ascii_lowercase() && c != '_');
    name.take(1).any(|name| OURS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    fn said(text: &str, count: usize) -> Vec<String> {
        let path = "host/core/src/a.rs";
        let listed = Debugged {
            path: path.to_owned(),
            count,
            reason: String::new(),
        };
        let listed = if count > 0 { vec![listed] } else { vec![] };
        texts(&check(&[file(path, text)], &listed))
    }

    #[test]
    fn a_value_as_debug_writes_it_is_a_problem_unless_it_is_listed() {
        for text in [
            "fn a() {\n    format!(\"{b:?}\");\n}",
            "fn a() {\n    info!(b = ?c);\n}",
        ] {
            let found = said(text, 0);
            assert!(
                found.len() == 1 && found[0].contains("lines 2"),
                "{found:?}"
            );
            assert!(said(text, 1).is_empty());
            assert_eq!(said(text, 2).len(), 1, "fewer than are listed");
        }
    }

    #[test]
    fn what_only_we_read_may_have_it() {
        for text in [
            "assert!(a,\n    \"{b:?}\"\n);",
            "panic!(\"{b:?}\");",
            "#[cfg(test)]\nmod tests {\n    format!(\"{b:?}\");\n}",
            "impl<T: ?Sized> A {}",
        ] {
            assert!(said(text, 0).is_empty(), "{text}");
        }
        let in_tests = file("host/core/src/a/tests.rs", "format!(\"{b:?}\")");
        assert!(check(&[in_tests], &[]).is_empty());
    }
}
