//! The list in `CONTRIBUTING.md` of the files that a new hook touches, against the files that name
//! every hook there is.
//!
//! # Not here
//! Files that name hooks in words, and tests.

use super::Problem;
use super::files::File;

pub(super) const PATH: &str = "CONTRIBUTING.md";

const BLOCK: &str = "```hook";
const HOOKS: &str = "host/interface/src/hook.rs";

/// Stands for the name of the hook in the path of a file that is its own.
const OWN: &str = "/HOOK.";

/// Listed files that are not there, and files that name every hook and are not listed.
pub(super) fn check(document: &str, files: &[File]) -> Vec<Problem> {
    let listed = listed(document);
    let hooks = hooks(files);
    if listed.is_empty() || hooks.is_empty() {
        let text = format!("has no block {BLOCK}, or {HOOKS} no `ALL`");
        return vec![Problem::new(PATH, text)];
    }
    let is_there = |path: &str| match path.split_once(OWN) {
        None => files.iter().any(|file| file.path == path),
        Some((folder, _)) => files.iter().any(|file| file.path.starts_with(folder)),
    };
    let gone = listed.iter().filter(|path| !is_there(path));
    let gone = gone.map(|path| Problem::new(PATH, format!("{path} is not there")));
    let named = files.iter().filter(|file| names_all(file, &hooks));
    let passed_over = named.filter(|file| !listed.contains(&file.path.as_str()));
    let advice = format!("names every hook: let {HOOKS} say it, or list the file in {PATH}");
    let passed_over = passed_over.map(|file| Problem::new(&file.path, advice.clone()));
    gone.chain(passed_over).collect()
}

/// The paths of the list.
fn listed(document: &str) -> Vec<&str> {
    let mut lines = document.lines().skip_while(|line| *line != BLOCK).skip(1);
    let listed = lines.by_ref().take_while(|line| *line != "```");
    listed
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// The names of the hooks, as `Hook::ALL` has them.
fn hooks(files: &[File]) -> Vec<&str> {
    let file = files.iter().find(|file| file.path == HOOKS);
    let all = file.and_then(|file| file.text()?.split_once("ALL: [Hook")?.1.split_once("];"));
    let (all, _) = all.unwrap_or_default();
    let names = all.split("Hook::").skip(1);
    names.filter_map(|name| name.split(',').next()).collect()
}

/// True if the code names each hook as a variant, outside of its tests.
fn names_all(file: &File, hooks: &[&str]) -> bool {
    let is_test = |part| matches!(part, "tests" | "tests.rs" | "test_util");
    let is_test = file.path.split('/').any(is_test);
    let text = file.text().filter(|_| file.has_extension("rs") && !is_test);
    let (code, _) = text.map_or(("", ""), |text| {
        text.split_once("#[cfg(test)]\nmod tests {")
            .unwrap_or((text, ""))
    });
    hooks.iter().all(|hook| {
        let mut found = code.match_indices(hook);
        found.any(|(at, _)| {
            let after = code[at + hook.len()..].chars().next();
            code[..at].ends_with("::") && !after.is_some_and(|next| next.is_alphanumeric())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    const HOOK: &str = "pub const ALL: [Hook; 2] = [\n    Hook::One,\n    Hook::Two,\n];\n";

    fn check_list(listed: &str, others: &[(&str, &str)]) -> Vec<String> {
        let document = format!("A list.\n\n```hook\n{HOOKS}  its row\n{listed}```\n");
        let mut files = vec![file(HOOKS, HOOK)];
        files.extend(others.iter().map(|(path, text)| file(path, text)));
        texts(&check(&document, &files))
    }

    #[test]
    fn a_file_that_names_every_hook_is_listed() {
        let all = "match hook { Hook::One => 1, Hook::Two => 2 }";
        let problems = check_list("", &[("host/a/src/a.rs", all)]);
        let advice = "host/a/src/a.rs: names every hook: let host/interface/src/hook.rs say it, or list the file in \
             CONTRIBUTING.md";
        assert_eq!(problems, [advice]);
        let listed = check_list("host/a/src/a.rs  a match\n", &[("host/a/src/a.rs", all)]);
        assert_eq!(listed, [""; 0]);
    }

    #[test]
    fn tests_and_files_that_name_some_hooks_are_not_listed() {
        let all = "#[cfg(test)]\nmod tests { Hook::One, Hook::Two }";
        for (path, text) in [
            ("host/a/src/a.rs", "Hook::One, Hook::Twofold, Two"),
            ("host/a/src/a.rs", all),
            ("host/a/tests/a.rs", "Hook::One, Hook::Two"),
        ] {
            assert_eq!(check_list("", &[(path, text)]), [""; 0], "{path}: {text}");
        }
    }

    #[test]
    fn a_listed_file_is_there() {
        let lines = "host/gone.rs  a match\nhost/round/HOOK.rs  its own\n";
        let others = [("host/round/mod.rs", "")];
        let gone = ["CONTRIBUTING.md: host/gone.rs is not there"];
        assert_eq!(check_list(lines, &others), gone);
        assert_eq!(check("no list", &[]).len(), 1);
    }
}
