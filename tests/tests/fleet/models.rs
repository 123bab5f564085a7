//! Executors of several models, models that are kept loaded, and limits of models.

use anyhow::{Result, ensure};
use pointsman_config::Config;
use pointsman_core::Micros;
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms};
use pointsman_tests::serving::{Serving, set};
use serde_json::json;

use super::{
    active, ask, asked, endless, error, executor, get, order, over, place, running, second, until,
};

/// One executor for the demo model and `second`, on these terms.
fn shared(config: &mut Config, terms: ExecutorTerms) {
    config.local.models.push(second());
    config.local.executors = vec![ExecutorConfig {
        terms,
        ..executor("both", &["demo", "second"])
    }];
}

#[tokio::test]
async fn an_executor_runs_sequences_of_several_models_in_the_same_steps() -> Result<()> {
    let serving = Serving::start(|config| shared(config, ExecutorTerms::default())).await?;
    let client = serving.client;
    let alone = client.chat("Hello").await?.text()?;
    let streams = [
        running(client, endless("demo", json!({}))).await?,
        running(client, endless("second", json!({}))).await?,
    ];
    ensure!(streams.iter().all(|stream| place(stream) == "both"));
    let listed = get(client, "/admin/executors").await?;
    ensure!(active(&listed, 0) == ["demo", "second"], "{listed}");
    ensure!(
        listed["executors"][0]["models"] == json!(["demo", "second"]),
        "{listed}"
    );
    // The same weights under both names, so that each model says what it says alone.
    for model in ["demo", "second"] {
        let answer = client
            .post("/v1/chat/completions", &ask(model, json!({})))
            .await?;
        ensure!(answer.text()? == alone, "{answer:?}");
    }
    drop(streams);
    over(serving).await
}

#[tokio::test]
async fn two_models_never_run_at_once_where_models_max_is_one() -> Result<()> {
    let terms = ExecutorTerms {
        models_max: Some(1),
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| shared(config, terms)).await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({}))).await?;
    let waiting = asked(client, ask("second", json!({})));
    serving.load_until(|load| load.queued == 1).await?;
    // Another one of the model that runs may join it; the other model waits, with slots free.
    ensure!(asked(client, ask("demo", json!({}))).await?? == "both");
    let listed = get(client, "/admin/executors").await?;
    ensure!(active(&listed, 0) == ["demo"], "{listed}");
    ensure!(listed["executors"][0]["models_max"] == 1, "{listed}");
    ensure!(listed["load"]["queued"] == 1, "{listed}");
    drop(stream);
    ensure!(waiting.await?? == "both");
    // Many at once of both: whenever one looks, one model is there.
    let many: Vec<_> = (0..12)
        .map(|at| asked(client, ask(["demo", "second"][at % 2], json!({}))))
        .collect();
    while !many.iter().all(|answer| answer.is_finished()) {
        let listed = get(client, "/admin/executors").await?;
        ensure!(active(&listed, 0).len() <= 1, "{listed}");
    }
    for answer in many {
        answer.await??;
    }
    over(serving).await
}

#[tokio::test]
async fn a_model_stays_loaded_for_the_unload_delay_and_keeps_another_out() -> Result<()> {
    let hour = Micros(3_600_000_000);
    let terms = ExecutorTerms {
        models_max: Some(1),
        model_unload_delay: hour,
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| {
        shared(config, terms);
        config.core.wait(hour);
        // By default the first request of a model that is warm nowhere waives the hold.
        set(config, "memory-aware", &json!({"affinity-bonus": 0}));
    })
    .await?;
    let client = serving.client;
    asked(client, ask("demo", json!({}))).await??;
    let listed = get(client, "/admin/executors").await?;
    let warm = &listed["executors"][0]["models_present"][0];
    ensure!(
        warm["model"] == "demo" && warm["sequences"] == 0,
        "{listed}"
    );
    ensure!(
        warm["warm_until_micros"].as_u64() > Some(hour.0),
        "{listed}"
    );
    let held = asked(client, ask("second", json!({})));
    serving.load_until(|load| load.queued == 1).await?;
    // The warm model is served at once; the other one waits, with every slot free.
    ensure!(asked(client, ask("demo", json!({}))).await?? == "both");
    let load = serving.load_until(|load| load.slots_used == 0).await?;
    ensure!(load.queued == 1, "{load:?}");
    // Another executor has nothing warm.
    let table = json!({"models": ["second"], "executor": "free"});
    order(client, "/admin/executors", &table).await?;
    ensure!(held.await?? == "free");
    over(serving).await
}

#[tokio::test]
async fn a_model_is_unloaded_after_the_delay() -> Result<()> {
    let terms = ExecutorTerms {
        model_unload_delay: Micros(1000),
        ..ExecutorTerms::default()
    };
    let serving = Serving::start(|config| shared(config, terms)).await?;
    asked(serving.client, ask("demo", json!({}))).await??;
    until(serving.client, "/admin/executors", |listed| {
        listed["executors"][0]["models_present"] == json!([])
    })
    .await?;
    over(serving).await
}

#[tokio::test]
async fn an_executor_for_several_models_is_added_while_the_host_runs() -> Result<()> {
    let serving = Serving::start(|config| {
        config.local.models.push(second());
        config.local.executors.push(ExecutorConfig::new("second"));
    })
    .await?;
    let client = serving.client;
    let table = json!({
        "models": ["second", "demo"], "executor": "both", "models-max": 1, "queue": 2,
        "model-unload-delay-ms": 3_600_000,
    });
    let added = order(client, "/admin/executors", &table).await?;
    ensure!(added["models"] == json!(["second", "demo"]), "{added}");
    ensure!(
        added["models_max"] == 1 && added["queue_max"] == 2,
        "{added}"
    );
    for model in ["demo", "second"] {
        let placed = asked(client, ask(model, json!({"executors": ["both"]}))).await??;
        ensure!(placed == "both", "{placed}");
    }
    let both = get(client, "/admin/executors/both").await?;
    let warm = &both["models_present"][0];
    ensure!(
        warm["model"] == "second" && warm["warm_until_micros"].as_u64() > Some(3_600_000_000),
        "{both}"
    );
    for (table, said) in [
        (json!({"models": ["demo"]}), "`executor` is missing"),
        (
            json!({"models": [], "executor": "x"}),
            "a list of 1 to 64 names, each once",
        ),
        (
            json!({"models": ["demo", "third"], "executor": "x"}),
            "there is no model `third`; there are: demo, second",
        ),
        (
            json!({"models": ["demo"], "name": "demo", "executor": "x"}),
            "`name` and `models` exclude each other",
        ),
    ] {
        let (status, message) = error(&client.post("/admin/executors", &table).await?)?;
        ensure!(
            status == 400 && message.contains(said),
            "{table}: {status} {message}"
        );
    }
    // The models stay as long as an executor serves them.
    for name in ["cpu0/demo", "cpu0/second"] {
        client.delete(&format!("/admin/executors/{name}")).await?;
    }
    let models = get(client, "/admin/models").await?;
    for at in [0, 1] {
        ensure!(
            models["models"][at]["executors"] == json!(["both"]),
            "{models}"
        );
    }
    client.delete("/admin/executors/both").await?;
    let models = get(client, "/admin/models").await?;
    ensure!(models["models"] == json!([]), "{models}");
    over(serving).await
}

#[tokio::test]
async fn a_model_has_at_most_as_many_requests_running_as_its_limit() -> Result<()> {
    // The limit is of the model, and not of each executor.
    let serving = Serving::start(|config| {
        config.local.models[0].running_max = Some(1);
        config.local.executors.push(executor("more", &["demo"]));
    })
    .await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({}))).await?;
    let waiting = asked(client, ask("demo", json!({})));
    serving.load_until(|load| load.queued == 1).await?;
    let models = get(client, "/admin/models").await?;
    let model = &models["models"][0];
    for (field, value) in [
        ("name", json!("demo")),
        ("executors", json!(["cpu0/demo", "more"])),
        ("running_max", json!(1)),
        ("running", json!(1)),
        ("waiting", json!(1)),
    ] {
        ensure!(model[field] == value, "{field}: {models}");
    }
    // Raised while it runs; the one that runs goes on.
    let path = "/admin/models/demo/running-max";
    let raised = order(client, path, &json!({"running-max": 2})).await?;
    ensure!(raised["running_max"] == 2, "{raised}");
    waiting.await??;
    let lifted = order(client, path, &json!({"running-max": null})).await?;
    ensure!(lifted["running_max"].is_null(), "{lifted}");
    for (path, body, status, said) in [
        (path, json!({}), 400, "`running-max` is missing"),
        (
            path,
            json!({"running-max": 0}),
            400,
            "an integer from 1 to 1000000, or null",
        ),
        (
            "/admin/models/other/running-max",
            json!({"running-max": 1}),
            404,
            "there is no model `other`",
        ),
    ] {
        let (got, message) = error(&client.post(path, &body).await?)?;
        ensure!(
            got == status && message.contains(said),
            "{body}: {got} {message}"
        );
    }
    drop(stream);
    over(serving).await
}
