//! The room at a server: slots, and requests that it turns back, or that do not reach it.
//!
//! Slots are the server's capacity less what others have there. A server that turns a request back has as much room as ours
//! take there at that moment; every round of questions that finds it well adds one. One that turns back the only request
//! takes none until it is found well again: it is asked when it says, or later each time until it has served one. A round
//! that began before that does not find it well.
//!
//! A server to which no connection can be made is silent, and takes none either until it is found well again, by the same times: it may
//! answer questions by a connection that it has, and take no new one.
//!
//! A request that began at another address says nothing of the server that has taken the place of the one there.

use std::time::Duration;

use pointsman_events::Availability;
use pointsman_executor::contract::{Event, ServerChange};
use pointsman_executor::server::ServerUrl;

use super::Remote;

/// The times after which a server that had no room, or took no connection, is asked again where it names none: the first, and
/// the longest. It is asked no sooner than after the first.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

impl Remote {
    /// Takes note of a request that the server at this address had no room for.
    pub(super) fn turned_back(
        &mut self,
        url: &ServerUrl,
        retry_after: Option<Duration>,
    ) -> Vec<Event> {
        if *url != self.spec.server.url {
            return Vec::new();
        }
        let ours = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        if ours > 0 {
            self.standing.learned = Some(ours);
            return self.slots().into_iter().collect();
        }
        self.ask_later(retry_after);
        self.available(Availability::Busy, "it turned a request back")
            .into_iter()
            .collect()
    }

    /// Takes note of a request for which no connection to the server at this address could be made.
    pub(super) fn not_reached(&mut self, url: &ServerUrl, why: &str) -> Vec<Event> {
        if *url != self.spec.server.url {
            return Vec::new();
        }
        // All that are on their way are told the same at once.
        if self.standing.availability != Some(Availability::Silent) {
            self.ask_later(None);
        }
        let told = self.available(Availability::Silent, why);
        told.into_iter().collect()
    }

    /// Has the server asked after this time, or later each time until it has served a request.
    fn ask_later(&mut self, named: Option<Duration>) {
        let (first, longest) = BUSY_PAUSE;
        let later = (self.standing.busy_pause * 2).clamp(first, longest);
        let pause = named.map_or(later, |named| named.max(first));
        self.standing.busy_pause = pause;
        self.poll.pause_for(pause);
    }

    /// The news of another number of slots; absent: it is the same.
    pub(super) fn slots(&mut self) -> Option<Event> {
        let load = &self.standing.load;
        let ours = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let capacity = self.spec.server.slots.or(load.capacity)?;
        let others = load
            .present
            .map_or(0, |present| present.saturating_sub(ours));
        let free = capacity.saturating_sub(others);
        let slots = free.min(self.standing.learned.unwrap_or(u32::MAX)).max(1);
        if self.standing.slots == Some(slots) {
            return None;
        }
        self.standing.slots = Some(slots);
        Some(Event::Changed(ServerChange::Slots(slots)))
    }
}

#[cfg(test)]
mod tests;
