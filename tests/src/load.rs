//! Load generators: clients in a closed loop, each of which sends its next request after its last
//! answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::Client;

/// Streaming clients in a closed loop, until they are stopped.
#[derive(Debug)]
pub struct LoadGenerator {
    shared: Arc<Shared>,
    clients: JoinSet<Result<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopping: AtomicBool,
    served: AtomicUsize,
    another: Notify,
}

impl LoadGenerator {
    /// Starts `clients` clients. The `n`th one asks `ask(n)` again and again.
    #[must_use]
    pub fn start(client: Client, clients: usize, ask: impl Fn(usize) -> Value) -> Self {
        let mut load = Self {
            shared: Arc::default(),
            clients: JoinSet::new(),
        };
        for number in 0..clients {
            let (shared, body) = (Arc::clone(&load.shared), ask(number));
            load.clients.spawn(async move {
                while !shared.is_stopping.load(Ordering::Relaxed) {
                    let streamed = client.stream(&body).await?.finish().await?;
                    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
                    shared.served.fetch_add(1, Ordering::Relaxed);
                    shared.another.notify_one();
                }
                Ok(())
            });
        }
        load
    }

    /// Waits until `requests` were served, then stops.
    ///
    /// # Errors
    /// If a request failed.
    pub async fn served(mut self, requests: usize) -> Result<usize> {
        while self.shared.served.load(Ordering::Relaxed) < requests {
            // Biased: a failure ends the wait.
            tokio::select! {
                biased;
                Some(client) = self.clients.join_next() => client.context("panicked")??,
                () = self.shared.another.notified() => {}
            }
        }
        self.stop().await
    }

    /// Lets each client finish its request, and returns the number of requests served.
    ///
    /// # Errors
    /// If a request failed.
    pub async fn stop(mut self) -> Result<usize> {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.context("panicked")??;
        }
        Ok(self.shared.served.load(Ordering::Relaxed))
    }
}
