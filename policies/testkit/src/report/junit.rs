//! Reports as the XML that CI systems read.

use super::{Case, Counts, Report, Verdict};

/// Renders a report as JUnit XML: failed cases are failures, broken ones errors. It contains no
/// times.
#[must_use]
pub fn junit(report: &Report) -> String {
    let mut lines = vec![r#"<?xml version="1.0" encoding="UTF-8"?>"#.to_owned()];
    lines.push(format!("<testsuites {}>", numbers(report.counts())));
    for suite in &report.suites {
        let (name, numbers) = (escaped(&suite.name), numbers(suite.counts()));
        lines.push(format!(r#"  <testsuite name="{name}" {numbers}>"#));
        lines.extend(suite.cases.iter().map(|case| test_case(&suite.name, case)));
        lines.push("  </testsuite>".to_owned());
    }
    lines.push("</testsuites>\n".to_owned());
    lines.join("\n")
}

fn numbers(counts: Counts) -> String {
    let Counts {
        skipped,
        failed,
        broken,
        passed: _,
    } = counts;
    let tests = counts.total();
    format!(r#"tests="{tests}" failures="{failed}" errors="{broken}" skipped="{skipped}""#)
}

fn test_case(suite: &str, case: &Case) -> String {
    let mut start = format!(
        r#"    <testcase classname="{}" name="{}""#,
        escaped(suite),
        escaped(&case.name),
    );
    if let Some(place) = &case.place {
        let file = place.file.display().to_string();
        start.push_str(&format!(
            r#" file="{}" line="{}""#,
            escaped(&file),
            place.line
        ));
    }
    let inner = match &case.verdict {
        Verdict::Passed(note) if note.is_empty() => return format!("{start}/>"),
        Verdict::Passed(note) => format!("<system-out>{}</system-out>", escaped(note)),
        Verdict::Skipped(why) => format!(r#"<skipped message="{}"/>"#, escaped(why)),
        Verdict::Failed(problem) | Verdict::Broken(problem) => {
            let tag = match &case.verdict {
                Verdict::Broken(_) => "error",
                Verdict::Passed(_) | Verdict::Skipped(_) | Verdict::Failed(_) => "failure",
            };
            let (message, detail) = (escaped(&problem.summary), escaped(&problem.detail));
            format!(r#"<{tag} message="{message}">{detail}</{tag}>"#)
        }
    };
    format!("{start}>{inner}</testcase>")
}

/// Escapes text for an attribute or an element. Characters that XML 1.0 cannot express become
/// `\u{fffd}`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control.is_ascii_control() && control != '\u{7f}' => out.push('\u{fffd}'),
            plain => out.push(plain),
        }
    }
    out
}
