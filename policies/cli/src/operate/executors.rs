//! `pointsman executors`.

use anyhow::Result;
use clap::Subcommand;
use serde_json::{Value, json};

use super::{list, number, shown, text_of, words};
use crate::Done;
use crate::order::escaped;
use crate::server::ServerArgs;
use crate::table::Columns;
use pointsman_notation::grouped;

/// Arguments of `executors`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    order: Option<Order>,
    #[command(flatten)]
    server: ServerArgs,
}

/// An order about an executor.
#[derive(Clone, Debug, Subcommand)]
enum Order {
    /// Have an executor take nothing new; its requests go on
    Drain(About),
    /// Have a drained executor take requests again
    Resume(About),
    /// Have an executor drain, and go when its last request has ended
    Remove(About),
}

/// Arguments of an order.
#[derive(Clone, Debug, clap::Args)]
struct About {
    /// The executor's name
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    let Some(order) = &args.order else {
        let answer = args.server.get("/admin/executors")?;
        return Ok(shown(&args.server, answer, text));
    };
    let path = |about: &About| format!("/admin/executors/{}", escaped(&about.name));
    let (about, answer) = match order {
        Order::Drain(about) => {
            let path = format!("{}/drain", path(about));
            (about, about.server.post(&path, &json!({}))?)
        }
        Order::Resume(about) => {
            let path = format!("{}/resume", path(about));
            (about, about.server.post(&path, &json!({}))?)
        }
        Order::Remove(about) => (about, about.server.delete(&path(about))?),
    };
    Ok(shown(&about.server, answer, |told| {
        let mut columns = heading();
        add(&mut columns, told);
        columns.text()
    }))
}

fn heading() -> Columns<8> {
    Columns::new(&[
        "executor",
        "on",
        "health",
        "slots",
        "queue",
        "KV blocks",
        "placed",
        "models",
    ])
}

fn text(told: &Value) -> String {
    let mut columns = heading();
    for executor in list(&told["executors"]) {
        add(&mut columns, executor);
    }
    let load = &told["load"];
    let waiting = number(&load["queued"]) + number(&load["parked"]);
    let waiting = format!("\n{} requests wait in the host\n", grouped(waiting));
    columns.text() + &waiting
}

fn add(columns: &mut Columns<8>, executor: &Value) {
    let health = match executor["order"].as_str() {
        Some("remove") => format!("{}, is going", text_of(&executor["health"])),
        Some(_) | None => text_of(&executor["health"]).to_owned(),
    };
    let of = |used: &str, total: &str| {
        let (used, total) = (number(&executor[used]), number(&executor[total]));
        format!("{} of {}", grouped(used), grouped(total))
    };
    let models = if executor["models"].is_null() {
        "any".to_owned()
    } else {
        words(&executor["models"])
    };
    columns.add([
        text_of(&executor["name"]),
        text_of(&executor["device"]),
        &health,
        &of("slots_used", "slots_total"),
        &grouped(number(&executor["queued"])),
        &grouped(number(&executor["kv_blocks_used"])),
        &grouped(number(&executor["placed_total"])),
        &models,
    ]);
}
