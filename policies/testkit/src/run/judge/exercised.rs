//! Counts of what a policy was asked, and of what it answered.

use std::collections::BTreeMap;

use pointsman_core::{Hook, Reply, admission, routing};

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
    /// The kinds of answers there are, by hook.
    pub(crate) const CHOICES: [(Hook, &'static str); 10] = [
        (Hook::Admission, "admits"),
        (Hook::Admission, "parks"),
        (Hook::Admission, "sheds"),
        (Hook::Admission, "displaces"),
        (Hook::Routing, "places"),
        (Hook::Routing, "holds"),
        (Hook::Routing, "gives up"),
        (Hook::Preemption, "evicts"),
        (Hook::Budget, "allots"),
        (Hook::Budget, "arranges"),
    ];

    pub(super) fn count(&mut self, hook: Hook, reply: &Reply) {
        *self.answers.entry(hook).or_default() += 1;
        let mut add = |choice| *self.choices.entry(choice).or_default() += 1;
        match reply {
            Reply::Admission(verdicts) => {
                for verdict in verdicts {
                    add(match verdict.choice {
                        admission::Choice::Admit => "admits",
                        admission::Choice::Park => "parks",
                        admission::Choice::Shed(_) => "sheds",
                        admission::Choice::Displace(_) => "displaces",
                    });
                }
            }
            Reply::Routing(verdicts) => {
                for verdict in verdicts {
                    add(match verdict.choice {
                        routing::Choice::Place(_) => "places",
                        routing::Choice::Hold(_) => "holds",
                        routing::Choice::GiveUp => "gives up",
                    });
                }
            }
            Reply::Preemption(Some(_)) => add("evicts"),
            Reply::Budget(_) => add("allots"),
            Reply::Arrangement(_) => add("arranges"),
            Reply::Preemption(None) | Reply::Priority(_) => {}
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
