//! Simulations of fleets that are asked for more than they can do: what is still of use, how soon an
//! urgent request begins, and how often models change. Logical time, so a test can hold them to their numbers.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::simulated::{policy, report};

/// Seconds for which requests arrive.
const LASTING: u32 = 100;
/// Throughput requests that fill the fleet, and urgent ones that come meanwhile.
const BULK: u32 = 900;
const URGENT: u32 = 100;

/// Requests a second that came to their end in good time, of `rate` that arrive at four executors of
/// `llm-d`, 16 at once each. `settings` are those of `budget`: `,key=value` each.
///
/// # Errors
/// As the simulation has them.
pub fn goodput(rate: u32, settings: &str) -> Result<f64> {
    let requests = rate * LASTING;
    let workload = format!("poisson:rate={rate},requests={requests},prompt=1000,output=200");
    let report = simulate(
        &workload,
        &format!("llm-d --executors 4{}", policy("budget", settings)),
    )?;
    let good = report["good"].as_f64().context("no good requests")?;
    Ok(good / f64::from(LASTING))
}

/// Requests that came to their end of so many that arrive at once at four executors of `llm-d`, 16 at once each.
///
/// # Errors
/// As the simulation has them.
pub fn served_of_batch(requests: u32) -> Result<u64> {
    let workload = format!("poisson:rate=100000,requests={requests},prompt=1000,output=200");
    let report = simulate(&workload, "llm-d --executors 4")?;
    report["finished"].as_u64().context("no count")
}

/// Urgent requests at a fleet whose slots are taken.
#[derive(Clone, Copy, Debug)]
pub struct FullFleet {
    /// TTFT of the urgent ones, mean and p95, in milliseconds.
    pub ttft_mean_ms: f64,
    pub ttft_p95_ms: f64,
    /// Tokens generated for everybody, a second.
    pub tokens_per_s: f64,
    /// Sequences that gave way.
    pub evicted: u64,
}

impl FullFleet {
    /// Simulates them at four executors of `measured`, alone.
    ///
    /// # Errors
    /// As the simulation has them.
    pub fn solo() -> Result<Self> {
        Self::simulated(&urgent().collect::<Vec<_>>(), "")
    }

    /// Simulates them beside throughput work of another tenant that takes all slots it may, with `share-reserve` of
    /// `memory-aware` and `take-slots` of `budget`.
    ///
    /// # Errors
    /// As the simulation has them.
    pub fn beside_bulk(share_reserve: u32, take_slots: &str) -> Result<Self> {
        let policies = policy("budget", &format!(",take-slots={take_slots}"))
            + &policy("memory-aware", &format!(",share-reserve={share_reserve}"));
        Self::simulated(&bulk().chain(urgent()).collect::<Vec<_>>(), &policies)
    }

    fn simulated(lines: &[Value], policies: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("trace.jsonl");
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&path, text)?;
        let path = path.to_str().context("a path that is no text")?;
        let report = simulate(path, &format!("measured --executors 4{policies}"))?;
        let tenants = report["tenants"].as_array().context("no tenants")?;
        let urgent = tenants.iter().find(|tenant| tenant["name"] == "urgent");
        let ttft = &urgent.context("no urgent requests")?["ttft_ms"];
        let number = |value: &Value| value.as_f64().context("no number");
        Ok(Self {
            ttft_mean_ms: number(&ttft["mean"])?,
            ttft_p95_ms: number(&ttft["p95"])?,
            tokens_per_s: number(&report["output_tokens_per_s"])?,
            evicted: report["evicted"].as_u64().context("no evictions")?,
        })
    }
}

/// Ten models on four executors that have one of them loaded each.
#[derive(Clone, Copy, Debug)]
pub struct ModelChanges {
    /// Models loaded in the place of another.
    pub swaps: u64,
    /// TTFT, mean and p95, in milliseconds.
    pub ttft_mean_ms: f64,
    pub ttft_p95_ms: f64,
}

impl ModelChanges {
    /// Simulates them at executors of `llm-d` that load a model in 5 s, with further words.
    ///
    /// # Errors
    /// As the simulation has them.
    pub fn simulated(words: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("fleet.toml");
        fs::write(&path, SINGLE_MODEL_FLEET)?;
        let fleet = path.to_str().context("a path that is no text")?;
        let report = report(&format!("{MODELS} --fleet {fleet} {words}"))?;
        let number = |key: &str| report["ttft_ms"][key].as_f64().context("no number");
        Ok(Self {
            swaps: report["swaps"].as_u64().context("no swaps")?,
            ttft_mean_ms: number("mean")?,
            ttft_p95_ms: number("p95")?,
        })
    }
}

/// Settings of `budget` that have everybody wait: no order is helped by the requests that are refused behind it.
pub const PATIENT: &str = ",wait-max=24h,surge-wait-max=24h,share-wait-max=24h";

/// Words for a router with settings, `,key=value` each, and for admission that is [`PATIENT`].
#[must_use]
pub fn routed_by(router: &str, settings: &str) -> String {
    policy(router, settings) + &policy("budget", PATIENT)
}

/// The workload of [`ModelChanges`].
pub const MODELS: &str = "poisson:rate=8,requests=2000,prompt=500,output=100,models=10";
/// The fleet of [`ModelChanges`].
pub const SINGLE_MODEL_FLEET: &str = r#"[[executors]]
count = 4
profile = "llm-d"
models-max = 1
model-load = "5s"
"#;

/// Throughput work of the first second, of lengths that differ.
fn bulk() -> impl Iterator<Item = Value> {
    (0..BULK).map(|idx| {
        json!({
            "timestamp": f64::from(idx) * 1000.0 / f64::from(BULK),
            "input_length": 225 + idx * 37 % 150,
            "output_length": 400 + idx * 211 % 800,
            "tenant": "bulk",
            "class": "throughput",
        })
    })
}

/// Urgent requests, one each 0.3 s from the third second on.
fn urgent() -> impl Iterator<Item = Value> {
    (0..URGENT).map(|idx| {
        json!({
            "timestamp": 3000 + 300 * idx,
            "input_length": 200,
            "output_length": 30,
            "tenant": "urgent",
            "class": "latency-critical",
        })
    })
}

/// The report of one run over a profile, with further words.
fn simulate(workload: &str, profile: &str) -> Result<Value> {
    report(&format!("{workload} --profile {profile}"))
}
