//! Probation: a policy in force is compared with the one that it displaced.
//!
//! [`PolicyHost::begin_probation`] starts it. From then on each answer is compared with what the
//! displaced policy would have cost, and the first sum that is out of line rolls the policy back:
//! the displaced one is in force again, with its state at the swap, and the fingerprint of the new
//! one is listed so that it is not added again. An instance that has not been asked since the swap goes
//! on: it has that state. See
//! `host/docs/adr/0008-a-policy-is-proven-against-the-one-it-displaces.md` for the comparisons and
//! their reasons.
//!
//! # Invariants
//! 1. A rollback returns the hooks to the policies that had them (`host::tests::probation`), or
//!    else to the built-in rule.
//! 2. Only like is compared with like: fuel by hook and number of rows, refusals by row
//!    (`a_larger_question_is_not_held_against_a_policy`). Fuel of what is told before a question
//!    depends on how seldom a policy is asked, so that it counts for the ceiling alone
//!    (`fuel_of_what_is_told_is_not_compared`).
//! 3. Times are not judged, so a replay judges alike.
//!
//! # Not here
//! Faults without probation: they lead to quarantine ([`crate::Patience`]).

use std::fmt;

use pointsman_core::{Hook, HookMap, Micros, Refusal};

use super::PolicyHost;
use super::event::PolicyEventKind;
use super::member::Member;
use super::quarantine::Cause;
use crate::host::BindError;

/// The terms of a probation: its length, and the limits that end it early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probation {
    /// Number of questions to answer.
    pub questions: u32,
    /// Time that must pass, in host microseconds. Both this and the questions must be over.
    pub micros: u64,
    /// Number of faults and strikes that are allowed.
    pub faults_max: u32,
    /// Refused actions per thousand rows that are allowed above those of the displaced policy.
    pub refusals_permille: u32,
    /// Fuel that is allowed, in percent of the displaced policy's fuel for such questions.
    pub fuel_percent: u32,
    /// Fuel per question that is always allowed.
    pub fuel_floor: u64,
    /// Average fuel per question, with the changes told before it, that is too much, even without a
    /// comparison.
    pub fuel_ceiling: u64,
}

impl Default for Probation {
    fn default() -> Self {
        Self {
            questions: 1000,
            micros: 60_000_000,
            faults_max: 0,
            refusals_permille: 50,
            fuel_percent: 400,
            fuel_floor: 1_000_000,
            fuel_ceiling: 20_000_000,
        }
    }
}

/// A probation so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbationProgress {
    /// Number of questions answered.
    pub questions: u32,
    /// Number of questions to answer.
    pub questions_wanted: u32,
    /// The time before which it does not end, on the host's clock.
    pub until: Micros,
    /// Number of faults and strikes so far.
    pub faults: u32,
    /// Number of rows that it was asked about.
    pub rows: u64,
    /// Number of refused rows among them.
    pub refused: u64,
}

/// The reason of a rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RollbackWhy {
    /// The policy faulted or was struck too often.
    Faults {
        /// Number of faults and strikes.
        faults: u32,
        /// The last fault, for the operator.
        detail: String,
    },
    /// The interlock refused more of its actions than of the displaced policy's.
    Refusals {
        /// Number of rows that it was asked about.
        rows: u64,
        /// Number of refused rows.
        refused: u64,
        /// Number of refusals expected from the displaced policy.
        expected: u64,
    },
    /// The policy used more fuel than the displaced one.
    Fuel {
        /// Number of questions compared.
        questions: u32,
        /// Fuel used in them.
        used: u64,
        /// Fuel expected from the displaced policy.
        expected: u64,
        /// Fuel that the terms allow.
        allowed: u64,
    },
    /// The policy used more fuel than any policy should.
    FuelCeiling {
        /// Number of questions answered.
        questions: u32,
        /// Fuel used in them.
        used: u64,
    },
    /// An order, with its reason.
    Ordered(String),
}

/// Number of questions from which on means are compared.
const EVIDENCE: u32 = 32;

/// Number of classes of questions by rows: none, 1, 2 and 3, 4 to 7, and so on.
const CLASSES: usize = 16;

/// The costs of a policy's answers, with which another policy can be compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    fuel: HookMap<[Mean; CLASSES]>,
    rows: HookMap<u64>,
    refused: HookMap<u64>,
    /// Rows of the last question of each hook.
    rows_last: HookMap<u64>,
}

/// A running mean in which old values fade: fleets and queues grow and shrink.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    counted: u32,
    value: u64,
}

/// The probation of one policy so far.
#[derive(Debug)]
pub(crate) struct Trial {
    terms: Probation,
    since: Micros,
    /// By hook, the record of the policy that was displaced there.
    before: HookMap<Option<Box<Record>>>,
    displaced: Vec<Displaced>,
    questions: u32,
    faults: u32,
    rows: u64,
    refused: u64,
    /// Refusals expected so far, in thousandths.
    refused_expected: u64,
    /// Fuel so far, with that of what was told.
    fuel: u64,
    /// Sums over the questions that could be compared.
    fuel_compared: FuelCompared,
}

/// A displaced policy as it was at the swap.
#[derive(Debug)]
struct Displaced {
    policy: u32,
    /// Its state; absent: it had none.
    state: Option<Vec<u8>>,
    /// Number of its instance.
    generation: u32,
    /// Number of its answers.
    answers: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct FuelCompared {
    questions: u32,
    fuel: u64,
    expected: u64,
}

/// One answered question, as it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Booked {
    pub(crate) hook: Hook,
    pub(crate) rows: u64,
    /// `None` if the policy is not metered.
    pub(crate) fuel: Option<u64>,
    /// Fuel of the changes that were told before it.
    pub(crate) told_fuel: u64,
}

// === impl Record ===

impl Mean {
    /// Number of values after which an old one has faded.
    const MEMORY: u32 = 64;

    fn count(&mut self, value: u64) {
        self.counted = (self.counted + 1).min(Self::MEMORY);
        let weight = u64::from(self.counted);
        let old = u128::from(self.value) * u128::from(weight - 1);
        let mean = (old + u128::from(value)) / u128::from(weight);
        self.value = u64::try_from(mean).unwrap_or(u64::MAX);
    }

    fn known(&self) -> Option<u64> {
        (self.counted >= EVIDENCE / 2).then_some(self.value)
    }
}

fn class(rows: u64) -> usize {
    let bits = u64::BITS - rows.leading_zeros();
    usize::try_from(bits).unwrap_or(CLASSES).min(CLASSES - 1)
}

impl Record {
    pub(crate) fn book(&mut self, booked: Booked) {
        let hook = booked.hook;
        self.rows[hook] += booked.rows;
        self.rows_last[hook] = booked.rows;
        if let Some(fuel) = booked.fuel {
            self.fuel[hook][class(booked.rows)].count(fuel);
        }
    }

    /// Counts a refusal of an action or of a whole answer, and returns the number of rows refused.
    pub(crate) fn book_refusal(&mut self, hook: Hook, refusal: &Refusal) -> u64 {
        let is_action = refusal.request.is_some() || refusal.executor.is_some();
        let rows = if is_action {
            1
        } else {
            self.rows_last[hook].max(1)
        };
        self.refused[hook] += rows;
        rows
    }

    fn refused_permille(&self, hook: Hook) -> u64 {
        self.refused[hook]
            .saturating_mul(1000)
            .checked_div(self.rows[hook])
            .unwrap_or(0)
    }
}

// === impl Trial ===

impl Trial {
    fn new(now: Micros, terms: Probation) -> Self {
        Self {
            terms,
            since: now,
            before: HookMap::default(),
            displaced: Vec::new(),
            questions: 0,
            faults: 0,
            rows: 0,
            refused: 0,
            refused_expected: 0,
            fuel: 0,
            fuel_compared: FuelCompared::default(),
        }
    }

    pub(super) fn progress(&self) -> ProbationProgress {
        ProbationProgress {
            questions: self.questions,
            questions_wanted: self.terms.questions,
            until: self.since.after(Micros(self.terms.micros)),
            faults: self.faults,
            rows: self.rows,
            refused: self.refused,
        }
    }

    pub(crate) fn book(&mut self, booked: Booked) {
        self.questions = self.questions.saturating_add(1);
        self.rows += booked.rows;
        let before = self.before[booked.hook].as_deref();
        let permille = before.map_or(0, |record| record.refused_permille(booked.hook));
        self.refused_expected += permille.saturating_mul(booked.rows);
        let Some(fuel) = booked.fuel else {
            return;
        };
        let in_all = fuel.saturating_add(booked.told_fuel);
        self.fuel = self.fuel.saturating_add(in_all);
        let of_hook = before.map(|record| &record.fuel[booked.hook]);
        if let Some(expected) = of_hook.and_then(|means| means[class(booked.rows)].known()) {
            self.fuel_compared.questions += 1;
            self.fuel_compared.fuel = self.fuel_compared.fuel.saturating_add(fuel);
            self.fuel_compared.expected = self.fuel_compared.expected.saturating_add(expected);
        }
    }

    pub(crate) fn book_fault(&mut self) {
        self.faults = self.faults.saturating_add(1);
    }

    pub(crate) fn book_refusal(&mut self, rows: u64) {
        self.refused += rows;
    }

    fn is_served(&self, now: Micros) -> bool {
        self.questions >= self.terms.questions && now.since(self.since).0 >= self.terms.micros
    }

    /// The first reason for a rollback.
    fn objection(&self, detail: &str) -> Option<RollbackWhy> {
        let terms = &self.terms;
        if self.faults > terms.faults_max {
            return Some(RollbackWhy::Faults {
                faults: self.faults,
                detail: detail.to_owned(),
            });
        }
        // At the start rows that were not asked about count as well answered: the first refusals of
        // a policy say little.
        let rows = self.rows.max(2 * u64::from(EVIDENCE));
        let more = rows.saturating_mul(terms.refusals_permille.into());
        if self.refused.saturating_mul(1000) > self.refused_expected.saturating_add(more) {
            return Some(RollbackWhy::Refusals {
                rows: self.rows,
                refused: self.refused,
                expected: self.refused_expected / 1000,
            });
        }
        self.objection_to_fuel()
    }

    fn objection_to_fuel(&self) -> Option<RollbackWhy> {
        let terms = &self.terms;
        let ceiling = u64::from(self.questions.max(EVIDENCE)).saturating_mul(terms.fuel_ceiling);
        if self.fuel > ceiling {
            return Some(RollbackWhy::FuelCeiling {
                questions: self.questions,
                used: self.fuel,
            });
        }
        let FuelCompared {
            questions,
            fuel,
            expected,
        } = self.fuel_compared;
        let unminded = u64::from(questions).saturating_mul(terms.fuel_floor);
        let in_proportion = expected.saturating_mul(terms.fuel_percent.into()) / 100;
        let allowed = in_proportion.max(unminded);
        let is_out_of_line = questions >= EVIDENCE && fuel > allowed;
        is_out_of_line.then_some(RollbackWhy::Fuel {
            questions,
            used: fuel,
            expected,
            allowed,
        })
    }
}

// === impl Displaced ===

impl Displaced {
    fn new(member: &Member, state: Option<Vec<u8>>) -> Self {
        Self {
            policy: member.number,
            state,
            generation: member.runner.counters().generation,
            answers: member.stats.answers.total(),
        }
    }

    /// True if the policy has the same instance as at the swap, which has answered nothing since.
    fn is_unasked(&self, member: &Member) -> bool {
        self.generation == member.runner.counters().generation
            && self.answers == member.stats.answers.total()
    }
}

// === impl PolicyHost ===

impl PolicyHost {
    /// Puts `policy` on probation. Call it right after the bind, swap or promotion that put it in
    /// force, while the policies that it displaced are behind it: a rollback restores their states,
    /// and their records are the ones to compare with. A canary is compared with the policy in
    /// force beside it, as that goes on.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn begin_probation(
        &mut self,
        now: Micros,
        policy: u32,
        terms: Probation,
    ) -> Result<(), BindError> {
        if !self.members.contains_key(&policy) {
            return Err(BindError::Unknown(policy));
        }
        let mut trial = Trial::new(now, terms);
        for hook in self.in_force(policy).iter() {
            let displaced = self.chains[hook].behind;
            let Some(number) = displaced else { continue };
            let known = trial.displaced.iter().any(|it| it.policy == number);
            if !known {
                let state = self.handover(now, number).map(|snapshot| snapshot.state);
                let member = self.members.get(&number);
                let displaced = member.map(|member| Displaced::new(member, state));
                trial.displaced.extend(displaced);
            }
            let member = self.members.get(&number);
            trial.before[hook] = member.map(|member| Box::new(member.record.clone()));
        }
        if let Some(member) = self.members.get_mut(&policy) {
            member.trial = Some(trial);
        }
        let kind = PolicyEventKind::OnProbation;
        self.shared.events.push(now, policy, kind);
        Ok(())
    }

    /// Renews the record with which a canary on probation is compared, before it is asked. The
    /// policy in force beside it goes on, and both are asked in runs, which are shorter than
    /// batches were before.
    pub(super) fn hold_canary_against(&mut self, policy: u32, hook: Hook) {
        if !self.is_on_probation(policy) || !self.tried(policy).contains(hook) {
            return;
        }
        let beside = self
            .holder(hook)
            .and_then(|number| self.members.get(&number));
        let record = beside.map(|member| Box::new(member.record.clone()));
        let member = self.members.get_mut(&policy);
        if let Some(trial) = member.and_then(|member| member.trial.as_mut()) {
            trial.before[hook] = record;
        }
    }

    /// True if `policy` is on probation.
    #[must_use]
    pub fn is_on_probation(&self, policy: u32) -> bool {
        let member = self.members.get(&policy);
        member.is_some_and(|member| member.trial.is_some())
    }

    /// Rolls `policy` back by order, as a failed probation does: the policies that it displaced are
    /// in force again, and its fingerprint is listed. Returns the policies that are in force again.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn rollback(
        &mut self,
        now: Micros,
        policy: u32,
        why: impl Into<String>,
    ) -> Result<Vec<u32>, BindError> {
        if !self.members.contains_key(&policy) {
            return Err(BindError::Unknown(policy));
        }
        Ok(self.roll_back(now, policy, RollbackWhy::Ordered(why.into())))
    }

    /// Ends the probation of `policy` if it is over or something is out of line. `detail` describes
    /// the last thing that happened to it.
    pub(super) fn judge(&mut self, now: Micros, policy: u32, detail: &str) {
        let Some(member) = self.members.get_mut(&policy) else {
            return;
        };
        let Some(trial) = &member.trial else {
            return;
        };
        if let Some(why) = trial.objection(detail) {
            self.roll_back(now, policy, why);
        } else if trial.is_served(now) {
            let questions = trial.questions;
            member.trial = None;
            let kind = PolicyEventKind::Proven { questions };
            self.shared.events.push(now, policy, kind);
        }
    }

    fn roll_back(&mut self, now: Micros, policy: u32, why: RollbackWhy) -> Vec<u32> {
        self.note_quarantined_as(now, policy, Cause::RolledBack, &why.to_string());
        let member = self.members.get_mut(&policy);
        let (trial, given_up) = member.map_or((None, None), |member| {
            (member.trial.take(), member.gave_up.take())
        });
        for displaced in trial.into_iter().flat_map(|trial| trial.displaced) {
            // A policy that went on with other hooks has a state that is newer than this one.
            let went_on = !self.in_force(displaced.policy).is_empty();
            let member = self.members.get_mut(&displaced.policy);
            // One that was not asked has it still, and can answer at once.
            let changed = member.filter(|member| !went_on && !displaced.is_unasked(member));
            if let Some(member) = changed {
                member.restart(displaced.state, now, &mut self.shared);
            }
        }
        let mut to = Vec::new();
        for hook in self.in_force(policy).iter() {
            self.closed.remove(hook);
            to.extend(self.chains[hook].behind);
        }
        for hook in self.tried(policy).iter() {
            to.extend(self.holder(hook));
        }
        to.sort_unstable();
        to.dedup();
        if let Some((old, hooks)) = given_up.filter(|(old, _)| self.members.contains_key(old)) {
            for hook in hooks.iter() {
                self.chains[hook].put(old);
            }
        }
        let kind = PolicyEventKind::RolledBack {
            to: to.clone(),
            why,
        };
        self.shared.events.push(now, policy, kind);
        self.remove(now, policy);
        to
    }
}

impl fmt::Display for RollbackWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RollbackWhy::Faults { faults, detail } => {
                write!(f, "{faults} faults on probation, the last one: {detail}")
            }
            RollbackWhy::Refusals {
                rows,
                refused,
                expected,
            } => write!(
                f,
                "{refused} refusals in {rows} rows, {expected} were to be expected"
            ),
            RollbackWhy::Fuel {
                questions,
                used,
                expected,
                allowed,
            } => write!(
                f,
                "{used} units of fuel in {questions} questions, {expected} were to be expected; at \
                 most {allowed} are allowed: fuel-percent, fuel-floor of [policies.probation]"
            ),
            RollbackWhy::FuelCeiling { questions, used } => {
                write!(f, "{used} units of fuel in {questions} questions")
            }
            RollbackWhy::Ordered(why) => f.write_str(why),
        }
    }
}
