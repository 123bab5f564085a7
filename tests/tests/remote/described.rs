//! Servers whose models and metrics the configuration names.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pointsman_config::BackendConfig;
use pointsman_tests::backend::MockBackend;
use pointsman_tests::client::{Client, chat};
use serde_json::{Value, json};

use super::{backend, backends_of, executors_until, named, over, serving, two_servers};

const CHAT: &str = "/v1/chat/completions";

/// The backend `one` of this table, asked often.
fn one(mock: &MockBackend, table: &str) -> Result<BackendConfig> {
    let head = format!("[[backends]]\nname = 'one'\nurl = '{}'\n", mock.url());
    let backends = backends_of(&format!("{head}poll = '50ms'\n{table}\n"))?;
    backends.into_iter().next().context("no backend")
}

/// Waits until the model's longest sequence is known to be so long.
async fn has_context(client: Client, tokens: u32) -> Result<()> {
    let has_it = |models: &Value| models["data"][0]["max_model_len"] == tokens;
    for _ in 0..20_000 {
        if has_it(&client.get("/v1/models").await?.json()?) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    bail!("no context of {tokens} tokens")
}

#[tokio::test]
async fn a_server_that_does_not_list_its_models_takes_nothing_unless_they_are_named() -> Result<()>
{
    let [found, told] = two_servers().await?;
    let mut config = backend("told", &told)?;
    config.server.models = vec!["demo".to_owned()];
    let serving = serving([backend("found", &found)?, config]).await?;
    let client = serving.client;
    let is_busy = |list: &[Value], name: &str| named(list, name)["saturated"] == true;
    for status in [401, 404, 501] {
        for mock in [&found, &told] {
            mock.answers("/v1/models", status, "{}");
        }
        executors_until(client, |list| is_busy(list, "found")).await?;
        let asked = told.seen("/v1/models").len();
        told.heard("/v1/models", asked + 3).await?;
        let list = executors_until(client, |_| true).await?;
        ensure!(!is_busy(&list, "told"), "{status}: {list:?}");
        let answer = client.post(CHAT, &chat("hello")).await?;
        ensure!(answer.header("x-pointsman-executor") == "told");
        found.has_models("openai", &["demo"]);
        executors_until(client, |list| !is_busy(list, "found")).await?;
    }
    // One that has failed, or has no room, takes nothing, whatever is named.
    for status in [429, 502] {
        told.answers("/v1/models", status, "{}");
        executors_until(client, |list| is_busy(list, "told")).await?;
        told.has_models("openai", &["demo"]);
        executors_until(client, |list| !is_busy(list, "told")).await?;
    }
    over(serving).await
}

#[tokio::test]
async fn the_context_of_a_model_that_is_named_is_its_servers() -> Result<()> {
    let [short, long] = two_servers().await?;
    short.has_models_with_context(("vllm", &["demo", "more"]), 100);
    long.has_models_with_context(("vllm", &["demo", "more"]), 8192);
    let serving = serving([one(&short, "models = ['demo']")?]).await?;
    let client = serving.client;
    has_context(client, 100).await?;
    let order = json!({
        "url": long.url(), "executor": "long", "models": ["demo"], "poll-ms": 50,
    });
    ensure!(client.post("/admin/executors", &order).await?.status == 201);
    has_context(client, 8192).await?;
    let list = executors_until(client, |_| true).await?;
    ensure!(named(&list, "one")["models"] == json!(["demo"]), "{list:?}");
    for own in 0..6 {
        let mut body = chat(&format!("{own}{}", " word".repeat(400)));
        body["max_tokens"] = json!(5);
        let answer = client.post(CHAT, &body).await?;
        let executor = answer.header("x-pointsman-executor");
        ensure!(executor == "long", "the prompt is too long for {executor}");
    }
    over(serving).await
}

/// The blocks of the server `one` of this table, all and free ones, once it has so many slots.
async fn blocks_with_slots(mock: &MockBackend, table: &str, slots: u32) -> Result<Value> {
    let serving = serving([one(mock, table)?]).await?;
    let client = serving.client;
    executors_until(client, |list| named(list, "one")["slots_total"] == slots).await?;
    let devices = client.get("/admin/executors").await?.json()?["devices"].clone();
    serving.server.stop().await?;
    Ok(json!([
        devices[0]["blocks_total"],
        devices[0]["blocks_free"]
    ]))
}

#[tokio::test]
async fn metrics_that_are_not_named_are_those_of_the_software() -> Result<()> {
    let vllm = MockBackend::start(&[]).await?;
    vllm.has_models("vllm", &["demo"]);
    vllm.answers("/health", 200, "");
    vllm.answers(
        "/stats",
        200,
        "vllm:num_requests_running 2\nvllm:num_requests_waiting 5\nqueue 1\n\
         vllm:kv_cache_usage_perc 0.5\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n",
    );
    let path = "slots = 10\nmetrics-path = '/stats'\n";
    let blocks = json!([100, 50]);
    // Its software is found out, or known.
    for software in ["", "software = 'vllm'\n"] {
        let table = format!("{path}{software}");
        ensure!(blocks_with_slots(&vllm, &table, 3).await? == blocks);
        let table = format!("{path}{software}waiting-metric = 'queue'");
        ensure!(blocks_with_slots(&vllm, &table, 7).await? == blocks);
    }
    let sglang = MockBackend::start(&[]).await?;
    sglang.has_models("sglang", &["demo"]);
    sglang.answers("/health", 200, "");
    let info = json!({"page_size": 16, "max_running_requests": 8});
    sglang.answers("/server_info", 200, &info.to_string());
    let rank = json!({"num_running_reqs": 1, "num_used_tokens": 80, "max_total_num_tokens": 800});
    let loads = json!({"loads": [rank]});
    sglang.answers("/v1/loads", 200, &loads.to_string());
    sglang.answers("/metrics", 200, "busy 3\n");
    let blocks = json!([50, 45]);
    ensure!(blocks_with_slots(&sglang, "", 7).await? == blocks);
    ensure!(blocks_with_slots(&sglang, "running-metric = 'busy'", 5).await? == blocks);
    Ok(())
}
