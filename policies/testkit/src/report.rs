//! The results of scenarios and property checks, for a person, for CI and for programs.
//!
//! A [`Report`] is data; [`human`], [`junit`] and [`json`] render it. Nothing in it depends on a
//! clock, so two runs give the same text.

mod json;
mod junit;

use std::fmt;

pub use json::json;
pub use junit::junit;
use pointsman_notation::Location;

#[cfg(test)]
mod tests;

/// Suites in the order in which they ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All suites, in the order in which they ran.
    pub suites: Vec<Suite>,
}

/// A group of cases: the scenarios of one flavour, or the properties of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// The name of the suite.
    pub name: String,
    /// All cases, in the order in which they ran.
    pub cases: Vec<Case>,
}

/// One scenario or property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The title, in a line.
    pub name: String,
    /// The place of the case, or of the step that failed; absent: not in a file.
    pub place: Option<Location>,
    /// The result.
    pub verdict: Verdict,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The case is as expected. The text says what was found; it may be empty.
    Passed(String),
    /// The case says nothing about this policy, for this reason.
    Skipped(String),
    /// The policy does not do what is expected of it.
    Failed(Problem),
    /// The case could not be run: the file, the settings or the host is wrong.
    Broken(Problem),
}

/// A reason why a case failed or broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The problem in one line.
    pub summary: String,
    /// All details; may be empty or have many lines.
    pub detail: String,
    /// Text of a scenario that shows the problem; absent: there is none, or the case is one.
    pub scenario: Option<String>,
}

/// Counts of cases by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of [`Verdict::Passed`].
    pub passed: usize,
    /// Number of [`Verdict::Skipped`].
    pub skipped: usize,
    /// Number of [`Verdict::Failed`].
    pub failed: usize,
    /// Number of [`Verdict::Broken`].
    pub broken: usize,
}

// === impl Problem ===

impl Problem {
    /// A problem that its summary tells.
    #[must_use]
    pub fn new(summary: impl Into<String>) -> Self {
        Self {
            summary: summary.into(),
            detail: String::new(),
            scenario: None,
        }
    }
}

// === impl Report ===

impl Report {
    /// Counts of the cases of all suites.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.suites
            .iter()
            .fold(Counts::default(), |sum, suite| sum.with(suite.counts()))
    }

    /// True if nothing failed or broke.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        let counts = self.counts();
        counts.failed == 0 && counts.broken == 0
    }
}

// === impl Suite ===

impl Suite {
    /// Counts of the cases of this suite.
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
    /// The verdict as one word.
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

/// Renders a report for a person: one line per case, with the details of a problem below it.
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
