//! The scheduling interface is documented throughout: it is what policies are written against. Where
//! it says `By the operator: KEY`, the configuration has that key.

use std::collections::BTreeSet;

use super::Problem;
use super::files::File;

/// The example of the configuration, which has every key.
pub(super) const EXAMPLE: &str = "examples/pointsman.toml";

/// Items of a WIT file that have no documentation: types, functions, fields and cases that stand
/// on a line of their own.
pub(super) fn check(file: &File) -> Vec<Problem> {
    let Some(text) = file.text().filter(|_| file.has_extension("wit")) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut is_documented = false;
    for (line_idx, line) in text.lines().enumerate() {
        let line = line.trim();
        if is_item(line) && !is_documented {
            let text = format!("`{line}` has no `///`: say what it is, its unit and who sets it");
            problems.push(Problem::at_line(&file.path, line_idx, text));
        }
        is_documented = line.starts_with("///");
    }
    problems
}

/// Sentences of WIT files about keys of the configuration, against the keys that `example` has.
pub(super) fn check_keys(files: &[File], example: &str) -> Vec<Problem> {
    let keys = keys(example);
    let mut problems = Vec::new();
    let interface = files.iter().filter(|file| file.has_extension("wit"));
    for (file, text) in interface.filter_map(|file| Some((file, file.text()?))) {
        for (line_idx, comment) in comments(text) {
            for name in named(&comment).filter(|name| !keys.contains(name)) {
                let text = format!("the configuration has no key `{name}`; {EXAMPLE} has them all");
                problems.push(Problem::at_line(&file.path, line_idx, text));
            }
            let is_vague = comment.contains("by the operator") && named(&comment).next().is_none();
            if is_vague || comment.contains("operator's configuration") {
                let text = "name the keys: `By the operator: KEY`";
                problems.push(Problem::at_line(&file.path, line_idx, text));
            }
        }
    }
    problems
}

/// The comments of a WIT file, each in one line, with the index of its first one.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (line_idx, line) in text.lines().enumerate() {
        let words = line.trim().strip_prefix("///");
        match (words, comments.last_mut()) {
            (Some(words), Some((_, comment))) if goes_on => comment.push_str(words),
            (Some(words), _) => comments.push((line_idx, words.to_owned())),
            (None, _) => {}
        }
        goes_on = words.is_some();
    }
    comments
}

/// The keys that a comment says are the operator's: those in backticks up to the end of the sentence.
fn named(comment: &str) -> impl Iterator<Item = &str> {
    let sentences = comment.split("By the operator").skip(1);
    sentences.flat_map(|rest| {
        let (_, keys) = rest.split_once(':').unwrap_or_default();
        let end = keys.find(['.', ';']).unwrap_or(keys.len());
        keys[..end].split('`').skip(1).step_by(2)
    })
}

/// The names of keys and tables in an example of the configuration, commented or not.
fn keys(example: &str) -> BTreeSet<&str> {
    let lines = example.lines().map(|line| line.trim_start_matches('#'));
    let keys = lines.filter_map(|line| {
        let table = line.trim_start_matches('[').split(']').next()?;
        let is_table = line.starts_with('[');
        is_table
            .then_some(table)
            .or_else(|| line.split_once(" = ").map(|(key, _)| key))
    });
    keys.filter(|key| !key.contains(' ')).collect()
}

fn is_item(line: &str) -> bool {
    let passes = ["//", "}", "package ", "use ", "import ", "export "];
    !line.is_empty() && !passes.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    #[test]
    fn a_key_of_the_operators_that_the_configuration_lacks_is_named() {
        let example = "listen = 1\n#queue = 0\n#[[models]]\n# The word slots = many.\n";
        let wit = "    /// One. By the operator: `queue`, `models`.\n    a: u32,\n    /// Two. By\n    /// the \
                   operator where\n    /// it is so: `role`; else `slots`.\n    b: u32,\n    /// Set by the \
                   operator.\n    c: u32,\n    /// For the operator's log.\n    d: u32,\n";
        let said = texts(&check_keys(&[file("wit/a.wit", wit)], example));
        let no_role = "wit/a.wit:3: the configuration has no key `role`; examples/pointsman.toml has \
                       them all";
        assert_eq!(
            said,
            [
                no_role,
                "wit/a.wit:7: name the keys: `By the operator: KEY`"
            ]
        );
    }

    #[test]
    fn what_has_no_documentation_is_named() {
        let wit = "package a:b@0.1.0;\n\n/// Data.\ninterface types {\n    use a.{b};\n    \
                   /// One.\n    record one {\n        /// Microseconds.\n        id: u32,\n        \
                   size: u32,\n    }\n    enum two { a, b }\n}\n";
        let said = texts(&check(&file("wit/a.wit", wit)));
        assert_eq!(said.len(), 2);
        assert!(said[0].starts_with("wit/a.wit:10: `size: u32,` has no `///`"));
        assert!(said[1].starts_with("wit/a.wit:12: `enum two { a, b }` has no `///`"));
        assert!(check(&file("a.rs", wit)).is_empty());
    }
}
