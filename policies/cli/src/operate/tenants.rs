//! `pointsman tenants`.

use anyhow::Result;
use serde_json::Value;

use super::{list, number, shown, text_of};
use crate::Done;
use crate::server::ServerArgs;
use crate::table::Columns;
use pointsman_notation::grouped;

/// Arguments of `tenants`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    let answer = args.server.get("/admin/tenants")?;
    Ok(shown(&args.server, answer, text))
}

fn text(told: &Value) -> String {
    let mut columns = Columns::new(&[
        "tenant",
        "weight",
        "running",
        "waiting",
        "tokens",
        "requests a minute",
        "tokens a minute",
        "at once",
    ]);
    for tenant in list(&told["tenants"]) {
        let count = |key: &str| grouped(number(&tenant[key]));
        let used = |key: &str| {
            let limit = &tenant["limits"][key];
            let Some(max) = limit["max"].as_u64() else {
                return "-".to_owned();
            };
            format!("{} of {}", grouped(number(&limit["used"])), grouped(max))
        };
        columns.add([
            text_of(&tenant["name"]),
            &count("weight"),
            &count("running"),
            &count("waiting"),
            &count("tokens_total"),
            &used("requests_per_minute"),
            &used("tokens_per_minute_max"),
            &used("concurrent_max"),
        ]);
    }
    columns.text()
}
