//! Prompts go where a server has been sent their beginning: no server tells what it has cached.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use pointsman_config::PrefixCache;
use pointsman_executor::server::PromptCache;
use pointsman_sim::latency::EachCost;
use pointsman_tests::backend::{Conduct, MockBackend, Pace};
use pointsman_tests::client::Client;
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{backend, executors_until, named, over, serving_with, two_servers};

/// A chat of its own that begins with a long text.
fn begins_with(text: &str, own: usize) -> Value {
    let system = text.repeat(200);
    json!({"model": "demo", "messages": [
        {"role": "system", "content": system},
        {"role": "user", "content": format!("question {own}")},
    ]})
}

/// The executors that chats with such a beginning go to, one after the other. No two are the same: a
/// conversation goes back to its server anyway.
async fn ask(client: Client, text: &str, owns: Range<usize>) -> Result<Vec<String>> {
    let mut executors = Vec::new();
    for own in owns {
        let body = begins_with(text, own);
        let answer = client.post("/v1/chat/completions", &body).await?;
        executors.push(answer.header("x-pointsman-executor").to_owned());
    }
    Ok(executors)
}

/// Two servers, and the gateway before them.
async fn two(cache: PrefixCache) -> Result<([MockBackend; 2], Serving)> {
    let mocks = two_servers().await?;
    let backends = [backend("a", &mocks[0])?, backend("b", &mocks[1])?];
    let serving = serving_with(backends, |config| config.http.prefix_cache = cache).await?;
    Ok((mocks, serving))
}

#[tokio::test]
async fn a_prompt_goes_where_its_beginning_was_sent_before() -> Result<()> {
    let (_mocks, serving) = two(PrefixCache::Shared).await?;
    let client = serving.client;
    ensure!(ask(client, "You are kind. ", 0..4).await? == ["a"; 4]);
    // The other beginning is nowhere: it goes to the server with fewer placements, and stays there.
    ensure!(ask(client, "You are curt. ", 0..4).await? == ["b"; 4]);
    ensure!(ask(client, "You are kind. ", 4..6).await? == ["a"; 2]);

    let body = begins_with("You are curt. ", 9);
    let forecast = client.post("/admin/route", &body).await?.json()?;
    let pending = |name: &str| {
        let candidates = forecast["candidates"].as_array();
        let mut candidates = candidates.into_iter().flatten();
        let found = candidates.find(|candidate| candidate["executor"] == name);
        found.and_then(|candidate| candidate["prefill_tokens_pending"].as_u64())
    };
    let (at_a, at_b) = (pending("a").context("no a")?, pending("b").context("no b")?);
    ensure!(at_a > 600 && at_b <= 64, "{forecast}");
    over(serving).await
}

#[tokio::test]
async fn prompts_of_which_nobody_may_share_anything_go_by_load() -> Result<()> {
    let (_mocks, serving) = two(PrefixCache::Off).await?;
    let went = ask(serving.client, "You are kind. ", 0..4).await?;
    ensure!(went == ["a", "b", "a", "b"], "{went:?}");
    over(serving).await
}

#[tokio::test]
async fn a_server_that_keeps_no_prompts_is_not_taken_to() -> Result<()> {
    let mocks = two_servers().await?;
    let mut first = backend("a", &mocks[0])?;
    first.server.prompt_cache = PromptCache::Off;
    let serving = serving_with([first], |_| ()).await?;
    let second = json!({
        "url": mocks[1].url(), "executor": "b", "prompt-cache": "off", "poll-ms": 50,
    });
    let added = serving.client.post("/admin/executors", &second).await?;
    ensure!(added.status == 201, "{:?}", added.json());
    executors_until(serving.client, |list| {
        list.len() == 2 && named(list, "b")["models"][0] == "demo"
    })
    .await?;
    let went = ask(serving.client, "You are kind. ", 0..4).await?;
    ensure!(went == ["a", "b", "a", "b"], "{went:?}");
    over(serving).await
}

/// A server that was away may have begun anew, with nothing cached.
#[tokio::test]
async fn a_server_that_was_away_is_not_taken_to_have_what_it_was_sent_before() -> Result<()> {
    let ([a, _b], serving) = two(PrefixCache::Shared).await?;
    let client = serving.client;
    ensure!(ask(client, "You are kind. ", 0..3).await? == ["a"; 3]);
    let addr = a.addr();
    drop(a);
    executors_until(client, |list| named(list, "a")["health"] == "down").await?;
    let _back = MockBackend::start_at(addr, &["demo"]).await?;
    executors_until(client, |list| named(list, "a")["health"] == "up").await?;
    let went = ask(client, "You are kind. ", 3..6).await?;
    ensure!(went == ["b"; 3], "{went:?}");
    over(serving).await
}

/// A server that prefills prompts side by side, a hundred words in 10 ms.
const SIDE_BY_SIDE: Pace = Pace {
    cost: EachCost {
        prefill_ms: 10.0,
        prefill_token_ms: 0.1,
        decode_ms: 1.0,
        full_factor: 1.0,
    },
    places: 16,
};

/// A streamed chat with an answer of three tokens: a beginning, and words that no other number has.
fn streamed(beginning: &str, number: usize, words: usize) -> Value {
    let own = format!(" word{number}").repeat(words);
    json!({"model": "demo", "max_tokens": 3, "stream": true, "messages": [
        {"role": "system", "content": beginning},
        {"role": "user", "content": own},
    ]})
}

/// Has prompts of up to two thousand words answered, a dozen at a time.
async fn answer_prompts(client: Client, numbers: Range<usize>) -> Result<()> {
    let mut running = JoinSet::new();
    for number in numbers {
        if running.len() == 12 {
            running.join_next().await.context("none runs")???;
        }
        let body = streamed("", number, 200 + 300 * (number * 5 % 7));
        running.spawn(async move { client.stream(&body).await?.finish().await });
    }
    for answered in running.join_all().await {
        answered?;
    }
    Ok(())
}

/// Requests on each server after a prompt whose beginning one has that still prefills a longer one, where so many other
/// prompts were answered before.
async fn spread_after(prompts: usize) -> Result<Vec<u64>> {
    let (mocks, serving) = two(PrefixCache::Shared).await?;
    let client = serving.client;
    for mock in &mocks {
        mock.does(Conduct::Paced(SIDE_BY_SIDE));
    }
    answer_prompts(client, 0..prompts).await?;
    let beginning = "You are kind. ".repeat(200);
    let first = client.stream(&streamed(&beginning, 1000, 1)).await?;
    first.finish().await?;
    for mock in &mocks {
        mock.does(Conduct::Steps(1));
    }
    let mut busy = JoinSet::new();
    for (number, words) in [(1, 1000), (2, 1)] {
        let body = streamed(&beginning, 1000 + number, words);
        busy.spawn(async move { client.stream(&body).await });
        let slots_used = u32::try_from(number)?;
        serving
            .load_until(|load| load.slots_used == slots_used)
            .await?;
    }
    let list = executors_until(client, |_| true).await?;
    let used = list.iter().map(|executor| executor["slots_used"].as_u64());
    let mut used: Vec<u64> = used
        .map(|used| used.context("no slots"))
        .collect::<Result<_>>()?;
    used.sort_unstable();
    busy.shutdown().await;
    over(serving).await?;
    Ok(used)
}

#[tokio::test]
async fn a_server_that_prefills_side_by_side_is_found_out_and_keeps_its_prompts_though_it_is_busy()
-> Result<()> {
    let unknown = spread_after(0).await?;
    ensure!(unknown == [1, 1], "{unknown:?}");
    let known = spread_after(96).await?;
    ensure!(known == [0, 2], "{known:?}");
    Ok(())
}

/// Nothing comes of an answer as a whole before its end, long after the prompt was read.
#[tokio::test]
async fn a_prompt_is_not_pending_for_as_long_as_its_answer_takes_that_comes_as_a_whole()
-> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving_with([backend("slow", &mock)?], |_| ()).await?;
    let client = serving.client;
    mock.does(Conduct::BytesThenNothing(Vec::new()));
    let asked = tokio::spawn(async move { client.chat("hello").await });
    let is_read = |list: &[Value]| {
        let slow = named(list, "slow");
        slow["slots_used"] == 1 && slow["prefill_tokens_pending"] == 0
    };
    executors_until(client, is_read).await?;
    ensure!(!asked.is_finished());
    asked.abort();
    over(serving).await
}
