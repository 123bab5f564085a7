//! The report of a shadow: its counters, and examples of disagreement.
//!
//! # Bounds
//! [`EXAMPLES_MAX`] examples, the newest, and [`REASONS_MAX`] reasons, the first.

use std::collections::{BTreeMap, VecDeque};

use pointsman_component::Fault;
use pointsman_core::{FaultKind, Hook, HookMap, HookSet, Moment};

use crate::compare::{DecisionPair, Likeness};
use crate::stats::Spread;

/// Number of examples kept.
const EXAMPLES_MAX: usize = 32;
/// Number of reasons that are counted apart. The counts by hook contain all decisions.
const REASONS_MAX: usize = 1024;

/// The counters of a shadow so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowReport {
    /// Number of the policy.
    pub policy: u32,
    /// Hooks whose questions it is asked.
    pub hooks: HookSet,
    /// State of the shadow.
    pub state: ShadowState,
    /// Questions that wait.
    pub pending: u64,
    /// Questions that were dropped, because it was too slow or had to be told everything first.
    pub dropped: u64,
    /// Questions answered, by hook.
    pub answers: HookMap<u64>,
    /// Decisions compared with those in force, by hook.
    pub agreement: BTreeMap<Hook, Agreement>,
    /// The same by the reason that the policy in force gave, for hooks with reasons.
    pub by_reason: BTreeMap<(Hook, String), Agreement>,
    /// The newest decisions that differ, oldest first.
    pub examples: VecDeque<Disagreement>,
    /// Fuel of the questions and of the changes told before each, by hook.
    pub fuel: HookMap<Spread>,
    /// Time of the questions and of what was told before each, in nanoseconds, by hook.
    pub latency: HookMap<Spread>,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// The last fault.
    pub fault_last: Option<Fault>,
}

/// The state of a shadow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShadowState {
    /// The shadow is asked.
    Running,
    /// The shadow is not asked any more, for this reason.
    Ended(String),
}

/// The numbers of decisions that agreed and that differed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Decisions that agreed: with the same effect, as far as is known.
    pub agreed: u64,
    /// Of these, placements on the same executor of which only the fallbacks differ.
    pub fallbacks: u64,
    /// Decisions that differed.
    pub differed: u64,
}

/// One decision on which the shadow and the policy in force differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Time and round of the question.
    pub at: Moment,
    /// Hook of the question.
    pub hook: Hook,
    /// Subject of the decision, such as `request 7`.
    pub about: String,
    /// Decision of the policy in force.
    pub in_force: DecisionText,
    /// Decision of the shadow.
    pub shadow: DecisionText,
}

/// One policy's decision, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionText {
    /// Number of the policy.
    pub policy: u32,
    /// Effect of the decision, such as `place on executor 3`.
    pub choice: String,
    /// Reason, in the policy's words.
    pub reason: Option<String>,
}

impl Agreement {
    /// Decisions that agreed, per thousand compared; `None` if none was compared. It is 1000 only
    /// if all agreed.
    #[must_use]
    pub fn permille(&self) -> Option<u32> {
        let compared = u128::from(self.agreed) + u128::from(self.differed);
        let permille = (u128::from(self.agreed) * 1000).checked_div(compared)?;
        u32::try_from(permille).ok()
    }

    fn count(&mut self, pair: &DecisionPair) {
        match pair.likeness() {
            Likeness::Same => self.agreed += 1,
            Likeness::Fallbacks => {
                self.agreed += 1;
                self.fallbacks += 1;
            }
            Likeness::Different => self.differed += 1,
        }
    }
}

impl ShadowReport {
    pub(super) fn new(policy: u32, hooks: HookSet) -> Self {
        Self {
            policy,
            hooks,
            state: ShadowState::Running,
            pending: 0,
            dropped: 0,
            answers: HookMap::default(),
            agreement: BTreeMap::new(),
            by_reason: BTreeMap::new(),
            examples: VecDeque::new(),
            fuel: HookMap::default(),
            latency: HookMap::default(),
            faults: BTreeMap::new(),
            fault_last: None,
        }
    }

    /// The sum over all hooks.
    #[must_use]
    pub fn overall(&self) -> Agreement {
        let all = self.agreement.values();
        all.fold(Agreement::default(), |sum, one| Agreement {
            agreed: sum.agreed + one.agreed,
            fallbacks: sum.fallbacks + one.fallbacks,
            differed: sum.differed + one.differed,
        })
    }

    /// Counts one decision, for which the policy in force gave `reason`.
    pub(super) fn count(&mut self, hook: Hook, reason: Option<&str>, pair: &DecisionPair) {
        self.agreement.entry(hook).or_default().count(pair);
        let Some(reason) = reason else {
            return;
        };
        let key = (hook, reason.to_owned());
        if self.by_reason.len() < REASONS_MAX || self.by_reason.contains_key(&key) {
            self.by_reason.entry(key).or_default().count(pair);
        }
    }

    pub(super) fn example(&mut self, example: Disagreement) {
        if self.examples.len() >= EXAMPLES_MAX {
            self.examples.pop_front();
        }
        self.examples.push_back(example);
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        *self.faults.entry(fault.kind).or_default() += 1;
        self.fault_last = Some(fault);
    }

    /// Notes that the shadow has ended, and returns the reason. The first reason stands.
    pub(super) fn end(&mut self, why: &str) -> String {
        match &self.state {
            ShadowState::Running => {
                self.state = ShadowState::Ended(why.to_owned());
                why.to_owned()
            }
            ShadowState::Ended(first) => first.clone(),
        }
    }
}
