//! `/monitor/data`: its numbers after and under real traffic, and the reasons for which requests wait.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, TenantConfig};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_driver::quota::TenantLimits;
use pointsman_tests::PATIENCE;
use pointsman_tests::client::{Client, Stream, chat, endless_chat};
use pointsman_tests::gate::Gate;
use pointsman_tests::serving::{Serving, component, serve_demo};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const LOOK: Duration = Duration::from_millis(50);

/// Has the demo model served by `left`, of group 1, and `right`, of group 2, with a slot each.
fn two(config: &mut Config) {
    let of_group = |group| ExecutorTerms {
        group,
        slots: 1,
        ..ExecutorTerms::default()
    };
    serve_demo(config, [("left", of_group(1)), ("right", of_group(2))]);
}

/// Has the demo model served by one executor with one slot.
fn one(config: &mut Config) {
    let terms = ExecutorTerms {
        slots: 1,
        ..ExecutorTerms::default()
    };
    serve_demo(config, [("only", terms)]);
}

/// Waits until the numbers are as `wanted`: an answer is repeated for almost a second.
async fn until(client: Client, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    let waited = timeout(PATIENCE, async {
        loop {
            last = client.get("/monitor/data").await?.json()?;
            if wanted(&last) {
                return anyhow::Ok(());
            }
            sleep(LOOK).await;
        }
    });
    waited
        .await
        .ok()
        .with_context(|| format!("it stays {last:#}"))??;
    Ok(last)
}

/// A chat with hints.
fn hinted(mut body: Value, hints: Value) -> Value {
    body["pointsman"] = hints;
    body
}

/// A stream that runs until it is dropped.
async fn endless(client: Client, hints: Value) -> Result<Stream> {
    let body = hinted(endless_chat("Hello", 1900), hints);
    client.running(&body).await
}

/// A request that has to wait.
fn waits(client: Client, hints: Value) -> JoinHandle<Result<()>> {
    let body = hinted(chat("Hello"), hints);
    tokio::spawn(async move {
        let answer = client.post("/v1/chat/completions", &body).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })
}

/// The sum of a number of the answers' usage.
fn used(answers: &[Value], kind: &str) -> u64 {
    let used = answers.iter().map(|answer| answer["usage"][kind].as_u64());
    used.map(Option::unwrap_or_default).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_requests_are_told_by_executor_model_and_session() -> Result<()> {
    let serving = Serving::start(two).await?;
    let client = serving.client;
    let body = hinted(chat("Hello"), json!({"session": "ann", "group": 1}));
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = client.post("/v1/chat/completions", &body).await?;
        ensure!(answer.header("x-pointsman-executor") == "left");
        answers.push(answer.json()?);
    }
    // The session's executor takes nothing new: a miss, which is charged to it.
    client
        .post("/admin/executors/left/drain", &json!({}))
        .await?;
    let body = hinted(chat("Hello"), json!({"session": "ann"}));
    let elsewhere = client.post("/v1/chat/completions", &body).await?;
    ensure!(elsewhere.header("x-pointsman-executor") == "right");
    answers.push(elsewhere.json()?);
    let data = until(client, |data| {
        data["totals"]["finished"] == 4 && data["load"]["slots_used"] == 0
    })
    .await?;

    let totals = &data["totals"];
    ensure!(totals["arrived"] == 4 && totals["failed"] == 0, "{totals}");
    ensure!(
        totals["prompt_tokens"] == used(&answers, "prompt_tokens"),
        "{totals}"
    );
    ensure!(
        totals["output_tokens"] == used(&answers, "completion_tokens"),
        "{totals}"
    );
    let sessions = json!({
        "tracked": 1, "session_hits": 2, "session_misses": 1, "session_hit_permille": 666,
    });
    ensure!(data["sessions"] == sessions, "{data:#}");
    let [left, right] = [&data["activity"][0], &data["activity"][1]];
    ensure!(left["executor"] == "left" && right["executor"] == "right");
    for (executor, served, share, hits, misses) in [(left, 3, 750, 2, 1), (right, 1, 250, 0, 0)] {
        ensure!(executor["served"] == served, "{executor}");
        ensure!(executor["share_permille"] == share, "{executor}");
        ensure!(executor["session_hits"] == hits, "{executor}");
        ensure!(executor["session_misses"] == misses, "{executor}");
        let use_ = executor["utilisation_permille"].as_u64();
        ensure!(use_.is_some_and(|use_| use_ <= 1000), "{executor}");
        for time in ["mean_micros", "last_report_age_micros"] {
            ensure!(executor[time].as_u64() > Some(0), "{executor}");
        }
    }
    let model = json!({
        "model": "demo", "running_max": null, "running": 0, "waiting": 0, "requests": 4, "sessions": 1,
        "prompt_tokens": totals["prompt_tokens"], "output_tokens": totals["output_tokens"],
    });
    ensure!(data["models"] == json!([model]), "{data:#}");
    ensure!(data["queue_wait"]["count"] == 4, "{data:#}");
    let minutes = data["minutes"].as_array().context("no minutes")?;
    let finished = minutes.iter().map(|minute| minute["finished"].as_u64());
    ensure!(finished.flatten().sum::<u64>() == 4, "{minutes:?}");
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_says_of_each_request_why_it_waits() -> Result<()> {
    let gate = Gate::default();
    let serving = Serving::start_with(two, gate.backends()).await?;
    let client = serving.client;
    // The group's executor is taken, the other one is idle: the policy holds.
    let first = endless(client, json!({"group": 1, "session": "ann", "priority": 9})).await?;
    gate.shut();
    let held = waits(client, json!({"group": 1, "session": "ann", "priority": 7}));
    let data = until(client, |data| data["queue"][0]["why"]["kind"] == "held").await?;
    let entry = &data["queue"][0];
    ensure!(entry["why"]["policy"] == "memory-aware", "{entry:#}");
    ensure!(entry["why"]["until_micros"].as_u64() > data["at_micros"].as_u64());
    ensure!(entry["class"] == "latency-critical" && entry["priority"] == 7);
    ensure!(
        entry["tenant"] == "default" && entry["model"] == "demo",
        "{entry:#}"
    );
    ensure!(entry["age_micros"].as_u64() > Some(0) && entry["parked"] == false);
    ensure!(entry["prompt_tokens"].as_u64() > Some(0), "{entry:#}");

    // Both are taken.
    gate.open();
    let second = endless(client, json!({"group": 2, "priority": 9})).await?;
    gate.shut();
    let blocked = waits(
        client,
        json!({"class": "throughput", "executors": ["right"]}),
    );
    let why = |data: &Value, idx: usize| data["queue"][idx]["why"].clone();
    let data = until(client, |data| why(data, 1)["kind"] == "blocked").await?;
    let obstacles = json!([
        {"obstacle": "no-slot", "executors": 1},
        {"obstacle": "not-allowed", "executors": 1},
    ]);
    ensure!(why(&data, 1)["obstacles"] == obstacles, "{data:#}");
    let words = why(&data, 1)["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(
        words.starts_with("all slots are taken (1 executor)"),
        "{words}"
    );
    ensure!(data["load"]["queued"] == 2, "{data:#}");

    // One takes nothing new.
    client
        .post("/admin/executors/right/drain", &json!({}))
        .await?;
    let draining = |data: &Value| why(data, 1)["obstacles"][0]["obstacle"] == "unavailable";
    until(client, draining).await?;
    client
        .post("/admin/executors/right/resume", &json!({}))
        .await?;

    // The model may not run more often.
    let limit = json!({"running-max": 1});
    let limited = client
        .post("/admin/models/demo/running-max", &limit)
        .await?;
    ensure!(limited.status == 200, "{limited:?}");
    drop(second);
    gate.open();
    serving.load_until(|load| load.slots_used == 1).await?;
    gate.shut();
    let limited = |data: &Value| why(data, 1)["obstacles"][0]["obstacle"] == "running-max";
    until(client, limited).await?;
    let unlimited = json!({"running-max": null});
    client
        .post("/admin/models/demo/running-max", &unlimited)
        .await?;
    drop(first);
    gate.open();
    blocked.await??;
    held.await??;
    until(client, |data| data["queue"] == json!([])).await?;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_requests_come_after_the_queued_ones() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        one(config);
        config.core.queue_max = 1;
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    let first = endless(client, json!({})).await?;
    gate.shut();
    let queued = waits(client, json!({}));
    serving.load_until(|load| load.queued == 1).await?;
    let parked = waits(client, json!({"class": "throughput"}));
    serving.load_until(|load| load.parked == 1).await?;
    let data = until(client, |data| data["queue"][1]["parked"] == true).await?;
    let why = &data["queue"][1]["why"];
    ensure!(
        why["kind"] == "parked" && why["policy"] == "budget",
        "{why}"
    );
    ensure!(data["queue"][0]["parked"] == false, "{data:#}");
    drop(first);
    gate.open();
    queued.await??;
    parked.await??;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_and_first_tokens_are_told_by_their_middle_and_their_tail() -> Result<()> {
    let serving = Serving::start(one).await?;
    let client = serving.client;
    for _ in 0..3 {
        client.chat("Hello").await?.text()?;
    }
    let data = until(client, |data| data["totals"]["finished"] == 3).await?;
    let recent = &data["recent"];
    ensure!(recent["minutes"] == 15, "{recent}");
    let at = |times: &str, key: &str| recent[times][key].as_u64();
    for times in ["queue_wait", "first_token"] {
        ensure!(recent[times]["count"] == 3, "{recent}");
        ensure!(at(times, "p50_micros").is_some(), "{recent}");
        ensure!(
            at(times, "p50_micros") <= at(times, "p95_micros"),
            "{recent}"
        );
    }
    ensure!(
        at("queue_wait", "p50_micros") < at("first_token", "p50_micros"),
        "{recent}"
    );
    let minutes = data["minutes"].as_array().context("no minutes")?;
    let tokens = minutes.iter().map(|it| it["first_token"]["count"].as_u64());
    ensure!(tokens.flatten().sum::<u64>() == 3, "{minutes:?}");
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_requests_are_told_with_the_decision_about_each() -> Result<()> {
    let serving = Serving::start(one).await?;
    let client = serving.client;
    let answer = client.post("/v1/chat/completions", &chat("Hello")).await?;
    let id = answer.header("x-pointsman-request").to_owned();
    let usage = answer.json()?["usage"].clone();
    drop(endless(client, json!({"class": "throughput"})).await?);
    let data = until(client, |data| data["requests"][1].is_object()).await?;
    let [left, served] = [&data["requests"][0], &data["requests"][1]];
    ensure!(
        left["outcome"] == "cancelled" && left["class"] == "throughput",
        "{left}"
    );
    ensure!(left["ended_micros"].as_u64() > served["ended_micros"].as_u64());
    ensure!(served["request"] == id.parse::<u64>()?, "{served}");
    for (key, value) in [
        ("tenant", json!("default")),
        ("model", json!("demo")),
        ("executor", json!("only")),
        ("class", json!("latency-critical")),
        ("outcome", json!("finished")),
        ("why", Value::Null),
        ("prompt_tokens", usage["prompt_tokens"].clone()),
        ("output_tokens", usage["completion_tokens"].clone()),
    ] {
        ensure!(served[key] == value, "{key}: {served}");
    }
    let times = ["wait_micros", "first_token_micros", "duration_micros"];
    let [wait, first, whole] = times.map(|key| served[key].as_u64());
    ensure!(wait.is_some() && wait < first && first <= whole, "{served}");

    // The decision is told in the words in which `/admin/decisions` tells the step.
    let told = client
        .get(&format!("/admin/decisions/{id}"))
        .await?
        .json()?;
    let steps = told["steps"].as_array().context("no steps")?;
    let words = |what: &str| {
        let step = steps.iter().find(|step| step["what"] == what);
        step.and_then(|step| step["told"].as_str())
            .unwrap_or_default()
    };
    let decision = served["decision"].as_str().context("no decision")?;
    ensure!(
        decision.starts_with("placed on only by memory-aware: "),
        "{decision}"
    );
    ensure!(
        words("placed").replace(" (slot)", "") == decision,
        "{told:#}"
    );
    ensure!(words("asked") == "admission: budget says admit", "{told:#}");
    let tokens = match usage["completion_tokens"].as_u64() {
        Some(1) => "finished, 1 token".to_owned(),
        tokens => format!("finished, {} tokens", tokens.unwrap_or_default()),
    };
    ensure!(
        words("ended") == tokens && told["outcome"]["told"] == tokens,
        "{told:#}"
    );
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_refused_is_told_with_the_policy_that_turned_it_away() -> Result<()> {
    let serving = Serving::start(one).await?;
    let client = serving.client;
    serving
        .decide_by("shedder", "test/hostile", "answers = \"shed\"")
        .await?;
    let refused = client.chat("Hello").await?;
    ensure!(refused.status == 429, "{refused:?}");
    let data = until(client, |data| data["requests"][0].is_object()).await?;
    let request = &data["requests"][0];
    ensure!(
        request["outcome"] == "refused" && request["executor"].is_null(),
        "{request}"
    );
    let decision = request["decision"].as_str().unwrap_or_default();
    ensure!(decision.starts_with("turned away by shedder"), "{request}");
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_are_told_against_their_limits() -> Result<()> {
    let limits = TenantLimits {
        requests_per_minute: Some(5),
        concurrent_max: Some(2),
        ..TenantLimits::default()
    };
    let serving = Serving::start(|config| {
        config.tenants = vec![TenantConfig {
            limits,
            ..TenantConfig::new("default")
        }];
    })
    .await?;
    let client = serving.client;
    client.chat("Hello").await?.text()?;
    let data = until(client, |data| data["totals"]["finished"] == 1).await?;
    let tenant = &data["tenants"][0];
    ensure!(tenant["name"] == "default" && tenant["tokens_total"].as_u64() > Some(0));
    let limits = json!({
        "requests_per_minute": {"max": 5, "used": 1},
        "tokens_per_minute_max": null,
        "concurrent_max": {"max": 2, "used": 0},
    });
    ensure!(tenant["limits"] == limits, "{tenant:#}");
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_fault_of_a_policy_is_a_line_and_its_trace() -> Result<()> {
    let serving = Serving::start(one).await?;
    let client = serving.client;
    let trap = "outrage = 'trap'\ncalls = ['route']\ngood-calls = 100\n";
    let sidecar = format!("mode = 'shadow'\n[settings]\n{trap}");
    serving.drop_in("shade.toml", sidecar.as_bytes())?;
    serving.drop_in("shade.wasm", &component("test/hostile")?)?;
    let mut body = chat("Hello");
    body["max_tokens"] = json!(1);
    let fault = timeout(PATIENCE, async {
        loop {
            client.post("/v1/chat/completions", &body).await?.json()?;
            let listed = client.get("/admin/policies").await?.json()?;
            let fault = &listed["shadows"][0]["fault_last"];
            if fault.is_object() {
                return anyhow::Ok(fault.clone());
            }
        }
    });
    let fault = fault.await.context("it never faults")??;
    let (line, trace) = (fault["line"].as_str(), fault["trace"].as_str());
    let line = line.context("no line")?;
    ensure!(
        line.contains("as it was told") && !line.contains('\n'),
        "{line}"
    );
    ensure!(
        trace.is_some_and(|trace| trace.contains("route")),
        "{fault:#}"
    );
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_prompts_nor_sessions_nor_keys_are_shown() -> Result<()> {
    let gate = Gate::default();
    let serving = Serving::start_with(one, gate.backends()).await?;
    let client = serving.client.with_key("marked-key");
    let session = json!({"session": "marked-session"});
    let first = endless(client, session.clone()).await?;
    gate.shut();
    let body = hinted(chat("A marked-prompt"), session);
    let second =
        tokio::spawn(async move { client.post("/v1/chat/completions", &body).await?.text() });
    let data = until(client, |data| data["load"]["queued"] == 1).await?;
    drop(first);
    gate.open();
    let said = second.await??;
    for text in [
        data,
        until(client, |data| data["totals"]["finished"] == 1).await?,
    ] {
        let text = text.to_string();
        ensure!(!text.contains("marked-") && !text.contains(&said), "{text}");
    }
    serving.server.stop().await?;
    Ok(())
}
