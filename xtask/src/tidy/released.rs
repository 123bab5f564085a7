//! Released versions of the interface never change.
//!
//! Every file below `wit/released/VERSION/` is listed with its SHA-256 in
//! `wit/released/SHA256SUMS`, in the format of `sha256sum`, so that one can check by hand too.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::Problem;
use super::files::File;

const FOLDER: &str = "wit/released/";
const SUMS: &str = "wit/released/SHA256SUMS";

pub(super) fn check(files: &[File]) -> Vec<Problem> {
    let sums = files.iter().find(|file| file.path == SUMS);
    let (listed, mut problems) = parse(sums.and_then(File::text).unwrap_or_default());
    let released: BTreeMap<&str, &File> = files
        .iter()
        .filter_map(|file| Some((released_name(file)?, file)))
        .collect();
    for (name, file) in &released {
        problems.extend(compare(file, listed.get(name).copied()));
    }
    let missing = listed.keys().filter(|name| !released.contains_key(*name));
    problems.extend(missing.map(|name| {
        Problem::new(
            SUMS,
            format!("`{name}` was released and must stay, but is not there"),
        )
    }));
    problems
}

/// The name in the list of a file that belongs to a version; `None` for others.
fn released_name(file: &File) -> Option<&str> {
    let name = file.path.strip_prefix(FOLDER)?;
    name.contains('/').then_some(name)
}

/// Names with their sums, and the lines that are neither.
fn parse(sums: &str) -> (BTreeMap<&str, &str>, Vec<Problem>) {
    let mut listed = BTreeMap::new();
    let mut problems = Vec::new();
    for (line_idx, line) in sums.lines().enumerate() {
        match line.split_once("  ") {
            Some((sum, name)) if sum.len() == 64 => {
                listed.insert(name.trim_start_matches("./"), sum);
            }
            _ => {
                let text = "expected a SHA-256 in hex, two spaces, and a file's name";
                problems.push(Problem::at_line(SUMS, line_idx, text));
            }
        }
    }
    (listed, problems)
}

fn compare(file: &File, listed: Option<&str>) -> Option<Problem> {
    let actual = sha256(&file.bytes);
    match listed {
        Some(listed) if listed == actual => None,
        Some(_) => Some(Problem::new(
            &file.path,
            "a released file must not change; a changed interface is a new version",
        )),
        None => Some(Problem::new(
            &file.path,
            format!("a released file must be listed in {SUMS}; its sum is {actual}"),
        )),
    }
}

fn sha256(bytes: &[u8]) -> String {
    let mut hex = String::new();
    for byte in Sha256::digest(bytes) {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files;
    use crate::tidy::testing::{TempDir, texts};

    /// SHA-256 of "abc", from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// The problems of a folder with these sums and these released files.
    fn said(sums: &str, released: &[(&str, &str)]) -> Vec<String> {
        let temp = TempDir::new();
        temp.write("wit/hooks.wit", b"draft");
        temp.write("wit/released/README.md", b"rule");
        temp.write(SUMS, sums.as_bytes());
        for (name, text) in released {
            temp.write(&format!("{FOLDER}{name}"), text.as_bytes());
        }
        texts(&check(&files::list(temp.path()).unwrap()))
    }

    #[test]
    fn nothing_released_is_fine() {
        assert!(check(&[]).is_empty());
        assert!(said("", &[]).is_empty());
    }

    #[test]
    fn an_unchanged_file_is_fine() {
        let sums = format!("{ABC}  0.1.0/types.wit\n");
        assert!(said(&sums, &[("0.1.0/types.wit", "abc")]).is_empty());
    }

    #[test]
    fn a_changed_file_is_refused() {
        let sums = format!("{ABC}  0.1.0/types.wit\n");
        let said = said(&sums, &[("0.1.0/types.wit", "abd")]);
        assert_eq!(said.len(), 1);
        assert!(
            said[0].starts_with("wit/released/0.1.0/types.wit: a released file must not change")
        );
    }

    #[test]
    fn a_new_file_must_be_listed() {
        let said = said("", &[("0.1.0/types.wit", "abc")]);
        assert_eq!(said.len(), 1);
        assert!(said[0].ends_with(&format!("its sum is {ABC}")), "{said:?}");
    }

    #[test]
    fn a_listed_file_must_stay() {
        let said = said(&format!("{ABC}  0.1.0/types.wit\n"), &[]);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("wit/released/SHA256SUMS: `0.1.0/types.wit` was released"));
    }

    #[test]
    fn a_line_that_is_no_sum_is_refused() {
        assert_eq!(said("0.1.0/types.wit\n", &[]).len(), 1);
    }
}
