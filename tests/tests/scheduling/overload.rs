//! The answers to clients when there is no room or no time.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pointsman_config::{ApiKey, Config, Rights, TenantConfig};
use pointsman_core::rows::RequestClass;
use pointsman_driver::message::Load;
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Answer, Client, chat, endless_chat, streamed_chat};
use pointsman_tests::liveness::strikes;
use pointsman_tests::overload::FullFleet;
use pointsman_tests::serving::{Serving, backend_at, set};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::task::{self, JoinHandle};

/// Leaves one slot and one place in the queue.
fn small(config: &mut Config) {
    config.local.executors[0].terms.slots = 1;
    config.core.queue_max = 1;
    config.core.parking_max = 0;
}

/// The body of a request that holds its slot for long.
fn long() -> Value {
    endless_chat("Hello", 1900)
}

#[tokio::test]
async fn a_full_queue_is_a_429_that_says_when_to_come_back() -> Result<()> {
    let serving = Serving::start(small).await?;
    let stream = serving.client.running(&long()).await?;
    let client = serving.client;
    let queued = task::spawn(async move { client.stream(&long()).await });
    serving.load_until(|load| load.queued == 1).await?;
    // It waits in the host's queue: the executor has none, and is never saturated, however full.
    let listed = client.get("/admin/executors").await?.json()?;
    let executor = &listed["executors"][0];
    ensure!(
        executor["slots_used"] == 1 && executor["saturated"] == false,
        "{listed}"
    );
    let answer = serving.client.chat("Hello").await?;
    ensure!(answer.status == 429, "{answer:?}");
    ensure!(answer.header("retry-after") == "1", "{answer:?}");
    let error = &answer.json()?["error"];
    ensure!(error["type"] == "rate_limit_error", "{error}");
    // Told of the bounds, the policy parks nothing that there is no room for.
    let said = ["x-pointsman-policy", "x-pointsman-reason"].map(|name| answer.header(name));
    let full = "the queue is full, and there is no room outside it";
    ensure!(said == ["budget", full], "{answer:?}");
    drop(stream);
    drop(queued.await??);
    serving.idle().await?;
    Ok(())
}

/// The status and error code of a chat.
async fn said(client: Client) -> Result<(u16, String)> {
    let answer = client.chat("Hello").await?;
    let code = answer.json()?["error"]["code"].as_str().map(str::to_owned);
    Ok((answer.status.as_u16(), code.unwrap_or_default()))
}

/// Has a server whose slot and queue are full treat one more request by `overflow`. Returns what the
/// two that had waited, and the one that came, are answered once the slot is free.
async fn overflown(overflow: &str) -> Result<Vec<(u16, String)>> {
    let serving = Serving::start(|config| {
        small(config);
        config.core.queue_max = 2;
        config.core.parking_max = 1;
        set(config, "budget", &json!({"overflow": overflow}));
    })
    .await?;
    let client = serving.client;
    let stream = serving.client.running(&long()).await?;
    let mut sent = Vec::new();
    for queued in 1..=2 {
        sent.push(task::spawn(said(client)));
        serving.load_until(|load| load.queued == queued).await?;
    }
    sent.push(task::spawn(said(client)));
    if overflow == "block" {
        serving.load_until(|load| load.parked == 1).await?;
    }
    // Otherwise one of them is answered while the slot is taken.
    while overflow != "block" && !sent.iter().any(JoinHandle::is_finished) {
        task::yield_now().await;
    }
    drop(stream);
    let mut answers = Vec::new();
    for task in sent {
        answers.push(task.await??);
    }
    serving.idle().await?;
    serving.server.stop().await?;
    Ok(answers)
}

#[tokio::test]
async fn a_full_queue_is_treated_as_the_admission_policy_is_set_to() -> Result<()> {
    let served = || (200, String::new());
    let refused = |code: &str| (429, code.to_owned());
    ensure!(overflown("block").await? == [served(), served(), served()]);
    ensure!(overflown("drop-newest").await? == [served(), served(), refused("no_room")]);
    ensure!(overflown("drop-oldest").await? == [refused("displaced"), served(), served()]);
    Ok(())
}

/// Leaves one slot, and has two tenants with a key of their name.
fn two_tenants(config: &mut Config) {
    tenants_at(config, 1);
}

/// Leaves so many slots, and has two tenants with a key of their name.
fn tenants_at(config: &mut Config, slots: u32) {
    config.local.executors[0].terms.slots = slots;
    for name in ["flood", "calm"] {
        config.tenants.push(TenantConfig::new(name));
        config.keys.push(ApiKey {
            sha256: Sha256::digest(name).into(),
            rights: Rights::of_tenant(name),
        });
    }
}

/// Has the tenant `calm` come last to a server whose slot and queue the tenant `flood` has filled.
/// Returns the tenants in the order in which their requests ended.
async fn ended_after_a_flood(share_lag: u32) -> Result<Vec<&'static str>> {
    const WAITING: usize = 6;
    let serving = Serving::start(|config| {
        two_tenants(config);
        set(
            config,
            "aging",
            &json!({"share-lag": format!("{share_lag}s")}),
        );
    })
    .await?;
    let [flood, calm] = ["flood", "calm"].map(|name| serving.client.with_key(name));
    let stream = flood.running(&long()).await?;
    let mut ended = task::JoinSet::new();
    for waiting in 1..=WAITING {
        ended.spawn(async move { said(flood).await.map(|_| "flood") });
        serving.load_until(|load| load.queued == waiting).await?;
    }
    ended.spawn(async move { said(calm).await.map(|_| "calm") });
    serving.load_until(|load| load.queued > WAITING).await?;
    drop(stream);
    let mut tenants = Vec::new();
    while let Some(next) = ended.join_next().await {
        tenants.push(next??);
    }
    serving.idle().await?;
    serving.server.stop().await?;
    Ok(tenants)
}

#[tokio::test]
async fn a_tenant_that_floods_the_queue_keeps_no_other_waiting_for_it() -> Result<()> {
    let ended = ended_after_a_flood(300).await?;
    ensure!(ended[0] == "calm", "{ended:?}");
    let ended = ended_after_a_flood(0).await?;
    ensure!(ended.last() == Some(&"calm"), "{ended:?}");
    Ok(())
}

/// Has the tenant `flood` want all five slots of a server that has just served the tenant `calm`, too. Returns how many of its
/// requests run then, and how many after a request of `calm` was answered.
async fn running_of_a_flood(share_reserve: u32) -> Result<[u32; 2]> {
    const SLOTS: u32 = 5;
    let serving = Serving::start(|config| {
        tenants_at(config, SLOTS);
        let settings = json!({"share-reserve": share_reserve});
        set(config, "memory-aware", &settings);
    })
    .await?;
    let [flood, calm] = ["flood", "calm"].map(|name| serving.client.with_key(name));
    for client in [flood, flood, flood, calm] {
        client.chat("Hello").await?.text()?;
    }
    let mut ended = task::JoinSet::new();
    for asked in 1..=SLOTS as usize {
        ended.spawn(async move { flood.stream(&long()).await });
        serving
            .load_until(|load| load.slots_used as usize + load.queued == asked)
            .await?;
    }
    let before = serving.load_until(|_| true).await?.slots_used;
    if before < SLOTS {
        calm.chat("Hello").await?.text()?;
    }
    let after = serving.load_until(|load| load.slots_used == before).await?;
    let after = after.slots_used;
    ended.shutdown().await;
    serving.idle().await?;
    serving.server.stop().await?;
    Ok([before, after])
}

#[tokio::test]
async fn a_tenant_beyond_its_share_leaves_a_slot_free_for_another() -> Result<()> {
    let running = running_of_a_flood(200).await?;
    ensure!(running == [4, 4], "{running:?}");
    let running = running_of_a_flood(0).await?;
    ensure!(running == [5, 5], "{running:?}");
    Ok(())
}

/// Has the tenant `flood` send prompts of several hundred tokens each to a server elsewhere that computes none of them, and
/// then the tenant `calm` one. Returns how many are there, before and after that.
async fn prefilling_of_a_flood(settings: Value) -> Result<[u32; 2]> {
    const PROMPTS: usize = 4;
    let mock = MockBackend::start(&["demo"]).await?;
    let backend = backend_at("elsewhere", mock.addr())?;
    let serving = Serving::start(|config| {
        tenants_at(config, 1);
        config.local.models.clear();
        config.local.executors.clear();
        config.backends = vec![backend];
        set(config, "memory-aware", &settings);
    })
    .await?;
    let [flood, calm] = ["flood", "calm"].map(|name| serving.client.with_key(name));
    for client in [flood; 9].into_iter().chain([calm]) {
        client.chat("Hello").await?.text()?;
    }
    mock.does(Conduct::Steps(1));
    let mut ended = task::JoinSet::new();
    let mut there = Vec::new();
    let clients = [flood; PROMPTS].into_iter().chain([calm]);
    for (asked, client) in (1..).zip(clients) {
        let body = streamed_chat(&format!("Prompt {asked} ").repeat(300));
        ended.spawn(async move { client.stream(&body).await });
        let is_in_hand = |load: &Load| load.slots_used as usize + load.queued == asked;
        there.push(serving.load_until(is_in_hand).await?.slots_used);
    }
    ended.shutdown().await;
    serving.idle().await?;
    serving.server.stop().await?;
    Ok([there[PROMPTS - 1], there[PROMPTS]])
}

#[tokio::test]
async fn the_prompts_of_a_flood_wait_in_the_queue_and_not_before_another_tenants() -> Result<()> {
    let there = prefilling_of_a_flood(json!({"share-prefill-max": 1024})).await?;
    ensure!(there == [2, 3], "{there:?}");
    let there = prefilling_of_a_flood(json!({"share-prefill-max": 1_000_000})).await?;
    ensure!(there == [4, 5], "{there:?}");
    Ok(())
}

#[tokio::test]
async fn prompts_wait_in_the_queue_where_a_server_has_others_to_prefill_first() -> Result<()> {
    let settings = json!({"share-prefill-max": 1_000_000, "prefill-max": 1024});
    let there = prefilling_of_a_flood(settings).await?;
    ensure!(there == [2, 2], "{there:?}");
    Ok(())
}

/// Has one tenant ask for long answers and the other for short ones, nine times each, and then one more of both
/// wait, the long one first. Returns the message whose answer came first.
async fn first_once_taught(settings: &str) -> Result<&'static str> {
    const LONG: &str = "Count from 1 to 30.";
    const SHORT: &str = "Hello";
    let serving = Serving::start(two_tenants).await?;
    serving
        .decide_by("shortest-first", "shortest-first", settings)
        .await?;
    let [flood, calm] = ["flood", "calm"].map(|name| serving.client.with_key(name));
    for (client, message) in [(flood, LONG), (calm, SHORT)] {
        for _ in 0..9 {
            client.chat(message).await?.text()?;
        }
    }
    let stream = flood.running(&long()).await?;
    let mut ended = task::JoinSet::new();
    for (waiting, client, message) in [(1, flood, LONG), (2, calm, SHORT)] {
        ended.spawn(async move { client.chat(message).await?.text().map(|_| message) });
        serving.load_until(|load| load.queued == waiting).await?;
    }
    drop(stream);
    let first = ended.join_next().await.context("two wait")??;
    ended.join_next().await.context("two wait")???;
    serving.idle().await?;
    first
}

#[tokio::test]
async fn lengths_that_nobody_states_are_learnt_and_the_shortest_goes_first() -> Result<()> {
    ensure!(first_once_taught("").await? == "Hello");
    ensure!(first_once_taught("learn = false").await? != "Hello");
    Ok(())
}

/// Twelve short requests wait behind a long one that came first, all of one tenant, for the one slot.
#[tokio::test]
async fn a_long_answer_goes_first_before_the_host_has_to_step_in() -> Result<()> {
    let serving = Serving::start(|config| {
        config.local.executors[0].terms.slots = 1;
        config.core.overtaken_max = 8;
    })
    .await?;
    let client = serving.client;
    serving
        .decide_by("shortest-first", "shortest-first", "learn = false")
        .await?;
    let stream = client.running(&long()).await?;
    let mut ended = task::JoinSet::new();
    for (waiting, tokens) in (1..).zip([400].into_iter().chain([2; 12])) {
        let mut body = chat("Hello");
        body["max_tokens"] = json!(tokens);
        ended.spawn(async move {
            let answer = client.post("/v1/chat/completions", &body).await?;
            ensure!(answer.status == 200, "{answer:?}");
            Ok(tokens)
        });
        serving.load_until(|load| load.queued == waiting).await?;
    }
    drop(stream);
    let mut shorter = 0;
    while ended.join_next().await.context("the long one waits")??? != 400 {
        shorter += 1;
    }
    // Six, and perhaps one whose client was told later.
    ensure!((5..8).contains(&shorter), "{shorter}");
    ended.join_all().await;
    ensure!(strikes(client).await? == 0.0);
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_a_policy_refuses_is_told_which_one() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    serving
        .decide_by("shedder", "test/hostile", "answers = \"shed\"")
        .await?;
    let answer = serving.client.chat("Hello").await?;
    ensure!(answer.status == 429, "{answer:?}");
    let policy = answer.header("x-pointsman-policy");
    ensure!(policy == "shedder", "{answer:?}");
    let message = answer.json()?["error"]["message"].clone();
    let message = message.as_str().unwrap_or_default();
    ensure!(message.ends_with(" (by policy `shedder`)"), "{message}");
    // The operator can look the request up.
    let id = answer.header("x-pointsman-request");
    let decisions = serving
        .client
        .get(&format!("/admin/decisions/{id}"))
        .await?;
    ensure!(decisions.status == 200, "{decisions:?}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_is_displaced_is_told_when_to_come_back_by_the_policy() -> Result<()> {
    let serving = Serving::start(|config| {
        small(config);
        let settings = json!({"overflow": "drop-oldest", "retry-after": "33s"});
        set(config, "budget", &settings);
    })
    .await?;
    let stream = serving.client.running(&long()).await?;
    let client = serving.client;
    let oldest = task::spawn(async move { client.chat("Hello").await });
    serving.load_until(|load| load.queued == 1).await?;
    let newer = task::spawn(async move { client.stream(&long()).await });
    let answer = oldest.await??;
    ensure!(answer.status == 429, "{answer:?}");
    ensure!(answer.header("retry-after") == "33", "{answer:?}");
    ensure!(answer.json()?["error"]["code"] == "displaced", "{answer:?}");
    let policy = answer.header("x-pointsman-policy");
    ensure!(policy == "budget", "{answer:?}");
    drop(stream);
    drop(newer.await??);
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn a_tenant_is_told_how_much_urgency_it_may_claim() -> Result<()> {
    let serving = Serving::start(|config| {
        let claims = &mut config.tenants[0].claims;
        claims.priority_max = 0;
        claims.class_max = RequestClass::Throughput;
        claims.head_start_max = Duration::from_millis(500);
    })
    .await?;
    for (hint, value, wanted) in [
        ("priority", json!(1), "an integer from -100 to 0"),
        ("class", json!("latency-critical"), "`throughput`"),
        (
            "head_start_ms",
            json!(501),
            "an integer of milliseconds from 0 to 500",
        ),
    ] {
        let mut body = chat("Hello");
        body["pointsman"] = json!({hint: value});
        let answer = serving.client.post("/v1/chat/completions", &body).await?;
        ensure!(answer.status == 400, "{answer:?}");
        let message = answer.json()?["error"]["message"].to_string();
        ensure!(message.contains(wanted), "{message}");
    }
    // As much as it may is granted.
    let mut body = chat("Hello");
    body["pointsman"] = json!({"priority": 0, "class": "throughput", "head_start_ms": 500});
    let answer = serving.client.post("/v1/chat/completions", &body).await?;
    answer.text()?;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_is_a_503() -> Result<()> {
    let serving = Serving::start(small).await?;
    let stream = serving.client.running(&long()).await?;
    let mut body = chat("Hello");
    body["pointsman"] = json!({"deadline_ms": 50});
    let answer = serving.client.post("/v1/chat/completions", &body).await?;
    ensure!(answer.status == 503, "{answer:?}");
    ensure!(answer.json()?["error"]["code"] == "deadline_exceeded");
    ensure!(answer.header("retry-after") == "5", "{answer:?}");
    drop(stream);
    serving.idle().await?;
    Ok(())
}

/// Has a request with a deadline come to the one slot of a server, in which throughput work runs for much
/// longer than that. Returns its answer, and whether the work came to its end.
async fn in_danger(take_slots: &str) -> Result<(Answer, bool)> {
    let serving = Serving::start(|config| {
        config.local.executors[0].terms.slots = 1;
        let terms = json!({"take-slots": take_slots, "recompute-max": 1000});
        set(config, "budget", &terms);
    })
    .await?;
    let mut work = long();
    work["pointsman"] = json!({"class": "throughput"});
    let mut stream = serving.client.stream(&work).await?;
    stream.first_text().await?;
    let mut body = chat("Hello");
    body["pointsman"] = json!({"deadline_ms": 400});
    let answer = serving.client.post("/v1/chat/completions", &body).await?;
    let work = stream.finish().await?;
    serving.idle().await?;
    Ok((answer, work.finish_reason.as_deref() == Some("length")))
}

#[tokio::test]
async fn a_slot_is_taken_for_a_deadline_in_danger_and_the_work_goes_on_after_it() -> Result<()> {
    let (answer, ended) = in_danger("deadline").await?;
    ensure!(answer.status == 200 && ended, "{answer:?}");
    let (answer, ended) = in_danger("never").await?;
    ensure!(answer.status == 503 && ended, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn a_small_pool_is_a_short_context() -> Result<()> {
    // There are 21 blocks of 16 tokens.
    let serving = Serving::start(|config| config.local.devices[0].kv_bytes = Some(1 << 20)).await?;
    let answer = serving.client.post("/v1/chat/completions", &long()).await?;
    ensure!(answer.status == 400, "{answer:?}");
    let error = &answer.json()?["error"];
    ensure!(error["code"] == "context_length_exceeded", "{error}");
    let room = "this server has room for 336 tokens of the model's context";
    ensure!(error["message"].to_string().contains(room), "{error}");
    // A request without a bound gets all the room there is.
    serving.client.chat("Hello").await?.text()?;
    Ok(())
}

#[tokio::test]
async fn sequences_that_outgrow_the_pool_are_preempted_and_nobody_notices() -> Result<()> {
    // There are 16 blocks of 16 tokens: room for eight prompts, or for two whole answers.
    let serving =
        Serving::start(|config| config.local.devices[0].kv_bytes = Some((16 * 48) << 10)).await?;
    let alone = serving.client.chat("Count from 1 to 30.").await?.text()?;
    let mut clients = task::JoinSet::new();
    for _ in 0..8 {
        let client = serving.client;
        clients.spawn(async move { client.chat("Count from 1 to 30.").await?.text() });
    }
    while let Some(text) = clients.join_next().await {
        ensure!(text?? == alone);
    }
    let metrics = String::from_utf8(serving.client.get("/metrics").await?.body)?;
    ensure!(
        metrics.contains("why=\"evicted\""),
        "nobody was evicted: {metrics}"
    );
    serving.idle().await?;
    Ok(())
}

#[test]
fn an_urgent_request_at_a_full_fleet_begins_nearly_as_soon_as_alone_and_costs_little() -> Result<()>
{
    let solo = FullFleet::solo()?;
    let waits = FullFleet::beside_bulk(0, "never")?;
    let takes = FullFleet::beside_bulk(0, "critical")?;
    // By default slots are kept free for it, and none has to be taken.
    let defaults = FullFleet::beside_bulk(200, "deadline")?;
    for begins in [takes, defaults] {
        ensure!(
            begins.ttft_p95_ms <= 1.5 * solo.ttft_p95_ms,
            "{begins:?} {solo:?}"
        );
        ensure!(
            begins.tokens_per_s >= 0.95 * waits.tokens_per_s,
            "{begins:?} {waits:?}"
        );
    }
    ensure!(takes.evicted > waits.evicted, "{takes:?} {waits:?}");
    ensure!(
        waits.ttft_p95_ms > 3.0 * solo.ttft_p95_ms,
        "{waits:?} {solo:?}"
    );
    Ok(())
}
