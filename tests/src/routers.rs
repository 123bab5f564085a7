//! Simulations of the routing policies that ship, side by side.

use anyhow::{Context, Result};
use pointsman_server::embedded;
use pointsman_testkit::component::component_path;

use crate::simulated::said;

/// Policies that route otherwise than the default: round robin, and Dynamo's formula with its own
/// weights and with those that served it best on the conversation trace.
const ROUTERS: [&str; 6] = [
    "round-robin",
    "least-loaded",
    "sticky",
    "prefix-bound",
    "kv-cost",
    "kv-cost,prefill-scale=16000",
];

/// The table of a simulation with these words: a row of the default policies, and one of each of the other routers.
///
/// # Errors
/// As the simulation has them.
pub fn compared(words: &str) -> Result<String> {
    let routers = ROUTERS.map(|router| {
        let (name, settings) = router.split_once(',').unwrap_or((router, ""));
        let path = component_path(name).display().to_string();
        if settings.is_empty() {
            path
        } else {
            format!("{path},{settings}")
        }
    });
    let words = words.split_whitespace().chain(["--compare"]);
    let words = words.chain(routers.iter().map(String::as_str));
    let defaults = embedded::policies().context("the policies are not embedded")?;
    said(words, defaults)
}
