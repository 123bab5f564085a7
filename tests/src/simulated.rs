//! `pointsman simulate`, called as its command line is.

use anyhow::{Context, Result};
use clap::Parser;
use pointsman_component::EmbeddedPolicy;
use pointsman_experiments::simulate::{SimulateArgs, simulate};
use pointsman_server::embedded;
use pointsman_testkit::component::component_path;
use serde_json::Value;

/// The command line.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: SimulateArgs,
}

/// Simulates with these words after `pointsman simulate`, and returns what it prints.
///
/// # Errors
/// As the command has them.
pub fn said<'a>(
    words: impl IntoIterator<Item = &'a str>,
    defaults: &[EmbeddedPolicy],
) -> Result<String> {
    let line = Line::try_parse_from(["simulate"].into_iter().chain(words))?;
    let mut out = Vec::new();
    simulate(&line.args, defaults, &mut out)?;
    Ok(String::from_utf8(out)?)
}

/// The same as JSON.
///
/// # Errors
/// As the command has them.
pub fn json<'a>(
    words: impl IntoIterator<Item = &'a str>,
    defaults: &[EmbeddedPolicy],
) -> Result<Value> {
    let words = words.into_iter().chain(["--format", "json"]);
    Ok(serde_json::from_str(&said(words, defaults)?)?)
}

/// The report of one run with these words and the embedded policies.
///
/// # Errors
/// As the command has them.
pub fn report(words: &str) -> Result<Value> {
    let defaults = embedded::policies().context("the policies are not embedded")?;
    let mut report = json(words.split_whitespace(), defaults)?;
    Ok(report["contenders"][0]["runs"][0]["report"].take())
}

/// The words that have a policy that ships decide, with settings, `,key=value` each.
#[must_use]
pub fn policy(name: &str, settings: &str) -> String {
    format!(" --policy {}{settings}", component_path(name).display())
}
