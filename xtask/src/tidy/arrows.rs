//! The dependencies between our packages: the `arrows` block of `ARCHITECTURE.md`.
//!
//! A fenced block with the info string `arrows`. Each line is `PROVIDER... <- USER...`, names
//! without our prefix; a line that ends in `(dev only)` allows dev-dependencies and nothing
//! else. Lines add up, so a provider may have several.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use crate::workspace::{Kind, PREFIX, Package};

pub(super) const PATH: &str = "ARCHITECTURE.md";

const FENCE: &str = "```";
const OPENING: &str = "```arrows";
const DEV_ONLY: &str = "(dev only)";

/// A user and a package that it may use, both by short name.
type Edge<'a> = (&'a str, &'a str);

/// The edges that the block allows. An edge in both sets has the wider of the two rights.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arrows<'a> {
    names: BTreeMap<&'a str, usize>,
    any: BTreeSet<Edge<'a>>,
    dev_only: BTreeSet<Edge<'a>>,
}

pub(super) fn check(document: &str, packages: &[Package]) -> Vec<Problem> {
    let (arrows, mut problems) = parse(document);
    if arrows.names.is_empty() {
        problems.push(Problem::new(PATH, format!("has no block {OPENING}")));
        return problems;
    }
    problems.extend(unknown_names(&arrows, packages));
    for package in packages {
        problems.extend(extra_edges(&arrows, package));
    }
    problems
}

fn parse(document: &str) -> (Arrows<'_>, Vec<Problem>) {
    let mut arrows = Arrows::default();
    let mut problems = Vec::new();
    let block = document
        .lines()
        .enumerate()
        .skip_while(|(_, line)| line.trim() != OPENING)
        .skip(1)
        .take_while(|(_, line)| !line.trim().starts_with(FENCE));
    for (line_idx, line) in block.filter(|(_, line)| !line.trim().is_empty()) {
        if !arrows.add(line, line_idx) {
            let text = format!("expected `PROVIDER... <- USER...`, found `{line}`");
            problems.push(Problem::at_line(PATH, line_idx, text));
        }
    }
    (arrows, problems)
}

/// Names that no package has: misspelled, or left behind.
fn unknown_names(arrows: &Arrows<'_>, packages: &[Package]) -> Vec<Problem> {
    let known: BTreeSet<&str> = packages.iter().map(Package::short_name).collect();
    let unknown = arrows
        .names
        .iter()
        .filter(|(name, _)| !known.contains(*name));
    unknown
        .map(|(name, line_idx)| {
            let text = format!("no package of the workspace is called `{PREFIX}{name}`");
            Problem::at_line(PATH, *line_idx, text)
        })
        .collect()
}

fn extra_edges(arrows: &Arrows<'_>, package: &Package) -> Vec<Problem> {
    let user = package.short_name();
    let mut problems = Vec::new();
    for dependency in &package.dependencies {
        let Some(provider) = dependency.name.strip_prefix(PREFIX) else {
            continue;
        };
        // Its own features, for its tests.
        if provider == user {
            continue;
        }
        if let Some(text) = refusal(arrows, (user, provider), dependency.kind) {
            let place = format!("{}/Cargo.toml", package.folder);
            problems.push(Problem::new(place, text));
        }
    }
    problems
}

/// The reason to refuse an edge; `None` where it is allowed.
fn refusal(arrows: &Arrows<'_>, edge: Edge<'_>, kind: Kind) -> Option<String> {
    let (user, provider) = edge;
    if arrows.any.contains(&edge) {
        return None;
    }
    match (arrows.dev_only.contains(&edge), kind) {
        (true, Kind::Dev) => None,
        (true, Kind::Normal) => Some(format!(
            "`{user}` may depend on `{provider}` in dev-dependencies only, says {PATH}"
        )),
        (false, _) => Some(format!(
            "`{user}` may not depend on `{provider}`: a new arrow is a change of the \
             architecture, to be made and argued in {PATH}"
        )),
    }
}

// === impl Arrows ===

impl<'a> Arrows<'a> {
    /// Takes a line in; false if it is none.
    fn add(&mut self, line: &'a str, line_idx: usize) -> bool {
        let line = line.trim();
        let (line, edges) = match line.strip_suffix(DEV_ONLY) {
            Some(line) => (line, &mut self.dev_only),
            None => (line, &mut self.any),
        };
        let Some((providers, users)) = line.split_once("<-") else {
            return false;
        };
        let providers: Vec<&str> = providers.split_whitespace().collect();
        let users: Vec<&str> = users.split_whitespace().collect();
        for provider in &providers {
            edges.extend(users.iter().map(|user| (*user, *provider)));
        }
        for name in providers.iter().chain(&users) {
            self.names.entry(name).or_insert(line_idx);
        }
        !providers.is_empty() && !users.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{package, texts};

    const DOCUMENT: &str = "# Title\n\n```arrows\n\
                            core sim <- tests\n\
                            testkit <- aging tests (dev only)\n\
                            ```\n\nother <- things\n";

    /// The problems of these packages, beside others that depend on nothing.
    fn said(packages: &[Package]) -> Vec<String> {
        let mut all = packages.to_vec();
        for name in ["core", "sim", "tests", "testkit", "aging"] {
            if !all.iter().any(|package| package.short_name() == name) {
                all.push(package(name, &[]));
            }
        }
        texts(&check(DOCUMENT, &all))
    }

    #[test]
    fn allows_the_arrows_of_the_block() {
        let tests = package(
            "tests",
            &[
                ("pointsman-core", Kind::Normal),
                ("pointsman-sim", Kind::Dev),
                ("pointsman-testkit", Kind::Dev),
                ("serde", Kind::Normal),
            ],
        );
        assert!(said(&[tests]).is_empty());
    }

    #[test]
    fn a_package_may_ask_for_its_own_features_in_tests() {
        assert!(said(&[package("core", &[("pointsman-core", Kind::Dev)])]).is_empty());
    }

    #[test]
    fn refuses_any_other_arrow() {
        for kind in [Kind::Normal, Kind::Dev] {
            let core = package("core", &[("pointsman-sim", kind)]);
            let said = said(&[core]);
            assert_eq!(said.len(), 1, "{said:?}");
            let expected = "host/core/Cargo.toml: `core` may not depend on `sim`";
            assert!(said[0].starts_with(expected), "{said:?}");
        }
    }

    #[test]
    fn refuses_a_dev_arrow_in_the_build() {
        let aging = package("aging", &[("pointsman-testkit", Kind::Normal)]);
        let said = said(&[aging]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("in dev-dependencies only"), "{said:?}");
    }

    #[test]
    fn refuses_names_and_lines_it_does_not_understand() {
        let document = "```arrows\ncore <- tset\ncore ->\n<- core\n```\n";
        let problems = check(document, &[package("core", &[])]);
        assert_eq!(
            texts(&problems),
            [
                "ARCHITECTURE.md:3: expected `PROVIDER... <- USER...`, found `core ->`",
                "ARCHITECTURE.md:4: expected `PROVIDER... <- USER...`, found `<- core`",
                "ARCHITECTURE.md:2: no package of the workspace is called `pointsman-tset`",
            ]
        );
    }

    #[test]
    fn refuses_a_document_without_a_block() {
        let problems = check("# Title\n", &[package("core", &[])]);
        assert_eq!(
            texts(&problems),
            ["ARCHITECTURE.md: has no block ```arrows"]
        );
    }
}
