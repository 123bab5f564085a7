//! What was found to have no place anywhere, so that in a full fleet the next like it needs no
//! second look at every executor.

use pointsman_sdk::wire::types::RequestClass;

use crate::choose::{Blocked, Case, Lack};

/// Looks at every executor that one answer may take to find out why a request has no place. What the
/// index has no place for is held without one then: a question must end in a fleet of any size.
const LOOKS_MAX: u32 = 4;

/// Requests without a place.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Since the last placement.
    entries: Vec<Entry>,
    /// Looks for the answer that is being made.
    looks: u32,
}

/// What a request shares with others that have no place for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    model: Option<u32>,
    group: Option<u32>,
    class: RequestClass,
    /// From so long a prompt on, and so many tokens that may be generated.
    tokens_min: (u32, u32),
    blocked: Blocked,
}

// === impl Known ===

impl Known {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Another question, which may come without news: a round has as many as it takes.
    pub(crate) fn begin(&mut self) {
        self.looks = 0;
    }

    /// Something was placed: it may be in the way of others.
    pub(crate) fn placed(&mut self) {
        self.entries.clear();
    }

    /// Whether no further look may be taken.
    pub(crate) fn is_spent(&self) -> bool {
        self.looks >= LOOKS_MAX
    }

    /// What stands in the way of a request, if that is known.
    pub(crate) fn blocked(&self, case: &Case<'_>) -> Option<Blocked> {
        let request = case.need.request;
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| {
            (entry.model, entry.group, entry.class)
                == (request.model, case.view.group, request.class)
                && request.prompt_tokens >= entry.tokens_min.0
                && request.output_tokens_max >= entry.tokens_min.1
        })?;
        is_common(case).then_some(entry.blocked)
    }

    /// The entry that says what a look has found, to be kept by [`Self::note`].
    pub(crate) fn entry(case: &Case<'_>, blocked: Blocked) -> Option<Entry> {
        let request = case.need.request;
        let tokens_min = match (blocked.warm_until, blocked.lack) {
            // Nobody came so far as to compare blocks.
            (None, None | Some(Lack::Model | Lack::Slot | Lack::ModelLimit)) => (0, 0),
            (None, Some(Lack::Blocks)) => (request.prompt_tokens, request.output_tokens_max),
            // Another may be in the way of a longer prompt there.
            (None, Some(Lack::Drain)) | (Some(_), _) => return None,
        };
        is_common(case).then_some(Entry {
            model: request.model,
            group: case.view.group,
            class: request.class,
            tokens_min,
            blocked,
        })
    }

    /// A look has found nothing.
    pub(crate) fn note(&mut self, entry: Option<Entry>) {
        self.looks += 1;
        self.entries.extend(entry);
    }
}

/// Whether nothing but model, class and size tells the request from others.
fn is_common(case: &Case<'_>) -> bool {
    let request = case.need.request;
    request.allowed.is_none() && request.failed_on.is_none()
}
