//! Requests found to have no place anywhere, so that in a full fleet the next one like them needs
//! no second look at every executor.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::RequestClass;

use crate::search::{Blocked, Lack, Search};

/// Requests without a place.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Since the last placement of the answer that is being made.
    entries: Vec<Entry>,
    /// Looks taken at every executor for the answer that is being made.
    looks: u32,
    /// Tokens of the prompts that are held for each executor, in the answer that is being made.
    held: BTreeMap<u32, u64>,
}

/// Requests that have no place for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    model: Option<u32>,
    group: Option<u32>,
    class: RequestClass,
    /// The shortest prompt, and the least number of tokens that may be generated.
    tokens_min: (u32, u32),
    blocked: Blocked,
}

// === impl Known ===

impl Known {
    /// Begins a question. It may come without news, and its answer follows from the mirror alone, not
    /// from what was asked before.
    pub(crate) fn begin(&mut self) {
        self.looks = 0;
        self.entries.clear();
        self.held.clear();
    }

    /// Notes a placement, which may be in the way of others.
    pub(crate) fn placed(&mut self) {
        self.entries.clear();
    }

    /// Notes a request that is held for an executor.
    pub(crate) fn holds(&mut self, executor: u32, tokens: u64) {
        *self.held.entry(executor).or_default() += tokens;
    }

    /// Tokens of the prompts that are held for an executor.
    pub(crate) fn held_for(&self, executor: u32) -> u64 {
        self.held.get(&executor).copied().unwrap_or(0)
    }

    /// Looks taken for this answer.
    pub(crate) fn looks(&self) -> u32 {
        self.looks
    }

    /// The known obstacles to a request.
    pub(crate) fn blocked(&self, search: &Search<'_>) -> Option<Blocked> {
        let request = search.request();
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| {
            (entry.model, entry.group, entry.class) == (request.model, search.group, request.class)
                && request.prompt_tokens >= entry.tokens_min.0
                && request.output_tokens_max >= entry.tokens_min.1
                && (entry.blocked.lack != Some(Lack::Reserved) || search.is_beyond_share())
        })?;
        is_common(search).then_some(entry.blocked)
    }

    /// The entry for what a look has found, to be kept by [`Self::note`].
    pub(crate) fn entry(search: &Search<'_>, blocked: Blocked) -> Option<Entry> {
        let request = search.request();
        let tokens_min = match (blocked.warm_until, blocked.lack) {
            // No executor came so far as to compare blocks.
            (None, None | Some(Lack::Model | Lack::Slot | Lack::ModelLimit)) => (0, 0),
            (None, Some(Lack::Blocks | Lack::Loading | Lack::Prefill | Lack::Reserved)) => {
                (request.prompt_tokens, request.output_tokens_max)
            }
            // Another may be in the way of a longer prompt there.
            (None, Some(Lack::Drain)) | (Some(_), _) => return None,
        };
        is_common(search).then_some(Entry {
            model: request.model,
            group: search.group,
            class: request.class,
            tokens_min,
            blocked,
        })
    }

    /// Notes that no place was found.
    pub(crate) fn note(&mut self, entry: Option<Entry>) {
        self.looks += 1;
        self.entries.extend(entry);
    }
}

/// Returns whether nothing but model, class and size tells the request from others.
fn is_common(search: &Search<'_>) -> bool {
    let request = search.request();
    search.may_wait
        && request.allowed.is_none()
        && request.failed_on.is_none()
        && !search.case.finds_blocks_by_sharing()
}
