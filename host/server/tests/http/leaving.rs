//! Clients that leave: in every phase of their request, the driver hears of it.

use pointsman_executor::delivery::StopReason;

use crate::client::{Client, Transfer};
use crate::stage::{Played, Stage};

/// Waits until the server has heard that its client has left the request.
async fn expect_departure(stage: &mut Stage, played: &Played) {
    assert_eq!(stage.departed().await, played.ticket());
    assert!(played.is_gone());
}

#[tokio::test]
async fn a_client_that_leaves_while_its_request_waits_is_noticed() {
    let mut stage = Stage::open().await;
    for transfer in Transfer::BOTH {
        let mut client = stage.client().await;
        client.send(transfer.request()).await;
        let played = stage.submitted().await;
        drop(client);
        expect_departure(&mut stage, &played).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_its_prompt_is_read_is_noticed() {
    let mut stage = Stage::open().await;
    for transfer in Transfer::BOTH {
        let mut client = stage.client().await;
        client.send(transfer.request()).await;
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
    for transfer in Transfer::BOTH {
        let mut client = stage.client().await;
        client.send(transfer.request()).await;
        let played = stage.submitted().await;
        played.text("upon", 1);
        if transfer == Transfer::Streamed {
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
    for transfer in Transfer::BOTH {
        let mut client = stage.client().await;
        client.send(transfer.request()).await;
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
    for transfer in Transfer::BOTH {
        let mut client = stage.client().await;
        client.send(transfer.request() + &transfer.request()).await;
        let played = stage.submitted().await;
        drop(client);
        expect_departure(&mut stage, &played).await;
    }
    stage.expect_silence();
}

#[tokio::test]
async fn a_client_that_leaves_amid_its_request_leaves_nothing() {
    let mut stage = Stage::open().await;
    for sent in ["", "POST /v1/comp", &Transfer::Streamed.request()[..100]] {
        let mut client = stage.client().await;
        client.send(sent).await;
        drop(client);
    }
    // A later request is served, and nothing was said to the driver before it.
    let mut client = stage.client().await;
    client.send(Transfer::Whole.request()).await;
    stage.submitted().await.finish(StopReason::Stop);
    assert_eq!(client.answer().await.head.status, 200);
    stage.expect_silence();
}

#[tokio::test]
async fn a_client_that_leaves_between_requests_leaves_nothing() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    for _ in 0..2 {
        client.send(Transfer::Streamed.request()).await;
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
