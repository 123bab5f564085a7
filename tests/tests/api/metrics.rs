//! `/metrics` of a running server: names, labels and numbers, as dashboards and rules query them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use pointsman_driver::metrics::Metrics;
use pointsman_driver::provider::ExecutorTerms;
use pointsman_lifecycle::report::{ReconcilerReport, TransactionOutcome};
use pointsman_tests::client::{chat, streamed_chat};
use pointsman_tests::exposition::{described, samples, total};
use pointsman_tests::serving::{Serving, component, serve_demo};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn depth_is_told_by_class_in_the_host_and_at_an_executor() -> Result<()> {
    let terms = ExecutorTerms {
        slots: 1,
        queue: 1,
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| serve_demo(config, [("cpu0/demo", terms)])).await?;
    let mut streams = Vec::new();
    // One runs, one of each class waits at the executor, and three in the host's queue.
    for class in [
        "latency-critical",
        "latency-critical",
        "throughput",
        "throughput",
        "throughput",
        "latency-critical",
    ] {
        let mut body = streamed_chat("Hello");
        body["max_tokens"] = json!(1900);
        body["ignore_eos"] = json!(true);
        body["pointsman"] = json!({"class": class});
        let client = serving.client;
        streams.push(tokio::spawn(async move { client.stream(&body).await }));
        let inserted = streams.len();
        serving
            .load_until(|load| load.live == inserted && load.queued == inserted.saturating_sub(3))
            .await?;
    }
    let exported = samples(serving.client).await?;
    let of =
        |name: &str, class| total(&exported, &format!("pointsman_{name}"), &[("class", class)]);
    ensure!(of("queued_requests", "latency-critical") == 1.0);
    ensure!(of("queued_requests", "throughput") == 2.0);
    ensure!(of("executor_queued_requests", "latency-critical") == 1.0);
    ensure!(of("executor_queued_requests", "throughput") == 1.0);
    ensure!(total(&exported, "pointsman_inflight_requests", &[]) == 6.0);
    let listed = serving.client.get("/admin/executors").await?.json()?;
    let by_class = json!({"latency-critical": 1, "throughput": 2});
    ensure!(listed["load"]["queued_by_class"] == by_class, "{listed}");
    let by_class = json!({"latency-critical": 1, "throughput": 1});
    let executor = &listed["executors"][0];
    ensure!(executor["queued_by_class"] == by_class, "{listed}");
    for stream in streams {
        stream.abort();
    }
    serving.idle().await?;
    serving.server.stop().await?;
    Ok(())
}

/// True if the policy `name` is tried as a canary or a shadow.
fn is_on_trial(report: &ReconcilerReport, name: &str) -> bool {
    let mut made = report.transactions.iter();
    made.any(|made| {
        let outcome = &made.outcome;
        let is_tried = matches!(
            outcome,
            TransactionOutcome::Canary(..) | TransactionOutcome::Shadow(_)
        );
        made.policy == name && is_tried
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_told_by_name_and_hook_with_what_they_cost_and_how_far_they_count()
-> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let shadow = component("round-robin")?;
    serving.drop_in("watcher.toml", b"mode = 'shadow'")?;
    serving.drop_in("watcher.wasm", &shadow)?;
    serving.drop_in("trial.toml", b"mode = 'canary 40%'")?;
    serving.drop_in("trial.wasm", &component("least-loaded")?)?;
    serving.decide_by("first", "first-policy", "").await?;
    serving
        .report_until(|report| is_on_trial(report, "watcher") && is_on_trial(report, "trial"))
        .await?;
    for _ in 0..3 {
        serving.client.chat("Hello").await?.text()?;
    }
    let of = |hook, policy| [("hook", hook), ("policy", policy)];
    let exported = loop {
        let exported = samples(serving.client).await?;
        let compared = total(
            &exported,
            "pointsman_shadow_decisions_total",
            &of("routing", "watcher"),
        );
        if compared >= 3.0 {
            break exported;
        }
    };
    let routed = ["first", "trial"].map(|policy| {
        let labels = of("routing", policy);
        let fuel = total(&exported, "pointsman_policy_fuel_total", &labels);
        let answers = total(&exported, "pointsman_policy_answer_seconds_count", &labels);
        (answers, fuel)
    });
    // The tenant is in the canary's share or not; whoever is asked is counted.
    ensure!(routed[0].0 + routed[1].0 >= 3.0, "{routed:?}");
    ensure!(routed[0].1 + routed[1].1 > 3000.0, "{routed:?}");
    let admission = of("admission", "budget");
    ensure!(total(&exported, "pointsman_policy_fuel_total", &admission) > 0.0);
    for (policy, mode) in [
        ("watcher", "shadow"),
        ("trial", "canary"),
        ("first", "enforce"),
    ] {
        let labels = [("policy", policy), ("mode", mode)];
        ensure!(
            total(&exported, "pointsman_policy_mode", &labels) == 1.0,
            "{policy}"
        );
    }
    let trial = [("policy", "trial")];
    ensure!(total(&exported, "pointsman_policy_canary_share", &trial) == 0.4);
    let first = [("policy", "first")];
    ensure!(total(&exported, "pointsman_policy_on_probation", &first) == 1.0);
    let budget = [("policy", "budget")];
    ensure!(total(&exported, "pointsman_policy_on_probation", &budget) == 0.0);

    let rolled_back = serving
        .client
        .post("/admin/policies/first/rollback", &json!({}))
        .await?;
    ensure!(rolled_back.status == 200, "{rolled_back:?}");
    let exported = samples(serving.client).await?;
    ensure!(total(&exported, "pointsman_policy_quarantined", &first) == 1.0);
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_series_is_documented_with_its_labels_and_counts_what_was_served() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let mut prompt = 0;
    let mut output = 0;
    for _ in 0..3 {
        let mut body = chat("Tell me of the points of a railway.");
        body["max_tokens"] = json!(20);
        let answer = serving.client.post("/v1/chat/completions", &body).await?;
        let usage = &answer.json()?["usage"];
        prompt += usage["prompt_tokens"].as_u64().context("no usage")?;
        output += usage["completion_tokens"].as_u64().context("no usage")?;
    }
    let mut long = streamed_chat("Hello");
    long["max_tokens"] = json!(400);
    long["ignore_eos"] = json!(true);
    serving.client.stream(&long).await?.finish().await?;
    serving.idle().await?;
    let exported = samples(serving.client).await?;

    let metrics = Metrics::default();
    for sample in &exported {
        let known = described(&metrics, &sample.name);
        let known = known.with_context(|| format!("{} is not described", sample.name))?;
        let labels = sample.labels.keys().map(String::as_str);
        let labels: BTreeSet<&str> = labels.filter(|label| *label != "le").collect();
        let wanted: BTreeSet<&str> = known.labels.iter().copied().collect();
        ensure!(labels == wanted, "{}: {labels:?}", sample.name);
    }

    let of_demo = [("model", "demo"), ("executor", "cpu0/demo")];
    let tokens = |kind: &str| {
        total(
            &exported,
            &format!("pointsman_{kind}_tokens_total"),
            &of_demo,
        )
    };
    ensure!(tokens("prompt") > prompt as f64 && tokens("output") > output as f64);
    // The second and third prompt were there.
    ensure!(tokens("cached") > 0.0);
    let of_tenant = [("tenant", "default"), ("kind", "output")];
    ensure!(total(&exported, "pointsman_tenant_tokens_total", &of_tenant) == tokens("output"));
    let finished = [("model", "demo"), ("outcome", "finished")];
    for name in ["requests_total", "request_duration_seconds_count"] {
        ensure!(
            total(&exported, &format!("pointsman_{name}"), &finished) == 4.0,
            "{name}"
        );
    }
    for (name, labels, at_least) in [
        // Those of the three whole answers, too.
        ("time_to_first_token_seconds_count", &of_demo[..], 4.0),
        ("inter_token_latency_seconds_count", &of_demo[..], 1.0),
        ("queue_wait_seconds_count", &[][..], 4.0),
        ("decision_seconds_count", &[][..], 4.0),
    ] {
        let counted = total(&exported, &format!("pointsman_{name}"), labels);
        ensure!(counted >= at_least, "{name}: {counted}");
    }
    serving.server.stop().await?;
    Ok(())
}
