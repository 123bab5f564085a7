//! Another description of a server whose executor stays: models that it is known to serve, requests that run
//! there and requests that wait for it are not disturbed.
//!
//! Requests keep the address, the key and the times with which they began. At another address another server
//! is assumed: nothing is sent there before it was heard.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use pointsman_executor::contract::{Event, ServerChange};
use pointsman_executor::handle::FoundModel;
use pointsman_executor::server::{BrokenStreams, ServerConfig};

use super::{ModelsMax, Remote, Standing};
use crate::asker;
use crate::client::ServerClient;
use crate::poll;

impl Remote {
    /// Takes note of another description. Returns what has changed by it.
    pub(super) fn configure(
        &mut self,
        server: ServerConfig,
        models_max: Option<u32>,
    ) -> Vec<Event> {
        let before = mem::replace(&mut self.spec.server, server);
        self.spec.models_max = models_max;
        self.standing.models_max.told = models_max;
        self.client = ServerClient::new(self.spec.connections.clone(), &self.spec.server);
        self.residency.describe(self.spec.reach(&self.client));
        let mut events: Vec<Event> = self.takes_part(before.broken_streams).into_iter().collect();
        let mut known = Arc::clone(&self.found.borrow());
        if self.spec.server.url != before.url {
            events.push(self.replaced());
            known = Arc::from([]);
        }
        self.standing.learned = None;
        self.standing.busy_pause = Duration::ZERO;
        self.poll.pause_as_usual();
        let asked = (&self.client, &self.residency, &self.poll);
        self.findings = poll::start(&self.runtime, &self.spec.server, asked);
        self.name_models(&known);
        events.extend(self.models_max());
        events.extend(self.loaded());
        events
    }

    /// Forgets what was known of the server before, that it answered too: whatever the next one does is news.
    fn replaced(&mut self) -> Event {
        self.residency.forget();
        self.standing = Standing {
            load: self.standing.load,
            slots: self.standing.slots,
            models_max: ModelsMax {
                found: None,
                ..self.standing.models_max
            },
            ..Standing::default()
        };
        Event::Changed(ServerChange::Replaced)
    }

    /// The news of another bound of loaded models, which an operator's goes before; absent: it is the same.
    pub(super) fn models_max(&mut self) -> Option<Event> {
        let models_max = &mut self.standing.models_max;
        let counts = self.spec.models_max.or(models_max.found);
        let told = mem::replace(&mut models_max.told, counts);
        let is_news = told != counts;
        is_news.then_some(Event::Changed(ServerChange::ModelsMax(counts)))
    }

    /// Serves the models that an operator has named, with the contexts of those that the server is known to have. Without
    /// any, those that are found count.
    pub(super) fn name_models(&self, known: &[FoundModel]) {
        let names = &self.spec.server.models;
        if !names.is_empty() {
            self.serve(asker::named(names, known));
        }
    }

    /// The news of the part that the server takes in streams that break off; absent: it is the one of
    /// `before`.
    pub(super) fn takes_part(&self, before: BrokenStreams) -> Option<Event> {
        let part = self.spec.server.broken_streams;
        let is_news = part != before;
        is_news.then_some(Event::Changed(ServerChange::BrokenStreams(part)))
    }
}

#[cfg(test)]
mod tests;
