//! Names of public types: each is defined in one crate of the host, and the words for them are in
//! the glossary.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use super::files::File;

/// The list of words, a table whose first column holds the word.
pub(super) const GLOSSARY: &str = "host/docs/glossary.md";

/// Names that every crate may define: a reader meets them with the crate's name before them.
const EVERYWHERE: &[&str] = &["Args", "Config", "Error"];

/// Definitions of public types by name.
type Definitions<'a> = BTreeMap<&'a str, Vec<Definition<'a>>>;

/// A place where a type is defined.
struct Definition<'a> {
    /// The folder of the crate within `host`.
    crate_name: &'a str,
    path: &'a str,
    line_idx: usize,
}

pub(super) fn check(files: &[File]) -> Vec<Problem> {
    let definitions = definitions(files);
    let mut problems = Vec::new();
    for (name, definitions) in &definitions {
        problems.extend(defined_twice(name, definitions));
    }
    let glossary = files.iter().find(|file| file.path == GLOSSARY);
    match glossary.and_then(File::text) {
        Some(text) => problems.extend(glossary_problems(text, &definitions)),
        None => problems.push(Problem::new(GLOSSARY, "is not there")),
    }
    problems
}

fn definitions(files: &[File]) -> Definitions<'_> {
    let mut definitions = Definitions::new();
    for file in files {
        let Some(crate_name) = crate_of(&file.path) else {
            continue;
        };
        for (line_idx, line) in file.text().unwrap_or_default().lines().enumerate() {
            if let Some(name) = defined_type(line).or_else(|| defined_id(line)) {
                definitions.entry(name).or_default().push(Definition {
                    crate_name,
                    path: &file.path,
                    line_idx,
                });
            }
        }
    }
    definitions
}

/// The crate of a source file of the host that is no test.
fn crate_of(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    let (host, crate_name, src) = (parts.next()?, parts.next()?, parts.next()?);
    let is_test = parts.any(|part| part == "tests" || part == "tests.rs");
    let is_source = host == "host" && src == "src" && path.ends_with(".rs") && !is_test;
    is_source.then_some(crate_name)
}

/// The name of the public type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

/// The name of the public type that a line within `id!` defines, such as `RequestId(u64)`.
fn defined_id(line: &str) -> Option<&str> {
    let (name, inner) = line.trim_start().strip_suffix(')')?.split_once('(')?;
    let is_number = ["u32", "u64", "u128"].contains(&inner);
    let is_name = name.starts_with(|c: char| c.is_ascii_uppercase());
    (is_number && is_name && name.chars().all(char::is_alphanumeric)).then_some(name)
}

/// A problem for each crate after the first that defines `name`.
fn defined_twice(name: &str, definitions: &[Definition<'_>]) -> Vec<Problem> {
    if EVERYWHERE.contains(&name) {
        return Vec::new();
    }
    let mut crates = BTreeMap::new();
    for definition in definitions {
        crates.entry(definition.crate_name).or_insert(definition);
    }
    let mut crates = crates.into_values();
    let Some(first) = crates.next() else {
        return Vec::new();
    };
    let others = crates.map(|other| {
        let text = format!(
            "`{name}` is also a public type of host/{}; give one of the two another name",
            first.crate_name
        );
        Problem::at_line(other.path, other.line_idx, text)
    });
    others.collect()
}

/// Each word stands once, and each type that the table names is there.
fn glossary_problems(text: &str, definitions: &Definitions<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut words = BTreeSet::new();
    let lines: Vec<&str> = text.lines().collect();
    for (line_idx, line) in lines.iter().enumerate() {
        let is_header = lines
            .get(line_idx + 1)
            .is_some_and(|it| it.starts_with("|---"));
        let Some(row) = line.strip_prefix("| ").filter(|_| !is_header) else {
            continue;
        };
        let word = row.split(" |").next().unwrap_or_default().trim();
        if !words.insert(word.to_lowercase()) {
            let text = format!("`{word}` stands in the glossary twice");
            problems.push(Problem::at_line(GLOSSARY, line_idx, text));
        }
        for name in types_named(row) {
            if !definitions.contains_key(name) {
                let text = format!("no crate of host/ defines a public type `{name}`");
                problems.push(Problem::at_line(GLOSSARY, line_idx, text));
            }
        }
    }
    problems
}

/// Names in backticks that look like types.
fn types_named(row: &str) -> impl Iterator<Item = &str> {
    let quoted = row.split('`').skip(1).step_by(2);
    quoted.filter(|text| {
        text.starts_with(|c: char| c.is_ascii_uppercase())
            && text.chars().any(|c| c.is_ascii_lowercase())
            && text.chars().all(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    fn said(sources: &[(&str, &str)], glossary: &str) -> Vec<String> {
        let sources = sources.iter().map(|(path, text)| file(path, text));
        let files: Vec<File> = sources.chain([file(GLOSSARY, glossary)]).collect();
        texts(&check(&files))
    }

    const CORE: (&str, &str) = ("host/core/src/a.rs", "pub struct Machine {\n");

    #[test]
    fn a_type_that_two_crates_define_is_a_problem() {
        let other = ("host/sim/src/b.rs", "\n    pub enum Machine<T> {\n");
        let found = "host/sim/src/b.rs:2: `Machine` is also a public type of host/core; give one \
                     of the two another name";
        assert_eq!(said(&[CORE, other], ""), [found]);
    }

    #[test]
    fn an_id_that_a_macro_makes_is_a_public_type() {
        let ids = (
            "host/core/src/ids.rs",
            "id!(\n    /// One.\n    RequestId(u64)\n);",
        );
        let glossary = "| request | named by `RequestId`, not `Other` |";
        let found = ["host/docs/glossary.md:1: no crate of host/ defines a public type `Other`"];
        assert_eq!(said(&[ids], glossary), found);
    }

    #[test]
    fn one_crate_tests_and_common_names_may_repeat_a_type() {
        let fine = [
            CORE,
            ("host/core/src/b.rs", "pub type Machine = u8;"),
            ("host/sim/src/b/tests.rs", "pub struct Machine;"),
            ("host/sim/src/tests/b.rs", "pub struct Machine;"),
            (
                "host/sim/src/c.rs",
                "pub(crate) struct Machine;\npub struct Config;",
            ),
            ("host/core/src/c.rs", "pub struct Config;"),
            ("policies/sdk/src/a.rs", "pub struct Machine;"),
        ];
        assert!(said(&fine, "").is_empty());
    }

    #[test]
    fn a_word_stands_once_and_its_types_are_there() {
        let glossary = "| word | meaning |\n|---|---|\n| machine | `Machine`, not `as_str` |\n\
                        | Machine | twice |\n| engine | an `Engine` |\n\n| word | meaning |\n\
                        |---|---|\n";
        let found = [
            "host/docs/glossary.md:4: `Machine` stands in the glossary twice",
            "host/docs/glossary.md:5: no crate of host/ defines a public type `Engine`",
        ];
        assert_eq!(said(&[CORE], glossary), found);
        assert_eq!(texts(&check(&[])), ["host/docs/glossary.md: is not there"]);
    }
}
