//! Clients that leave: whatever phase their request is in, the driver hears of it.

use pointsman_executor::delivery::StopReason;
use serde_json::json;

use crate::client::{Client, post};
use crate::stage::{Played, Stage};

const TEXTS: &str = "/v1/completions";

fn once(stream: bool) -> String {
    post(
        TEXTS,
        &json!({"model": "demo", "prompt": "Once", "stream": stream}).to_string(),
    )
}

/// The server has heard that its client has left the request.
async fn expect_departure(stage: &mut Stage, played: &Played) {
    assert_eq!(stage.departed().await, played.ticket());
    assert!(played.is_gone());
}

#[tokio::test]
async fn a_client_that_leaves_while_its_request_waits_is_noticed() {
    let mut stage = Stage::open().await;
    for stream in [false, true] {
        let mut client = stage.client().await;
        client.send(once(stream)).await;
        let played = stage.submitted().await;
        drop(client);
        expect_departure(&mut stage, &played).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_its_prompt_is_read_is_noticed() {
    let mut stage = Stage::open().await;
    for stream in [false, true] {
        let mut client = stage.client().await;
        client.send(once(stream)).await;
        let played = stage.submitted().await;
        played.placed("cpu0/demo", "");
        played.text("", 1);
        drop(client);
        expect_departure(&mut stage, &played).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_amid_its_answer_is_noticed() {
    let mut stage = Stage::open().await;
    for stream in [false, true] {
        let mut client = stage.client().await;
        client.send(once(stream)).await;
        let played = stage.submitted().await;
        played.text("upon", 1);
        if stream {
            client.head().await;
            client.chunk().await.unwrap();
        }
        drop(client);
        expect_departure(&mut stage, &played).await;
    }
}

#[tokio::test]
async fn a_client_that_only_closes_its_side_has_left() {
    let mut stage = Stage::open().await;
    for stream in [false, true] {
        let mut client = stage.client().await;
        client.send(once(stream)).await;
        let played = stage.submitted().await;
        client.close_write().await;
        expect_departure(&mut stage, &played).await;
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_client_that_leaves_behind_a_pipelined_request_is_noticed() {
    let mut stage = Stage::open().await;
    for stream in [false, true] {
        let mut client = stage.client().await;
        client.send(once(stream) + &once(stream)).await;
        let played = stage.submitted().await;
        drop(client);
        expect_departure(&mut stage, &played).await;
    }
    stage.expect_silence();
}

#[tokio::test]
async fn a_client_that_leaves_amid_its_request_leaves_nothing() {
    let mut stage = Stage::open().await;
    for sent in ["", "POST /v1/comp", &once(true)[..100]] {
        let mut client = stage.client().await;
        client.send(sent).await;
        drop(client);
    }
    // A later request is served, and nothing was said to the driver before it.
    let mut client = stage.client().await;
    client.send(once(false)).await;
    stage.submitted().await.finish(StopReason::Stop);
    assert_eq!(client.answer().await.head.status, 200);
    stage.expect_silence();
}

#[tokio::test]
async fn a_client_that_leaves_between_requests_leaves_nothing() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    for _ in 0..2 {
        client.send(once(true)).await;
        let played = stage.submitted().await;
        played.text("upon", 1);
        played.finish(StopReason::Stop);
        assert_eq!(client.answer().await.head.status, 200);
    }
    drop(client);
    let mut next = Client::connect(stage.addr).await;
    assert_eq!(next.get("/ready").await.head.status, 200);
    stage.expect_silence();
}
