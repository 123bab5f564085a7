//! Servers of our own as backends, with the demo model.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::json;
use tokio::task::JoinSet;

use super::{backend_at, executors_until, named, over, serving, serving_with};

/// A server with the demo model at this address.
async fn pointsman(listen: SocketAddr) -> Result<Serving> {
    Serving::start(|config| {
        config.listen = listen;
        config.drain = Duration::from_secs(30);
    })
    .await
}

#[tokio::test]
async fn an_answer_is_the_same_through_another_pointsman() -> Result<()> {
    let back = pointsman("127.0.0.1:0".parse()?).await?;
    let front = serving([backend_at("back", back.client.addr())?]).await?;
    let mut body = chat("Tell me a story about a fox and an owl.");
    body["max_tokens"] = json!(40);
    let straight = back
        .client
        .post("/v1/chat/completions", &body)
        .await?
        .json()?;
    let through = front
        .client
        .post("/v1/chat/completions", &body)
        .await?
        .json()?;
    ensure!(
        straight["choices"] == through["choices"]
            && straight["usage"]["total_tokens"] == through["usage"]["total_tokens"]
    );
    let mut streamed = streamed_chat("Tell me a story about a fox and an owl.");
    streamed["max_tokens"] = json!(40);
    let straight = back.client.stream(&streamed).await?.finish().await?;
    let through = front.client.stream(&streamed).await?.finish().await?;
    ensure!(straight == through && through.done, "{through:?}");
    over(front).await?;
    over(back).await
}

/// Clients that ask again and again, until they are told to stop.
fn clients(
    client: Client,
    stop: &Arc<AtomicBool>,
    served: &Arc<AtomicUsize>,
) -> JoinSet<Result<()>> {
    let mut clients = JoinSet::new();
    for number in 0..4 {
        let (stop, served) = (Arc::clone(stop), Arc::clone(served));
        clients.spawn(async move {
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let mut body = streamed_chat(&format!("Story {turn} of {number}"));
                body["max_tokens"] = json!(20);
                let streamed = client.stream(&body).await?.finish().await?;
                ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
                served.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_backends_are_restarted_under_load_and_no_request_fails() -> Result<()> {
    let mut backs = vec![
        pointsman("127.0.0.1:0".parse()?).await?,
        pointsman("127.0.0.1:0".parse()?).await?,
    ];
    let addrs = [backs[0].client.addr(), backs[1].client.addr()];
    let front = serving_with(
        [backend_at("a", addrs[0])?, backend_at("b", addrs[1])?],
        |config| {
            config.core.unserved_max = pointsman_core::Micros(30_000_000);
        },
    );
    let front = front.await?;
    let (stop, served) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut clients = clients(front.client, &stop, &served);
    let another = |count: usize| {
        let before = served.load(Ordering::Relaxed);
        let served = Arc::clone(&served);
        async move {
            while served.load(Ordering::Relaxed) < before + count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    another(4).await;
    for (idx, name) in ["a", "b", "a", "b"].into_iter().enumerate() {
        let old = backs.remove(0);
        old.server.stop().await?;
        another(4).await;
        backs.push(pointsman(addrs[idx % 2]).await?);
        executors_until(front.client, |list| named(list, name)["health"] == "up").await?;
        another(4).await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client?.context("a request failed")?;
    }
    over(front).await
}
