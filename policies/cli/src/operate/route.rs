//! `pointsman route`: where a request would go.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{list, number, shown, text_of};
use crate::Done;
use crate::server::ServerArgs;
use crate::table::Columns;
use pointsman_notation::grouped;

/// Arguments of `route`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The model; not given: any, where the server takes such requests
    #[arg(long)]
    model: Option<String>,
    /// The prompt
    #[arg(long, conflicts_with = "prompt_tokens")]
    prompt: Option<String>,
    /// The length of the prompt, in its place
    #[arg(long, value_name = "N", default_value_t = 100)]
    prompt_tokens: u32,
    /// Most tokens of the answer; not given: as a request that names no bound
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// The tenant that would ask; not given: `default`
    #[arg(long)]
    tenant: Option<String>,
    /// The session that the request would be in
    #[arg(long)]
    session: Option<String>,
    /// latency-critical or throughput
    #[arg(long)]
    class: Option<String>,
    /// The urgency; larger is more urgent
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    let answer = args.server.post("/admin/route", &body(args))?;
    Ok(shown(&args.server, answer, text))
}

/// The question, with what was given alone.
fn body(args: &Args) -> Value {
    let given = |fields: Vec<(&str, Option<Value>)>| -> Map<String, Value> {
        let fields = fields.into_iter();
        fields
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    };
    let hints = given(vec![
        ("session", args.session.clone().map(Value::from)),
        ("class", args.class.clone().map(Value::from)),
        ("priority", args.priority.map(Value::from)),
    ]);
    let length = args.prompt.is_none().then_some(args.prompt_tokens);
    Value::Object(given(vec![
        ("model", args.model.clone().map(Value::from)),
        ("prompt", args.prompt.clone().map(Value::from)),
        ("prompt_tokens", length.map(Value::from)),
        ("max_tokens", args.max_tokens.map(Value::from)),
        ("tenant", args.tenant.clone().map(Value::from)),
        ("pointsman", (!hints.is_empty()).then(|| json!(hints))),
    ]))
}

fn text(told: &Value) -> String {
    let by = &told["by"];
    let policy = match by["policy"].as_str() {
        Some(policy) => format!("by {policy}"),
        None => "by the built-in rule".to_owned(),
    };
    let reason = match by["reason"].as_str().filter(|reason| !reason.is_empty()) {
        Some(reason) => format!(": {reason}"),
        None => String::new(),
    };
    let outcome = match told["would"].as_str().unwrap_or("") {
        "place" => format!("goes to {}", text_of(&told["executor"])),
        "wait" => "waits: nothing that the answer names could take it now".to_owned(),
        "hold" => "is held on purpose".to_owned(),
        "give-up" => "is given up".to_owned(),
        other => other.to_owned(),
    };
    let request = &told["request"];
    let asked = format!(
        "a request of tenant {} for {} ({} prompt tokens, up to {} more)",
        text_of(&request["tenant"]),
        request["model"].as_str().unwrap_or("any model"),
        grouped(number(&request["prompt_tokens"])),
        grouped(number(&request["output_tokens_max"])),
    );
    let mut columns = Columns::new(&["executor", "takes it now", "cost", "because"]);
    for candidate in list(&told["candidates"]) {
        let takes = match candidate["takes_it_now"].as_bool() {
            Some(true) => "yes",
            Some(false) | None => "no",
        };
        let note = candidate["note"].as_str();
        let why = note.unwrap_or_else(|| text_of(&candidate["interlock"]));
        let cost = candidate["cost"].as_i64();
        columns.add([
            text_of(&candidate["executor"]),
            takes,
            &cost.map_or("-".to_owned(), |cost| cost.to_string()),
            why,
        ]);
    }
    format!("{asked} {outcome}, {policy}{reason}\n\n{}", columns.text())
}
