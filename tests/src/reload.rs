//! The benchmark `reload`: the time from a new file to its policy in force.
//!
//! A whole server serves requests. A file in its folder is replaced by two policies in turn. Timed
//! are the way from the file's rename to the first answer that names the new policy, and the pause
//! of the driver, by the server's own record.

use std::time::Duration;

use anyhow::{Context, Result};
use pointsman_component::Digest;
use pointsman_core::Micros;
use pointsman_lifecycle::report::ReconcilerReport;

use crate::client::streamed_chat;
use crate::clock::clock;
use crate::load::LoadGenerator;
use crate::serving::{Serving, component};

/// A case of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of replacements.
    pub reloads: usize,
    /// Number of clients that chat meanwhile.
    pub clients: usize,
    /// Each file's bytes differ from all before, so that each is compiled.
    pub compiled: Compiled,
}

/// The number of components that are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// One for each replacement.
    Each,
    /// Two, once each; then they are in the cache.
    Once,
}

/// The figures of one case, each list sorted.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// From the file's rename to the first answer by the new policy, less the settle time.
    pub to_first_decision: Vec<Duration>,
    /// From the file's rename to the reconciler's report, less the settle time.
    pub to_force: Vec<Duration>,
    /// Time for which the driver was held up.
    pub pause: Vec<Duration>,
    /// Number of requests served meanwhile, all without error.
    pub served: usize,
}

/// Settle time of the measured server.
const SETTLE: Duration = Duration::from_millis(20);

/// Replaces the policy `case.reloads` times.
///
/// # Errors
/// If a request or a reload fails.
pub async fn measure(case: Case) -> Result<Measured> {
    let serving = Serving::start(|config| config.policies.settle = SETTLE).await?;
    let load = LoadGenerator::start(serving.client, case.clients, |client| {
        streamed_chat(&format!("Count from {client} to {}.", client + 5))
    });
    let policies = [
        (FIRST, component(FIRST)?),
        ("memory-aware", component("memory-aware")?),
    ];
    let mut measured = Measured::default();
    for reload in 0..case.reloads {
        let (name, good) = &policies[reload % 2];
        let file = match case.compiled {
            Compiled::Each => marked(good, reload),
            Compiled::Once => good.clone(),
        };
        let now = clock();
        serving.drop_in("router.wasm", &file)?;
        let digest = Digest::of(&file);
        let report = serving
            .report_until(|report| is_in_force(report, digest))
            .await?;
        measured.to_force.push(now().saturating_sub(SETTLE));
        decided_by(&serving, name).await?;
        measured
            .to_first_decision
            .push(now().saturating_sub(SETTLE));
        measured.pause.push(pause(&report, digest)?);
    }
    measured.served = load.stop().await?;
    measured.to_first_decision.sort_unstable();
    measured.to_force.sort_unstable();
    measured.pause.sort_unstable();
    Ok(measured)
}

fn is_in_force(report: &ReconcilerReport, digest: Digest) -> bool {
    let mut policies = report.policies.iter();
    policies.any(|policy| policy.digest == digest && !policy.held.is_empty())
}

fn pause(report: &ReconcilerReport, digest: Digest) -> Result<Duration> {
    let mut newest = report.transactions.iter().rev();
    let transaction = newest.find(|transaction| transaction.digest == Some(digest));
    let Micros(pause) = transaction
        .and_then(|transaction| transaction.pause)
        .context("no pause was recorded")?;
    Ok(Duration::from_micros(pause))
}

/// One of the two policies.
const FIRST: &str = "first-policy";

/// The reason of [`FIRST`] for its placements, by which it is told apart: both policies are shown
/// under the name of the file.
const FIRST_REASON: &str = "most free slots";

/// Asks until the policy that calls itself `name` has routed a request.
async fn decided_by(serving: &Serving, name: &str) -> Result<()> {
    let mut body = streamed_chat("Hello");
    body["max_tokens"] = serde_json::json!(1);
    loop {
        let stream = serving.client.stream(&body).await?;
        let reason = stream.headers.get("x-pointsman-reason");
        let decided = reason.is_some_and(|reason| (reason == FIRST_REASON) == (name == FIRST));
        stream.finish().await?;
        if decided {
            return Ok(());
        }
    }
}

/// The same component with a custom section of its own.
fn marked(component: &[u8], mark: usize) -> Vec<u8> {
    let name = b"mark";
    let content = mark.to_le_bytes();
    let mut marked = component.to_vec();
    // Id 0, the section's length, then a name with its own. Both lengths fit one LEB128 byte.
    let length = 1 + name.len() + content.len();
    marked.push(0);
    marked.extend([length, name.len()].map(|len| u8::try_from(len).unwrap_or(u8::MAX)));
    marked.extend(name);
    marked.extend(content);
    marked
}
