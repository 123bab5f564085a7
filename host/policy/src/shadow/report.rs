//! What came of a shadow so far.
//!
//! # Bounds
//! [`EXAMPLES_MAX`] examples, the newest, and [`REASONS_MAX`] reasons, the first.

use std::collections::{BTreeMap, VecDeque};

use pointsman_core::{FaultKind, Hook, HookMap, HookSet, Moment};

use crate::instance::Fault;
use crate::stats::Spread;

/// Examples of disagreement kept.
const EXAMPLES_MAX: usize = 32;
/// Reasons told apart. Decisions for others are in the counts by hook only.
const REASONS_MAX: usize = 1024;

/// What came of a shadow so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowReport {
    /// Whose.
    pub policy: u32,
    /// What it is asked about.
    pub hooks: HookSet,
    /// Whether it still is.
    pub state: ShadowState,
    /// Questions it has not got to yet.
    pub pending: u64,
    /// Questions it was not asked, because it was too slow or had to be told everything first.
    pub dropped: u64,
    /// Questions it answered.
    pub answers: HookMap<u64>,
    /// Decisions compared with those in force.
    pub agreement: BTreeMap<Hook, Agreement>,
    /// The same by the reason in force, where the hook gives reasons.
    pub by_reason: BTreeMap<(Hook, String), Agreement>,
    /// The newest decisions in which they differ, oldest first.
    pub examples: VecDeque<Disagreement>,
    /// Fuel of its questions.
    pub fuel: HookMap<Spread>,
    /// Time they took, in nanoseconds.
    pub latency: HookMap<Spread>,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// The newest of them.
    pub fault_last: Option<Fault>,
}

/// Whether a shadow is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShadowState {
    /// It is.
    Running,
    /// Not any more; why.
    Ended(String),
}

/// How many decisions were the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// These were.
    pub agreed: u64,
    /// These were not.
    pub differed: u64,
}

/// One decision that would have been another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// When.
    pub at: Moment,
    /// Which decision.
    pub hook: Hook,
    /// About what, such as `request 7`.
    pub about: String,
    /// What counted.
    pub in_force: Said,
    /// What would have.
    pub shadow: Said,
}

/// One policy's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// By whom.
    pub policy: u32,
    /// What, such as `place on executor 3`.
    pub choice: String,
    /// Why, in its words.
    pub reason: Option<String>,
}

impl Agreement {
    /// Of a thousand decisions, how many were the same; absent: none was compared. A thousand only
    /// where all were.
    #[must_use]
    pub fn permille(&self) -> Option<u32> {
        let compared = u128::from(self.agreed) + u128::from(self.differed);
        let permille = (u128::from(self.agreed) * 1000).checked_div(compared)?;
        u32::try_from(permille).ok()
    }

    fn count(&mut self, same: Same) {
        match same {
            Same::Yes => self.agreed += 1,
            Same::No => self.differed += 1,
        }
    }
}

/// Whether two decisions were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Same {
    Yes,
    No,
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

    /// Decisions of all hooks.
    #[must_use]
    pub fn overall(&self) -> Agreement {
        let all = self.agreement.values();
        all.fold(Agreement::default(), |sum, one| Agreement {
            agreed: sum.agreed + one.agreed,
            differed: sum.differed + one.differed,
        })
    }

    /// Counts one decision, which had this reason in force.
    pub(super) fn compared(&mut self, hook: Hook, reason: Option<&str>, same: Same) {
        self.agreement.entry(hook).or_default().count(same);
        let Some(reason) = reason else {
            return;
        };
        let key = (hook, reason.to_owned());
        if self.by_reason.len() < REASONS_MAX || self.by_reason.contains_key(&key) {
            self.by_reason.entry(key).or_default().count(same);
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

    /// It is asked no more; why. The first cause stands.
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
