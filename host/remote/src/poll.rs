//! The rounds of questions to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::asker::{Asker, Ours};
use crate::executor::News;
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
pub(crate) struct Poller {
    pub(crate) asker: Asker,
    pub(crate) residency: Arc<Residency>,
    pub(crate) poll: Arc<Poll>,
    /// The usual pause between two rounds.
    pub(crate) usual: Duration,
    pub(crate) news: mpsc::Sender<News>,
}

// === impl Poll ===

impl Poll {
    fn ours(&self) -> Ours {
        match self.ours.load(Ordering::Relaxed) {
            0 => Ours::None,
            1.. => Ours::Some,
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
    pub(crate) async fn run(mut self) {
        loop {
            let ours = self.poll.ours();
            let findings = tokio::select! {
                findings = self.asker.ask(ours) => findings,
                () = self.news.closed() => return,
            };
            self.residency.found(&findings);
            if self.news.send(News::Asked(findings)).await.is_err() {
                return;
            }
            // The next question does not wait for it.
            tokio::spawn(Arc::clone(&self.residency).unload_idle());
            let pause = self.poll.pause().unwrap_or(self.usual);
            tokio::select! {
                () = self.news.closed() => return,
                // Elapsed or nudged, it is time to ask.
                _elapsed = timeout(pause, self.poll.nudge.notified()) => {}
            }
        }
    }
}
