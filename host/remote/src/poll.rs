//! The rounds of questions to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pointsman_executor::server::ServerConfig;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::asker::{Asker, Ours};
use crate::client::ServerClient;
use crate::findings::Findings;
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
    found: mpsc::Sender<Findings>,
}

/// Starts the task that asks a server. It ends when what is returned is dropped.
pub(crate) fn start(
    runtime: &Handle,
    server: &ServerConfig,
    (client, residency, poll): (&ServerClient, &Arc<Residency>, &Arc<Poll>),
) -> mpsc::Receiver<Findings> {
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
            let findings = tokio::select! {
                findings = self.asker.ask(&ours) => findings,
                () = self.found.closed() => return,
            };
            self.residency.found(&findings);
            if self.found.send(findings).await.is_err() {
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
