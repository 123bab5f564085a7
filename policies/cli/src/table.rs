//! Text in columns.

/// Rows of a label and a value, the values one below the other.
#[derive(Debug, Default)]
pub(super) struct Facts {
    rows: Vec<(&'static str, String)>,
}

// === impl Facts ===

impl Facts {
    pub(super) fn add(&mut self, what: &'static str, value: impl Into<String>) {
        self.rows.push((what, value.into()));
    }

    /// One row for each value; `none` where there is none.
    pub(super) fn list<T: Into<String>>(
        &mut self,
        what: &'static str,
        values: impl IntoIterator<Item = T>,
    ) {
        let before = self.rows.len();
        for value in values {
            let what = if self.rows.len() == before { what } else { "" };
            self.add(what, value);
        }
        if self.rows.len() == before {
            self.add(what, "none");
        }
    }

    pub(super) fn text(&self) -> String {
        let widths = self.rows.iter().map(|(what, _)| what.len());
        let width = widths.max().unwrap_or(0);
        let lines = self
            .rows
            .iter()
            .map(|(what, value)| format!("  {what:width$}  {value}\n"));
        lines.collect()
    }
}

/// Rows below a heading, each column as wide as its widest text.
#[derive(Debug)]
pub(super) struct Columns<const N: usize> {
    rows: Vec<[String; N]>,
}

// === impl Columns ===

impl<const N: usize> Columns<N> {
    pub(super) fn new(heading: &[&str; N]) -> Self {
        Self {
            rows: vec![heading.map(str::to_owned)],
        }
    }

    pub(super) fn add(&mut self, row: [&str; N]) {
        self.rows.push(row.map(str::to_owned));
    }

    /// The text; empty if there is no row below the heading.
    pub(super) fn unless_empty(&self) -> String {
        if self.rows.len() == 1 {
            return String::new();
        }
        self.text()
    }

    pub(super) fn text(&self) -> String {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = text.chars().count().max(*width);
            }
        }
        let line = |row: &[String; N]| {
            let cells = row.iter().zip(widths);
            let cells: Vec<String> = cells
                .map(|(text, width)| format!("{text:width$}"))
                .collect();
            format!("  {}\n", cells.join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_one_below_the_other() {
        let mut facts = Facts::default();
        facts.add("name", "x");
        facts.list("reasons", ["a", "b"]);
        facts.list("reads", Vec::<String>::new());
        let text = "  name     x\n  reasons  a\n           b\n  reads    none\n";
        assert_eq!(facts.text(), text);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let mut columns = Columns::new(&["hook", "policy"]);
        assert_eq!(columns.unless_empty(), "");
        columns.add(["preemption", "ä"]);
        columns.add(["", "x"]);
        let text = "  hook        policy\n  preemption  ä\n              x\n";
        assert_eq!(columns.text(), text);
    }
}
