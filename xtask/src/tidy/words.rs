//! Words that must not be merged: promises without behaviour, and paths outside the project.

use super::Problem;
use super::files::File;

/// The only file that may contain the words.
const THIS_FILE: &str = "xtask/src/tidy/words.rs";

/// Each with what to do instead.
const WORDS: &[(&str, &str)] = &[
    ("todo!", "write the code, or leave the path out"),
    ("unimplemented!", "write the code, or leave the path out"),
    ("FIXME", "fix it, or open an issue"),
    (
        "../shared",
        "nothing here may need a folder outside the repository",
    ),
    ("#[ignore", "a test runs, or says at run time why it cannot"),
];

pub(super) fn check(file: &File) -> Vec<Problem> {
    let read = file.has_extension("rs") || file.has_extension("md");
    let Some(text) = file.text().filter(|_| read && file.path != THIS_FILE) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    for (line_idx, line) in text.lines().enumerate() {
        for (word, instead) in WORDS.iter().filter(|(word, _)| line.contains(word)) {
            let text = format!("`{word}`: {instead}");
            problems.push(Problem::at_line(&file.path, line_idx, text));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    #[test]
    fn every_word_is_found_in_code_and_prose() {
        for (word, instead) in WORDS {
            for path in ["host/core/src/a.rs", "README.md"] {
                let said = texts(&check(&file(path, &format!("fine\nx {word}(1)\n"))));
                assert_eq!(said, [format!("{path}:2: `{word}`: {instead}")]);
            }
        }
    }

    #[test]
    fn other_text_is_left_alone() {
        assert!(check(&file("a.rs", "//! A list of what to do.\n")).is_empty());
        assert!(check(&file("a.txt", "FIXME\n")).is_empty());
        assert!(check(&file(THIS_FILE, "FIXME\n")).is_empty());
    }

    #[test]
    fn this_file_is_where_it_says() {
        assert!(THIS_FILE.ends_with(file!().rsplit_once("xtask/").unwrap().1));
    }
}
