//! The table of `policies/README.md` that says who makes each decision, against the decisions there
//! are: the functions of the hooks, the keys of `[core]`, `[http]`, `[hints]`, `[[backends]]` and `[[tenants]]`, and the facts
//! that have an author.
//!
//! A function is named `hook.function`, a key `table.key`, and a fact as in the code.

use std::collections::BTreeSet;

use super::Problem;
use super::files::File;
use super::shown::{self, quoted};

const HEADING: &str = "| decision | who makes it | what bounds it, and why | recorded as |";
const HOOKS: &str = "wit/hooks.wit";
const SETTINGS: &str = "examples/pointsman.toml";
const FACTS: &str = "host/events/src/fact.rs";

/// A table of the configuration, or a list of them, whose keys decide something.
struct Deciding {
    name: &'static str,
    /// The line of the example with which it begins.
    heading: &'static str,
    /// Keys that decide nothing.
    others: &'static [&'static str],
}

const DECIDING: [Deciding; 5] = [
    Deciding {
        name: "core",
        heading: "[core]",
        others: &[],
    },
    Deciding {
        name: "http",
        heading: "[http]",
        others: &[],
    },
    Deciding {
        name: "hints",
        heading: "[hints]",
        others: &[],
    },
    // Where a server is, and how it is spoken to.
    Deciding {
        name: "backends",
        heading: "#[[backends]]",
        others: &[
            "url",
            "name",
            "software",
            "key",
            "key-file",
            "headers",
            "ca-file",
            "poll",
            "resolve",
            "metrics-path",
            "running-metric",
            "waiting-metric",
            "kv-usage-metric",
            "kv-info-metric",
        ],
    },
    Deciding {
        name: "tenants",
        heading: "#[[tenants]]",
        others: &["name"],
    },
];

/// Interfaces of the contract that decide nothing.
const UNDECIDING: [&str; 2] = ["lifecycle", "log"];

/// Decisions that the table passes over, and names in it that stand for none.
pub(super) fn check(document: &str, files: &[File]) -> Vec<Problem> {
    let text = |path: &str| files.iter().find(|file| file.path == path)?.text();
    let known: BTreeSet<String> = [
        text(HOOKS).map(functions),
        text(SETTINGS).map(deciding),
        text(FACTS).map(authored),
    ]
    .into_iter()
    .flatten()
    .flatten()
    .collect();
    let mut unnamed = known.clone();
    let mut problems = Vec::new();
    for (line_idx, line) in shown::rows(document, HEADING) {
        for name in quoted(line).filter(|name| is_decision(name, &known)) {
            unnamed.remove(name);
            if !known.contains(name) {
                let text = format!("no decision is called `{name}`");
                problems.push(Problem::at_line(shown::PATH, line_idx, text));
            }
        }
    }
    let unnamed = unnamed.into_iter().map(|name| {
        let text = format!("`{name}` is in no row of the table of decisions: say who decides it");
        Problem::new(shown::PATH, text)
    });
    problems.extend(unnamed);
    problems
}

/// True for a name that is written like one of the known ones.
fn is_decision(name: &str, known: &BTreeSet<String>) -> bool {
    let family = |name: &str| name.split_once('.').map(|(family, _)| family.to_owned());
    match family(name) {
        Some(own) => known
            .iter()
            .any(|other| family(other).as_ref() == Some(&own)),
        None => name.starts_with(|first: char| first.is_ascii_uppercase()),
    }
}

/// The functions of the interfaces in a WIT file that decide something.
fn functions(wit: &str) -> Vec<String> {
    let mut interface = "";
    let mut found = Vec::new();
    for line in wit.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("interface ") {
            interface = rest.trim_end_matches(" {");
        } else if let Some((name, _)) = line.split_once(": func(")
            && !UNDECIDING.contains(&interface)
        {
            found.push(format!("{interface}.{name}"));
        }
    }
    found
}

/// The keys of the configuration that decide something.
fn deciding(settings: &str) -> Vec<String> {
    let of = |table: &Deciding| -> Vec<String> {
        let known = keys(settings, table.heading).into_iter();
        let known = known.filter(|key| !table.others.contains(key));
        known.map(|key| format!("{}.{key}", table.name)).collect()
    };
    DECIDING.iter().flat_map(of).collect()
}

/// The keys of the tables that begin with this line.
fn keys<'a>(settings: &'a str, heading: &str) -> Vec<&'a str> {
    let (mut is_inside, mut found) = (false, Vec::new());
    for line in settings.lines() {
        if line.starts_with('[') || line.starts_with("#[") {
            is_inside = line == heading;
        } else if is_inside
            && let Some((key, _)) = line
                .strip_prefix('#')
                .and_then(|setting| setting.split_once(" = "))
            && !key.starts_with(' ')
        {
            found.push(key);
        }
    }
    found
}

/// The variants of the enum `Fact` that say who decided.
fn authored(code: &str) -> Vec<String> {
    let body = code.lines().skip_while(|line| *line != "pub enum Fact {");
    let body = body.skip(1).take_while(|line| *line != "}");
    let (mut variant, mut found) = ("", Vec::new());
    for line in body {
        let is_variant = line.starts_with("    ") && line[4..].starts_with(char::is_uppercase);
        if is_variant {
            variant = line.trim().split(['(', ' ', ',']).next().unwrap_or("");
        }
        let has_author = line.contains("Decided") || line.contains("author: Author");
        if has_author && !line.trim().starts_with("//") {
            found.push(variant.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    const ROWS: &str = "| a | policy: `admission.admit`, `budget.allot` | `core.queue-max`, `http.body-max` | `Held`, `Placed` |\n\
                        | b | operator: `backends.slots`, `backends.group`, `tenants.weight` | | |";

    fn said(rows: &str) -> Vec<String> {
        let wit = "interface lifecycle {\n    describe: func() -> d;\n}\ninterface admission {\n    \
                   admit: func(at: moment) -> list<v>;\n}\ninterface budget {\n    allot: func(\n}\n";
        let toml = "[cpu]\n#threads = 1\n[http]\n#body-max = 1\n[core]\n# So many = 3.\n#queue-max = 4\n\n[log]\n#x = 1\n\
                    #[[backends]]\n#url = 1\n#slots = 1\n\n#[[backends]]\n#group = 1\n\n#[[tenants]]\n#name = 1\n#weight = 1\n";
        let facts = "pub enum Fact {\n    Arrived(Id),\n    /// By a Decided.\n    Held(Id, Decided),\n    \
                     Placed {\n        by: Decided,\n    },\n}\n";
        let files = [file(HOOKS, wit), file(SETTINGS, toml), file(FACTS, facts)];
        let document = format!("# Policies\n{HEADING}\n|---|---|---|---|\n{rows}\n\n| `Gone` |\n");
        texts(&check(&document, &files))
    }

    #[test]
    fn a_table_of_all_decisions_is_complete() {
        assert_eq!(said(ROWS), [""; 0]);
    }

    #[test]
    fn a_decision_that_nobody_is_said_to_make_is_named() {
        for name in [
            "admission.admit",
            "budget.allot",
            "core.queue-max",
            "http.body-max",
            "backends.slots",
            "backends.group",
            "tenants.weight",
            "Held",
            "Placed",
        ] {
            let rows = ROWS.replace(&format!("`{name}`"), "");
            let expected = format!(
                "policies/README.md: `{name}` is in no row of the table of decisions: say who \
                 decides it"
            );
            assert_eq!(said(&rows), [expected]);
        }
    }

    #[test]
    fn a_decision_that_is_not_there_is_named_with_its_line() {
        for name in [
            "admission.refuse",
            "core.queue-min",
            "tenants.wait",
            "Refused",
        ] {
            let rows = format!("{ROWS}\n| c | `{name}` and `slots` | `x.y` | |");
            let expected = format!("policies/README.md:6: no decision is called `{name}`");
            assert_eq!(said(&rows), [expected]);
        }
    }
}
