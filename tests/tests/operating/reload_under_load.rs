//! Policies of a running server, replaced by good ones and by garbage.
//!
//! # Not here
//! Hostile policies in force: `hostile_under_load.rs`.

use anyhow::{Result, ensure};
use pointsman_component::Digest;
use pointsman_lifecycle::report::ReconcilerReport;
use pointsman_tests::client::streamed_chat;
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::{Serving, component, sidecar};
use serde_json::json;

const CLIENTS: usize = 64;
const REPLACEMENTS: usize = 100;
/// Number of replacements between two files of garbage.
const GARBAGE_EVERY: usize = 5;

/// True if the policy `name` is in force with this code.
fn is_in_force(report: &ReconcilerReport, name: &str, digest: Digest) -> bool {
    let mut policies = report.policies.iter();
    policies.any(|policy| policy.name == name && policy.digest == digest && !policy.held.is_empty())
}

/// True if code of `name` was refused, for some reason.
fn is_refused(report: &ReconcilerReport, name: &str, digest: Digest) -> bool {
    let mut refused = report.refused.iter();
    refused.any(|(refused, refusal)| {
        refused == name && refusal.digest == Some(digest) && !refusal.why.is_empty()
    })
}

/// Files that are no policy, of several kinds.
fn garbage(good: &[u8], round: usize) -> Vec<u8> {
    match round % 4 {
        0 => good[..good.len() / (2 + round)].to_vec(),
        1 => format!("not a component, {round}").into_bytes(),
        2 => {
            // The head of a core module.
            let mut module = b"\0asm\x01\0\0\0".to_vec();
            module.extend(round.to_le_bytes());
            module
        }
        _ => good.iter().map(|byte| byte ^ 0x55).skip(round).collect(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_replacements_and_twenty_files_of_garbage_fail_no_request() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let policies = [component("first-policy")?, component("memory-aware")?];
    let load = LoadGenerator::start(serving.client, CLIENTS, |client| {
        streamed_chat(&format!("Count from {client} to {}.", client + 3))
    });
    for replacement in 0..REPLACEMENTS {
        let good = &policies[replacement % 2];
        serving.drop_in("router.wasm", good)?;
        let digest = Digest::of(good);
        serving
            .report_until(|report| is_in_force(report, "router", digest))
            .await?;
        if replacement % GARBAGE_EVERY == 0 {
            let bad = garbage(good, replacement / GARBAGE_EVERY);
            serving.drop_in("router.wasm", &bad)?;
            let bad = Digest::of(&bad);
            let report = serving
                .report_until(|report| is_refused(report, "router", bad))
                .await?;
            ensure!(is_in_force(&report, "router", digest), "{report:#?}");
        }
    }
    let served = load.stop().await?;
    ensure!(served >= CLIENTS, "{served} requests served");
    let load = serving.idle().await?;
    ensure!((load.queued, load.parked) == (0, 0), "{load:?}");

    let last = Digest::of(&policies[(REPLACEMENTS - 1) % 2]);
    let admin = serving.client.get("/admin/policies").await?.json()?;
    ensure!(admin.to_string().contains(&last.to_string()), "{admin:#}");
    let answer = serving.client.chat("Hello").await?;
    ensure!(answer.header("x-pointsman-policy") == "router");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_trap_or_loop_in_configure_are_refused() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let hostile = component("test/hostile")?;
    for (name, settings) in [
        ("trap", json!({"outrage": "trap", "calls": ["configure"]})),
        ("loop", json!({"outrage": "loop", "calls": ["configure"]})),
        ("unknown", json!({"no-such-setting": 1})),
    ] {
        serving.drop_in(&format!("{name}.toml"), sidecar(&settings)?.as_bytes())?;
        serving.drop_in(&format!("{name}.wasm"), &hostile)?;
        let digest = Digest::of(&hostile);
        let report = serving
            .report_until(|report| is_refused(report, name, digest))
            .await?;
        ensure!(!is_in_force(&report, name, digest), "{report:#?}");
        let admin = serving.client.get("/admin/policies").await?.json()?;
        ensure!(admin.to_string().contains(name), "{admin:#}");
        let answer = serving.client.chat("Hello").await?;
        ensure!(answer.header("x-pointsman-policy") == "memory-aware");
    }
    let metrics = serving.client.get("/metrics").await?;
    let metrics = String::from_utf8(metrics.body)?;
    ensure!(metrics.contains("configure"), "{metrics}");
    Ok(())
}
