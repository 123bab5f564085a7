//! `policy dump`: the dumps of faults of policies, in a server or in a file of its state folder.

use std::path::PathBuf;

use anyhow::{Context, Result};
use pointsman_notation::Time;
use serde_json::{Value, json};

use super::server::{Answer, Format, ServerArgs};
use super::table::{Columns, Facts};
use super::{Done, file};

/// Arguments of `policy dump`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The number of a dump, as the list shows it; not given: the list
    number: Option<u64>,
    /// Show the dump in this file, and ask no server
    #[arg(long, value_name = "FILE", conflicts_with = "number")]
    file: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    let format = args.server.format;
    if let Some(path) = &args.file {
        let bytes = file::read(path)?;
        let dump = serde_json::from_slice(&bytes);
        let dump: Value = dump.with_context(|| format!("{} is no dump", path.display()))?;
        return Ok(Done::good(shown(&dump, format, one)));
    }
    let (path, text): (String, fn(&Value) -> String) = match args.number {
        Some(number) => (format!("/admin/dumps/{number}"), one),
        None => ("/admin/dumps".to_owned(), list),
    };
    Ok(match args.server.get(&path)? {
        Answer::Done(told) => Done::good(shown(&told, format, text)),
        Answer::Refused(why) => Done::not_good(match format {
            Format::Human => format!("{why}\n"),
            Format::Json => format!("{:#}\n", json!({ "refused": why })),
        }),
    })
}

fn shown(told: &Value, format: Format, text: fn(&Value) -> String) -> String {
    match format {
        Format::Human => text(told),
        Format::Json => format!("{told:#}\n"),
    }
}

fn list(told: &Value) -> String {
    let mut columns = Columns::new(&["number", "policy", "version", "kind", "at", "message"]);
    for dump in told["dumps"].as_array().into_iter().flatten() {
        let detail = text_of(&dump["detail"]);
        columns.add([
            &dump["number"].to_string(),
            text_of(&dump["name"]),
            text_of(&dump["version"]),
            text_of(&dump["kind"]),
            &at(dump),
            detail.lines().next().unwrap_or(""),
        ]);
    }
    let text = columns.unless_empty();
    if text.is_empty() {
        return "no fault has left anything behind\n".to_owned();
    }
    text
}

fn one(dump: &Value) -> String {
    let mut facts = Facts::default();
    for (what, key) in [
        ("policy", "name"),
        ("version", "version"),
        ("digest", "digest"),
        ("fingerprint", "fingerprint"),
        ("settings", "settings"),
        ("kind", "kind"),
    ] {
        facts.add(what, text_of(&dump[key]));
    }
    facts.add("generation", dump["generation"].to_string());
    facts.add("at", at(dump));
    facts.add("asked", dump["asked"].to_string());
    facts.add("mirror", dump["mirror"].to_string());
    let (detail, trace) = (text_of(&dump["detail"]), text_of(&dump["trace"]));
    let facts = facts.text();
    if trace.len() < 2 {
        return format!("{detail}\n\n{facts}");
    }
    format!("{detail}\n\n{facts}\nevery frame, innermost first\n{trace}\n")
}

/// The time of a fault since the host's start.
fn at(dump: &Value) -> String {
    Time::from_micros(dump["at"].as_u64().unwrap_or(0)).to_string()
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}
