//! What is said of policies is so: over HTTP, in the log and in the metrics.

use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, JournalPlace};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_lifecycle::report::{ReconcilerReport, TransactionOutcome};
use pointsman_policy_cli::journal::ReplayArgs;
use pointsman_testkit::component::component_path;
use pointsman_tests::client::Client;
use pointsman_tests::journal::{replay_args, replay_said};
use pointsman_tests::log::Log;
use pointsman_tests::serving::{Serving, component, holds, serve_demo};
use serde_json::{Value, json};

/// The words of a fault of the hostile guest, but for the number of the line.
const SAID: [&str; 2] = [
    "bad panicked at tests/guests/examples/hostile/lib.rs:",
    ": as it was told",
];

/// The log of all tests here.
fn log() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| Log::begin("info").expect("no other log is begun here"))
        .clone()
}

/// Checks that a line says what happened, and nothing else.
fn is_said(line: &Value) -> Result<()> {
    let text = line.as_str().context("no text")?;
    let [begins, ends] = SAID;
    ensure!(text.starts_with(begins) && text.ends_with(ends), "{text}");
    ensure!(!text.contains('\n'), "{text}");
    Ok(())
}

fn has_ended(report: &ReconcilerReport, wanted: fn(&TransactionOutcome) -> bool) -> bool {
    let mut made = report.transactions.iter();
    made.any(|made| made.policy == "bad" && wanted(&made.outcome))
}

async fn policies(client: Client) -> Result<Value> {
    client.get("/admin/policies").await?.json()
}

/// Asks for answers until a policy is taken out.
async fn ask_until_out(serving: &Serving) -> Result<()> {
    let is_out = |report: &ReconcilerReport| {
        has_ended(report, |outcome| {
            matches!(outcome, TransactionOutcome::RolledBack { .. })
        })
    };
    for _ in 0..400 {
        serving.client.chat("Hello").await?.text()?;
        if is_out(&serving.server.reports().borrow()) {
            return Ok(());
        }
    }
    serving.report_until(is_out).await?;
    Ok(())
}

#[tokio::test]
async fn a_self_test_that_panics_is_told_with_the_words_of_the_panic() -> Result<()> {
    let log = log();
    let serving = Serving::start(|_| {}).await?;
    let sidecar = b"[settings]\noutrage = 'trap'\ncalls = ['route']\n";
    serving.drop_in("bad.toml", sidecar)?;
    serving.drop_in("bad.wasm", &component("test/hostile")?)?;
    let is_refused =
        |report: &ReconcilerReport| report.refused.iter().any(|(name, _)| name == "bad");
    serving.report_until(is_refused).await?;
    let said = policies(serving.client).await?;
    let refused = &said["refused"][0];
    ensure!(refused["step"] == "self-test", "{refused}");
    let why = refused["why"].as_str().context("no reason")?;
    let fault = why.strip_prefix("self-test with one executor: ");
    is_said(&json!(fault))?;
    log.until(why).await?;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_fault_is_one_sentence_wherever_it_is_told() -> Result<()> {
    let log = log();
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let serving = Serving::start(|config| config.state_folder = Some(state)).await?;
    let sidecar = b"[settings]\noutrage = 'trap'\ncalls = ['route']\ngood-calls = 100\n";
    serving.drop_in("bad.toml", sidecar)?;
    serving.drop_in("bad.wasm", &component("test/hostile")?)?;
    serving.report_until(|report| holds(report, "bad")).await?;
    ask_until_out(&serving).await?;

    let said = policies(serving.client).await?;
    let why = said["quarantine"][0]["why"].as_str().context("no entry")?;
    let fault = why.split_once("the last one: ").context("no fault")?.1;
    is_said(&json!(fault))?;
    log.until(&format!("fault=\"{fault}\"")).await?;
    let logged = log.text();
    ensure!(!logged.contains("(retired)"), "{logged}");

    let dumps = serving.client.get("/admin/dumps").await?.json()?;
    let number = &dumps["dumps"][0]["number"];
    let dump = serving
        .client
        .get(&format!("/admin/dumps/{number}"))
        .await?;
    let dump = dump.json()?;
    let detail = dump["detail"].as_str().context("no detail")?;
    let mut lines = detail.lines();
    is_said(&json!(lines.next()))?;
    ensure!(lines.clone().count() > 0, "no functions in {detail}");
    for line in lines {
        let function = line.strip_prefix("  in ").context(line.to_owned())?;
        let is_of_std = ["std::", "core::", "rust_", "_ZN"].map(|it| function.starts_with(it));
        ensure!(!is_of_std.contains(&true), "{function}");
    }
    let trace = dump["trace"].as_str().context("no trace")?;
    ensure!(trace.contains("core::panicking::panic_fmt"), "{trace}");

    let metrics = serving.client.get("/metrics").await?;
    let metrics = String::from_utf8(metrics.body)?;
    let faults = metrics
        .lines()
        .filter(|line| line.contains("policy_faults_total{"));
    let faults: Vec<&str> = faults.collect();
    ensure!(
        faults.iter().any(|line| line.contains("policy=\"bad\"")),
        "{faults:?}"
    );
    ensure!(!metrics.contains("(retired)"), "{faults:?}");
    serving.server.stop().await?;
    Ok(())
}

/// The comparison of a shadow's routing with the one in force, once `at_least` decisions are compared.
async fn compared(client: Client, at_least: u64) -> Result<Value> {
    loop {
        let said = policies(client).await?;
        let seen = &said["shadows"][0]["hooks"]["routing"];
        if seen["compared"].as_u64() >= Some(at_least) {
            return Ok(seen.clone());
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// One policy names the first executor with room, the other one every other executor after it. The live shadow
/// and the replay say the same: each request goes to the same place.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_lead_to_the_same_place_are_not_said_to_differ() -> Result<()> {
    const REQUESTS: u64 = 12;
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    let serving = Serving::start(|config| {
        config.journal.place = JournalPlace::Folder(journal.clone());
        let two = ["cpu0/one", "cpu0/two"];
        serve_demo(config, two.map(|name| (name, ExecutorTerms::default())));
    })
    .await?;
    serving.decide_by("router", "test/hostile", "").await?;
    let fallbacks = "[settings]\nanswers = 'with-fallbacks'\n";
    let sidecar = format!("mode = 'shadow'\n{fallbacks}");
    serving.drop_in("shade.toml", sidecar.as_bytes())?;
    serving.drop_in("shade.wasm", &component("test/hostile")?)?;
    let is_shadow = |report: &ReconcilerReport| {
        let mut made = report.transactions.iter();
        made.any(|made| matches!(made.outcome, TransactionOutcome::Shadow(_)))
    };
    serving.report_until(is_shadow).await?;
    for _ in 0..REQUESTS {
        serving.client.chat("Hello").await?.text()?;
    }
    let seen = compared(serving.client, REQUESTS).await?;
    let expected =
        json!({"compared": REQUESTS, "agreed": REQUESTS, "fallbacks": REQUESTS, "differed": 0});
    ensure!(seen == expected, "{seen}");
    serving.server.stop().await?;
    let settings = folder.path().join("settings.toml");
    std::fs::write(&settings, fallbacks)?;
    let args = ReplayArgs {
        policy: Some(component_path("test/hostile")),
        settings: Some(settings),
        ..replay_args(&journal)
    };
    let (said, _) = tokio::task::spawn_blocking(move || replay_said(&args)).await??;
    let counted = format!(
        "would have decided 0 of {REQUESTS} otherwise at routing, and {REQUESTS} alike but for the \
         fallbacks"
    );
    ensure!(said.contains(&counted), "{said}");
    Ok(())
}

/// A server with a state folder and a policy folder in `folder`.
async fn life(folder: &std::path::Path) -> Result<Serving> {
    let kept = |config: &mut Config| {
        config.state_folder = Some(folder.join("state"));
        config.policies.folder = Some(folder.join("policies.d"));
    };
    Serving::start(kept).await
}

fn drop_in(folder: &std::path::Path, name: &str, wasm: &[u8]) -> Result<()> {
    let beside = folder.join("new");
    std::fs::write(&beside, wasm)?;
    std::fs::rename(beside, folder.join("policies.d").join(name))?;
    Ok(())
}

#[tokio::test]
async fn a_restart_does_not_change_who_decides() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    std::fs::create_dir(folder.join("policies.d"))?;
    let (a, b) = (component("first-policy")?, component("least-loaded")?);
    let serving = life(folder).await?;
    drop_in(folder, "a.wasm", &a)?;
    serving.report_until(|report| holds(report, "a")).await?;
    let nothing = json!({});
    let back = serving.client.post("/admin/policies/a/rollback", &nothing);
    ensure!(back.await?.status.is_success());
    drop_in(folder, "b.wasm", &b)?;
    serving.report_until(|report| holds(report, "b")).await?;
    serving.server.stop().await?;

    let serving = life(folder).await?;
    serving.report_until(|report| report.begun).await?;
    let said = policies(serving.client).await?;
    ensure!(said["hooks"]["routing"]["policy"] == "b", "{said:#}");
    ensure!(said["conflicts"] == json!([]), "{said:#}");
    let answer = serving.client.chat("Hello").await?;
    ensure!(answer.header("x-pointsman-policy") == "b", "{answer:?}");
    serving.server.stop().await?;
    Ok(())
}
