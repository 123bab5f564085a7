//! The server's life as its clients see it: draining and ending.

use std::time::Duration;

use pointsman_executor::delivery::StopReason;
use pointsman_http::ServerPhase;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{Transfer, post};
use crate::stage::Stage;

#[tokio::test]
async fn a_draining_server_ends_when_its_last_answer_has_ended() {
    let mut stage = Stage::open().await;
    let mut idle = stage.client().await;
    assert_eq!(idle.get("/ready").await.head.status, 200);
    let mut streaming = stage.client().await;
    streaming.send(Transfer::Streamed.request()).await;
    let stream = stage.submitted().await;
    stream.text("up", 1);
    assert_eq!(streaming.head().await.status, 200);
    let mut waiting = stage.client().await;
    waiting.send(Transfer::Whole.request()).await;
    let whole = stage.submitted().await;

    stage.phase.send_replace(ServerPhase::Draining);
    assert!(idle.is_closed().await);
    assert!(TcpStream::connect(stage.addr).await.is_err());

    whole.text("upon", 1);
    whole.finish(StopReason::Stop);
    let answer = waiting.answer().await;
    assert_eq!(answer.head.status, 200);
    assert_eq!(answer.head.header("connection"), Some("close"));
    assert!(waiting.is_closed().await);

    stream.text("on", 1);
    stream.finish(StopReason::Stop);
    let mut body = String::new();
    while let Some(chunk) = streaming.chunk().await {
        body.push_str(&chunk);
    }
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
    assert!(streaming.is_closed().await);
    stage.expect_silence();
    stage.ended().await;
}

#[tokio::test]
async fn a_draining_server_embeds_all_inputs_of_a_request_that_is_in_hand() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    let body = json!({"model": "demo", "input": vec!["Once"; 66]});
    client.send(post("/v1/embeddings", &body.to_string())).await;
    // So many of them at once.
    let mut begun = Vec::new();
    for _ in 0..64 {
        begun.push(stage.submitted().await);
    }
    stage.phase.send_replace(ServerPhase::Draining);
    for played in begun {
        played.embed(vec![1.0]);
    }
    for _ in 64..66 {
        stage.submitted().await.embed(vec![1.0]);
    }
    let answer = client.answer().await;
    assert_eq!(answer.head.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["data"].as_array().map(Vec::len), Some(66));
    assert!(client.is_closed().await);
    stage.expect_silence();
    stage.ended().await;
}

#[tokio::test]
async fn a_draining_server_takes_nothing_new() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    // The body is still to come when the drain begins.
    let request = Transfer::Whole.request();
    let (head, body) = request.split_at(request.find('{').unwrap());
    client
        .send(head.replace("host: localhost", "host: localhost\r\nexpect: 100-continue"))
        .await;
    assert_eq!(client.head().await.status, 100);
    stage.phase.send_replace(ServerPhase::Draining);
    let answer = client.answer().await;
    assert_eq!(answer.error(), (503, "shutting_down".to_owned(), None));
    assert_eq!(answer.head.header("retry-after"), Some("5"));
    // A client that goes on sending is heard out for a moment.
    client.send(body).await;
    assert!(client.is_closed().await);
    drop(client);
    stage.expect_silence();
    stage.ended().await;
}

#[tokio::test]
async fn a_draining_server_waits_for_no_request_that_has_come_in_part() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let stage = Stage::with(|config| config.http.read_timeout = PATIENCE * 60);
    let mut stage = stage.await;
    let request = Transfer::Whole.request();
    let (head, _) = request.split_once("\r\n\r\n").unwrap();
    let order = post("/admin/eject", "{}");
    let (mut of_head, mut of_body) = (stage.client().await, stage.client().await);
    let mut of_order = stage.client().await;
    of_head.send(head).await;
    of_body.send(&request[..request.len() - 1]).await;
    of_order.send(&order[..order.len() - 1]).await;
    // By then the server has read all three.
    let mut later = stage.client().await;
    assert_eq!(later.get("/ready").await.head.status, 200);

    stage.phase.send_replace(ServerPhase::Draining);
    assert_eq!(timeout(PATIENCE, of_head.is_closed()).await, Ok(true));
    for mut in_part in [of_body, of_order] {
        let answer = timeout(PATIENCE, in_part.answer()).await.unwrap();
        assert_eq!(answer.error(), (503, "shutting_down".to_owned(), None));
        assert!(in_part.is_closed().await);
    }
    stage.expect_silence();
    stage.ended().await;
}

#[tokio::test]
async fn connections_end_with_the_server() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client.send(Transfer::Streamed.request()).await;
    let played = stage.submitted().await;
    played.text("upon", 1);
    assert_eq!(client.head().await.status, 200);
    client.chunk().await.unwrap();
    stage.phase.send_replace(ServerPhase::Draining);
    stage.phase.send_replace(ServerPhase::Ended);
    assert!(client.is_closed().await);
    assert_eq!(stage.departed().await, played.ticket());
    assert!(played.is_gone());
    stage.ended().await;
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    for transfer in [Transfer::BOTH, Transfer::BOTH].concat() {
        client.send(transfer.request()).await;
        let played = stage.submitted().await;
        played.text("upon", 1);
        played.finish(StopReason::Stop);
        assert_eq!(client.answer().await.head.status, 200);
    }
    assert_eq!(client.get("/v1/models").await.head.status, 200);
    stage.expect_silence();
}
