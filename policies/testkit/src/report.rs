//! What came of scenarios and property checks, for a person, for CI and for programs.
//!
//! A [`Report`] is data; [`human`], [`junit`] and [`json`] render it. Nothing in it depends on a
//! clock, so that two runs make the same text.

mod json;
mod junit;

use std::fmt;

use crate::scenario::Place;
pub use json::json;
pub use junit::junit;

#[cfg(test)]
mod tests;

/// Suites in the order they ran in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The suites.
    pub suites: Vec<Suite>,
}

/// Cases that belong together: the scenarios of one flavour, the properties of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// What they have in common.
    pub name: String,
    /// The cases.
    pub cases: Vec<Case>,
}

/// One scenario or property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What it shows, in a line.
    pub name: String,
    /// Where it is written, or what in it failed; absent: not in a file.
    pub place: Option<Place>,
    /// What came of it.
    pub verdict: Verdict,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is as it should be; with what was found, or nothing.
    Passed(String),
    /// It says nothing about this policy, for this reason.
    Skipped(String),
    /// The policy does not do what is expected of it.
    Failed(Problem),
    /// It could not be run: what is wrong is the file, the settings or the host.
    Broken(Problem),
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// In a line.
    pub summary: String,
    /// Everything there is to know; may be empty or have many lines.
    pub detail: String,
}

/// How many cases came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Verdict::Passed`].
    pub passed: usize,
    /// [`Verdict::Skipped`].
    pub skipped: usize,
    /// [`Verdict::Failed`].
    pub failed: usize,
    /// [`Verdict::Broken`].
    pub broken: usize,
}

// === impl Report ===

impl Report {
    /// How many cases came to what, in all suites.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.suites
            .iter()
            .fold(Counts::default(), |sum, suite| sum.with(suite.counts()))
    }

    /// Whether nothing failed or broke.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        let counts = self.counts();
        counts.failed == 0 && counts.broken == 0
    }
}

// === impl Suite ===

impl Suite {
    /// How many cases came to what.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for case in &self.cases {
            *match case.verdict {
                Verdict::Passed(_) => &mut counts.passed,
                Verdict::Skipped(_) => &mut counts.skipped,
                Verdict::Failed(_) => &mut counts.failed,
                Verdict::Broken(_) => &mut counts.broken,
            } += 1;
        }
        counts
    }
}

// === impl Verdict ===

impl Verdict {
    /// One word for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed(_) => "passed",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "failed",
            Self::Broken(_) => "broken",
        }
    }
}

// === impl Counts ===

impl Counts {
    fn with(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            skipped: self.skipped + other.skipped,
            failed: self.failed + other.failed,
            broken: self.broken + other.broken,
        }
    }

    fn total(self) -> usize {
        self.passed + self.skipped + self.failed + self.broken
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.passed, "passed"),
            (self.failed, "failed"),
            (self.broken, "broken"),
            (self.skipped, "skipped"),
        ];
        let mut shown = parts.iter().filter(|(count, _)| *count > 0);
        match shown.next() {
            Some((count, word)) => write!(f, "{count} {word}")?,
            None => return f.write_str("nothing ran"),
        }
        shown.try_for_each(|(count, word)| write!(f, ", {count} {word}"))
    }
}

/// For a person: a line per case, and below it what is wrong.
#[must_use]
pub fn human(report: &Report) -> String {
    let mut lines = Vec::new();
    for suite in &report.suites {
        lines.push(suite.name.clone());
        for case in &suite.cases {
            lines.extend(case_lines(case));
        }
    }
    lines.push(report.counts().to_string());
    lines.push(String::new());
    lines.join("\n")
}

fn case_lines(case: &Case) -> Vec<String> {
    let Case { name, verdict, .. } = case;
    let word = verdict.word();
    let (said, detail) = match verdict {
        Verdict::Passed(found) => (found, ""),
        Verdict::Skipped(why) => (why, ""),
        Verdict::Failed(problem) | Verdict::Broken(problem) => {
            (&problem.summary, problem.detail.as_str())
        }
    };
    let mut lines = vec![if said.is_empty() {
        format!("  {word:<7} {name}")
    } else {
        format!("  {word:<7} {name}: {said}")
    }];
    lines.extend(detail.lines().map(|line| format!("    {line}")));
    lines
}
