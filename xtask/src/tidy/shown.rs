//! The table of `policies/README.md` that says which scenario shows which rule, against the
//! scenarios there are.
//!
//! A row's policies and its groups of scenarios stand in one order, the groups with `;` between
//! them. `crossover-*` stands for all that begin so.

use std::collections::BTreeSet;

use super::Problem;
use super::files::File;

pub(super) const PATH: &str = "policies/README.md";

const HEADING: &str = "| rule | policy | scenarios |";

/// A policy's folder, and the name of a file of its `scenarios` without the ending.
type Scenario<'a> = (&'a str, &'a str);

/// Scenarios that the table names and nobody has, and those that it passes over.
pub(super) fn check(document: &str, files: &[File]) -> Vec<Problem> {
    let scenarios: BTreeSet<Scenario<'_>> = files.iter().filter_map(scenario).collect();
    let mut unnamed = scenarios.clone();
    let mut problems = Vec::new();
    for (line_idx, line) in rows(document, HEADING) {
        match named(line) {
            Some(names) => {
                for (policy, name) in names {
                    let shows = |scenario: &Scenario<'_>| is_meant((policy, name), *scenario);
                    if !scenarios.iter().any(shows) {
                        let text = format!("{policy} has no scenario `{name}`");
                        problems.push(Problem::at_line(PATH, line_idx, text));
                    }
                    unnamed.retain(|scenario| !shows(scenario));
                }
            }
            None => problems.push(Problem::at_line(
                PATH,
                line_idx,
                "expected `| rule | policies | scenarios |`, for each policy a group of scenarios \
                 and `;` between the groups",
            )),
        }
    }
    let unnamed = unnamed.into_iter().map(|(policy, name)| {
        let path = format!("policies/{policy}/scenarios/{name}.toml");
        let text = format!("is in no row of {PATH}: say there which rule it shows");
        Problem::new(path, text)
    });
    problems.extend(unnamed);
    problems
}

/// The rows of the table below `heading`, with the indexes of their lines.
pub(super) fn rows<'a>(
    document: &'a str,
    heading: &'a str,
) -> impl Iterator<Item = (usize, &'a str)> {
    document
        .lines()
        .enumerate()
        .skip_while(move |(_, line)| line.trim() != heading)
        .skip(2)
        .take_while(|(_, line)| line.starts_with('|'))
}

/// The scenarios that a row names; `None` if the row is malformed.
fn named(row: &str) -> Option<Vec<Scenario<'_>>> {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').collect();
    let [_rule, policies, groups] = cells.as_slice() else {
        return None;
    };
    let policies: Vec<&str> = quoted(policies).collect();
    let groups: Vec<&str> = groups.split(';').collect();
    let is_whole =
        policies.len() == groups.len() && groups.iter().all(|group| quoted(group).next().is_some());
    is_whole.then(|| {
        let pairs = policies.into_iter().zip(groups);
        pairs
            .flat_map(|(policy, group)| quoted(group).map(move |name| (policy, name)))
            .collect()
    })
}

/// The texts between backticks.
pub(super) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn scenario(file: &File) -> Option<Scenario<'_>> {
    let (policy, name) = file
        .path
        .strip_prefix("policies/")?
        .split_once("/scenarios/")?;
    Some((policy, name.strip_suffix(".toml")?))
}

fn is_meant((policy, name): Scenario<'_>, (its_policy, its_name): Scenario<'_>) -> bool {
    let is_named = match name.strip_suffix('*') {
        Some(start) => its_name.starts_with(start),
        None => its_name == name,
    };
    policy == its_policy && is_named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    fn said(rows: &str) -> Vec<String> {
        let files = ["a/scenarios/one", "a/scenarios/two-x", "b/scenarios/one"];
        let files = files.map(|name| file(&format!("policies/{name}.toml"), ""));
        texts(&check(
            &format!("# Policies\n{HEADING}\n|---|---|---|\n{rows}\n\n| `c` |\n"),
            &files,
        ))
    }

    #[test]
    fn a_table_of_all_scenarios_is_complete() {
        let rows = "| a rule | `a`, `b` | `one`; `one` |\n| another | `a` | `two-*`, `one` |";
        assert_eq!(said(rows), [""; 0]);
    }

    #[test]
    fn a_scenario_that_is_not_there_is_named_with_its_line() {
        let rows = "| a rule | `a`, `b` | `one`, `two-*`; `one`, `two-*` |";
        let missing = "policies/README.md:4: b has no scenario `two-*`";
        assert_eq!(said(rows), [missing]);
    }

    #[test]
    fn a_scenario_that_shows_no_rule_is_named() {
        let missing = "policies/b/scenarios/one.toml: is in no row of policies/README.md: say \
                       there which rule it shows";
        assert_eq!(said("| a rule | `a` | `one`, `two-x` |"), [missing]);
        assert_eq!(said("").len(), 3);
    }

    #[test]
    fn a_row_without_a_group_for_each_policy_is_refused() {
        for row in ["| r | `a`, `b` | `one` |", "| r | `a` | |", "| r | `a` |"] {
            let said = said(row);
            assert!(said[0].starts_with("policies/README.md:4: expected"));
        }
    }
}
