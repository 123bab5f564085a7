//! A server with models on an emulated CUDA device.

use anyhow::{Context, Result, ensure};
use pointsman_config::Config;
use pointsman_cuda::emulation;
use pointsman_driver::provider::{ExecutorConfig, ModelConfig, ModelSource};
use pointsman_executor::job::Sampling;
use pointsman_local::DeviceConfig;
use pointsman_model::test_util::fp8::Fp8Model;
use pointsman_server::check::check;
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::cuda::{Case, OnDevices, TINY, nothing_measured, served_on};
use pointsman_tests::log::Log;
use pointsman_tests::served::ServedLoad;
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// A small load of the benchmark's server.
const LOAD: ServedLoad = ServedLoad {
    clients: 2,
    slots: 2,
    requests: 4,
    tokens: 3,
    rounds: 1,
};

/// The demo model on the processors as `near`, and on a CUDA device as `gpu`.
fn both(config: &mut Config) {
    config
        .local
        .devices
        .push(DeviceConfig::with_cuda("gpu0", &[0]));
    config.local.executors = vec![named("near", None), named("gpu", Some("gpu0"))];
}

/// The demo model on the processors as `near`, and on these CUDA devices together as `gpu`.
fn together(config: &mut Config, ordinals: &[usize]) {
    both(config);
    config.local.devices[1] = DeviceConfig::with_cuda("gpu0", ordinals);
}

fn named(name: &str, device: Option<&str>) -> ExecutorConfig {
    ExecutorConfig {
        name: Some(name.to_owned()),
        device: device.map(str::to_owned),
        ..ExecutorConfig::new("demo")
    }
}

/// The refusal of a start with such a configuration.
async fn not_started(tune: impl FnOnce(&mut Config)) -> Result<String> {
    let started = Serving::start(tune).await;
    Ok(format!("{:#}", started.err().context("it started")?))
}

/// The same, where its check has to tell it as well.
async fn refused(tune: impl FnOnce(&mut Config)) -> Result<String> {
    let mut checked = None;
    let refused = not_started(|config| {
        tune(config);
        checked = Some(check(config));
    });
    let refused = refused.await?;
    let checked = checked.and_then(Result::err);
    let checked = format!("{:#}", checked.context("its check is good")?);
    ensure!(checked == refused, "{checked} and {refused}");
    Ok(refused)
}

/// Bytes of the KV pool of the CUDA device in a list of devices.
fn pool_bytes(devices: &Value) -> Result<u64> {
    let gpu = &devices["devices"][1];
    let (blocks, bytes) = (&gpu["blocks_total"], &gpu["block_bytes"]);
    Ok(blocks.as_u64().context("no blocks")? * bytes.as_u64().context("no bytes")?)
}

fn on(kind: &str, mut body: Value) -> Value {
    body["pointsman"] = json!({"kind": kind});
    body
}

/// The text of an answer of an executor of this kind, which has to be `executor`.
async fn answer(client: Client, kind: &str, executor: &str) -> Result<String> {
    let body = on(kind, chat("What comes after four?"));
    let answer = client.post("/v1/chat/completions", &body).await?;
    let text = answer.text()?;
    ensure!(answer.header("x-pointsman-executor") == executor, "{kind}");
    Ok(text)
}

#[tokio::test]
async fn a_model_is_served_by_a_cuda_device_beside_the_processors() -> Result<()> {
    let _emulated = emulation::alone();
    let serving = Serving::start(both).await?;
    let client = serving.client;
    let near = answer(client, "cpu", "near").await?;
    let text = answer(client, "cuda", "gpu").await?;
    ensure!(text == near, "{text} and {near}");
    let body = on("cuda", streamed_chat("What comes after four?"));
    let streamed = client.stream(&body).await?.finish().await?;
    ensure!(streamed.text == text && streamed.done, "{streamed:?}");
    let embedded = async |kind: &str| {
        let body = on(
            kind,
            json!({"model": "demo", "input": "What comes after four?"}),
        );
        let answer = client.post("/v1/embeddings", &body).await?;
        let numbers = answer.json()?["data"][0]["embedding"].take();
        Ok::<Vec<f64>, anyhow::Error>(serde_json::from_value(numbers)?)
    };
    let (here, there) = (embedded("cpu").await?, embedded("cuda").await?);
    let cosine: f64 = here.iter().zip(&there).map(|(a, b)| a * b).sum();
    ensure!(cosine > 0.999 && here != there, "{cosine}");
    let executors = client.get("/admin/executors").await?.json()?;
    let gpu = &executors["executors"][1];
    ensure!(gpu["kind"] == "cuda" && gpu["device"] == "gpu0", "{gpu}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn an_answer_of_a_device_has_the_form_that_is_asked_for() -> Result<()> {
    let _emulated = emulation::alone();
    let serving = Serving::start(both).await?;
    let schema = json!({
        "type": "object",
        "properties": {
            "animal": {"type": "string", "maxLength": 10},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        },
        "required": ["animal", "legs"], "additionalProperties": false,
    });
    let named = json!({"name": "animal", "strict": true, "schema": schema});
    let mut body = on("cuda", chat("Tell me about a fox."));
    body["response_format"] = json!({"type": "json_schema", "json_schema": named});
    body["max_tokens"] = json!(400);
    let answer = serving.client.post("/v1/chat/completions", &body).await?;
    let json = answer.json()?;
    ensure!(json["choices"][0]["finish_reason"] == "stop", "{json}");
    let text = answer.text()?;
    let value: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let legs = value["legs"].as_u64().context("no legs")?;
    ensure!(value["animal"].is_string() && legs <= 8, "{text}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn the_tokens_of_a_device_come_with_the_probabilities_that_are_asked_for() -> Result<()> {
    let _emulated = emulation::alone();
    let serving = Serving::start(both).await?;
    let client = serving.client;
    let told = async |kind: &str| {
        let mut body = on(kind, chat("What comes after four?"));
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(2);
        let answer = client.post("/v1/chat/completions", &body).await?;
        let told = answer.json()?["choices"][0]["logprobs"]["content"].take();
        Ok::<Vec<Value>, anyhow::Error>(serde_json::from_value(told)?)
    };
    let (here, there) = (told("cpu").await?, told("cuda").await?);
    ensure!(
        there.len() > 3 && here.len() == there.len(),
        "{here:?} and {there:?}"
    );
    let logprob = |token: &Value| token["logprob"].as_f64().context("no probability");
    for (here, there) in here.iter().zip(&there) {
        let top = there["top_logprobs"].as_array().context("no others")?;
        ensure!(top.len() == 2 && top[0]["token"] == there["token"]);
        let difference = logprob(here)? - logprob(there)?;
        let is_same = here["token"] == there["token"] && difference.abs() < 0.5;
        ensure!(is_same, "{here} and {there}");
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_stream_goes_on_at_the_processors_when_its_device_is_lost_which_then_serves_again()
-> Result<()> {
    let emulated = emulation::alone();
    let serving = Serving::start(|config| {
        both(config);
        config.local.executors[0].terms.slots = 1;
    })
    .await?;
    let client = serving.client;
    let endless = |kind: &str, tokens: u32| {
        let mut body = on(kind, streamed_chat("Hello"));
        body["ignore_eos"] = json!(true);
        body["max_tokens"] = json!(tokens);
        body
    };
    let mut occupant = client.stream(&endless("cpu", 1900)).await?;
    occupant.first_text().await?;
    let mut body = endless("cuda", 300);
    body["pointsman"] = json!({"executors": ["near", "gpu"]});
    let mut stream = client.stream(&body).await?;
    stream.first_text().await?;
    let first = stream
        .headers
        .get("x-pointsman-executor")
        .context("nowhere")?;
    ensure!(first == "gpu", "{first:?}");
    drop(occupant);
    emulated.lose_after(Some(20));
    let streamed = stream.finish().await?;
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    let again = answer(client, "cuda", "gpu").await?;
    ensure!(!again.is_empty());
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn executors_that_share_a_device_begin_anew_though_one_is_idle_when_the_other_loses_it()
-> Result<()> {
    let emulated = emulation::alone();
    let serving = Serving::start(|config| {
        both(config);
        let idle = named("idle", Some("gpu0"));
        config.local.executors.push(idle);
    })
    .await?;
    let client = serving.client;
    let asked = async |executor: &str| {
        let mut body = chat("What comes after four?");
        body["pointsman"] = json!({"executors": [executor]});
        client.post("/v1/chat/completions", &body).await
    };
    let text = asked("gpu").await?.text()?;
    ensure!(asked("idle").await?.text()? == text, "both have begun");
    emulated.lose_after(Some(20));
    let lost = asked("gpu").await?.json()?;
    ensure!(lost["error"]["code"] == "nowhere_left", "{lost}");
    for executor in ["gpu", "idle"] {
        let again = asked(executor).await?.text()?;
        ensure!(again == text, "{again} of {executor}");
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn weights_go_to_the_device_and_into_memory_once_processors_compute_them_and_both_are_told()
-> Result<()> {
    let _emulated = emulation::alone();
    let log = Log::begin("info")?;
    let serving = Serving::start(|config| {
        config.local.models = vec![ModelConfig::new("told", ModelSource::Embedded)];
        config
            .local
            .devices
            .push(DeviceConfig::with_cuda("gpu0", &[0]));
        config.local.executors = vec![ExecutorConfig {
            device: Some("gpu0".to_owned()),
            ..ExecutorConfig::new("told")
        }];
    })
    .await?;
    let client = serving.client;
    let told = |body: Value| {
        let mut body = body;
        body["model"] = json!("told");
        body
    };
    let asked = told(on("cuda", chat("What comes after four?")));
    let there = client.post("/v1/chat/completions", &asked).await?.text()?;
    let line = |device: &str, start: &str| {
        let text = log.text();
        let mut lines = text.lines();
        let (model, device) = ("model=\"told\"", format!("device=\"{device}\""));
        let found = lines
            .find(|line| line.contains(start) && line.contains(model) && line.contains(&device));
        found.map(str::to_owned)
    };
    let loaded = line("gpu0", "weights loaded").context("nothing is told")?;
    ensure!(loaded.contains("size=\"5.1 MB\" tensors=56"), "{loaded}");
    ensure!(line("gpu0", "loading weights").is_some(), "no beginning");
    ensure!(line("memory", "weights loaded").is_none(), "it was read");
    let added = json!({"models": ["told"], "executor": "near", "device": "cpu0"});
    let added = client.post("/admin/executors", &added).await?;
    ensure!(added.status == 201, "{added:?}");
    ensure!(line("memory", "weights loaded").is_some(), "{}", log.text());
    let asked = told(on("cpu", chat("What comes after four?")));
    let here = client.post("/v1/chat/completions", &asked).await?.text()?;
    ensure!(here == there, "{here} and {there}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_model_in_fp8_is_served_by_a_device_that_has_it_and_refused_elsewhere_by_name()
-> Result<()> {
    let emulated = emulation::alone();
    let folder = tempfile::tempdir()?;
    Fp8Model::write_demo(folder.path());
    let on = |device: &'static str| {
        let folder = folder.path().to_owned();
        move |config: &mut Config| {
            let source = ModelSource::Path(folder);
            config.local.models = vec![ModelConfig::new("demo", source)];
            config
                .local
                .devices
                .push(DeviceConfig::with_cuda("gpu0", &[0]));
            config.local.executors = vec![named("gpu", Some(device))];
        }
    };
    let said = refused(on("cpu0")).await?;
    let expected =
        "model demo: tensor model.layers.0.self_attn.q_proj.weight is FP8, which only CUDA devices";
    ensure!(said.contains(expected), "{said}");
    emulated.set_capability(8, 6);
    let said = refused(on("gpu0")).await?;
    ensure!(
        said.contains("has compute capability 8.6, and FP8"),
        "{said}"
    );
    emulated.set_capability(8, 9);
    let serving = Serving::start(on("gpu0")).await?;
    let text = answer(serving.client, "cuda", "gpu").await?;
    ensure!(text == "Five comes after four.", "{text}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn kv_memory_is_nine_tenths_of_what_models_and_steps_leave_and_they_run_beside_it()
-> Result<()> {
    let emulated = emulation::alone();
    emulated.set_memory(64 << 20);
    let serving = Serving::start(both).await?;
    let devices = serving.client.get("/admin/devices").await?.json()?;
    let by_itself = pool_bytes(&devices)?;
    ensure!((11 << 20..14 << 20).contains(&by_itself), "{devices}");
    answer(serving.client, "cuda", "gpu").await?;
    serving.server.stop().await?;
    let serving = Serving::start(|config| {
        both(config);
        config.local.devices[1].kv_bytes = Some(8 << 20);
    });
    let serving = serving.await?;
    let devices = serving.client.get("/admin/devices").await?.json()?;
    ensure!(
        (7 << 20..=8 << 20).contains(&pool_bytes(&devices)?),
        "{devices}"
    );
    answer(serving.client, "cuda", "gpu").await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_long_prompt_is_computed_where_a_model_and_its_kv_cache_nearly_fill_the_device()
-> Result<()> {
    let emulated = emulation::alone();
    emulated.set_memory(54 << 20);
    let serving = Serving::start(both).await?;
    let mut body = on("cuda", chat(&" four".repeat(520)));
    body["max_tokens"] = json!(2);
    let answer = serving.client.post("/v1/chat/completions", &body).await?;
    let tokens = answer.json()?["usage"]["prompt_tokens"].as_u64();
    ensure!(tokens.context("no answer")? > 520, "{answer:?}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_server_without_the_device_or_the_memory_it_wants_does_not_start_and_says_why()
-> Result<()> {
    let emulated = emulation::alone();
    emulated.set_memory(64 << 20);
    let said = not_started(|config| {
        both(config);
        config.local.devices[1].kv_bytes = Some(62 << 20);
    });
    let said = said.await?;
    ensure!(said.contains("device gpu0: its models take"), "{said}");
    let said = refused(|config| together(config, &[5])).await?;
    ensure!(
        said.contains("there is no CUDA device 5: the driver has 1"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn a_model_is_served_by_two_devices_together_and_again_when_one_of_them_was_lost()
-> Result<()> {
    let emulated = emulation::alone();
    emulated.set_devices(2);
    let serving = Serving::start(|config| together(config, &[0, 1])).await?;
    let client = serving.client;
    let near = answer(client, "cpu", "near").await?;
    let text = answer(client, "cuda", "gpu").await?;
    ensure!(text == near, "{text} and {near}");
    ensure!(emulated.communicators() == 2, "one device computes");
    let devices = client.get("/admin/devices").await?.json()?;
    let devices = devices["devices"].as_array().context("no devices")?;
    let names: Vec<&Value> = devices.iter().map(|device| &device["name"]).collect();
    ensure!(names == ["cpu0", "gpu0"], "{names:?}");
    let executors = client.get("/admin/executors").await?.json()?;
    let gpu = &executors["executors"][1];
    ensure!(gpu["kind"] == "cuda" && gpu["device"] == "gpu0", "{gpu}");
    for device in [1, 0] {
        emulated.lose_device_after(device, Some(20));
        let lost = on("cuda", chat("What comes after four?"));
        let lost = client.post("/v1/chat/completions", &lost).await?.json()?;
        emulated.lose_device_after(device, None);
        ensure!(lost["error"]["code"] == "nowhere_left", "{lost}");
        let again = answer(client, "cuda", "gpu").await?;
        ensure!(again == text, "{again} once {device} was lost");
    }
    serving.idle().await?;
    serving.server.stop().await?;
    let left = (emulated.allocated(), emulated.communicators());
    ensure!(left == (0, 0), "{left:?}");
    Ok(())
}

#[tokio::test]
async fn a_model_that_cannot_be_split_is_refused_by_name_at_a_start_and_by_its_check() -> Result<()>
{
    let emulated = emulation::alone();
    emulated.set_devices(3);
    let said = refused(|config| together(config, &[0, 1, 2])).await?;
    let expected = "model demo: a model whose num_key_value_heads is 2 cannot be split over 3 devices, each of which \
                    would need as many";
    ensure!(said == expected, "{said}");
    Ok(())
}

#[tokio::test]
async fn a_device_on_which_no_model_is_yet_is_there_although_none_can_be_split_over_it()
-> Result<()> {
    let emulated = emulation::alone();
    emulated.set_devices(5);
    let serving = Serving::start(|config| {
        together(config, &[0, 1, 2, 3, 4]);
        config.local.executors.truncate(1);
    })
    .await?;
    let devices = serving.client.get("/admin/devices").await?.json()?;
    let block = devices["devices"][1]["block_bytes"].as_u64();
    // A device has a fifth of it, which begins where kernels can read it.
    ensure!(block.context("no block")? % (5 * 16) == 0, "{devices}");
    let order = json!({"models": ["demo"], "executor": "gpu", "device": "gpu0"});
    let refused = serving.client.post("/admin/executors", &order).await?;
    let said = refused.json()?.to_string();
    let expected = "num_attention_heads is 6 cannot be split over 5 devices";
    ensure!(refused.status == 409 && said.contains(expected), "{said}");
    serving.server.stop().await
}

#[tokio::test]
async fn a_device_of_several_has_room_for_blocks_by_the_fullest_which_is_named_where_it_lacks_memory()
-> Result<()> {
    let emulated = emulation::alone();
    emulated.set_devices(2);
    emulated.set_memory(64 << 20);
    let bytes = async |ordinals: &[usize]| {
        let serving = Serving::start(|config| together(config, ordinals)).await?;
        let devices = serving.client.get("/admin/devices").await?.json()?;
        answer(serving.client, "cuda", "gpu").await?;
        serving.server.stop().await?;
        pool_bytes(&devices)
    };
    // Each has a part of the weights.
    let (one, two) = (bytes(&[0]).await?, bytes(&[0, 1]).await?);
    ensure!(two > 2 * one && two < 128 << 20, "{two} and {one}");
    let said = not_started(|config| {
        together(config, &[0, 1]);
        config.local.devices[1].kv_bytes = Some(2 * (62 << 20));
    });
    let said = said.await?;
    let (start, end) = (
        "device gpu0: its models take ",
        ", and its kv-memory takes 65011712, but",
    );
    ensure!(said.contains(start) && said.contains(end), "{said}");
    let said = refused(|config| together(config, &[0, 5])).await?;
    let expected = "device gpu0: there is no CUDA device 5: the driver has 2";
    ensure!(said.contains(expected), "{said}");
    Ok(())
}

#[tokio::test]
async fn the_benchmark_measures_devices_together() -> Result<()> {
    let emulated = emulation::alone();
    emulated.set_devices(2);
    let folder = tempfile::tempdir()?;
    let config = TINY.write(folder.path())?;
    let case = Case {
        batch: 2,
        context: 16,
        new: 1,
    };
    let mut model = OnDevices::new(&[0, 1], &config, 64)?;
    ensure!(emulated.communicators() == 2, "one device computes");
    ensure!(!model.step(case, &Sampling::GREEDY)?.is_zero());
    drop(model);
    let served = served_on(&[0, 1], &config, LOAD).await?;
    ensure!(served.policies[0].load.requests >= 4, "{served:?}");
    Ok(())
}

#[tokio::test]
async fn the_benchmark_measures_the_default_policies_and_the_built_in_rule_in_turns() -> Result<()>
{
    let _emulated = emulation::alone();
    let folder = tempfile::tempdir()?;
    let config = TINY.write(folder.path())?;
    let load = ServedLoad { rounds: 2, ..LOAD };
    let served = served_on(&[0], &config, load).await?;
    let of = [&served.policies, &served.built_in];
    ensure!(of.map(Vec::len) == [2, 2], "{served:?}");
    for round in of.into_iter().flatten() {
        ensure!(round.load.requests >= 4, "{served:?}");
        ensure!(!round.load.step.is_zero(), "{served:?}");
    }
    ensure!(served.to_string().lines().count() == 3, "{served}");
    // They are asked again once they are back.
    ensure!(
        served.policies.iter().all(|round| round.answers > 0),
        "{served:?}"
    );
    ensure!(
        served.built_in.iter().all(|round| round.answers == 0),
        "{served:?}"
    );
    Ok(())
}

#[test]
fn the_benchmark_says_that_nothing_was_measured_where_a_device_is_missing() {
    let emulated = emulation::alone();
    assert_eq!(nothing_measured(&[0]), None);
    emulated.set_devices(0);
    for ordinals in [&[0][..], &[0, 1]] {
        let said = nothing_measured(ordinals);
        let expected = "Nothing was measured: there is no CUDA device 0: the driver has 0";
        assert_eq!(said.as_deref(), Some(expected));
    }
}
