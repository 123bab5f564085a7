//! Executors: their list, additions, removals, and the terms on which they take requests.

use anyhow::{Context, Result, ensure};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_tests::client::{Answer, chat};
use pointsman_tests::serving::{Serving, serve_demo};
use serde_json::{Value, json};
use tokio::task;

use super::{error, long, ok, running};

#[tokio::test]
async fn executors_are_listed_with_what_they_have_and_do() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let stream = running(serving.client).await?;
    let listed = ok(serving.client.get("/admin/executors")).await?;
    let executor = &listed["executors"][0];
    for (field, value) in [
        ("name", json!("cpu0/demo")),
        ("kind", json!("cpu")),
        ("device", json!("cpu0")),
        ("models", json!(["demo"])),
        ("health", json!("up")),
        ("order", Value::Null),
        ("slots_used", json!(1)),
        ("slots_total", json!(8)),
        ("queued", json!(0)),
    ] {
        ensure!(executor[field] == value, "{field}: {executor}");
    }
    ensure!(executor["kv_blocks_used"].as_u64() > Some(0), "{executor}");
    ensure!(executor["tokens_since_allotment"].is_u64(), "{executor}");
    let one = ok(serving.client.get("/admin/executors/cpu0/demo")).await?;
    ensure!(one["slots_total"] == 8, "{one}");
    let (status, message) = error(&serving.client.get("/admin/executors/gpu").await?)?;
    ensure!(
        status == 404 && message.contains("no executor `gpu`"),
        "{message}"
    );
    drop(stream);
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn the_blocks_in_use_are_those_of_the_pool_and_never_more() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let client = serving.client;
    let streams = [running(client).await?, running(client).await?];
    let listed = ok(client.get("/admin/executors")).await?;
    let (executor, device) = (&listed["executors"][0], &listed["devices"][0]);
    let number = |value: &Value| value.as_u64().context("no number");
    let idle = number(&device["blocks_free"])? + number(&device["blocks_cached"])?;
    let used = number(&device["blocks_total"])? - idle;
    ensure!(used > 0, "{device}");
    // All sequences run on the one executor.
    ensure!(number(&executor["kv_blocks_used"])? == used, "{listed}");
    let (load, block) = (&listed["load"], number(&device["block_bytes"])?);
    let total = number(&device["blocks_total"])?;
    for (field, value) in [
        ("blocks_used", used),
        ("blocks_cached", number(&device["blocks_cached"])?),
        ("blocks_total", total),
        ("kv_bytes_used", used * block),
        ("kv_bytes_total", total * block),
    ] {
        ensure!(number(&load[field])? == value, "{field}: {listed}");
    }
    let told = ok(client.post("/admin/route", &chat("Hello"))).await?;
    let candidate = &told["candidates"][0];
    ensure!(number(&candidate["kv_blocks_used"])? > used, "{candidate}");
    drop(streams);
    serving.idle().await?;
    let metrics = String::from_utf8(client.get("/metrics").await?.body)?;
    for line in [
        "kv_blocks_used{device=\"cpu0\"} 0".to_owned(),
        "kv_bytes_used{device=\"cpu0\"} 0".to_owned(),
        format!("kv_blocks{{device=\"cpu0\"}} {total}"),
        format!("kv_bytes{{device=\"cpu0\"}} {}", total * block),
    ] {
        ensure!(
            metrics.contains(&format!("\npointsman_{line}\n")),
            "{line}: {metrics}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_drained_executor_finishes_its_requests_and_others_wait_until_it_is_resumed() -> Result<()>
{
    let serving = Serving::start(|_| {}).await?;
    let stream = running(serving.client).await?;
    let drain = "/admin/executors/cpu0/demo/drain";
    let drained = ok(serving.client.post(drain, &json!({}))).await?;
    ensure!(
        drained["health"] == "draining" && drained["order"] == "drain",
        "{drained}"
    );
    let client = serving.client;
    let waiting = task::spawn(async move { client.chat("Hello").await?.text() });
    serving
        .load_until(|load| load.queued == 1 && load.slots_used == 1)
        .await?;
    let resume = "/admin/executors/cpu0%2Fdemo/resume";
    let resumed = ok(serving.client.post(resume, &json!({}))).await?;
    ensure!(resumed["health"] == "up", "{resumed}");
    ensure!(!waiting.await??.is_empty());
    drop(stream);
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn an_executor_is_added_serves_and_is_removed_with_its_model() -> Result<()> {
    let serving = Serving::start(|config| config.local.executors[0].terms.slots = 1).await?;
    let client = serving.client;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo-model");
    let folder = std::fs::canonicalize(folder)?;
    let table = json!({"name": "second", "path": folder, "slots": 2, "share-weight": 3});
    let added = client.post("/admin/executors", &table).await?;
    ensure!(added.status == 201, "{:?}", added.json());
    ensure!(added.json()?["name"] == "cpu0/second", "{:?}", added.json());
    let again = client.post("/admin/executors", &table).await?;
    ensure!(again.status == 409, "{:?}", again.json());
    // A second executor for a model that is served, with a name of its own.
    let twin = json!({"name": "demo", "executor": "cpu0/demo-2", "slots": 1});
    ok(client.post("/admin/executors", &twin)).await?;
    let mut body = chat("Hello");
    body["model"] = json!("second");
    let alone = client.chat("Hello").await?.text()?;
    let second = client.post("/v1/chat/completions", &body).await?;
    ensure!(
        second.header("x-pointsman-executor") == "cpu0/second",
        "{second:?}"
    );
    ensure!(
        second.text()? == alone,
        "the same weights say something else"
    );
    let streams = [running(client).await?, running(client).await?];
    let places = streams
        .each_ref()
        .map(|stream| &stream.headers["x-pointsman-executor"]);
    ensure!(places[0] != places[1], "{places:?}");
    // An executor that is removed while it runs a sequence lets it finish.
    body["stream"] = json!(true);
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(200);
    let mut running = client.stream(&body).await?;
    running.first_text().await?;
    let removed = client.delete("/admin/executors/cpu0/second").await?;
    ensure!(removed.status == 202, "{:?}", removed.json());
    ensure!(removed.json()?["order"] == "remove", "{:?}", removed.json());
    let refused = client.post("/v1/chat/completions", &body).await?;
    ensure!(refused.status == 404, "{:?}", refused.json());
    let streamed = running.finish().await?;
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    drop(streams);
    serving.idle().await?;
    let left = ok(client.get("/admin/executors")).await?;
    ensure!(left["executors_total"] == 2, "{left}");
    // The name is free again.
    ok(client.post("/admin/executors", &table)).await?;
    let answer = client.get("/v1/models").await?.json()?;
    ensure!(
        answer["data"].as_array().map(Vec::len) == Some(2),
        "{answer}"
    );
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn round_robin_and_least_loaded_keep_a_request_in_the_group_it_asks_for() -> Result<()> {
    let of_group = |group, slots| ExecutorTerms {
        group,
        slots,
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| {
        serve_demo(
            config,
            [("left", of_group(1, 1)), ("right", of_group(2, 8))],
        )
    })
    .await?;
    const PATH: &str = "/v1/chat/completions";
    let client = serving.client;
    let placed = |answer: &Answer| answer.header("x-pointsman-executor").to_owned();
    for policy in ["round-robin", "least-loaded"] {
        serving.decide_by("groups", policy, "").await?;
        let mut lasting = long();
        lasting["pointsman"] = json!({"group": 1});
        let mut stream = client.stream(&lasting).await?;
        stream.first_text().await?;
        let mut short = chat("Hello");
        short["pointsman"] = json!({"group": 1});
        let waiting = task::spawn(async move { client.post(PATH, &short).await });
        // The other executor has eight slots that are free.
        serving
            .load_until(|load| load.queued == 1 && load.slots_used == 1)
            .await?;
        let other = client.post(PATH, &chat("Hello")).await?;
        ensure!(placed(&other) == "right", "{policy}: {other:?}");
        drop(stream);
        let kept = waiting.await??;
        ensure!(placed(&kept) == "left", "{policy}: {kept:?}");
        ensure!(kept.header("x-pointsman-policy") == "groups", "{kept:?}");
        serving.idle().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_request_goes_to_an_executor_of_the_group_it_asks_for() -> Result<()> {
    let of_group = |group| ExecutorTerms {
        group,
        slots: 1,
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| {
        serve_demo(config, [("left", of_group(1)), ("right", of_group(2))])
    })
    .await?;
    for (group, executor) in [(2, "right"), (1, "left"), (2, "right"), (2, "right")] {
        let mut body = chat("Hello");
        body["pointsman"] = json!({"group": group});
        let answer = serving.client.post("/v1/chat/completions", &body).await?;
        let header = answer.header("x-pointsman-executor");
        ensure!(header == executor, "group {group}: {answer:?}");
    }
    let listed = ok(serving.client.get("/admin/executors")).await?;
    let groups = [0, 1].map(|at| listed["executors"][at]["group"].as_u64());
    ensure!(groups == [Some(1), Some(2)], "{listed}");
    let added = json!({"name": "demo", "executor": "far", "group": 3, "preemptible": false});
    let added = ok(serving.client.post("/admin/executors", &added)).await?;
    ensure!(
        added["group"] == 3 && added["preemptible"] == false,
        "{added}"
    );
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn an_executor_has_a_queue_of_its_own_where_it_is_given_one() -> Result<()> {
    let queueing = ExecutorTerms {
        slots: 1,
        queue: 2,
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| config.local.executors[0].terms = queueing).await?;
    let first = running(serving.client).await?;
    let client = serving.client;
    let waiting: Vec<_> = (0..3)
        .map(|_| task::spawn(async move { client.chat("Hello").await?.text() }))
        .collect();
    // Two wait at the executor, and what finds no room there in the host's queue.
    serving.load_until(|load| load.queued == 1).await?;
    let listed = ok(client.get("/admin/executors")).await?;
    let executor = &listed["executors"][0];
    ensure!(
        executor["queued"] == 2 && executor["queue_max"] == 2,
        "{listed}"
    );
    drop(first);
    for answer in waiting {
        ensure!(!answer.await??.is_empty());
    }
    serving.idle().await?;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_queue_filled_to_80_percent_is_told_and_refuses_what_would_not_wait() -> Result<()> {
    let queueing = ExecutorTerms {
        slots: 1,
        queue: 5,
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| config.local.executors[0].terms = queueing).await?;
    let client = serving.client;
    let metric = async |value: u64| -> Result<bool> {
        let metrics = String::from_utf8(client.get("/metrics").await?.body)?;
        let line = format!("pointsman_executor_saturated{{executor=\"cpu0/demo\"}} {value}\n");
        Ok(metrics.contains(&line))
    };
    let first = running(client).await?;
    let wait = || task::spawn(async move { client.chat("Hello").await?.text() });
    let until = async |queued: u64| -> Result<Value> {
        loop {
            let row = ok(client.get("/admin/executors/cpu0/demo")).await?;
            if row["queued"] == queued {
                return Ok(row);
            }
        }
    };
    let mut waiting: Vec<_> = (0..3).map(|_| wait()).collect();
    let row = until(3).await?;
    ensure!(row["saturated"] == false && metric(0).await?, "{row}");
    waiting.push(wait());
    let row = until(4).await?;
    ensure!(row["saturated"] == true && metric(1).await?, "{row}");
    ensure!(row["health"] == "up", "it is busy, and not ill: {row}");
    let mut background = chat("Hello");
    background["pointsman"] = json!({"may_wait": false});
    let refused = client.post("/v1/chat/completions", &background).await?;
    ensure!(refused.status == 429, "{refused:?}");
    let policy = refused.header("x-pointsman-policy");
    ensure!(policy == "budget", "{refused:?}");
    waiting.push(wait());
    until(5).await?;
    drop(first);
    for answer in waiting {
        ensure!(!answer.await??.is_empty());
    }
    serving.idle().await?;
    ensure!(metric(0).await?);
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn executors_share_the_tokens_of_a_step_by_weights_that_change_while_they_run() -> Result<()>
{
    let one = ExecutorTerms {
        slots: 1,
        ..ExecutorTerms::default()
    };
    let serving =
        Serving::start(|config| serve_demo(config, [("left", one), ("right", one)])).await?;
    let client = serving.client;
    let streams = [running(client).await?, running(client).await?];
    let shares = async |left: u64, right: u64| -> Result<()> {
        loop {
            let listed = ok(client.get("/admin/executors")).await?;
            let share = |at: usize| listed["executors"][at]["tokens_per_step_max"].as_u64();
            if (share(0), share(1)) == (Some(left), Some(right)) {
                return Ok(());
            }
        }
    };
    shares(128, 128).await?;
    let path = "/admin/executors/left/share-weight";
    let order = json!({"share-weight": 3});
    let changed = ok(client.post(path, &order)).await?;
    ensure!(changed["share_weight"] == 3, "{changed}");
    shares(192, 64).await?;
    for wrong in [json!({}), json!({"share-weight": 0}), json!({"weight": 1})] {
        let refused = client.post(path, &wrong).await?;
        ensure!(refused.status == 400, "{wrong}: {:?}", refused.json());
    }
    drop(streams);
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_an_addition_is_said() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    for (table, status, part) in [
        (json!({}), 400, "`name` is missing"),
        (json!({"name": "x", "slot": 1}), 400, "there is no `slot`"),
        (
            json!({"name": "x", "slots": 0}),
            400,
            "`slots` has to be an integer from 1 to 65536",
        ),
        (
            json!({"name": "x", "path": "here"}),
            400,
            "an absolute path",
        ),
        (
            json!({"name": "x", "path": "/nowhere/at/all"}),
            400,
            "/nowhere/at/all",
        ),
        (json!({"name": "demo"}), 409, "attached already"),
        (
            json!({"name": "demo", "path": "/elsewhere"}),
            409,
            "served from another folder",
        ),
        (
            json!({"name": "demo", "executor": "b", "slots": 255}),
            409,
            "256 tokens in a step",
        ),
    ] {
        let answer = serving.client.post("/admin/executors", &table).await?;
        let (got, message) = error(&answer)?;
        ensure!(
            got == status && message.contains(part),
            "{table}: {got} {message}"
        );
    }
    let (status, message) = error(&serving.client.delete("/admin/executors/gpu0").await?)?;
    ensure!(
        status == 404 && message.contains("there are: cpu0/demo"),
        "{message}"
    );
    Ok(())
}
