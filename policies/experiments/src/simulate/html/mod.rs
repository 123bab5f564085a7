//! The report as a page: one file without anything from elsewhere, the same bytes for the same runs.
//!
//! Text that came from outside is escaped; there are no scripts. The colours are those of the monitor
//! page (`host/admin/src/monitor/style.css`), light and dark as the reader's device is.

mod chart;

use pointsman_sim::measure::Course;

use super::runs::Runs;
use super::table;
use chart::{Chart, Line, Zero, classes};

const STYLE: &str = include_str!("page.css");

/// The parts of a page that are not its runs.
#[derive(Clone, Debug, Default)]
pub(super) struct PageText {
    /// The workload.
    pub(super) title: String,
    /// The size of what was simulated, and remarks; a paragraph for each line.
    pub(super) preface: String,
    /// The command that made the page.
    pub(super) command: String,
    /// The rows of further tables, each with its heading.
    pub(super) tables: Vec<(&'static str, Vec<Vec<String>>)>,
}

/// A chart, and its values of a run.
type CourseChart = (Chart, fn(&Course) -> &[f64]);

const CHARTS: [CourseChart; 6] = [
    (
        Chart {
            title: "TTFT",
            unit: "ms, mean of first tokens",
            zero: Zero::Nothing,
            top: None,
        },
        |course| &course.ttft_ms,
    ),
    (
        Chart {
            title: "ITL",
            unit: "ms, mean between two tokens",
            zero: Zero::Nothing,
            top: None,
        },
        |course| &course.itl_ms,
    ),
    (
        Chart {
            title: "Queue",
            unit: "requests without a place",
            zero: Zero::Number,
            top: None,
        },
        |course| &course.queued,
    ),
    (
        Chart {
            title: "Running",
            unit: "requests with a place",
            zero: Zero::Number,
            top: None,
        },
        |course| &course.running,
    ),
    (
        Chart {
            title: "KV use",
            unit: "part of all blocks",
            zero: Zero::Number,
            top: None,
        },
        |course| &course.kv_used,
    ),
    (
        Chart {
            title: "Fairness",
            unit: "Jain's index of the tokens served so far",
            zero: Zero::Nothing,
            top: Some(1.0),
        },
        |course| &course.jain,
    ),
];

/// The page.
pub(super) fn page(text: &PageText, all: &[Runs]) -> String {
    let title = escaped(&text.title);
    let mut body = format!("<h1>{title}</h1>\n");
    for line in text.preface.lines().filter(|line| !line.is_empty()) {
        body.push_str(&paragraph(line));
    }
    for (heading, rows) in &text.tables {
        body.push_str(&table_card(heading, "scroll fit", rows));
    }
    body.push_str(&table_card("Policies", "scroll", &table::rows(all)));
    let remarks: String = all.iter().map(table::remarks).collect();
    if !remarks.is_empty() {
        body.push_str("<div class=\"card pad\">");
        for line in remarks.lines() {
            body.push_str(&paragraph(line));
        }
        body.push_str("</div>\n");
    }
    body.push_str(&legend(all));
    body.push_str("<div class=\"charts\">\n");
    for (chart, of) in &CHARTS {
        body.push_str(&chart.figure(&lines(all, *of)));
    }
    body.push_str("</div>\n");
    body.push_str(&format!(
        "<div class=\"card\"><h2>Command</h2><div class=\"pad\"><code>{}</code><p class=\"dim\">Pointsman {}</p></div></div>\n",
        escaped(&text.command),
        env!("CARGO_PKG_VERSION")
    ));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// The first run of each, as lines.
fn lines(all: &[Runs], of: fn(&Course) -> &[f64]) -> Vec<Line<'_>> {
    let lines = all.iter().enumerate().filter_map(|(place, runs)| {
        let (_, report) = runs.runs.first()?;
        let course = &report.course;
        Some(Line {
            place,
            label: &runs.label,
            part_s: course.part_s,
            values: of(course),
        })
    });
    lines.collect()
}

fn paragraph(line: &str) -> String {
    format!("<p class=\"dim\">{}</p>\n", escaped(line))
}

fn legend(all: &[Runs]) -> String {
    let mut text = String::from("<div class=\"card legend\">");
    for (place, runs) in all.iter().enumerate() {
        text.push_str(&format!(
            "<span><svg class=\"key\" viewBox=\"0 0 22 10\"><path class=\"{}\" d=\"M1 5H21\"/></svg>{}</span>",
            classes(place),
            escaped(&runs.label)
        ));
    }
    let seeds = all.iter().map(|runs| runs.runs.len()).max().unwrap_or(0);
    if seeds > 1 {
        text.push_str("<span class=\"dim\">the charts are of the first seed</span>");
    }
    text.push_str("</div>\n");
    text
}

fn table_card(heading: &str, class: &str, rows: &[Vec<String>]) -> String {
    let mut text =
        format!("<div class=\"card\"><h2>{heading}</h2><div class=\"{class}\"><table>\n");
    for (at, row) in rows.iter().enumerate() {
        let cell = if at == 0 { "th" } else { "td" };
        text.push_str("<tr>");
        for value in row {
            text.push_str(&format!("<{cell}>{}</{cell}>", escaped(value)));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table></div></div>\n");
    text
}

/// Text without any character that means something in a page.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}
