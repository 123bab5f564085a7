//! Questions and orders of operators to a running server: executors, tenants, routes, decisions.
//!
//! Orders about policies are those of `pointsman policy`.

mod decisions;
mod executors;
mod route;
mod tenants;

use anyhow::Result;
use clap::Subcommand;
use serde_json::{Value, json};

use super::Done;
use super::server::{Answer, Format, ServerArgs};

/// A command that asks a running server.
#[derive(Clone, Debug, Subcommand)]
pub enum OperatorCommand {
    /// Show the executors of a running server, or have one drain, resume or go
    Executors(executors::Args),
    /// Show the tenants of a running server, with what they use of their limits
    Tenants(tenants::Args),
    /// Tell where a request would go in a running server, and why; nothing is sent there
    Route(Box<route::Args>),
    /// Show how the newest requests of a running server were decided
    Decisions(decisions::ListArgs),
    /// Tell how one request of a running server was decided, step by step
    Explain(decisions::ExplainArgs),
}

/// Asks the server, or gives the order.
///
/// # Errors
/// If the server cannot be asked.
pub fn operate(command: &OperatorCommand) -> Result<Done> {
    match command {
        OperatorCommand::Executors(args) => executors::run(args),
        OperatorCommand::Tenants(args) => tenants::run(args),
        OperatorCommand::Route(args) => route::run(args),
        OperatorCommand::Decisions(args) => decisions::list(args),
        OperatorCommand::Explain(args) => decisions::explain(args),
    }
}

/// The answer as it is printed: `text` of it for people.
fn shown(server: &ServerArgs, answer: Answer, text: impl FnOnce(&Value) -> String) -> Done {
    match (answer, server.format) {
        (Answer::Done(told), Format::Human) => Done::good(text(&told)),
        (Answer::Done(told), Format::Json) => Done::good(format!("{told:#}\n")),
        (Answer::Refused(why), Format::Human) => Done::not_good(format!("{why}\n")),
        (Answer::Refused(why), Format::Json) => {
            Done::not_good(format!("{:#}\n", json!({ "refused": why })))
        }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn words(value: &Value) -> String {
    let words: Vec<&str> = list(value).filter_map(Value::as_str).collect();
    words.join(", ")
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
