//! The rounds of questions to a server.
//!
//! A round lasts as long as answers are late: requests come and go meanwhile. So the verdict about a server that was not
//! heard is the executor's, which knows the requests that run there then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pointsman_executor::server::ServerConfig;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::asker::{Asked, Asker, Ours};
use crate::client::ServerClient;
use crate::residency::Residency;

/// The state of things that makes rounds come early or late.
#[derive(Debug, Default)]
pub(crate) struct Poll {
    /// The requests of ours there.
    pub(crate) ours: AtomicU32,
    /// Wakes the poller.
    pub(crate) nudge: Notify,
    /// The pause before the next round where the server had no room, in ms; 0: the usual one.
    pub(crate) pause_ms: AtomicU32,
}

/// The task that asks a server again and again, until nobody hears of it any more.
struct Poller {
    asker: Asker,
    residency: Arc<Residency>,
    poll: Arc<Poll>,
    /// The usual pause between two rounds.
    usual: Duration,
    found: mpsc::Sender<Asked>,
}

/// Starts the task that asks a server. It ends when what is returned is dropped.
pub(crate) fn start(
    runtime: &Handle,
    server: &ServerConfig,
    (client, residency, poll): (&ServerClient, &Arc<Residency>, &Arc<Poll>),
) -> mpsc::Receiver<Asked> {
    let (found, findings) = mpsc::channel(1);
    let poller = Poller {
        asker: Asker::new(client.clone(), server),
        residency: Arc::clone(residency),
        poll: Arc::clone(poll),
        usual: server.poll,
        found,
    };
    runtime.spawn(poller.run());
    findings
}

// === impl Poll ===

impl Poll {
    fn ours(&self, residency: &Residency) -> Ours {
        Ours {
            count: self.ours.load(Ordering::Relaxed),
            models: residency.attended(),
        }
    }

    /// The pause before the next round; absent: the usual one.
    fn pause(&self) -> Option<Duration> {
        match self.pause_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(u64::from(ms))),
        }
    }
}

// === impl Poller ===

impl Poller {
    async fn run(mut self) {
        loop {
            let ours = self.poll.ours(&self.residency);
            let asked = tokio::select! {
                asked = self.asker.ask(&ours) => asked,
                () = self.found.closed() => return,
            };
            if let Ok(findings) = &asked {
                self.residency.found(findings);
            }
            if self.found.send(asked).await.is_err() {
                return;
            }
            // The next question does not wait for it.
            tokio::spawn(Arc::clone(&self.residency).unload_idle());
            let pause = self.poll.pause().unwrap_or(self.usual);
            tokio::select! {
                () = self.found.closed() => return,
                // Elapsed or nudged, it is time to ask.
                _elapsed = timeout(pause, self.poll.nudge.notified()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
