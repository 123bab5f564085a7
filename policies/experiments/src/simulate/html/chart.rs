//! A chart: lines over time, drawn as SVG, with its numbers as text beside it.
//!
//! The picture is as wide as its place, and so is stretched; text is not part of it, so that it stays
//! readable on a phone.

use super::escaped;

/// The picture's own units: it is stretched to its place.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 200.0;
/// Lines with colours of their own. Those after them have the same, dashed.
const COLOURS: usize = 8;

/// A line of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// The place among the policies, which gives the colour.
    pub(super) place: usize,
    /// The name of the policies.
    pub(super) label: &'a str,
    /// The time between two values in seconds.
    pub(super) part_s: f64,
    /// The values, from the beginning on.
    pub(super) values: &'a [f64],
}

/// The meaning of a value of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    /// A number like any other.
    Number,
    /// Nothing was measured then, and the line has a gap.
    Nothing,
}

/// A chart without its lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    /// The unit, and what a value is of.
    pub(super) unit: &'static str,
    pub(super) zero: Zero,
    /// The top of the chart; absent: the largest value.
    pub(super) top: Option<f64>,
}

/// The classes of a policy's line.
pub(super) fn classes(place: usize) -> String {
    let dashed = if place >= COLOURS { " dashed" } else { "" };
    format!("s{}{dashed}", place % COLOURS)
}

impl Chart {
    /// The figure. A line without values is left out.
    pub(super) fn figure(&self, lines: &[Line<'_>]) -> String {
        let values = lines.iter().flat_map(|line| line.values).copied();
        let most = values.fold(0.0, f64::max);
        let top = self.top.unwrap_or_else(|| round_up(most));
        let ends = lines.iter().map(Line::end).fold(0.0, f64::max).max(1e-9);
        let mut paths = String::from("<path class=\"grid\" d=\"M0 100H1000M0 0H1000\"/>");
        for line in lines.iter().filter(|line| !line.values.is_empty()) {
            let (class, label) = (classes(line.place), escaped(line.label));
            let path = self.path(line, top, ends);
            paths.push_str(&format!(
                "\n<path class=\"{class}\" data-policies=\"{label}\" d=\"{path}\"/>"
            ));
        }
        format!(
            "<figure><figcaption>{title} <small>{unit}</small></figcaption>\n\
             <div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">{paths}</svg>\
             <i class=\"y\" style=\"top:-5px\">{high}</i><i class=\"y\" style=\"top:calc(50% - 5px)\">{middle}</i><i class=\"y\" style=\"bottom:-5px\">0</i>\
             <i class=\"x\" style=\"left:0\">0 s</i><i class=\"x\" style=\"right:0\">{end} s</i></div></figure>\n",
            title = self.title,
            unit = self.unit,
            high = number(top),
            middle = number(top / 2.0),
            end = number(ends),
        )
    }

    /// The way of a line, with a gap where nothing was measured.
    fn path(&self, line: &Line<'_>, top: f64, ends: f64) -> String {
        let mut path = String::new();
        let mut at = line.part_s / 2.0;
        let mut is_down = false;
        for value in line.values {
            let (x, y) = (at / ends * WIDTH, HEIGHT - value / top * HEIGHT);
            if self.zero == Zero::Nothing && *value <= 0.0 {
                is_down = false;
            } else {
                let order = if is_down { 'L' } else { 'M' };
                // A line of one point is a dot, as its ends are round.
                let dot = if is_down { "" } else { "h0" };
                path.push_str(&format!("{order}{x:.1} {y:.1}{dot}"));
                is_down = true;
            }
            at += line.part_s;
        }
        path
    }
}

impl Line<'_> {
    fn end(&self) -> f64 {
        self.values.iter().fold(0.0, |at, _| at + self.part_s)
    }
}

/// The next number of one digit, or of 1.5 or 2.5 times a power of ten; 1 for nothing.
fn round_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let mut scale = 1.0;
    while scale * 10.0 <= most {
        scale *= 10.0;
    }
    while scale > most {
        scale /= 10.0;
    }
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let found = steps.iter().map(|step| step * scale).find(|it| *it >= most);
    found.unwrap_or(most)
}

/// A number as an axis shows it.
fn number(value: f64) -> String {
    let text = match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    };
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: Chart = Chart {
        title: "TTFT",
        unit: "ms",
        zero: Zero::Nothing,
        top: None,
    };

    fn line(values: &[f64]) -> Line<'_> {
        Line {
            place: 0,
            label: "a",
            part_s: 2.0,
            values,
        }
    }

    #[test]
    fn a_line_has_a_gap_where_nothing_was_measured() {
        let values = [100.0, 50.0, 0.0, 100.0];
        let path = CHART.path(&line(&values), 100.0, 8.0);
        assert_eq!(path, "M125.0 0.0h0L375.0 100.0M875.0 0.0h0");
        let chart = Chart {
            zero: Zero::Number,
            ..CHART
        };
        let path = chart.path(&line(&values), 100.0, 8.0);
        assert_eq!(path, "M125.0 0.0h0L375.0 100.0L625.0 200.0L875.0 0.0");
    }

    #[test]
    fn an_axis_ends_with_a_round_number() {
        let found = [0.7, 7.0, 71.0, 110.0, 2001.0, 0.0].map(round_up);
        let [a, b, c, d, e, none] = found;
        assert!(
            (a - 0.8).abs() < 1e-9 && (b - 8.0).abs() < 1e-9,
            "{found:?}"
        );
        assert_eq!((c, d, e), (80.0, 150.0, 2500.0));
        assert_eq!(none, 1.0);
        assert_eq!(
            [1500.0, 2.5, 0.8, 40.0].map(number),
            ["1500", "2.5", "0.8", "40"]
        );
    }

    #[test]
    fn lines_of_more_than_eight_policies_are_dashed() {
        assert_eq!(
            (classes(7), classes(9)),
            ("s7".to_owned(), "s1 dashed".to_owned())
        );
    }
}
