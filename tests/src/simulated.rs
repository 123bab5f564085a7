//! `pointsman simulate`, called as its command line is.

use anyhow::Result;
use clap::Parser;
use pointsman_component::EmbeddedPolicy;
use pointsman_experiments::simulate::{SimulateArgs, simulate};
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
