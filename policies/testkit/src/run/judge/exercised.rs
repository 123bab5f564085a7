//! Counts of what a policy was asked, and of what it answered.

use std::collections::BTreeMap;

use pointsman_core::{Hook, Reply};

/// The questions that a policy was asked, and what it answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exercised {
    /// Answers by hook.
    pub(crate) answers: BTreeMap<Hook, u64>,
    /// Answers of a kind, by what they do.
    pub(crate) choices: BTreeMap<&'static str, u64>,
    /// Answers compared with those of fresh instances.
    pub(crate) compared: u64,
    /// Answers compared with their explanation.
    pub(crate) explained: u64,
}

// === impl Exercised ===

impl Exercised {
    pub(super) fn count(&mut self, hook: Hook, reply: &Reply) {
        *self.answers.entry(hook).or_default() += 1;
        for kind in reply.kinds() {
            *self.choices.entry(kind).or_default() += 1;
        }
    }

    /// Adds the counts of another run.
    pub(crate) fn add(&mut self, other: &Self) {
        for (hook, count) in &other.answers {
            *self.answers.entry(*hook).or_default() += count;
        }
        for (choice, count) in &other.choices {
            *self.choices.entry(choice).or_default() += count;
        }
        self.compared += other.compared;
        self.explained += other.explained;
    }
}
