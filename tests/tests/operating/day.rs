//! An operator's day on a server under load: a canary promoted, rolled back and released, hooks
//! bound and ejected, an executor added, drained and removed, a policy that traps. Then the journal
//! of all that, replayed.

use std::path::Path;
use std::task::Waker;

use anyhow::{Context, Result, ensure};
use pointsman_component::Digest;
use pointsman_config::{Config, JournalPlace};
use pointsman_core::Hook;
use pointsman_driver::port::eject;
use pointsman_lifecycle::order::orders;
use pointsman_lifecycle::report::{ReconcilerReport, TransactionOutcome};
use pointsman_policy_cli::Verdict;
use pointsman_tests::client::{Client, streamed_chat};
use pointsman_tests::journal::{replay_args, replay_said};
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::{Serving, component, holds};
use serde_json::{Value, json};

const CLIENTS: usize = 8;

/// Sends an order that must be carried out.
async fn order(client: Client, path: &str, body: Value) -> Result<Value> {
    let answer = client.post(&format!("/admin/{path}"), &body).await?;
    let said = answer.json()?;
    ensure!(answer.status.is_success(), "{path}: {said}");
    Ok(said)
}

fn holder(said: &Value, hook: &str) -> String {
    let policy = &said["hooks"][hook]["policy"];
    policy.as_str().unwrap_or("nobody").to_owned()
}

/// Sends some requests, so that the policies in force decide.
async fn traffic(client: Client) -> Result<()> {
    for _ in 0..12 {
        client.chat("Hello").await?.text()?;
    }
    Ok(())
}

/// Promotes a canary of almost all tenants, rolls it back, releases it from quarantine, promotes and binds
/// it.
async fn try_a_canary(serving: &Serving) -> Result<()> {
    let client = serving.client;
    let next = component("first-policy")?;
    // A share of 99 percent contains the tenant `default`.
    serving.drop_in("next.toml", b"mode = 'canary 99%'")?;
    serving.drop_in("next.wasm", &next)?;
    let is_canary = |report: &ReconcilerReport| {
        let mut made = report.transactions.iter();
        made.any(|made| {
            made.policy == "next" && matches!(made.outcome, TransactionOutcome::Canary(..))
        })
    };
    serving.report_until(is_canary).await?;
    let tried = client.chat("Hello").await?;
    ensure!(tried.header("x-pointsman-policy") == "next", "{tried:?}");
    traffic(client).await?;
    let said = order(client, "policies/next/promote", json!({})).await?;
    ensure!(holder(&said, "routing") == "next", "{said:#}");
    traffic(client).await?;

    let said = order(client, "policies/next/rollback", json!({})).await?;
    ensure!(holder(&said, "routing") == "memory-aware", "{said:#}");
    let entry = &said["quarantine"][0];
    ensure!(entry["digest"] == Digest::of(&next).to_string(), "{said:#}");
    let fingerprint = entry["fingerprint"].as_str().context("no fingerprint")?;
    traffic(client).await?;

    let release = format!("quarantine/{fingerprint}/release");
    let said = order(client, &release, json!({})).await?;
    ensure!(said["quarantine"] == json!([]), "{said:#}");
    // It is again what its file says.
    let is_there = |report: &ReconcilerReport| report.policies.iter().any(|it| it.name == "next");
    let report = serving.report_until(is_there).await?;
    ensure!(!holds(&report, "next"), "{report:#?}");
    let said = order(client, "policies/next/promote", json!({})).await?;
    ensure!(holder(&said, "routing") == "next", "{said:#}");
    traffic(client).await?;

    for policy in ["memory-aware", "next"] {
        let bind = json!({"hook": "routing", "policy": policy});
        let said = order(client, "bind", bind).await?;
        ensure!(holder(&said, "routing") == policy, "{said:#}");
        traffic(client).await?;
    }
    let said = order(client, "eject", json!({"hooks": ["routing"]})).await?;
    ensure!(holder(&said, "routing") == "memory-aware", "{said:#}");
    traffic(client).await?;
    // Without an order the policy in the folder holds the hook, as long as it is there.
    let said = order(client, "bind", json!({"hook": "routing"})).await?;
    ensure!(holder(&said, "routing") == "next", "{said:#}");
    traffic(client).await?;
    for file in ["next.wasm", "next.toml"] {
        std::fs::remove_file(serving.path(file))?;
    }
    serving
        .report_until(|report| !holds(report, "next"))
        .await?;
    Ok(())
}

/// Adds an executor for the model, drains one and brings it back, and removes the other.
async fn change_executors(client: Client) -> Result<()> {
    let another = json!({"name": "demo", "executor": "cpu0/demo-2", "slots": 2});
    order(client, "executors", another).await?;
    traffic(client).await?;
    order(client, "executors/cpu0/demo/drain", json!({})).await?;
    let there = client.chat("Hello").await?;
    ensure!(
        there.header("x-pointsman-executor") == "cpu0/demo-2",
        "{there:?}"
    );
    order(client, "executors/cpu0/demo/resume", json!({})).await?;
    traffic(client).await?;
    let removed = client.delete("/admin/executors/cpu0/demo-2").await?;
    ensure!(removed.status == 202, "{:?}", removed.json());
    traffic(client).await
}

/// Puts in a policy that traps, which is rolled back, and reads its dump.
async fn look_at_a_dump(serving: &Serving) -> Result<()> {
    let client = serving.client;
    let sidecar = "[settings]\noutrage = 'trap'\ncalls = ['route']\ngood-calls = 100\n";
    serving.drop_in("bad.toml", sidecar.as_bytes())?;
    serving.drop_in("bad.wasm", &component("test/hostile")?)?;
    let is_out = |report: &ReconcilerReport| {
        let mut made = report.transactions.iter();
        made.any(|made| {
            made.policy == "bad" && matches!(made.outcome, TransactionOutcome::RolledBack { .. })
        })
    };
    serving.report_until(is_out).await?;
    let dumps = loop {
        let said = client.get("/admin/dumps").await?.json()?;
        if said["dumps"]
            .as_array()
            .is_some_and(|dumps| !dumps.is_empty())
        {
            break said;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let listed = &dumps["dumps"][0];
    ensure!(
        listed["name"] == "bad" && listed["kind"] == "Trap",
        "{dumps:#}"
    );
    let dump = client
        .get(&format!("/admin/dumps/{}", listed["number"]))
        .await?
        .json()?;
    ensure!(dump["asked"]["routing"][0]["request"].is_u64(), "{dump:#}");
    ensure!(dump["mirror"]["rows"].as_u64() > Some(0), "{dump:#}");
    let detail = dump["detail"].as_str().unwrap_or_default();
    ensure!(detail.contains("outrage"), "no names in {detail}");
    ensure!(
        dump["settings"]
            .as_str()
            .is_some_and(|text| text.contains("trap")),
        "{dump:#}"
    );
    Ok(())
}

fn is_the_same(journal: &Path) -> Result<()> {
    let (said, verdict) = replay_said(&replay_args(journal))?;
    ensure!(verdict == Verdict::Good, "{said}");
    ensure!(!said.contains("began anew"), "nothing is missing: {said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_order_is_done_and_their_day_replayed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    let settings = |config: &mut Config| {
        config.state_folder = Some(folder.path().join("state"));
        config.journal.place = JournalPlace::Folder(journal.clone());
        config.journal.settings.file_bytes = 3 << 20;
        config.patience.snapshot_every = 8;
    };
    let serving = Serving::start(settings).await?;
    let load = LoadGenerator::start(serving.client, CLIENTS, |client| {
        let mut body = streamed_chat(&format!("Count to {}.", client % 5 + 2));
        body["max_tokens"] = json!(6);
        body
    });
    try_a_canary(&serving).await?;
    change_executors(serving.client).await?;
    look_at_a_dump(&serving).await?;
    let served = load.stop().await?;
    ensure!(served >= CLIENTS, "{served}");
    serving.idle().await?;
    serving.server.stop().await?;
    tokio::task::spawn_blocking(move || is_the_same(&journal)).await?
}

/// A policy folder on a disk that hangs holds the reconciler up, and may not hold the driver up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_are_ejected_at_once_though_the_reconciler_does_not_listen() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    serving.drop_in("first-policy.wasm", &component("first-policy")?)?;
    let in_force = |report: &ReconcilerReport| {
        let made = report.transactions.iter();
        let its = made.filter(|made| made.policy == "first-policy");
        its.filter(|made| matches!(made.outcome, TransactionOutcome::InForce(_)))
            .count()
    };
    serving.report_until(|report| in_force(report) == 1).await?;
    let (deaf, _inbox) = orders(Waker::noop().clone());
    let hooks = Hook::ALL.into_iter().collect();
    let is_noted = eject(serving.server.driver(), &deaf, hooks).await?;
    ensure!(!is_noted);
    // The server's own reconciler has heard of no order, and has seen that the policy was out.
    serving.report_until(|report| in_force(report) == 2).await?;
    serving.server.stop().await?;
    Ok(())
}
