//! Bounds: of bodies, heads, times, requests, connections.

use std::collections::VecDeque;
use std::time::Duration;

use pointsman_executor::delivery::StopReason;
use serde_json::json;
use tokio::time::Instant;

use crate::client::{Client, post, post_with};
use crate::stage::Stage;

const TEXTS: &str = "/v1/completions";
const MEBIBYTE: usize = 1 << 20;

fn once() -> String {
    post(
        TEXTS,
        &json!({"model": "demo", "prompt": "Once"}).to_string(),
    )
}

#[tokio::test]
async fn an_oversized_body_is_answered_before_the_connection_closes() {
    let mut stage = Stage::with(|config| config.http.body_bytes_max = MEBIBYTE).await;
    let announced = format!("content-length: {}\r\n\r\n", 8 * MEBIBYTE);
    let chunked = "transfer-encoding: chunked\r\n\r\n800000\r\n";
    for framing in [&*announced, chunked] {
        let mut client = stage.client().await;
        client
            .send(format!(
                "POST {TEXTS} HTTP/1.1\r\nhost: localhost\r\n{framing}"
            ))
            .await;
        // All of it, and only then does this client read.
        client.send(vec![b' '; 8 * MEBIBYTE]).await;
        let answer = client.answer().await;
        assert_eq!(answer.error(), (413, "body_too_large".to_owned(), None));
        assert_eq!(answer.head.header("connection"), Some("close"));
        assert!(client.is_closed().await);
    }
    stage.expect_silence();
}

#[tokio::test]
async fn who_asks_before_sending_too_much_need_not_send_it() {
    let stage = Stage::with(|config| config.http.body_bytes_max = 10).await;
    let mut client = stage.client().await;
    client
        .send("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 11\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.head.status, 413);
}

#[tokio::test]
async fn a_body_of_just_the_largest_size_is_read() {
    let body = json!({"model": "demo", "prompt": "Once"}).to_string();
    let mut stage = Stage::with(|config| config.http.body_bytes_max = body.len()).await;
    let mut client = stage.client().await;
    client.send(post(TEXTS, &body)).await;
    stage.submitted().await;
}

#[tokio::test]
async fn a_body_without_room_is_turned_away_for_now_and_small_ones_are_taken() {
    let mut stage = Stage::with(|config| config.http.bodies_bytes_max = 100_000).await;
    let prompt = |bytes: usize| {
        let pad = " ".repeat(bytes);
        post(
            TEXTS,
            &format!(r#"{{"model": "demo", "prompt": "Once"{pad}}}"#),
        )
    };
    for _ in 0..2 {
        let mut client = stage.client().await;
        client.send(prompt(200_000)).await;
        let answer = client.answer().await;
        assert_eq!(answer.error(), (429, "bodies_full".to_owned(), None));
        assert_eq!(answer.head.header("retry-after"), Some("1"));
        assert!(client.is_closed().await);
        // The room that it had is another's.
        for bytes in [0, 60_000] {
            let mut client = stage.client().await;
            client.send(prompt(bytes)).await;
            stage.submitted().await.finish(StopReason::Stop);
            assert_eq!(client.answer().await.head.status, 200);
        }
    }
    stage.expect_silence();
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_with_a_timeout() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client
        .send("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 99\r\n\r\n")
        .await;
    // The server waits for the body.
    assert_eq!(client.head().await.status, 100);
    client.send("{\"model\": ").await;
    tokio::time::pause();
    let answer = client.answer().await;
    assert_eq!(answer.error(), (408, "body_timeout".to_owned(), None));
    assert!(client.is_closed().await);
    stage.expect_silence();
}

#[tokio::test]
async fn a_head_that_does_not_come_closes_the_connection() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    assert_eq!(client.get("/ready").await.head.status, 200);
    client.send("POST /v1/completions HTTP/1.1\r\nho").await;
    tokio::time::pause();
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_head_or_body_that_trickles_has_no_more_time_than_one_that_stops() {
    let limit = Duration::from_secs(20);
    for begun in [
        "POST /v1/completions HTTP/1.1\r\nx-long: ",
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n",
    ] {
        let mut stage = Stage::with(|config| config.http.read_timeout = limit).await;
        let mut client = stage.client().await;
        assert_eq!(client.get("/ready").await.head.status, 200);
        client.send(begun).await;
        tokio::time::pause();
        let since = Instant::now();
        client.trickle(Duration::from_secs(2)).await;
        let took = since.elapsed();
        assert!(took >= limit / 2 && took < limit * 2, "{begun}: {took:?}");
        stage.expect_silence();
        tokio::time::resume();
    }
}

/// Tests a line that brings eight megabytes in forty seconds, with a timeout of twenty.
#[tokio::test]
async fn a_large_body_has_more_time_the_more_of_it_has_come() {
    let limit = Duration::from_secs(20);
    let mut stage = Stage::with(|config| config.http.read_timeout = limit).await;
    let mut client = stage.client().await;
    let body = format!("{{\"model\": \"{}\"}}", "x".repeat(8 << 20));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length";
    client.send(format!("{head}: {}\r\n\r\n", body.len())).await;
    let (most, rest) = body.split_at(8 << 20);
    client.send(most.to_owned()).await;
    tokio::time::pause();
    tokio::time::sleep(limit * 2).await;
    tokio::time::resume();
    client.send(rest.to_owned()).await;
    let (status, code, _) = client.answer().await.error();
    assert_eq!((status, &*code), (404, "model_not_found"));
    stage.expect_silence();
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_the_end() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    assert_eq!(client.get("/ready").await.head.status, 200);
    tokio::time::pause();
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_body_in_an_unknown_encoding_is_refused() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client
        .send(post_with(TEXTS, "content-encoding: gzip\r\n", "xxxx"))
        .await;
    let answer = client.answer().await;
    assert_eq!(
        answer.error(),
        (415, "unsupported_encoding".to_owned(), None)
    );
    stage.expect_silence();
}

#[tokio::test]
async fn what_is_not_http_is_told_so() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    client.send("\u{16}\u{3}\u{1}hello?\r\n\r\n").await;
    assert_eq!(client.head().await.status, 400);
    assert!(client.is_closed().await);
    let mut client = stage.client().await;
    let long = "x".repeat(100_000);
    client
        .send(format!(
            "GET /ready HTTP/1.1\r\nhost: localhost\r\nx-long: {long}\r\n\r\n"
        ))
        .await;
    assert_eq!(client.head().await.status, 431);
    assert!(client.is_closed().await);
    let mut client = stage.client().await;
    let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
    client
        .send(format!(
            "GET /ready HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"
        ))
        .await;
    assert_eq!(client.head().await.status, 431);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn more_requests_than_the_server_takes_are_turned_away_for_now() {
    let mut stage = Stage::with(|config| config.http.requests_max = 1).await;
    let mut first = stage.client().await;
    first.send(once()).await;
    let played = stage.submitted().await;
    let mut second = stage.client().await;
    second.send(once()).await;
    let answer = second.answer().await;
    assert_eq!(answer.error(), (429, "hands_full".to_owned(), None));
    assert_eq!(answer.head.header("retry-after"), Some("1"));
    played.finish(StopReason::Stop);
    assert_eq!(first.answer().await.head.status, 200);
    second.send(once()).await;
    stage.submitted().await.finish(StopReason::Stop);
    assert_eq!(second.answer().await.head.status, 200);
}

#[tokio::test]
async fn no_more_requests_are_in_hand_than_the_server_takes() {
    let mut stage = Stage::with(|config| config.http.requests_max = 2).await;
    let mut in_hand = Vec::new();
    for _ in 0..2 {
        let mut client = stage.client().await;
        client.send(once()).await;
        in_hand.push((client, stage.submitted().await));
    }
    let mut third = stage.client().await;
    third.send(once()).await;
    tokio::select! {
        answer = third.answer() => {
            assert_eq!(answer.error(), (429, "hands_full".to_owned(), None));
        }
        _ = stage.submitted() => panic!("three are in hand"),
    }
    // The place of one that has left is another's.
    let (leaves, played) = in_hand.pop().unwrap();
    drop(leaves);
    assert_eq!(stage.departed().await, played.ticket());
    third.send(once()).await;
    stage.submitted().await.finish(StopReason::Stop);
    assert_eq!(third.answer().await.head.status, 200);
}

#[tokio::test]
async fn more_inputs_than_the_server_takes_requests_are_embedded_one_after_the_other() {
    let mut stage = Stage::with(|config| config.http.requests_max = 2).await;
    let mut client = stage.client().await;
    let body = json!({"model": "demo", "input": vec!["Once"; 5]});
    client.send(post("/v1/embeddings", &body.to_string())).await;
    let mut in_hand = VecDeque::new();
    for _ in 0..2 {
        in_hand.push_back(stage.submitted().await);
    }
    for _ in 2..5 {
        in_hand.pop_front().unwrap().embed(vec![1.0]);
        in_hand.push_back(stage.submitted().await);
    }
    stage.expect_silence();
    for played in in_hand {
        played.embed(vec![1.0]);
    }
    let answer = client.answer().await;
    assert_eq!(answer.head.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["data"].as_array().map(Vec::len), Some(5));
    stage.expect_silence();
}

#[tokio::test]
async fn a_request_without_room_is_turned_away_before_it_is_read() {
    let mut stage = Stage::with(|config| config.http.requests_max = 1).await;
    let mut first = stage.client().await;
    first.send(once()).await;
    let played = stage.submitted().await;
    let mut second = stage.client().await;
    // Whoever read this would find that it is no request.
    second.send(post(TEXTS, "{")).await;
    let answer = second.answer().await;
    assert_eq!(answer.error(), (429, "hands_full".to_owned(), None));
    played.finish(StopReason::Stop);
    assert_eq!(first.answer().await.head.status, 200);
    second.send(post(TEXTS, "{")).await;
    assert_eq!(second.answer().await.head.status, 400);
}

#[tokio::test]
async fn a_connection_closes_behind_its_last_request() {
    let stage = Stage::with(|config| config.http.connection_requests_max = 3).await;
    let mut client = stage.client().await;
    for last in [false, false, true] {
        let answer = client.get("/ready").await;
        assert_eq!(answer.head.status, 200);
        let connection = answer.head.header("connection");
        assert_eq!(connection, last.then_some("close"));
    }
    assert!(client.is_closed().await);
    // Another one is a new client.
    assert_eq!(stage.client().await.get("/ready").await.head.status, 200);
}

#[tokio::test]
async fn more_connections_than_the_server_takes_are_turned_away_for_now() {
    let mut stage = Stage::with(|config| config.http.connections_max = 1).await;
    let mut first = stage.client().await;
    assert_eq!(first.get("/ready").await.head.status, 200);
    for _ in 0..2 {
        let mut second = Client::connect(stage.addr).await;
        second.send(once()).await;
        let answer = second.answer().await;
        assert_eq!(answer.error(), (429, "connections_full".to_owned(), None));
        assert_eq!(answer.head.header("retry-after"), Some("1"));
        assert!(second.is_closed().await);
    }
    // The first one is served as before.
    first.send(once()).await;
    stage.submitted().await.finish(StopReason::Stop);
    assert_eq!(first.answer().await.head.status, 200);
    first.close_write().await;
    assert!(first.is_closed().await);
    // Its place is the next one's, as soon as the server has closed it, too.
    let mut next = None;
    for _ in 0..1000 {
        let mut client = Client::connect(stage.addr).await;
        let status = client.get("/v1/models").await.head.status;
        if status != 429 {
            next = Some(status);
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(next, Some(200));
    stage.expect_silence();
}

#[tokio::test]
async fn a_probe_is_answered_while_clients_hold_every_connection() {
    let stage = Stage::with(|config| config.http.connections_max = 1).await;
    let mut first = stage.client().await;
    assert_eq!(first.get("/ready").await.head.status, 200);
    // Clients that came too late and say nothing, many more than there are spare connections.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(Client::connect(stage.addr).await);
    }
    for _ in 0..3 {
        let mut probe = Client::connect(stage.addr).await;
        let answer = probe.get("/ready").await;
        assert_eq!(answer.head.status, 200);
        assert_eq!(answer.head.header("connection"), Some("close"));
        assert!(probe.is_closed().await);
    }
    assert!(silent[0].is_closed().await, "newer ones took its place");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let mut stage = Stage::open().await;
    let mut client = Client::connect_narrow(stage.addr).await;
    let body = json!({"model": "demo", "prompt": "Once", "stream": true, "max_tokens": 64});
    client.post(TEXTS, &body).await;
    let played = stage.submitted().await;
    // More than the kernel buffers for anybody.
    for _ in 0..32 {
        played.text(&"x".repeat(MEBIBYTE), 1);
    }
    assert_eq!(client.head().await.status, 200);
    tokio::time::pause();
    assert_eq!(stage.departed().await, played.ticket());
    assert!(played.is_gone());
}

#[tokio::test]
async fn a_client_that_reads_late_gets_everything() {
    let mut stage = Stage::open().await;
    let mut client = Client::connect_narrow(stage.addr).await;
    let body = json!({"model": "demo", "prompt": "Once", "stream": true, "max_tokens": 64});
    client.post(TEXTS, &body).await;
    let played = stage.submitted().await;
    for _ in 0..32 {
        played.text(&"Z".repeat(MEBIBYTE), 1);
    }
    played.finish(StopReason::Length);
    let answer = client.answer().await;
    assert_eq!(answer.body.matches('Z').count(), 32 * MEBIBYTE);
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
    stage.expect_silence();
}
