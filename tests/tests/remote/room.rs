//! The room at servers: slots, saturation, silence, and others' load.

use anyhow::{Context, Result, anyhow, ensure};
use pointsman_core::Micros;
use pointsman_driver::message::Load;
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    backend, backends_of, executors_until, named, over, serving, serving_with, two_servers,
};

/// Asks for so many streams, and reads each to its end.
fn streams(client: Client, count: usize) -> Vec<JoinHandle<Result<String>>> {
    let ask = || {
        tokio::spawn(async move {
            let streamed = client
                .stream(&streamed_chat("hello"))
                .await?
                .finish()
                .await?;
            ensure!(streamed.done, "{streamed:?}");
            anyhow::Ok(streamed.text)
        })
    };
    (0..count).map(|_| ask()).collect()
}

#[tokio::test]
async fn no_more_requests_are_at_a_server_than_it_has_slots() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    mock.has_models("llamacpp", &["demo"]);
    mock.answers("/health", 200, "{\"status\":\"ok\"}");
    mock.answers("/props", 200, "{\"total_slots\": 3}");
    let serving = serving([backend("llama", &mock)?]).await?;
    let client = serving.client;
    let list = executors_until(client, |list| named(list, "llama")["slots_total"] == 3).await?;
    ensure!(named(&list, "llama")["kind"] == "remote");
    mock.does(Conduct::Steps(2));
    let asked = streams(client, 12);
    mock.runs(3).await?;
    mock.allow(24);
    for asked in asked {
        ensure!(asked.await?? == "t0 t1 ");
    }
    ensure!(mock.running_max() == 3, "{}", mock.running_max());
    over(serving).await
}

#[tokio::test]
async fn a_server_that_has_no_room_is_waited_for_and_nobody_is_told_503() -> Result<()> {
    for (status, headers) in [(503, &[][..]), (429, &[("retry-after", "0")])] {
        let mock = MockBackend::start(&["demo"]).await?;
        mock.has_models("vllm", &["demo"]);
        mock.answers("/health", 200, "");
        let serving = serving_with([backend("full", &mock)?], |config| {
            config.core.degraded_after = 1;
        });
        let serving = serving.await?;
        mock.does(Conduct::Status(status, headers));
        let asked = streams(serving.client, 4);
        let busy = |list: &[Value]| named(list, "full")["saturated"] == true;
        let list = executors_until(serving.client, busy).await?;
        ensure!(
            named(&list, "full")["health"] == "up",
            "a busy server is not ill: {list:?}"
        );
        mock.does(Conduct::Answers(2));
        for asked in asked {
            ensure!(asked.await?? == "t0 t1 ");
        }
        executors_until(serving.client, |list| !busy(list)).await?;
        over(serving).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_turns_back_the_fourth_has_three_slots() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving([backend("three", &mock)?]).await?;
    mock.does(Conduct::Steps(1));
    let mut asked = streams(serving.client, 3);
    mock.runs(3).await?;
    mock.does(Conduct::Status(503, &[]));
    asked.extend(streams(serving.client, 5));
    let shown = |list: &[Value]| {
        let slots = named(list, "three")["slots_total"].as_u64();
        slots.is_some_and(|slots| slots < 10)
    };
    executors_until(serving.client, shown).await?;
    mock.does(Conduct::Answers(1));
    mock.allow(3);
    for asked in asked {
        ensure!(asked.await?? == "t0 ");
    }
    over(serving).await
}

#[tokio::test]
async fn a_server_that_loads_its_model_is_waited_for() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    mock.has_models("llamacpp", &["demo"]);
    mock.answers("/health", 200, "{}");
    let serving = serving([backend("llama", &mock)?]).await?;
    mock.answers(
        "/health",
        503,
        "{\"error\":{\"message\":\"Loading model\"}}",
    );
    let loads = |list: &[Value]| named(list, "llama")["saturated"] == true;
    executors_until(serving.client, loads).await?;
    let asked = streams(serving.client, 2);
    serving.load_until(|load| load.queued == 2).await?;
    ensure!(mock.seen("/v1/chat/completions").is_empty());
    mock.answers("/health", 200, "{}");
    for asked in asked {
        ensure!(asked.await?? == "t0 t1 t2 ");
    }
    over(serving).await
}

/// Tests the policies that name one server for each request: by its load, and by the hash of a session.
#[tokio::test]
async fn while_a_server_loads_its_model_requests_go_to_another_one_at_once() -> Result<()> {
    for policy in ["least-loaded", "sticky"] {
        let loads = MockBackend::start(&["demo"]).await?;
        let works = MockBackend::start(&["demo"]).await?;
        for mock in [&loads, &works] {
            mock.has_models("llamacpp", &["demo"]);
            mock.answers("/health", 200, "{}");
        }
        let serving = serving([backend("loads", &loads)?, backend("works", &works)?]).await?;
        serving.decide_by(policy, policy, "").await?;
        loads.answers(
            "/health",
            503,
            "{\"error\":{\"message\":\"Loading model\"}}",
        );
        let busy = |list: &[Value]| named(list, "loads")["saturated"] == true;
        let list = executors_until(serving.client, busy).await?;
        ensure!(named(&list, "loads")["slots_used"] == 0, "{list:?}");
        for session in 0..8 {
            let mut body = chat("hello");
            body["pointsman"] = json!({"session": format!("session {session}")});
            let answer = serving.client.post("/v1/chat/completions", &body).await?;
            let said = ["x-pointsman-executor", "x-pointsman-policy"];
            let said = said.map(|name| answer.header(name).to_owned());
            ensure!(
                answer.status == 200 && said == ["works", policy],
                "{said:?}"
            );
        }
        ensure!(loads.seen("/v1/chat/completions").is_empty());
        over(serving).await?;
    }
    Ok(())
}

#[tokio::test]
async fn requests_wait_for_a_server_that_is_gone_and_go_there_when_it_is_back() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let addr = mock.addr();
    let serving = serving_with([backend("away", &mock)?], |config| {
        config.core.unserved_max = Micros(30_000_000);
    });
    let serving = serving.await?;
    drop(mock);
    executors_until(serving.client, |list| {
        named(list, "away")["health"] == "down"
    })
    .await?;
    let asked = streams(serving.client, 3);
    serving.load_until(|load| load.queued == 3).await?;
    let back = MockBackend::start_at(addr, &["demo"]).await?;
    for asked in asked {
        ensure!(asked.await?? == "t0 t1 t2 ");
    }
    ensure!(back.seen("/v1/chat/completions").len() == 3);
    over(serving).await
}

#[tokio::test]
async fn what_others_run_at_a_server_takes_of_its_slots() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    mock.has_models("vllm", &["demo"]);
    mock.answers("/health", 200, "");
    let mut config = backend("shared", &mock)?;
    config.server.slots = Some(10);
    let metrics = |running: u32| {
        format!(
            "vllm:num_requests_running{{engine=\"0\"}} {running}\n\
             vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n\
             vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"100\"}} 1\n"
        )
    };
    mock.answers("/metrics", 200, &metrics(1));
    let serving = serving([config]).await?;
    let client = serving.client;
    executors_until(client, |list| named(list, "shared")["slots_total"] == 7).await?;
    let devices = client.get("/admin/executors").await?.json()?["devices"].clone();
    ensure!(
        devices[0]["blocks_total"] == 100 && devices[0]["blocks_free"] == 50,
        "{devices}"
    );
    ensure!(devices[0]["block_bytes"].is_null(), "{devices}");
    let used = "pointsman_kv_blocks_used{device=\"remote:shared\"} 50\n";
    let told = String::from_utf8(client.get("/metrics").await?.body)?;
    ensure!(
        told.contains(used) && !told.contains("pointsman_kv_bytes{"),
        "{told}"
    );
    mock.answers("/metrics", 200, &metrics(100));
    executors_until(client, |list| named(list, "shared")["slots_total"] == 1).await?;
    mock.answers("/metrics", 200, &metrics(0));
    executors_until(client, |list| named(list, "shared")["slots_total"] == 8).await?;
    mock.answers("/metrics", 200, "");
    executors_until(client, |list| named(list, "shared")["slots_total"] == 10).await?;
    // What a server tells no more is not known.
    let listed = client.get("/admin/executors").await?.json()?;
    ensure!(listed["devices"][0]["blocks_total"].is_null(), "{listed}");
    ensure!(listed["load"]["blocks_used"].is_null(), "{listed}");
    let told = String::from_utf8(client.get("/metrics").await?.body)?;
    ensure!(!told.contains("pointsman_kv_blocks{"), "{told}");
    serving.server.stop().await
}

/// Tests a vLLM with `--max-num-seqs 2`, which it does not tell.
#[tokio::test]
async fn a_server_at_which_requests_wait_has_as_many_slots_as_run_there() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    mock.has_models("vllm", &["demo"]);
    mock.answers("/health", 200, "");
    let says = |running: u32, waiting: u32| {
        let running = format!("vllm:num_requests_running {running}\n");
        let waiting = format!("vllm:num_requests_waiting {waiting}\n");
        mock.answers("/metrics", 200, &(running + &waiting));
    };
    says(0, 0);
    let serving = serving([backend("full", &mock)?]).await?;
    let client = serving.client;
    let slots = |list: &[Value]| named(list, "full")["slots_total"].as_u64();
    executors_until(client, |list| slots(list) == Some(256)).await?;
    mock.does(Conduct::Steps(1));
    let mut asked = streams(client, 5);
    mock.runs(5).await?;
    says(2, 3);
    executors_until(client, |list| slots(list) == Some(2)).await?;
    // Who comes now waits here, where a policy says who goes first.
    asked.extend(streams(client, 1));
    serving.load_until(|load| load.queued == 1).await?;
    // It has lacked memory, and has it now.
    says(5, 0);
    mock.runs(6).await?;
    mock.allow(6);
    for asked in asked {
        ensure!(asked.await?? == "t0 ");
    }
    says(0, 0);
    executors_until(client, |list| slots(list) == Some(256)).await?;
    over(serving).await
}

#[tokio::test]
async fn another_software_is_known_by_the_names_of_its_metrics() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let url = mock.url();
    let backends = backends_of(&format!(
        "[[backends]]\nname = 'new'\nurl = '{url}'\npoll = '50ms'\nslots = 10\nmetrics-path = '/stats'\n\
         running-metric = 'engine_busy'\nwaiting-metric = 'engine_queue'\n\
         kv-usage-metric = 'engine_kv'\nkv-info-metric = 'engine_blocks'\n",
    ))?;
    let [config] = <[_; 1]>::try_from(backends).map_err(|_others| anyhow!("not one"))?;
    mock.answers(
        "/stats",
        200,
        "engine_busy 3\nengine_queue 1\nengine_kv 0.25\n\
         engine_blocks{block_size=\"32\",num_gpu_blocks=\"40\"} 1\n",
    );
    let serving = serving([config]).await?;
    executors_until(serving.client, |list| {
        named(list, "new")["slots_total"] == 6
    })
    .await?;
    let devices = serving.client.get("/admin/executors").await?.json()?["devices"].clone();
    ensure!(devices[0]["blocks_free"] == json!(30), "{devices}");
    serving.server.stop().await
}

#[tokio::test]
async fn a_server_of_sglang_tells_its_room_and_its_blocks() -> Result<()> {
    let mock = MockBackend::start(&[]).await?;
    mock.has_models("sglang", &["demo"]);
    mock.answers("/health", 200, "");
    let info = json!({"page_size": 16, "max_running_requests": 8, "kv_events": null});
    mock.answers("/server_info", 200, &info.to_string());
    let loads = |running: u32, used: u32| {
        let rank = json!({"num_running_reqs": running, "num_waiting_reqs": 1,
            "num_used_tokens": used, "max_total_num_tokens": 800, "token_usage": 0.1});
        mock.answers(
            "/v1/loads",
            200,
            &json!({"loads": [rank, rank]}).to_string(),
        );
    };
    loads(1, 80);
    let serving = serving([backend("sglang", &mock)?]).await?;
    let client = serving.client;
    // Four of eight are others', on two ranks.
    executors_until(client, |list| named(list, "sglang")["slots_total"] == 4).await?;
    let devices = client.get("/admin/executors").await?.json()?["devices"].clone();
    let blocks = (&devices[0]["blocks_total"], &devices[0]["blocks_free"]);
    ensure!(blocks == (&json!(100), &json!(90)), "{devices}");
    loads(0, 0);
    executors_until(client, |list| named(list, "sglang")["slots_total"] == 6).await?;
    ensure!(client.chat("hello").await?.text()? == "t0 t1 t2 ");
    // Its queue is full: no failure, and the request waits.
    mock.does(Conduct::Status(503, &[]));
    let asked = streams(client, 1);
    executors_until(client, |list| named(list, "sglang")["saturated"] == true).await?;
    mock.does(Conduct::Answers(1));
    for asked in asked {
        ensure!(asked.await?? == "t0 ");
    }
    serving.idle_but_for_blocks().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn the_slots_of_llama_cpp_are_asked_for_only_while_requests_run_there() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    mock.has_models("llamacpp", &["demo"]);
    mock.answers("/health", 200, "{}");
    mock.answers("/props", 200, "{\"total_slots\": 2}");
    mock.answers(
        "/slots",
        200,
        "[{\"is_processing\": true}, {\"is_processing\": true}]",
    );
    let serving = serving([backend("llama", &mock)?]).await?;
    let asked_for_health = || mock.seen("/health").len();
    let until = asked_for_health() + 5;
    while asked_for_health() < until {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    ensure!(mock.seen("/slots").is_empty());
    mock.does(Conduct::Steps(1));
    let asked = streams(serving.client, 1);
    // Somebody else has the other slot.
    executors_until(serving.client, |list| {
        named(list, "llama")["slots_total"] == 1
    })
    .await?;
    ensure!(!mock.seen("/slots").is_empty());
    mock.allow(1);
    for asked in asked {
        asked.await??;
    }
    over(serving).await
}

#[tokio::test]
async fn a_load_that_is_told_goes_before_what_is_asked_for() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let mut config = backend("told", &mock)?;
    config.server.slots = Some(4);
    let serving = serving([config]).await?;
    let client = serving.client;
    let path = "/admin/executors/told/load";
    // Others have three of the four slots, and blocks.
    let load = json!({"running": 2, "waiting": 1, "kv-blocks": 100, "kv-blocks-used": 30});
    ensure!(client.post(path, &load).await?.status == 200);
    let list = executors_until(client, |list| named(list, "told")["slots_total"] == 1).await?;
    ensure!(named(&list, "told")["kind"] == "remote");
    let blocks = |load: &Load| (load.blocks_total, load.blocks_used) == (100, 30);
    serving.load_until(blocks).await?;
    // Rounds of questions, in which the server tells nothing, do not change that.
    let rounds = mock.seen("/v1/models").len();
    mock.heard("/v1/models", rounds + 3).await?;
    let list = executors_until(client, |_| true).await?;
    ensure!(named(&list, "told")["slots_total"] == 1);
    // One at a time, then.
    mock.does(Conduct::Steps(1));
    let asked = streams(client, 3);
    mock.runs(1).await?;
    mock.allow(3);
    for asked in asked {
        asked.await??;
    }
    ensure!(mock.running_max() == 1, "{}", mock.running_max());
    // It is forgotten in time, but for the blocks, of which nobody has told anything else.
    executors_until(client, |list| named(list, "told")["slots_total"] == 4).await?;
    serving.idle_but_for_blocks().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_server_may_say_that_it_has_more_slots_than_anybody_would_give_it() -> Result<()> {
    let [one, two] = two_servers().await?;
    one.has_models("llamacpp", &["demo"]);
    one.answers("/health", 200, "{}");
    let props = json!({"total_slots": u32::MAX});
    one.answers("/props", 200, &props.to_string());
    let serving = serving([backend("one", &one)?, backend("two", &two)?]).await?;
    let client = serving.client;
    let load = json!({"slots": 100_000});
    let told = client.post("/admin/executors/two/load", &load).await?;
    ensure!(told.status == 200);
    let slots =
        |list: &[Value]| ["one", "two"].map(|name| named(list, name)["slots_total"].as_u64());
    let expected = [Some(u64::from(u32::MAX)), Some(100_000)];
    executors_until(client, |list| slots(list) == expected).await?;
    let listed = client.get("/admin/executors").await?.json()?;
    ensure!(
        listed["load"]["slots_total"] == u32::MAX,
        "{}",
        listed["load"]
    );
    ensure!(client.get("/monitor/data").await?.status == 200);
    for asked in streams(client, 4) {
        ensure!(asked.await?? == "t0 t1 t2 ");
    }
    over(serving).await
}

#[tokio::test]
async fn a_load_that_makes_no_sense_is_refused_by_name() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let remote = backend("told", &mock)?;
    let serving = Serving::start(|config| config.backends = vec![remote]).await?;
    let client = serving.client;
    for (body, named) in [
        (json!({"running": -1}), "running"),
        (json!({"kv-blocks": 0}), "kv-blocks"),
        (json!({"busy": 1}), "busy"),
        (json!({"waiting": 0, "slots": 8}), "waiting"),
        (json!({"kv-blocks": 100, "running": 1}), "kv-blocks"),
        (json!({"kv-blocks-used": 30}), "kv-blocks-used"),
    ] {
        let got = client.post("/admin/executors/told/load", &body).await?;
        ensure!(
            got.status == 400 && got.json()?["error"]["param"] == named,
            "{body}"
        );
    }
    let list = executors_until(client, |list| list.len() == 2).await?;
    let engine = list.iter().find(|executor| executor["kind"] == "cpu");
    let engine = engine.context("no engine")?["name"]
        .as_str()
        .context("no name")?;
    let path = format!("/admin/executors/{}/load", engine.replace('/', "%2F"));
    let got = client.post(&path, &json!({"running": 1})).await?;
    ensure!(got.status == 409, "{}", got.status);
    over(serving).await
}

/// Servers of these names whose contexts have so many tokens, and a host before them.
async fn with_contexts<const N: usize>(
    servers: [(&str, u32); N],
) -> Result<(Serving, Vec<MockBackend>)> {
    let (mut mocks, mut backends) = (Vec::new(), Vec::new());
    for (name, context) in servers {
        let mock = MockBackend::start(&["demo"]).await?;
        mock.has_models_with_context(("vllm", &["demo"]), context);
        backends.push(backend(name, &mock)?);
        mocks.push(mock);
    }
    let serving = serving_with([], |config| config.backends = backends);
    Ok((serving.await?, mocks))
}

#[tokio::test]
async fn a_prompt_goes_where_the_context_has_room_for_it() -> Result<()> {
    let (serving, _mocks) = with_contexts([("short", 100), ("long", 8192)]).await?;
    let client = serving.client;
    let ask = |words: usize, tokens_max: u32, own: usize| {
        let content = format!("{own}{}", " word".repeat(words));
        let body = json!({"model": "demo", "max_tokens": tokens_max,
            "messages": [{"role": "user", "content": content}]});
        async move {
            let answer = client.post("/v1/chat/completions", &body).await?;
            ensure!(answer.status == 200, "{answer:?}");
            anyhow::Ok(answer.header("x-pointsman-executor").to_owned())
        }
    };
    // What fits everywhere goes everywhere.
    let mut by = Vec::new();
    for own in 0..4 {
        by.push(ask(5, 5, own).await?);
    }
    by.sort();
    ensure!(by == ["long", "long", "short", "short"], "{by:?}");
    for own in 4..10 {
        ensure!(ask(400, 5, own).await? == "long", "the prompt is too long");
        let executor = ask(5, 500, own).await?;
        ensure!(executor == "long", "the answer may be too long");
    }
    // Its length is a guess: it may fit where the context is longest.
    for own in 10..12 {
        ensure!(
            ask(10_000, 5, own).await? == "long",
            "it is taken to fit nowhere"
        );
    }
    over(serving).await
}

/// The refusals of a prompt that is too long, as vLLM, SGLang, llama.cpp, Ollama and OpenAI write them.
const TOO_LONG: [&str; 6] = [
    r#"{"error":{"message":"This model's maximum context length is 100 tokens. However, your request has 130 input tokens.","type":"BadRequestError","param":null,"code":400}}"#,
    r#"{"object":"error","message":"The decoder prompt (length 130) is longer than the maximum model length of 100.","type":"BadRequestError","param":null,"code":400}"#,
    r#"{"object":"error","message":"Input length (130 tokens) exceeds the maximum allowed length (100 tokens).","type":"BadRequestError","param":null,"code":400}"#,
    r#"{"error":{"code":400,"message":"request (130 tokens) exceeds the available context size (100 tokens)","type":"exceed_context_size_error","n_prompt_tokens":130,"n_ctx":100}}"#,
    r#"{"error":"the input length exceeds the context length"}"#,
    r#"{"error":{"message":"Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
];

/// A server's refusal with this body.
fn refusal(body: &str) -> Conduct {
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-of: server";
    let length = body.len();
    Conduct::Bytes(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes())
}

#[tokio::test]
async fn a_prompt_that_a_server_finds_too_long_goes_where_the_context_is_longer() -> Result<()> {
    let contexts = [
        ("short", 100),
        ("alike", 100),
        ("middle", 200),
        ("long", 8192),
    ];
    let (serving, mocks) = with_contexts(contexts).await?;
    let client = serving.client.for_others();
    let refuse = |mocks: &[MockBackend], body: &str| {
        for mock in mocks {
            mock.does(refusal(body));
        }
    };
    let mut own = 0;
    let mut ask = |allowed: &[&str]| {
        own += 1;
        let hints = match allowed {
            [] => json!({}),
            names => json!({"executors": names}),
        };
        let body = json!({"model": "demo", "max_tokens": 5, "pointsman": hints,
            "messages": [{"role": "user", "content": format!("{own} word word")}]});
        async move { client.post("/v1/chat/completions", &body).await }
    };
    for body in TOO_LONG {
        refuse(&mocks[..3], body);
        for _ in 0..8 {
            let answer = ask(&[]).await?;
            ensure!(answer.status == 200, "{answer:?}");
            ensure!(answer.header("x-pointsman-executor") == "long");
        }
    }
    let seen = |mock: &MockBackend| mock.seen("/v1/chat/completions").len();
    ensure!(seen(&mocks[0]) > 0 && seen(&mocks[2]) > 0 && seen(&mocks[3]) == 48);
    let list = executors_until(serving.client, |_| true).await?;
    for (name, _) in contexts {
        let row = named(&list, name);
        ensure!(row["health"] == "up" && row["saturated"] == false, "{row}");
    }
    // Where none is longer it is the client's to hear, as it is if something else is wrong.
    refuse(&mocks, TOO_LONG[0]);
    for allowed in [&[][..], &["short", "alike"]] {
        let answer = ask(allowed).await?;
        let is_as_written = answer.body == TOO_LONG[0].as_bytes();
        ensure!(answer.status == 400 && is_as_written, "{answer:?}");
        ensure!(answer.header("x-of") == "server");
    }
    let wrong = r#"{"error":{"message":"temperature must be positive","code":400}}"#;
    refuse(&mocks, wrong);
    let before: usize = mocks.iter().map(seen).sum();
    for _ in 0..8 {
        let answer = ask(&[]).await?;
        ensure!(
            answer.status == 400 && answer.body == wrong.as_bytes(),
            "{answer:?}"
        );
    }
    let after: usize = mocks.iter().map(seen).sum();
    ensure!(after - before == 8, "each was tried once");
    over(serving).await
}
