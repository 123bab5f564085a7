//! Clients in a closed loop: each sends its next request when its last one has been answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::Client;

/// Streaming clients, until told to leave.
#[derive(Debug)]
pub struct Crowd {
    shared: Arc<Shared>,
    clients: JoinSet<Result<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    leave: AtomicBool,
    served: AtomicUsize,
    another: Notify,
}

impl Crowd {
    /// So many clients, the `n`th of which asks `ask(n)` again and again.
    #[must_use]
    pub fn gather(client: Client, clients: usize, ask: impl Fn(usize) -> Value) -> Self {
        let mut crowd = Self {
            shared: Arc::default(),
            clients: JoinSet::new(),
        };
        for number in 0..clients {
            let (shared, body) = (Arc::clone(&crowd.shared), ask(number));
            crowd.clients.spawn(async move {
                while !shared.leave.load(Ordering::Relaxed) {
                    let streamed = client.stream(&body).await?.finish().await?;
                    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
                    shared.served.fetch_add(1, Ordering::Relaxed);
                    shared.another.notify_one();
                }
                Ok(())
            });
        }
        crowd
    }

    /// Waits until `requests` were served, then leaves.
    ///
    /// # Errors
    /// If one failed.
    pub async fn served(mut self, requests: usize) -> Result<usize> {
        while self.shared.served.load(Ordering::Relaxed) < requests {
            // Biased towards failures, which end the wait.
            tokio::select! {
                biased;
                Some(client) = self.clients.join_next() => client.context("panicked")??,
                () = self.shared.another.notified() => {}
            }
        }
        self.leave().await
    }

    /// Lets each finish its request. How many requests were served, all of them well.
    ///
    /// # Errors
    /// If one failed.
    pub async fn leave(mut self) -> Result<usize> {
        self.shared.leave.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.context("panicked")??;
        }
        Ok(self.shared.served.load(Ordering::Relaxed))
    }
}
