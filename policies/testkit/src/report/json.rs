//! Reports as JSON, for programs.

use serde_json::{Value, json};

use super::{Case, Counts, Report, Suite, Verdict};

/// Renders a report as JSON: `passed`, `counts` and `suites`, each with `name`, `counts` and
/// `cases`. A case has `name` and `verdict` (`passed`, `skipped`, `failed`, `broken`); if it is in
/// a file `file`, `line` and `column`; a `note` if there is one; and for a problem `summary` and
/// `detail`.
#[must_use]
pub fn json(report: &Report) -> String {
    let suites: Vec<Value> = report.suites.iter().map(suite_value).collect();
    let value = json!({
        "passed": report.is_passed(),
        "counts": counts_value(report.counts()),
        "suites": suites,
    });
    format!("{value:#}\n")
}

fn suite_value(suite: &Suite) -> Value {
    let cases: Vec<Value> = suite.cases.iter().map(case_value).collect();
    json!({ "name": suite.name, "counts": counts_value(suite.counts()), "cases": cases })
}

fn counts_value(counts: Counts) -> Value {
    let Counts {
        passed,
        skipped,
        failed,
        broken,
    } = counts;
    json!({ "passed": passed, "skipped": skipped, "failed": failed, "broken": broken })
}

fn case_value(case: &Case) -> Value {
    let mut value = json!({ "name": case.name, "verdict": case.verdict.word() });
    if let Some(place) = &case.place {
        value["file"] = place.file.display().to_string().into();
        value["line"] = place.line.into();
        value["column"] = place.column.into();
    }
    match &case.verdict {
        Verdict::Passed(note) | Verdict::Skipped(note) if note.is_empty() => {}
        Verdict::Passed(note) | Verdict::Skipped(note) => value["note"] = note.as_str().into(),
        Verdict::Failed(problem) | Verdict::Broken(problem) => {
            value["summary"] = problem.summary.as_str().into();
            value["detail"] = problem.detail.as_str().into();
        }
    }
    value
}
