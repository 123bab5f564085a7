//! The file beside a policy, with the settings that were found and the evidence for them.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pointsman_component::Limits;
use pointsman_notation::NamedLimits as _;
use pointsman_sidecar::{SIDECAR_BYTES_MAX, parse};
use serde_json::{Map, Value};

/// The beginning of each line of evidence. Such lines of an earlier search are replaced.
const MARK: &str = "#|";

/// Settings before and after a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuned<'a> {
    pub(super) before: &'a Map<String, Value>,
    pub(super) after: &'a Map<String, Value>,
}

/// Writes the file: what an earlier one has besides settings stays.
///
/// # Errors
/// If it cannot be written, or an earlier one has settings in a form that cannot be replaced.
pub(super) fn write(path: &Path, evidence: &str, tuned: &Tuned<'_>) -> Result<()> {
    let shown = path.display();
    let most = u64::try_from(SIDECAR_BYTES_MAX).unwrap_or(u64::MAX);
    let earlier = if path.exists() {
        pointsman_files::read_text(path, most).with_context(|| shown.to_string())?
    } else {
        String::new()
    };
    let text = text(&earlier, evidence, tuned).with_context(|| shown.to_string())?;
    let read = parse(path, text.clone().into_bytes(), &Limits::CEILING);
    read.context("the file that would be written is of no use")?;
    pointsman_files::replace_readable(path, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{shown} cannot be written"))
}

/// The text of the file.
fn text(earlier: &str, evidence: &str, tuned: &Tuned<'_>) -> Result<String> {
    let rest = without_settings(earlier);
    let table: toml::Table = toml::from_str(&rest)?;
    if table.contains_key("settings") {
        bail!("its settings are not in a table [settings] of their own: write them so");
    }
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

/// The lines of a file but for its table of settings and earlier evidence.
fn without_settings(text: &str) -> String {
    let mut is_left_out = false;
    let mut kept = String::new();
    for line in text.lines() {
        let head = line.trim_start();
        if head.starts_with('[') {
            let name = head.trim_start_matches('[').trim_start();
            let name = name.strip_prefix("settings").map(str::trim_start);
            is_left_out = name.is_some_and(|rest| rest.starts_with([']', '.']));
        }
        if !is_left_out && !head.starts_with(MARK) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
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
    }

    #[test]
    fn settings_that_cannot_be_replaced_are_left_alone() {
        let (before, after) = (Map::new(), Map::new());
        let tuned = Tuned {
            before: &before,
            after: &after,
        };
        let error = text("settings = { a = 1 }\n", "", &tuned).unwrap_err();
        assert!(error.to_string().contains("not in a table [settings]"));
    }
}
