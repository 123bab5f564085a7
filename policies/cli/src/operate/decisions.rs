//! `pointsman decisions` and `pointsman explain`: how requests were decided, told for people.

use std::time::Duration;

use anyhow::Result;
use pointsman_notation::Time;
use serde_json::Value;

use super::{list as items, number, shown, text_of};
use crate::Done;
use crate::order::escaped;
use crate::server::ServerArgs;
use crate::table::Columns;
use pointsman_notation::grouped;

/// Arguments of `decisions`.
#[derive(Clone, Debug, clap::Args)]
pub struct ListArgs {
    /// The number of requests, the newest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: u32,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `explain`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExplainArgs {
    /// The request: the value of its header `x-pointsman-request`, or the id of its completion
    request: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn list(args: &ListArgs) -> Result<Done> {
    let path = format!("/admin/decisions?last={}", args.last);
    let answer = args.server.get(&path)?;
    Ok(shown(&args.server, answer, all))
}

pub(super) fn explain(args: &ExplainArgs) -> Result<Done> {
    let path = format!("/admin/decisions/{}", escaped(&args.request));
    let answer = args.server.get(&path)?;
    Ok(shown(&args.server, answer, one))
}

fn all(told: &Value) -> String {
    let heading = [
        "request", "tenant", "model", "executor", "by", "because", "outcome",
    ];
    let mut columns = Columns::new(&heading);
    for request in items(&told["decisions"]) {
        let steps: Vec<&Value> = items(&request["steps"]).collect();
        let decisive = |step: &&&Value| {
            let what = step["what"].as_str().unwrap_or("");
            ["placed", "held", "turned-away", "parked"].contains(&what)
        };
        let last = steps.iter().rev().find(decisive).copied();
        let last = last.unwrap_or(&Value::Null);
        columns.add([
            &request["id"].to_string(),
            text_of(&request["tenant"]),
            request["model"].as_str().unwrap_or("any"),
            text_of(&last["executor"]),
            text_of(&last["by"]),
            text_of(&last["reason"]),
            outcome(&request["outcome"]),
        ]);
    }
    let text = columns.unless_empty();
    if text.is_empty() {
        return "no request is remembered\n".to_owned();
    }
    text
}

fn outcome(ending: &Value) -> &str {
    ending["told"].as_str().unwrap_or("in hand")
}

fn one(told: &Value) -> String {
    let mut text = head(told);
    let steps: Vec<&Value> = items(&told["steps"]).collect();
    let arrived = told["asked"]["arrived_micros"].as_u64();
    let arrived = arrived.or_else(|| steps.first()?["at_micros"].as_u64());
    for step in steps {
        let at = number(&step["at_micros"]).saturating_sub(arrived.unwrap_or(0));
        let times = match step["times"].as_u64() {
            Some(times) => format!(" ({} rounds in a row)", grouped(times)),
            None => String::new(),
        };
        let round = text_of(&step["round"]);
        let at = format!("+{:.1}", Time(Duration::from_micros(at)));
        text.push_str(&format!(
            "  {at:>9}  round {round:<6} {}{times}\n",
            text_of(&step["told"])
        ));
    }
    let forgotten = number(&told["steps_forgotten"]);
    if forgotten > 0 {
        let forgotten = grouped(forgotten);
        text.push_str(&format!("  {forgotten} steps in between were forgotten\n"));
    }
    text.push_str(&format!("  {}\n", outcome(&told["outcome"])));
    text.push_str(&explanation(&told["explanation"]));
    text
}

fn head(told: &Value) -> String {
    let asked = &told["asked"];
    let model = told["model"].as_str().unwrap_or("any model");
    let mut text = format!(
        "request {} of tenant {} for {model}\n",
        told["id"],
        text_of(&told["tenant"])
    );
    if asked.is_object() {
        let deadline = asked["deadline_micros"].as_u64();
        let arrived = number(&asked["arrived_micros"]);
        let deadline = deadline.map_or(String::new(), |at| {
            let within = Duration::from_micros(at.saturating_sub(arrived));
            format!(", of use for {:.1}", Time(within))
        });
        text.push_str(&format!(
            "  {} prompt tokens, up to {} more; {}, priority {}{deadline}\n",
            grouped(number(&asked["prompt_tokens"])),
            grouped(number(&asked["output_tokens_max"])),
            text_of(&asked["class"]),
            asked["priority"],
        ));
    }
    text
}

fn explanation(told: &Value) -> String {
    let mut columns = Columns::new(&["executor", "eligible", "cost", "note"]);
    for candidate in items(&told["candidates"]) {
        let eligible = candidate["eligible"].as_bool() == Some(true);
        columns.add([
            text_of(&candidate["executor"]),
            if eligible { "yes" } else { "no" },
            &candidate["cost"].to_string(),
            text_of(&candidate["note"]),
        ]);
    }
    let table = columns.unless_empty();
    match told["by"].as_str() {
        Some(by) if !table.is_empty() => format!("\nwhat {by} would say of it now\n{table}"),
        Some(_) | None => String::new(),
    }
}
