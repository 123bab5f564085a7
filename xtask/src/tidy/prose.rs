//! Doc comments: each begins with a noun or a verb and names its subject.

use super::Problem;
use super::files::File;

/// Words with which a question or a clause begins, and no name of a thing.
const OPENERS: &[&str] = &[
    "What",
    "Who",
    "Whom",
    "Whose",
    "Whoever",
    "Whether",
    "Which",
    "How",
    "Where",
    "When",
    "Why",
    "Those",
    "That which",
    "As what",
];

pub(super) fn check(file: &File) -> Vec<Problem> {
    let Some(text) = file.text().filter(|_| file.has_extension("rs")) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut before = "";
    for (line_idx, line) in text.lines().map(str::trim).enumerate() {
        let first = line
            .strip_prefix("///")
            .filter(|_| !before.starts_with("///"));
        if let Some(text) = first.and_then(|doc| opening(doc.trim())) {
            problems.push(Problem::at_line(&file.path, line_idx, text));
        }
        before = line;
    }
    problems
}

fn opening(doc: &str) -> Option<String> {
    let opener = OPENERS.iter().find(|opener| {
        let rest = doc.strip_prefix(**opener);
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    })?;
    Some(format!(
        "a doc comment begins with a noun or a verb and names its subject, not with `{opener}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    fn said(text: &str) -> Vec<String> {
        texts(&check(&file("host/core/src/a.rs", text)))
    }

    #[test]
    fn a_doc_comment_that_opens_with_a_question_word_is_a_problem() {
        for opener in OPENERS {
            let found = said(&format!("fn a();\n    /// {opener} it is for a while.\n"));
            assert_eq!(found.len(), 1, "{opener}");
            assert!(found[0].starts_with("host/core/src/a.rs:2: "), "{found:?}");
            assert!(found[0].ends_with(&format!("`{opener}`")), "{found:?}");
        }
    }

    #[test]
    fn nouns_verbs_and_later_lines_may_be_anything() {
        let fine =
            "/// The newest version.\n/// Whatever comes.\n\n/// Whenceforth we go.\n// What.\n";
        assert!(said(fine).is_empty());
        assert!(texts(&check(&file("a.md", "/// What is it?\n"))).is_empty());
    }
}
