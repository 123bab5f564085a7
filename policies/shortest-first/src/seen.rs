//! Requests that were seen waiting, for what their later rows and their completions do not say.
//!
//! # Bounds
//! At most [`SEEN_MAX`] requests; past that the oldest count as never seen.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::Request;

/// Requests that are remembered.
const SEEN_MAX: usize = 8192;

/// The requests by id, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    requests: BTreeMap<u64, Entry>,
}

/// A request as it first waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) labels: Vec<u32>,
    /// The bound on the whole answer.
    pub(crate) output_tokens_max: u32,
}

impl Seen {
    /// Takes note of a request that waits, if it is the first time.
    pub(crate) fn note(&mut self, request: &Request) {
        self.requests.entry(request.id).or_insert_with(|| Entry {
            labels: request.labels.clone().unwrap_or_default(),
            output_tokens_max: request.output_tokens_max,
        });
        if self.requests.len() > SEEN_MAX {
            self.requests.pop_first();
        }
    }

    /// The tokens that a request has generated so far: of one that came back they count as prompt, and no
    /// more as answer.
    pub(crate) fn generated(&self, request: &Request) -> u32 {
        let whole = self.requests.get(&request.id);
        whole.map_or(0, |whole| {
            whole
                .output_tokens_max
                .saturating_sub(request.output_tokens_max)
        })
    }

    /// Forgets a request that has ended, and returns its labels.
    pub(crate) fn take(&mut self, request: u64) -> Vec<u32> {
        let entry = self.requests.remove(&request);
        entry.map_or_else(Vec::new, |entry| entry.labels)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&u64, &Entry)> {
        self.requests.iter()
    }

    pub(crate) fn of(entries: impl IntoIterator<Item = (u64, Entry)>) -> Self {
        Self {
            requests: entries.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use pointsman_sdk::fixture::request;

    use super::{SEEN_MAX, Seen};

    #[test]
    fn past_the_bound_the_oldest_are_forgotten() {
        let mut seen = Seen::default();
        let last = SEEN_MAX as u64 + 10;
        (1..=last).for_each(|id| seen.note(&request(id)));
        assert_eq!(seen.entries().count(), SEEN_MAX);
        assert_eq!(seen.entries().next().map(|(id, _)| *id), Some(11));
    }
}
