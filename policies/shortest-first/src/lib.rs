//! Order of the queue: the shortest work first, aged so that nothing starves.
//!
//! Work is counted as time: the more a request takes, the later it counts as having come. The delay is
//! bounded, so a request that has waited longer than the bound goes before every later one. The length of an
//! answer is what its client states, or what was learnt from answers to others like it.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod lengths;
mod seen;
mod settings;
mod snapshot;

use pointsman_sdk::wire::types::{AskedRequest, Change, Request};
use pointsman_sdk::{Description, Feed, Mirror, Moment, Policy, Priority, Setting, export};

use lengths::{Features, Lengths};
use seen::Seen;
pub use settings::Settings;
use settings::Weights;

/// A policy that puts the shortest work first.
#[derive(Debug)]
pub struct ShortestFirst {
    weights: Weights,
    lengths: Lengths,
    seen: Seen,
}

/// The place of one request; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    due: u64,
    arrived: u64,
    id: u64,
}

impl Policy for ShortestFirst {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "shortest-first".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The shortest expected work first, by lengths of answers that are stated or learnt; \
                      waiting outweighs any length in the end."
                .into(),
            reasons: Vec::new(),
            state_version: 1,
        }
    }

    fn settings() -> Vec<Setting> {
        Settings::described()
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            weights: settings.weights(),
            lengths: Lengths::default(),
            seen: Seen::default(),
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        snapshot::snapshot(&self.lengths, &self.seen)
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        (self.lengths, self.seen) = snapshot::restore(state)?;
        Ok(())
    }

    fn changed(&mut self, _mirror: &Mirror, change: &Change) {
        if !self.weights.learns {
            return;
        }
        if let Change::Waiting(request) = change {
            self.seen.note(request);
        } else if let Change::Completed(completion) = change
            && completion.ok
        {
            let labels = self.seen.take(completion.request);
            let features = Features::of_completion(completion, &labels);
            self.lengths.learn(features, completion.output_tokens);
        }
    }
}

impl Priority for ShortestFirst {
    const NEEDS: Feed = Feed::WAITING.union(Feed::COMPLETED);

    fn order(&mut self, mirror: &Mirror, _at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let known = requests
            .iter()
            .filter_map(|asked| Some((asked, mirror.request(asked.request)?)));
        let mut ranking: Vec<Rank> = known
            .map(|(asked, request)| {
                let output = self.output_tokens(request);
                self.weights.rank(request, output, asked.cached_tokens)
            })
            .collect();
        ranking.sort_unstable();
        ranking.into_iter().map(|rank| rank.id).collect()
    }
}

impl ShortestFirst {
    /// Tokens that the client expects; without a hint those that are to be expected of it, and failing that
    /// those that it allows.
    fn output_tokens(&self, request: &Request) -> u32 {
        let bound = request.output_tokens_max;
        let learnt = || {
            let generated = self.seen.generated(request);
            let features = Features::of_request(request);
            self.lengths.expected(features, generated, bound)
        };
        let hint = request.output_tokens_expected;
        hint.or_else(learnt).unwrap_or(bound).min(bound)
    }
}

impl Weights {
    fn rank(&self, request: &Request, output_tokens: u32, cached_tokens: u32) -> Rank {
        // A head start that was not granted delays, rather than one that was going before time
        // began.
        let ungranted = self.head_start_max - request.head_start.min(self.head_start_max);
        let answer = u64::from(output_tokens) * self.wait_per_token;
        let uncached = request.prompt_tokens.saturating_sub(cached_tokens);
        let prompt = u64::from(uncached) * self.wait_per_prompt_token;
        let work = answer.saturating_add(prompt).min(self.work_max);
        Rank {
            due: request.arrived.saturating_add(ungranted + work),
            arrived: request.arrived,
            id: request.id,
        }
    }
}

export!(ShortestFirst: priority);

#[cfg(test)]
mod tests;
