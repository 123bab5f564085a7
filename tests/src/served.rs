//! A model under a whole server, with the default policies and without any, in turns: what decisions of policies cost.

use std::fmt::{self, Display, Formatter};

use anyhow::{Context, Result};
use pointsman_component::Digest;
use pointsman_config::Config;
use pointsman_core::Hook;
use pointsman_driver::provider::{ExecutorConfig, ModelConfig};
use pointsman_lifecycle::order::Order;
use pointsman_lifecycle::report::ReconcilerReport;
use pointsman_local::DeviceConfig;
use pointsman_policy::Commit;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::client::streamed_chat;
use crate::clock::milliseconds;
use crate::engine::{UnderLoad, under_load_of};
use crate::serving::Serving;

/// The load of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServedLoad {
    /// Clients in a closed loop.
    pub clients: usize,
    /// Slots of the executor.
    pub slots: u32,
    /// Requests of all of them in a round.
    pub requests: usize,
    /// Tokens of each answer.
    pub tokens: u32,
    /// Rounds with policies, and as many without.
    pub rounds: usize,
}

/// The rounds of a server.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The rounds in which the default policies decided.
    pub policies: Vec<ServedRound>,
    /// The rounds in which there was no policy, and the built-in rule decided.
    pub built_in: Vec<ServedRound>,
}

/// A round of a load.
#[derive(Clone, Copy, Debug)]
pub struct ServedRound {
    /// The figures of the engine.
    pub load: UnderLoad,
    /// Questions that policies answered.
    pub answers: u64,
}

/// A figure of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

/// The rounds in which the same decided, as a row of a table. Figures are medians; `least` and `most` belong to the one
/// before them.
struct Row<'a>(&'a str, &'a [ServedRound]);

/// The policies that were taken out of a server.
struct TakenOut {
    fingerprints: Vec<Digest>,
    /// The names of the holders that there were.
    holders: Vec<(Hook, String)>,
}

// === impl Spread ===

impl Spread {
    /// The spread of these figures; absent: there are none.
    fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<f64> = figures.collect();
        figures.sort_unstable_by(f64::total_cmp);
        Some(Self {
            least: *figures.first()?,
            median: *figures.get(figures.len() / 2)?,
            most: *figures.last()?,
        })
    }
}

// === impl Served ===

/// A table of two rows, beneath the names of its columns.
impl Display for Served {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "decided by        answers   tokens/s  least   most  step ms  least   most  sequences/step  waited   idle"
        )?;
        writeln!(f, "{}", Row("default policies", &self.policies))?;
        write!(f, "{}", Row("built-in rule", &self.built_in))
    }
}

impl Display for Row<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(name, rounds) = *self;
        let answers: u64 = rounds.iter().map(|round| round.answers).sum();
        let spread = |figure: fn(&UnderLoad) -> f64| {
            Spread::of(rounds.iter().map(|round| figure(&round.load))).ok_or(fmt::Error)
        };
        let tokens = spread(|load| load.tokens)?;
        let step = spread(|load| milliseconds(load.step))?;
        write!(
            f,
            "{name:<16} {answers:>8} {:>10.0} {:>6.0} {:>6.0} {:>8.3} {:>6.3} {:>6.3} {:>15.1} {:>6.2}% {:>5.2}%",
            tokens.median,
            tokens.least,
            tokens.most,
            step.median,
            step.least,
            step.most,
            spread(|load| load.sequences)?.median,
            100.0 * spread(|load| load.waited)?.median,
            100.0 * spread(|load| load.idle)?.median,
        )
    }
}

// === Measuring ===

/// Measures a server that has the model on the device under a load, and stops it: what comes next has the device's
/// memory. It is one server, so that the rounds differ in who decides, and in nothing else.
///
/// # Errors
/// If the server does not start, or a request fails.
pub async fn served(model: ModelConfig, device: DeviceConfig, load: ServedLoad) -> Result<Served> {
    let name = model.name.clone();
    let serving = Serving::start(|all: &mut Config| {
        let mut executor = ExecutorConfig::new(&name);
        executor.device = Some(device.name.clone());
        executor.terms.slots = load.slots;
        all.local.models = vec![model];
        all.local.devices = vec![device];
        all.local.executors = vec![executor];
    });
    let serving = serving.await?;
    let body = |client: usize| {
        let mut body = streamed_chat(&format!("Count from {client}."));
        body["model"] = json!(name);
        body["max_completion_tokens"] = json!(load.tokens);
        body["ignore_eos"] = json!(true);
        body
    };
    // The model is on the device when it has answered.
    serving.client.stream(&body(0)).await?.finish().await?;
    let mut served = Served::default();
    for _ in 0..load.rounds {
        served.policies.push(round(&serving, load, body).await?);
        let taken = take_out(&serving).await?;
        served.built_in.push(round(&serving, load, body).await?);
        put_back(&serving, &taken).await?;
    }
    serving.server.stop().await?;
    Ok(served)
}

async fn round(
    serving: &Serving,
    load: ServedLoad,
    body: impl Fn(usize) -> Value,
) -> Result<ServedRound> {
    let before = answers(serving).await?;
    let load = under_load_of(serving, (load.clients, load.requests), body).await?;
    let answers = answers(serving).await? - before;
    Ok(ServedRound { load, answers })
}

/// Number of questions that the policies there are have answered.
async fn answers(serving: &Serving) -> Result<u64> {
    let policies = serving.server.driver().policies().await;
    let policies = policies.context("no driver")?;
    let answers = policies.iter().map(|policy| policy.stats.answers.total());
    Ok(answers.sum())
}

// === Policies, out and back ===

/// Takes all policies out of a server. Orders take out none that is embedded, on which others fall back: so the driver is
/// told, and the reconciler has them in quarantine.
async fn take_out(serving: &Serving) -> Result<TakenOut> {
    let driver = serving.server.driver().clone();
    let holders = holders(&serving.server.reports().borrow());
    let policies = driver.policies().await.context("no driver")?;
    let why = "rounds without policies come next";
    let out = policies.iter();
    let out = out.map(|policy| (policy.number, why.to_owned()));
    let commit = Commit {
        roll_back: out.collect(),
        ..Commit::default()
    };
    let committed = spawn_blocking(move || driver.commit(commit)).await?;
    committed.context("no driver")??;
    let nobody = |report: &ReconcilerReport| report.policies.is_empty();
    serving.report_until(nobody).await?;
    let fingerprints = policies.iter().map(|policy| policy.fingerprint);
    Ok(TakenOut {
        fingerprints: fingerprints.collect(),
        holders,
    })
}

/// Puts policies back, and waits until each has its hooks again.
async fn put_back(serving: &Serving, taken: &TakenOut) -> Result<()> {
    for fingerprint in taken.fingerprints.iter().copied() {
        let release = Order::Release { fingerprint };
        serving.server.orders().order(release).await?;
    }
    let as_before = |report: &ReconcilerReport| holders(report) == taken.holders;
    serving.report_until(as_before).await?;
    Ok(())
}

/// The holder of each hook.
fn holders(report: &ReconcilerReport) -> Vec<(Hook, String)> {
    let holders = report.holders();
    holders
        .map(|(hook, holder)| (hook, holder.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_median_between_the_least_and_the_most() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        let expected = Spread {
            least: 1.0,
            median: 3.0,
            most: 9.0,
        };
        assert_eq!(spread(&[9.0, 1.0, 3.0]), Some(expected));
        assert_eq!(spread(&[]), None);
    }
}
