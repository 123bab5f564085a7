//! The rounds of questions to a server.
//!
//! A round lasts as long as answers are late: requests come and go meanwhile. So the verdict about a server that was not
//! heard is the executor's, which knows the requests that run there then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pointsman_executor::server::ServerConfig;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};

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
    /// The time of the next round, where the server had no room; absent: the usual one.
    due: watch::Sender<Option<Instant>>,
}

/// A round of questions that has ended.
#[derive(Debug)]
pub(crate) struct AskedRound {
    /// The time at which it began.
    pub(crate) begun: Instant,
    pub(crate) asked: Asked,
}

/// The task that asks a server again and again, until nobody hears of it any more.
struct Poller {
    asker: Asker,
    residency: Arc<Residency>,
    poll: Arc<Poll>,
    /// The usual pause between two rounds.
    usual: Duration,
    found: mpsc::Sender<AskedRound>,
}

/// Starts the task that asks a server. It ends when what is returned is dropped.
pub(crate) fn start(
    runtime: &Handle,
    server: &ServerConfig,
    (client, residency, poll): (&ServerClient, &Arc<Residency>, &Arc<Poll>),
) -> mpsc::Receiver<AskedRound> {
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

    /// Has the next round come after this time, whenever it would have come.
    pub(crate) fn pause_for(&self, time: Duration) {
        self.due.send_replace(Some(Instant::now() + time));
    }

    /// Has rounds come at the usual times.
    pub(crate) fn pause_as_usual(&self) {
        self.due.send_if_modified(|due| due.take().is_some());
    }

    /// True for a round that began before the time of the next one: it was on its way when the server had no room.
    pub(crate) fn is_early(&self, begun: Instant) -> bool {
        self.due.borrow().is_some_and(|due| begun < due)
    }
}

// === impl Poller ===

impl Poller {
    async fn run(mut self) {
        let mut told = self.poll.due.subscribe();
        loop {
            let begun = Instant::now();
            let ours = self.poll.ours(&self.residency);
            let asked = tokio::select! {
                asked = self.asker.ask(&ours) => asked,
                () = self.found.closed() => return,
            };
            if let Ok(findings) = &asked {
                self.residency.found(findings);
            }
            if self.found.send(AskedRound { begun, asked }).await.is_err() {
                return;
            }
            // The next question does not wait for it.
            tokio::spawn(Arc::clone(&self.residency).unload_idle());
            tokio::select! {
                () = self.found.closed() => return,
                () = self.rest(begun, &mut told) => {}
            }
        }
    }

    /// Waits until it is time for the round after the one that `begun` then. A time that is told is that of one round: where
    /// one has begun then or later, the next one comes as usual.
    async fn rest(&self, begun: Instant, told: &mut watch::Receiver<Option<Instant>>) {
        let usual = Instant::now() + self.usual;
        loop {
            let due = *told.borrow_and_update();
            let due = due.filter(|due| begun < *due).unwrap_or(usual);
            tokio::select! {
                () = sleep_until(due) => return,
                () = self.poll.nudge.notified() => return,
                // Its sender is there as long as this is.
                _ = told.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
