//! Lengths of answers, learnt from those that were completed.
//!
//! What is known of a request is looked up from the general to the particular: all requests; those with prompts of
//! about that size; those of its tenant and model; of these, those of about that size; and those with each of its
//! labels. Each counts against what came before it by the number of answers that it has seen, [`PRIOR`] of which are worth as much as
//! the more general. So a label seen twice changes little, and one seen a thousand times decides.
//!
//! Lengths are kept as a distribution, since an answer is bounded by its client, and one that goes on after an
//! eviction is known to be longer than what it has.
//!
//! # Bounds
//! At most [`GROUPS_MAX`] groups; past that what is new counts for the more general ones that are known.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::{Completion, Request};

/// Answers that what is more general is worth.
const PRIOR: u64 = 8;
/// Answers after which the older ones count half.
const COUNT_MAX: u32 = 1024;
/// Groups of requests that are told apart.
const GROUPS_MAX: usize = 4096;
/// Two for each doubling of the length, up to 2^18 tokens.
pub(crate) const BUCKETS: usize = 36;
/// The length in the middle of each bucket.
const MIDDLES: [u32; BUCKETS] = middles();

/// The lengths of each group of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lengths {
    groups: BTreeMap<Group, Distribution>,
}

/// Requests that have something in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) of: Option<Account>,
    pub(crate) mark: Mark,
}

/// The tenant and the model of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Account {
    pub(crate) tenant: u32,
    pub(crate) model: Option<u32>,
}

/// A further mark that requests have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    None,
    /// The prompt's size, as the number of its bits.
    Size(u32),
    Label(u32),
}

/// A distribution of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// Numbers of answers by the bucket of their length.
    pub(crate) buckets: [u16; BUCKETS],
}

/// Expectations of requests in one question, each found once for those that are alike.
#[derive(Debug)]
pub(crate) struct Expectations<'a> {
    lengths: &'a Lengths,
    known: BTreeMap<Alike<'a>, Option<u32>>,
}

/// All that an expectation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alike<'a> {
    account: Account,
    size: Mark,
    labels: &'a [u32],
    generated: u32,
    left_max: u32,
}

/// Features by which requests are grouped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features<'a> {
    pub(crate) account: Account,
    pub(crate) prompt_tokens: u32,
    pub(crate) labels: &'a [u32],
}

// === impl Lengths ===

impl Lengths {
    /// Learns from an answer.
    pub(crate) fn learn(&mut self, features: Features<'_>, output_tokens: u32) {
        let bucket = bucket(output_tokens);
        for group in features.groups() {
            let is_full = self.groups.len() >= GROUPS_MAX;
            if let Some(known) = self.groups.get_mut(&group) {
                known.add(bucket);
            } else if !is_full {
                let mut new = Distribution::EMPTY;
                new.add(bucket);
                self.groups.insert(group, new);
            }
        }
    }

    /// No expectations yet, for one question.
    pub(crate) fn expectations(&self) -> Expectations<'_> {
        Expectations {
            lengths: self,
            known: BTreeMap::new(),
        }
    }

    /// The tokens that an answer with `generated` so far is expected to have still, of `left_max` at most;
    /// absent: too few were as long.
    fn expected(&self, features: Features<'_>, generated: u32, left_max: u32) -> Option<u32> {
        let mut expected: Option<u64> = None;
        let known = features
            .groups()
            .filter_map(|group| self.groups.get(&group));
        for distribution in known {
            let (count, sum) = distribution.left(generated, left_max);
            expected = match expected {
                Some(general) => Some((sum + PRIOR * general) / (count + PRIOR)),
                None => (count >= PRIOR).then(|| sum / count),
            };
        }
        expected.and_then(|tokens| u32::try_from(tokens).ok())
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (&Group, &Distribution)> {
        self.groups.iter()
    }

    pub(crate) fn of(groups: impl IntoIterator<Item = (Group, Distribution)>) -> Self {
        Self {
            groups: groups.into_iter().collect(),
        }
    }
}

// === impl Expectations ===

impl<'a> Expectations<'a> {
    /// The tokens that an answer with `generated` so far is expected to have still, of `left_max` at most;
    /// absent: too few were as long.
    pub(crate) fn of(
        &mut self,
        features: Features<'a>,
        generated: u32,
        left_max: u32,
    ) -> Option<u32> {
        let alike = Alike {
            account: features.account,
            size: features.size(),
            labels: features.labels,
            generated,
            left_max,
        };
        let lengths = self.lengths;
        let known = self.known.entry(alike);
        *known.or_insert_with(|| lengths.expected(features, generated, left_max))
    }
}

// === impl Features ===

impl<'a> Features<'a> {
    pub(crate) fn of_request(request: &'a Request) -> Self {
        Self {
            account: Account {
                tenant: request.tenant,
                model: request.model,
            },
            prompt_tokens: request.prompt_tokens,
            labels: request.labels.as_deref().unwrap_or_default(),
        }
    }

    /// The features of a request that has ended, whose labels its row does not have.
    pub(crate) fn of_completion(completion: &Completion, labels: &'a [u32]) -> Self {
        Self {
            account: Account {
                tenant: completion.tenant,
                model: completion.model,
            },
            prompt_tokens: completion.prompt_tokens,
            labels,
        }
    }

    /// The mark of the prompt's size.
    fn size(self) -> Mark {
        Mark::Size(u32::BITS - self.prompt_tokens.leading_zeros())
    }

    /// The groups of the request, from the general to the particular.
    fn groups(self) -> impl Iterator<Item = Group> {
        let size = self.size();
        let labels = self.labels.iter().map(|label| Mark::Label(*label));
        let everybody = [Mark::None, size].map(|mark| Group { of: None, mark });
        let of = Some(self.account);
        let own = [Mark::None, size].into_iter().chain(labels);
        everybody
            .into_iter()
            .chain(own.map(move |mark| Group { of, mark }))
    }
}

// === impl Distribution ===

impl Distribution {
    const EMPTY: Self = Self {
        buckets: [0; BUCKETS],
    };

    fn add(&mut self, bucket: usize) {
        let count: u32 = self.buckets.iter().map(|&count| u32::from(count)).sum();
        if count >= COUNT_MAX {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
        }
        self.buckets[bucket] += 1;
    }

    /// The answers longer than `generated`, and the sum of what each had left beyond that, of `left_max` at
    /// most.
    fn left(&self, generated: u32, left_max: u32) -> (u64, u64) {
        let buckets = MIDDLES.iter().zip(&self.buckets);
        buckets
            .filter(|&(&middle, &count)| count > 0 && middle > generated)
            .map(|(middle, &count)| {
                let left = (middle - generated).min(left_max);
                (u64::from(count), u64::from(left))
            })
            .fold((0, 0), |(all, sum), (count, left)| {
                (all + count, sum + count * left)
            })
    }
}

/// The bucket of a length.
fn bucket(tokens: u32) -> usize {
    let tokens = tokens.max(1);
    let octave = tokens.ilog2();
    let upper = octave > 0 && tokens >> (octave - 1) & 1 == 1;
    let idx = 2 * octave as usize + usize::from(upper);
    idx.min(BUCKETS - 1)
}

const fn middles() -> [u32; BUCKETS] {
    let mut middles = [0; BUCKETS];
    let (mut idx, mut bucket) = (0, 0);
    while idx < BUCKETS {
        middles[idx] = least(bucket).midpoint(least(bucket + 1) - 1);
        (idx, bucket) = (idx + 1, bucket + 1);
    }
    middles
}

/// The least length in a bucket.
const fn least(bucket: u32) -> u32 {
    (2 + bucket % 2) << (bucket / 2) >> 1
}

#[cfg(test)]
mod tests;
