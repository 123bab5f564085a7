//! Models that a router of llama.cpp is loading already, and whose orders it refuses meanwhile.

use anyhow::{Result, ensure};
use pointsman_tests::backend::{Conduct, MockBackend};
use serde_json::json;

use super::{CHAT, asks, before_two, router, router_has};
use crate::{backend, over, serving};

/// Refuses orders to load from now on, in the words of a router whose model runs.
fn refuses(mock: &MockBackend) {
    mock.obeys("/models/load", 400, &refusal());
}

fn refusal() -> String {
    let error = json!({"code": 400, "message": "model is already running",
        "type": "invalid_request_error"});
    json!({"error": error}).to_string()
}

/// Waits until a router has been asked for its models some more times.
async fn is_looked_at(mock: &MockBackend) -> Result<()> {
    let looks = mock.seen("/v1/models").len();
    mock.heard("/v1/models", looks + 4).await
}

#[tokio::test]
async fn a_model_that_somebody_else_has_ordered_is_waited_for_without_an_order() -> Result<()> {
    let mock = router(&[("a", "loading")]).await?;
    refuses(&mock);
    let serving = serving([backend("router", &mock)?]).await?;
    let asked = asks(serving.client, "a");
    serving.load_until(|load| load.slots_used == 1).await?;
    is_looked_at(&mock).await?;
    ensure!(mock.seen(CHAT).is_empty(), "it is not loaded yet");
    router_has(&mock, &[("a", "loaded")]);
    ensure!(asked.await?? == 200);
    ensure!(mock.seen("/models/load").is_empty());
    over(serving).await
}

#[tokio::test]
async fn a_load_whose_client_has_left_is_waited_for_by_the_next_request() -> Result<()> {
    let mock = router(&[("a", "unloaded")]).await?;
    let serving = serving([backend("router", &mock)?]).await?;
    let first = asks(serving.client, "a");
    mock.heard("/models/load", 1).await?;
    router_has(&mock, &[("a", "loading")]);
    refuses(&mock);
    first.abort();
    serving.idle().await?;

    let second = asks(serving.client, "a");
    serving.load_until(|load| load.slots_used == 1).await?;
    is_looked_at(&mock).await?;
    ensure!(mock.seen(CHAT).is_empty(), "it is not loaded yet");
    router_has(&mock, &[("a", "loaded")]);
    ensure!(second.await?? == 200);
    ensure!(mock.seen("/models/load").len() == 1, "it is ordered once");
    over(serving).await
}

#[tokio::test]
async fn an_order_that_is_refused_as_the_model_is_being_loaded_is_waited_for() -> Result<()> {
    let mock = router(&[("a", "unloaded")]).await?;
    let serving = serving([backend("router", &mock)?]).await?;
    // Somebody else's order arrives while this one is being refused.
    let body = refusal();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
        content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    mock.obeys_no_more("/models/load");
    mock.does(Conduct::Trickle([head, body].concat().into_bytes()));
    let asked = asks(serving.client, "a");
    mock.heard("/models/load", 1).await?;
    router_has(&mock, &[("a", "loading")]);
    mock.does(Conduct::Answers(3));
    // The refusal has come.
    mock.runs(0).await?;
    is_looked_at(&mock).await?;
    ensure!(mock.seen(CHAT).is_empty(), "it is not loaded yet");
    router_has(&mock, &[("a", "loaded")]);
    ensure!(asked.await?? == 200);
    ensure!(mock.seen("/models/load").len() == 1, "it is ordered once");
    over(serving).await
}

#[tokio::test]
async fn a_refused_order_for_a_model_that_nobody_loads_has_failed() -> Result<()> {
    let mock = router(&[("a", "unloaded")]).await?;
    refuses(&mock);
    let serving = serving([backend("router", &mock)?]).await?;
    let got = asks(serving.client, "a").await??;
    ensure!(got == 502, "{got}");
    ensure!(mock.seen(CHAT).is_empty() && !mock.seen("/models/load").is_empty());
    over(serving).await
}

#[tokio::test]
async fn a_load_of_somebody_else_that_fails_is_not_ordered_again() -> Result<()> {
    let fails = router(&[("a", "loading")]).await?;
    let loads = router(&[("a", "unloaded")]).await?;
    let serving = before_two(&fails, &loads, None).await?;
    let asked = asks(serving.client, "a");
    serving.load_until(|load| load.slots_used == 1).await?;
    is_looked_at(&fails).await?;
    router_has(&fails, &[("a", "failed")]);
    loads.heard("/models/load", 1).await?;
    router_has(&loads, &[("a", "loaded")]);
    ensure!(asked.await?? == 200);
    ensure!(fails.seen("/models/load").is_empty() && fails.seen(CHAT).is_empty());
    over(serving).await
}
