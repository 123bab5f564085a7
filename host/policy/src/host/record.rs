//! What a journal asks about policies, and what a replay does to them.
//!
//! # Invariants
//! 1. After [`PolicyHost::renew`] a policy knows what one knows that was restored from its state
//!    and told everything (`host::tests::record`).
//!
//! 2. Whoever began anew to answer a question is told with the state it was offered, also where
//!    the same question took away what it had or took it out
//!    (`who_takes_over_from_one_that_fails_its_probation_is_told_to_have_begun_anew`).
//!
//! # Not here
//! What is written when (the server).

use pointsman_core::{Hook, Micros};

use super::PolicyHost;
use super::chain::Arm;
use super::event::PolicyEventKind;
use super::member::{Member, Rows};
use crate::instance::PolicyDescription;
use crate::policy::PolicySource;

/// How a policy stands, in numbers that change whenever it is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Which of its instances runs, counted from 1.
    pub generation: u32,
    /// Fuel of its last answer, what it was told before it included; 0 for a native one.
    pub fuel: u64,
    /// Snapshots it gave, those that were too large to keep as well.
    pub snapshots: u64,
}

/// An instance that was made to answer a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Began {
    /// Of which policy.
    pub policy: u32,
    /// Which of its instances, counted from 1.
    pub generation: u32,
    /// The state that it was offered.
    pub state: Option<Vec<u8>>,
}

/// What came of the last question besides its answer. Whoever it is about may be gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastAsked {
    /// Who began anew, in the order in which they were asked.
    pub began: Vec<Began>,
    /// How the policy that answered stood then; absent: none did.
    pub standing: Option<Standing>,
}

/// Enough about a policy to start it again elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Its number.
    pub number: u32,
    /// What it says about itself.
    pub description: &'a PolicyDescription,
    /// What its instances are made of.
    pub source: &'a PolicySource,
    /// Its last state, or the one it was started with.
    pub state: Option<&'a [u8]>,
    /// Whether its state is still taken.
    pub saves: bool,
    /// How far in the machine's changes it has been told; absent: it knows nothing.
    pub told: Option<u64>,
    /// How it stands.
    pub standing: Standing,
}

impl PolicyHost {
    /// How `policy` stands.
    #[must_use]
    pub fn standing(&self, policy: u32) -> Option<Standing> {
        Some(self.members.get(&policy)?.standing())
    }

    /// The last state of `policy`, or the one it was started with.
    #[must_use]
    pub fn state(&self, policy: u32) -> Option<&[u8]> {
        self.members.get(&policy)?.state()
    }

    /// Every policy, in the order of their numbers.
    pub fn recorded(&self) -> impl Iterator<Item = Recorded<'_>> {
        self.members.values().map(|member| Recorded {
            number: member.number,
            description: &member.description,
            source: &member.source,
            state: member.state(),
            saves: member.saves(),
            told: member.feed.told(),
            standing: member.standing(),
        })
    }

    /// Who is asked for `hook`: a canary, then, for those who are not its tenants or where it does
    /// not answer, the others in order.
    pub fn chain(&self, hook: Hook) -> impl Iterator<Item = u32> {
        let canary = self.canary(hook).map(|canary| canary.policy);
        let others = self.askable(hook).iter(Arm::Steady);
        canary.into_iter().chain(others)
    }

    /// What came of the last question besides its answer.
    #[must_use]
    pub fn last_asked(&self) -> &LastAsked {
        &self.shared.last
    }

    /// Tells every policy what it has not been told yet, saves its state, and forgets what it was
    /// told. Its next question tells it everything, and so does one that is restored from that
    /// state.
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
                let detail = fault.detail.clone();
                let kind = PolicyEventKind::Faulted(fault);
                shared.events.push(now, number, kind);
                self.settle(now, number, &detail);
            }
        }
    }

    /// Lets a fresh instance of `policy` take the place of the one there is at its next question,
    /// offered `state`.
    pub fn restart(&mut self, now: Micros, policy: u32, state: Option<Vec<u8>>) {
        if let Some(member) = self.members.get_mut(&policy) {
            member.rewind(state, now, &mut self.shared.scrap);
        }
    }

    /// Takes no more snapshots of `policy`.
    pub fn end_snapshots(&mut self, policy: u32) {
        if let Some(member) = self.members.get_mut(&policy) {
            member.end_saving();
        }
    }
}

impl Member {
    pub(super) fn standing(&self) -> Standing {
        Standing {
            generation: self.stats.generation,
            fuel: self.stats.fuel_last,
            snapshots: self.snapshots_given,
        }
    }
}
