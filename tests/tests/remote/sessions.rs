//! Conversations that go back to the server that has them cached.

use anyhow::{Result, ensure};
use pointsman_tests::backend::MockBackend;
use pointsman_tests::client::Client;
use serde_json::{Value, json};

use super::{backend, over, serving};

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

#[tokio::test]
async fn a_conversation_goes_back_to_its_server_by_its_session_or_by_itself() -> Result<()> {
    let mocks = [
        MockBackend::start(&["demo"]).await?,
        MockBackend::start(&["demo"]).await?,
        MockBackend::start(&["demo"]).await?,
    ];
    let [a, b, c] = &mocks;
    let serving = serving([backend("a", a)?, backend("b", b)?, backend("c", c)?]).await?;
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
    let mut used = homes.clone();
    used.sort();
    used.dedup();
    ensure!(used == ["a", "b", "c"], "{homes:?}");
    for round in 0..3 {
        for number in [5, 0, 3, 1, 4, 2] {
            let session = session(number);
            let at = turn(client, &mut talks[number], "yes", session.as_deref()).await?;
            ensure!(at == homes[number], "talk {number}, round {round}: {at}");
        }
    }
    over(serving).await
}
