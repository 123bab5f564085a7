//! Conversations that go back to the server that has them cached.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use pointsman_tests::backend::{Conduct, MockBackend, coded, stream_head};
use pointsman_tests::client::{Client, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

use super::{backend, begun, over, serving, two_servers};

/// Asks a conversation to go on, and returns the executor and the conversation with its answer.
async fn turn(
    client: Client,
    talk: &mut Vec<Value>,
    says: &str,
    session: Option<&str>,
) -> Result<String> {
    talk.push(json!({"role": "user", "content": says}));
    let mut body = json!({"model": "demo", "messages": talk});
    if let Some(session) = session {
        body["pointsman"] = json!({"session": session});
    }
    let answer = client.post("/v1/chat/completions", &body).await?;
    talk.push(json!({"role": "assistant", "content": answer.text()?}));
    Ok(answer.header("x-pointsman-executor").to_owned())
}

/// A server in front of three others, which live as long as they are held.
async fn before_three() -> Result<(Serving, [MockBackend; 3])> {
    let mocks = [
        MockBackend::start(&["demo"]).await?,
        MockBackend::start(&["demo"]).await?,
        MockBackend::start(&["demo"]).await?,
    ];
    let [a, b, c] = &mocks;
    let serving = serving([backend("a", a)?, backend("b", b)?, backend("c", c)?]).await?;
    Ok((serving, mocks))
}

/// Checks that all three servers were used.
fn ensure_all(used: &[String]) -> Result<()> {
    let servers: BTreeSet<&str> = used.iter().map(String::as_str).collect();
    ensure!(servers == BTreeSet::from(["a", "b", "c"]), "{used:?}");
    Ok(())
}

#[tokio::test]
async fn a_conversation_goes_back_to_its_server_by_its_session_or_by_itself() -> Result<()> {
    let (serving, _mocks) = Box::pin(before_three()).await?;
    let client = serving.client;
    // Six conversations, each on the server that had the fewest placements; all say the same in between.
    let system = json!({"role": "system", "content": "You are kind."});
    let mut talks: Vec<Vec<Value>> = vec![vec![system]; 6];
    let session = |number: usize| number.is_multiple_of(2).then(|| format!("talk {number}"));
    let mut homes = Vec::new();
    for (number, talk) in talks.iter_mut().enumerate() {
        let says = format!("I am {number}");
        homes.push(turn(client, talk, &says, session(number).as_deref()).await?);
    }
    ensure_all(&homes)?;
    for round in 0..3 {
        for number in [5, 0, 3, 1, 4, 2] {
            let session = session(number);
            let at = turn(client, &mut talks[number], "yes", session.as_deref()).await?;
            ensure!(at == homes[number], "talk {number}, round {round}: {at}");
        }
    }
    over(serving).await
}

/// A turn of a conversation by an API that only servers elsewhere answer. The last message alone is marked for the
/// cache, as Anthropic's clients do it.
async fn turn_elsewhere(
    client: Client,
    (path, field): (&str, &str),
    talk: &mut Vec<Value>,
    says: &str,
) -> Result<String> {
    let text = json!([{"type": "text", "text": says}]);
    talk.push(json!({"role": "user", "content": text}));
    let mut body = json!({"model": "demo", "system": "You are kind.", field: talk});
    let last = talk.len() - 1;
    body[field][last]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
    let answer = client.raw(path, &[], body.to_string()).await?;
    ensure!(answer.status == 200, "{path}: {}", answer.status);
    talk.push(json!({"role": "assistant", "content": format!("I heard: {says}")}));
    Ok(answer.header("x-pointsman-executor").to_owned())
}

#[tokio::test]
async fn messages_and_responses_go_back_to_their_server_too() -> Result<()> {
    for api in [("/v1/messages", "messages"), ("/v1/responses", "input")] {
        let (serving, _mocks) = Box::pin(before_three()).await?;
        let client = serving.client;
        let mut talks: Vec<Vec<Value>> = vec![Vec::new(); 6];
        let mut homes = Vec::new();
        for (number, talk) in talks.iter_mut().enumerate() {
            let says = format!("I am {number}");
            homes.push(turn_elsewhere(client, api, talk, &says).await?);
        }
        ensure_all(&homes)?;
        for round in 0..2 {
            for number in [5, 0, 3, 1, 4, 2] {
                let at = turn_elsewhere(client, api, &mut talks[number], "yes").await?;
                ensure!(
                    at == homes[number],
                    "{api:?}, {number}, round {round}: {at}"
                );
            }
        }
        over(serving).await?;
    }
    Ok(())
}

/// An answer of `/v1/responses` with this id, as a stream.
fn streamed_response(id: &str) -> Conduct {
    let created = json!({"type": "response.created", "sequence_number": 0,
        "response": {"id": id, "object": "response", "status": "in_progress", "output": []}});
    let created = coded(&format!("event: response.created\ndata: {created}\n\n"));
    Conduct::Bytes([stream_head(), &created, "0\r\n\r\n"].concat().into())
}

#[tokio::test]
async fn a_response_goes_on_where_the_one_is_that_it_names() -> Result<()> {
    const PATH: &str = "/v1/responses";
    let (serving, mocks) = Box::pin(before_three()).await?;
    let client = serving.client;
    let ask = async |path: &str, body: Value| -> Result<String> {
        let answer = client.raw(path, &[], body.to_string()).await?;
        ensure!(answer.status == 200, "{path}: {}", answer.status);
        Ok(answer.header("x-pointsman-executor").to_owned())
    };
    let said =
        |previous: &str| json!({"model": "demo", "input": "yes", "previous_response_id": previous});
    for (mock, name) in mocks.iter().zip(["a", "b", "c"]) {
        let whole = json!({"id": format!("resp_{name}"), "object": "response", "output": []});
        mock.obeys(PATH, 200, &whole.to_string());
        let held = format!("{PATH}/resp_{name}/cancel");
        mock.obeys(&held, 200, "{}");
    }
    let mut homes = Vec::new();
    for number in 0..6 {
        let first = json!({"model": "demo", "input": format!("I am {number}")});
        homes.push(ask(PATH, first).await?);
    }
    ensure_all(&homes)?;
    for round in 0..3 {
        for name in ["c", "a", "b"] {
            let at = ask(PATH, said(&format!("resp_{name}"))).await?;
            ensure!(at == name, "resp_{name}, round {round}: {at}");
            let held = format!("{PATH}/resp_{name}/cancel");
            let at = ask(&held, json!({})).await?;
            ensure!(at == name, "{held}: {at}");
        }
    }
    // The answers to those have ids, too, whole or streamed.
    for (mock, name) in mocks.iter().zip(["a", "b", "c"]) {
        mock.obeys_no_more(PATH);
        mock.does(streamed_response(&format!("resp_{name}2")));
    }
    for name in ["b", "c", "a"] {
        let mut body = said(&format!("resp_{name}"));
        body["stream"] = json!(true);
        ensure!(ask(PATH, body).await? == name);
    }
    for name in ["a", "b", "c", "c", "b", "a"] {
        let at = ask(PATH, said(&format!("resp_{name}2"))).await?;
        ensure!(at == name, "resp_{name}2: {at}");
    }
    over(serving).await
}

/// Nobody else has the answer that a request goes on from, however much room others have.
#[tokio::test]
async fn a_response_waits_for_the_server_of_the_one_that_it_names() -> Result<()> {
    const PATH: &str = "/v1/responses";
    let mocks = two_servers().await?;
    let mut backends = [backend("a", &mocks[0])?, backend("b", &mocks[1])?];
    for backend in &mut backends {
        backend.server.slots = Some(1);
    }
    let serving = serving(backends).await?;
    let client = serving.client;
    for (mock, name) in mocks.iter().zip(["a", "b"]) {
        let whole = json!({"id": format!("resp_{name}"), "object": "response", "output": []});
        mock.obeys(PATH, 200, &whole.to_string());
    }
    let first = json!({"model": "demo", "input": "hello"}).to_string();
    let home = client.raw(PATH, &[], first).await?;
    let home = home.header("x-pointsman-executor").to_owned();
    serving.idle().await?;
    let (here, there) = match &*home {
        "a" => (&mocks[0], &mocks[1]),
        _ => (&mocks[1], &mocks[0]),
    };
    let mut body = streamed_chat("hello");
    body["pointsman"] = json!({"executors": [home]});
    let stream = begun(client, here, &body).await?;
    let said =
        json!({"model": "demo", "input": "yes", "previous_response_id": format!("resp_{home}")});
    let waits = tokio::spawn(async move { client.raw(PATH, &[], said.to_string()).await });
    serving.load_until(|load| load.queued == 1).await?;
    // Another has room, and is used by whoever may be anywhere.
    let answer = client.chat("hello").await?;
    ensure!(answer.status == 200 && answer.header("x-pointsman-executor") != home);
    ensure!(there.seen(PATH).is_empty() && !waits.is_finished());
    here.allow(1);
    ensure!(stream.finish().await?.done);
    let answer = waits.await??;
    ensure!(answer.header("x-pointsman-executor") == home, "{answer:?}");
    over(serving).await
}

#[tokio::test]
async fn a_response_that_is_too_long_for_the_server_of_the_one_that_it_names_is_refused_by_it()
-> Result<()> {
    const PATH: &str = "/v1/responses";
    let mocks = two_servers().await?;
    for (mock, context) in mocks.iter().zip([100, 8192]) {
        mock.has_models_with_context(("vllm", &["demo"]), context);
    }
    let serving = serving([backend("short", &mocks[0])?, backend("long", &mocks[1])?]).await?;
    let client = serving.client.for_others();
    let whole = json!({"id": "resp_1", "object": "response", "output": []});
    mocks[0].obeys(PATH, 200, &whole.to_string());
    let first = json!({"model": "demo", "input": "hello", "pointsman": {"executors": ["short"]}});
    let answer = client.raw(PATH, &[], first.to_string()).await?;
    ensure!(answer.status == 200, "{answer:?}");
    let too_long = r#"{"error":"the input length exceeds the context length"}"#;
    mocks[0].obeys(PATH, 400, too_long);
    for tokens_max in [5, 500] {
        let next = json!({"model": "demo", "input": "yes", "previous_response_id": "resp_1",
            "max_output_tokens": tokens_max});
        let answer = client.raw(PATH, &[], next.to_string()).await?;
        let is_as_written = answer.status == 400 && answer.body == too_long.as_bytes();
        ensure!(is_as_written, "{tokens_max}: {answer:?}");
    }
    ensure!(mocks[1].seen(PATH).is_empty());
    over(serving).await
}

#[tokio::test]
async fn a_response_whose_predecessor_nobody_knows_goes_where_there_is_room_for_its_length()
-> Result<()> {
    const PATH: &str = "/v1/responses";
    let mocks = two_servers().await?;
    for (mock, context) in mocks.iter().zip([100, 8192]) {
        mock.has_models_with_context(("vllm", &["demo"]), context);
        let whole = json!({"id": "resp_2", "object": "response", "output": []});
        mock.obeys(PATH, 200, &whole.to_string());
    }
    let serving = serving([backend("short", &mocks[0])?, backend("long", &mocks[1])?]).await?;
    let client = serving.client.for_others();
    for number in 0..6 {
        let next = json!({"model": "demo", "input": format!("I am {number}"),
            "previous_response_id": "resp_1", "max_output_tokens": 500});
        let answer = client.raw(PATH, &[], next.to_string()).await?;
        ensure!(answer.status == 200, "{answer:?}");
        let executor = answer.header("x-pointsman-executor");
        ensure!(executor == "long", "{number} went to {executor}");
    }
    ensure!(mocks[0].seen(PATH).is_empty());
    over(serving).await
}
