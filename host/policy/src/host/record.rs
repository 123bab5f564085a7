//! Facts about policies, for a journal.
//!
//! # Invariants
//! 1. After [`PolicyHost::renew`] a policy knows the same as one that is restored from its state
//!    and told everything (`host::tests::record`).
//! 2. A fresh instance that was made to answer a question is reported with the state it was
//!    offered, even if the same question ended its life
//!    (`who_takes_over_from_one_that_fails_its_probation_is_told_to_have_begun_anew`).
//! 3. Everything that an instance is told elsewhere is reported with the question whose rows it is
//!    (`a_question_whose_rows_are_told_elsewhere_says_so`).
//!
//! # Not here
//! The choice of what is recorded (`host/replay`).

use pointsman_core::{Hook, Micros, Needs};

use super::PolicyHost;
use super::chain::Arm;
use super::event::PolicyEventKind;
use crate::runner::{InstanceCounters, Rows, Runner};

/// An instance that was made to answer a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Began {
    /// Number of the policy.
    pub policy: u32,
    /// Number of the instance, counted from 1.
    pub generation: u32,
    /// State that the instance was offered.
    pub state: Option<Vec<u8>>,
    /// True if it was told what there is before the question: [`LastAsked::briefed`] had it then.
    pub was_briefed: bool,
}

/// A fresh instance that a thread tells what there was at a question. It answers a later one, unless
/// something ends it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BriefedElsewhere {
    /// Number that the instance will have, counted from 1.
    pub generation: u32,
    /// State that the instance was offered.
    pub state: Option<Vec<u8>>,
    /// The needs of the policy.
    pub needs: Needs,
    /// Position in the machine's changes up to which it is told.
    pub told: u64,
}

/// Results of the last question besides its answer. The policies in it may be gone by now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastAsked {
    /// Fresh instances, in the order in which they were asked.
    pub began: Vec<Began>,
    /// Fresh instances that are told elsewhere, from this question on, with their policies' numbers.
    pub briefed: Vec<(u32, BriefedElsewhere)>,
    /// Counters of the policy that answered, right after its answer; `None` if none answered.
    pub counters: Option<InstanceCounters>,
    /// The cost of the answer; `None` if nobody was asked for it.
    pub cost: Option<AnswerCost>,
}

/// The cost of an answer, with that of what the policy was told before the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerCost {
    /// Number of the policy.
    pub policy: u32,
    /// Fuel used, but for being told everything; `None` if the policy is not metered.
    pub fuel: Option<u64>,
    /// Time taken, in nanoseconds: shown, and fed into no decision.
    pub nanos: u64,
}

impl PolicyHost {
    /// All runners with their policies' numbers, ascending.
    pub fn runners(&self) -> impl Iterator<Item = (u32, &Runner)> {
        self.members
            .iter()
            .map(|(number, member)| (*number, &member.runner))
    }

    /// The runner of `policy`.
    #[must_use]
    pub fn runner(&self, policy: u32) -> Option<&Runner> {
        Some(&self.members.get(&policy)?.runner)
    }

    /// The policies that are asked for `hook`: the canary, which only its tenants' requests are
    /// about, then the others in order.
    pub fn chain(&self, hook: Hook) -> impl Iterator<Item = u32> {
        let canary = self.canary(hook).map(|canary| canary.policy);
        let others = self.askable(hook).iter(Arm::Steady);
        canary.into_iter().chain(others)
    }

    /// Results of the last question besides its answer.
    #[must_use]
    pub fn last_asked(&self) -> &LastAsked {
        &self.shared.last
    }

    /// Tells every policy what it has not been told yet, saves its state, and forgets what it was
    /// told. Its next question tells it everything, as it would tell a policy that was restored
    /// from that state.
    pub fn renew(&mut self, now: Micros, view: &pointsman_core::View<'_>) {
        self.renew_from(now, view);
    }

    pub(super) fn renew_from(&mut self, now: Micros, rows: &dyn Rows) {
        let numbers: Vec<u32> = self.numbers().collect();
        for number in numbers {
            let Some(member) = self.members.get_mut(&number) else {
                continue;
            };
            let shared = &mut self.shared;
            if let Err(fault) = member.renew(shared, rows, now) {
                let detail = fault.to_string();
                let kind = PolicyEventKind::Faulted(fault);
                shared.events.push(now, number, kind);
                self.settle(now, number, &detail);
            }
        }
    }
}
