//! Order of the queue: the shortest work first, aged so that nothing starves.
//!
//! Work is counted as time: the more a request takes, the later it counts as having come. The delay is
//! bounded, so a request that has waited longer than the bound goes before every later one, and one that was overtaken nearly as
//! often as the host allows before those that would overtake it. The length of an answer is what its client states, or what was learnt from answers
//! to others like it.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod lengths;
mod seen;
mod settings;
mod snapshot;

use pointsman_sdk::wire::types::{AskedRequest, Change, Request};
use pointsman_sdk::{
    Bounds, Description, Feed, Mirror, Moment, Policy, Priority, Setting, export, overtaken_first,
};

use lengths::{Expectations, Features, Lengths};
use seen::Seen;
pub use settings::Settings;
use settings::Weights;

/// Part of the longest wait that no delay of a request reaches.
const DELAY_PART: u64 = 20;

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
        let bounds = mirror.bounds();
        let mut expectations = self.lengths.expectations();
        let ranks = requests.iter().filter_map(|asked| {
            let request = mirror.request(asked.request)?;
            let output_tokens = self.output_tokens(request, &mut expectations);
            let uncached = request.prompt_tokens.saturating_sub(asked.cached_tokens);
            let work = self.weights.work(output_tokens, uncached);
            Some(self.rank(request, work, bounds))
        });
        let mut ranking: Vec<Rank> = ranks.collect();
        ranking.sort_unstable();
        let order = ranking.into_iter().map(|rank| rank.id).collect();
        overtaken_first(mirror, requests, order)
    }
}

impl ShortestFirst {
    fn rank(&self, request: &Request, work: u64, bounds: &Bounds) -> Rank {
        let weights = self.weights;
        // A head start that was not granted delays, rather than one that was going before time
        // began.
        let ungranted = weights.head_start_max - request.head_start.min(weights.head_start_max);
        let delay = ungranted + bent(work, bounds.wait_max / DELAY_PART);
        Rank {
            due: request.arrived.saturating_add(delay),
            arrived: request.arrived,
            id: request.id,
        }
    }

    /// Tokens that the client expects; without a hint those that are to be expected of it, and failing that
    /// those that it allows.
    fn output_tokens<'a>(&self, request: &'a Request, expectations: &mut Expectations<'a>) -> u32 {
        let bound = request.output_tokens_max;
        let learnt = || {
            let generated = self.seen.generated(request);
            expectations.of(Features::of_request(request), generated, bound)
        };
        let hint = request.output_tokens_expected;
        hint.or_else(learnt).unwrap_or(bound).min(bound)
    }
}

impl Weights {
    /// The work of an answer of so many tokens to a prompt of so many that are not cached, in µs of waiting.
    fn work(&self, output_tokens: u32, uncached_tokens: u32) -> u64 {
        let answer = u64::from(output_tokens) * self.wait_per_token;
        let prompt = u64::from(uncached_tokens) * self.wait_per_prompt_token;
        answer.saturating_add(prompt).min(self.work_max)
    }
}

/// The work, bent so that it stays below `below` and that more work is never less: `work * below / (work + below)`.
fn bent(work: u64, below: u64) -> u64 {
    let (work, below) = (u128::from(work), u128::from(below));
    let sum = (work + below).max(1);
    let bent = (work * below + sum / 2) / sum;
    u64::try_from(bent).unwrap_or(u64::MAX)
}

export!(ShortestFirst: priority);

#[cfg(test)]
mod tests;
