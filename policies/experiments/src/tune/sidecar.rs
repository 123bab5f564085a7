//! The file beside a policy, with the settings that were found and the evidence for them.

use std::io::Write as _;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pointsman_sidecar::{SIDECAR_BYTES_MAX, parse_for_any_server};
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The beginning of each line of evidence. Such lines of an earlier search are replaced.
const MARK: &str = "#|";

/// Settings before and after a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuned<'a> {
    pub(super) before: &'a Map<String, Value>,
    pub(super) after: &'a Map<String, Value>,
}

/// Checks that the file can be written as far as its text is concerned.
///
/// # Errors
/// If an earlier one has settings in a form that cannot be replaced, or is of no use.
pub(super) fn check(path: &Path, settings: &Map<String, Value>) -> Result<()> {
    let tuned = Tuned {
        before: settings,
        after: settings,
    };
    made(path, "", &tuned).map(drop)
}

/// Writes the file: what an earlier one has besides settings stays.
///
/// # Errors
/// If it cannot be written, or an earlier one has settings in a form that cannot be replaced.
pub(super) fn write(path: &Path, evidence: &str, tuned: &Tuned<'_>) -> Result<()> {
    let text = made(path, evidence, tuned)?;
    pointsman_files::replace_readable(path, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// The text of the file, which a server can read.
fn made(path: &Path, evidence: &str, tuned: &Tuned<'_>) -> Result<String> {
    let shown = path.display();
    let most = u64::try_from(SIDECAR_BYTES_MAX).unwrap_or(u64::MAX);
    let earlier = if path.exists() {
        pointsman_files::read_text(path, most).with_context(|| shown.to_string())?
    } else {
        String::new()
    };
    let text = text(&earlier, evidence, tuned).with_context(|| shown.to_string())?;
    let read = parse_for_any_server(path, text.clone().into_bytes());
    read.context("the file that would be written is of no use")?;
    Ok(text)
}

/// The text of the file.
fn text(earlier: &str, evidence: &str, tuned: &Tuned<'_>) -> Result<String> {
    let rest = without_settings(earlier)?;
    let mut others: toml::Table = toml::from_str(earlier)?;
    others.remove("settings");
    ensure!(
        toml::from_str(&rest).is_ok_and(|left: toml::Table| left == others),
        "its settings are not in a table [settings] of their own: write them so"
    );
    let mut text = rest.trim_end().to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    for line in evidence.lines() {
        text.push_str(format!("{MARK} {line}").trim_end());
        text.push('\n');
    }
    text.push_str("[settings]\n");
    for (key, value) in tuned.after {
        let before = match tuned.before.get(key) {
            Some(before) if before == value => String::new(),
            Some(before) => format!(" # before: {before}"),
            None => " # before: by default".to_owned(),
        };
        let value = toml::Value::try_from(value)?;
        text.push_str(&format!("{} = {value}{before}\n", quoted(key)));
    }
    Ok(text)
}

/// A key as TOML has it.
fn quoted(key: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if !key.is_empty() && key.chars().all(is_bare) {
        return key.to_owned();
    }
    toml::Value::from(key).to_string()
}

/// The lines of a file but for its tables of settings and earlier evidence. Comments and empty lines after the
/// last setting of a table belong to what follows it.
fn without_settings(text: &str) -> Result<String> {
    let document = DeTable::parse(text)?;
    let mut tables = Vec::new();
    if let Some(settings) = document.get_ref().get("settings") {
        find_tables(text, settings, &mut tables);
    }
    tables.sort_by_key(|table| table.start);
    let mut rest = String::new();
    let mut from = 0;
    for table in tables {
        let line = text[..table.start].rfind('\n').map_or(0, |end| end + 1);
        rest.push_str(text.get(from..line).unwrap_or_default());
        let last = text[table.end..].find('\n');
        from = last.map_or(text.len(), |end| table.end + end + 1);
    }
    rest.push_str(&text[from..]);
    let is_earlier = |line: &&str| line.trim_start().starts_with(MARK);
    let kept = rest.split_inclusive('\n').filter(|line| !is_earlier(line));
    Ok(kept.collect())
}

/// Finds the tables with headers in a value of a file, each from its header to its last value. Returns the end of
/// the last value that is in none of them; 0: there is none.
fn find_tables(text: &str, value: &Spanned<DeValue<'_>>, tables: &mut Vec<Range<usize>>) -> usize {
    let span = value.span();
    match value.get_ref() {
        DeValue::Table(table) if !text[span.start..].starts_with('{') => {
            let ends = table.values().map(|it| find_tables(text, it, tables));
            let end = ends.max().unwrap_or(0);
            if has_header(text, value) {
                tables.push(span.start..end.max(span.end));
                return 0;
            }
            end
        }
        DeValue::Array(items) if items.iter().any(|it| has_header(text, it)) => {
            for item in items {
                find_tables(text, item, tables);
            }
            0
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => span.end,
    }
}

/// Returns whether a value is a table whose place in the file is its header.
fn has_header(text: &str, value: &Spanned<DeValue<'_>>) -> bool {
    matches!(value.get_ref(), DeValue::Table(_)) && text[value.span().start..].starts_with('[')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made(earlier: &str) -> String {
        let (before, after) = (
            json!({"a": 1, "b": "x"}),
            json!({"a": 5, "b": "x", "c d": true}),
        );
        let tuned = Tuned {
            before: before.as_object().unwrap(),
            after: after.as_object().unwrap(),
        };
        text(earlier, "p95 ttft: 5 ms\n\ngood", &tuned).unwrap()
    }

    const SETTINGS: &str = "#| p95 ttft: 5 ms\n#|\n#| good\n[settings]\na = 5 # before: 1\nb = \"x\"\n\"c d\" = true # before: by default\n";

    #[test]
    fn the_evidence_stands_before_the_settings() {
        assert_eq!(made(""), SETTINGS);
        assert_eq!(made(SETTINGS), SETTINGS, "earlier evidence is replaced");
    }

    #[test]
    fn what_else_a_file_has_stays() {
        let earlier = "# ours\nmode = \"shadow\"\n[settings]\na = 1\n[settings.deep]\nx = 1\n[limits]\nlog-lines = 3\n";
        let expected = format!("# ours\nmode = \"shadow\"\n[limits]\nlog-lines = 3\n\n{SETTINGS}");
        assert_eq!(made(earlier), expected);
        let earlier = "[settings]\nlist = [\n  [1, 2],\n[3],\n] # two\ntext = \"\"\"\n[limits]\n\"\"\"\n# of our server\n[limits]\nlog-lines = 3\n[[settings.rows]]\na.b = 1\n[[settings.rows]]\n# the last word\n";
        let expected =
            format!("# of our server\n[limits]\nlog-lines = 3\n# the last word\n\n{SETTINGS}");
        assert_eq!(made(earlier), expected);
    }

    #[test]
    fn settings_that_cannot_be_replaced_are_left_alone() {
        let (before, after) = (Map::new(), Map::new());
        let tuned = Tuned {
            before: &before,
            after: &after,
        };
        for earlier in [
            "settings = { a = 1 }\n",
            "settings.a = 1\n",
            "settings.deep = { a = 1 }\n",
        ] {
            let error = text(earlier, "", &tuned).unwrap_err();
            let said = error.to_string();
            assert!(said.contains("not in a table [settings]"), "{said}");
        }
    }
}
