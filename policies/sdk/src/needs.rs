//! What the hooks of a policy read: sets of [`Feed`] flags that belong together, and the description
//! that the host is given.

use crate::wire::lifecycle::{self, Feed, Hook, Need, Setting};

impl Feed {
    /// The kinds of rows that [`Mirror::executors`](crate::Mirror::executors) shows, models on them aside.
    pub const FLEET: Self = Self::EXECUTORS.union(Self::LOADS);

    /// The kinds of rows that [`Case::fit`](crate::Case::fit) reads: all that finds a request its place.
    pub const FIT: Self = Self::FLEET
        .union(Self::WAITING)
        .union(Self::RESIDENCIES)
        .union(Self::DEVICES)
        .union(Self::MODELS);
}

/// The wishes of one hook of a policy.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The hook.
    pub hook: Hook,
    /// The kinds of rows that it reads.
    pub feed: Feed,
    /// True if the order of a single request is asked for.
    pub orders_one: bool,
}

impl Ask {
    /// The wishes of a hook that reads these kinds of rows.
    pub(crate) const fn new(hook: Hook, feed: Feed) -> Self {
        Self {
            hook,
            feed,
            orders_one: false,
        }
    }
}

/// A policy in its author's words: the description that the host is given, but for its settings and
/// what the hooks need, which [`export!`](crate::export) adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Short; a policy file of the same name replaces it.
    pub name: String,
    /// In its author's words.
    pub version: String,
    /// Its decisions and their rule, in a sentence.
    pub summary: String,
    /// Texts for the `reason` of its answers, by index.
    pub reasons: Vec<String>,
    /// Version of the bytes that `snapshot` makes.
    pub state_version: u32,
}

impl Description {
    /// The description with what the policy's hooks ask for, and its settings.
    #[doc(hidden)]
    #[must_use]
    pub fn with(self, asks: &[Ask], settings: Vec<Setting>) -> lifecycle::Description {
        let needs = asks.iter().map(|ask| Need {
            hook: ask.hook,
            feed: ask.feed,
        });
        lifecycle::Description {
            name: self.name,
            version: self.version,
            summary: self.summary,
            needs: needs.collect(),
            reasons: self.reasons,
            state_version: self.state_version,
            orders_one: asks.iter().any(|ask| ask.orders_one),
            settings,
        }
    }
}
