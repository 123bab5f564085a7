//! Probation: a policy that was just put in force, held against the one it displaced.
//!
//! Whoever binds a policy may put it on probation ([`PolicyHost::begin_probation`]). From then on
//! each question it answers is set against what the displaced one would have made of it, and the
//! first sum that is out of line takes the policy out again: the displaced one is in force, with
//! the state it had at the swap, and the new one's fingerprint is listed so that it is not added
//! again. See `host/docs/adr/0008-a-policy-is-proven-against-the-one-it-displaces.md` for what is compared and why.
//!
//! # Invariants
//! 1. A rollback leaves the hooks with those who had them (`host::tests::probation`), or, where
//!    nobody had, with the built-in rule.
//! 2. Like is compared with like: fuel by hook and number of rows, refusals by row
//!    (`a_larger_question_is_not_held_against_a_policy`).
//! 3. Nothing measured in time is judged, so a replay judges alike.
//!
//! # Not here
//! Faults without probation: they count towards the quarantine ([`crate::Patience`]).

use std::fmt;

use pointsman_core::{Hook, HookMap, Micros};

use super::PolicyHost;
use super::event::PolicyEventKind;
use super::quarantine::Cause;
use crate::host::BindError;
/// How long a policy is on probation, and what ends it early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probation {
    /// Questions it has to answer.
    pub questions: u32,
    /// Time that has to pass, in host microseconds. Both must be over.
    pub micros: u64,
    /// Faults and strikes it may have.
    pub faults_max: u32,
    /// Refused actions per thousand rows asked about that it may have more than the displaced
    /// one had.
    pub refusals_permille: u32,
    /// Fuel it may use in percent of what the displaced one used for such questions.
    pub fuel_percent: u32,
    /// Fuel per question that nobody minds, whatever the displaced one used.
    pub fuel_floor: u64,
    /// Fuel per question, on average, that is too much even where nothing can be compared.
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
            fuel_floor: 200_000,
            fuel_ceiling: 20_000_000,
        }
    }
}

/// Why a policy was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RollbackWhy {
    /// It faulted, or was struck.
    Faults {
        /// How often.
        faults: u32,
        /// The last one, for the operator.
        detail: String,
    },
    /// The interlock refused more of what it said than of what the displaced one said.
    Refusals {
        /// Of how many rows.
        rows: u64,
        /// How many were refused.
        refused: u64,
        /// How many the displaced one would have had refused.
        expected: u64,
    },
    /// It used more fuel than the displaced one.
    Fuel {
        /// In how many questions.
        questions: u32,
        /// How much.
        used: u64,
        /// How much the displaced one would have used.
        expected: u64,
    },
    /// It used more fuel than any policy should.
    FuelCeiling {
        /// In how many questions.
        questions: u32,
        /// How much.
        used: u64,
    },
    /// Somebody said so, in these words.
    Ordered(String),
}

/// Questions before means are compared.
const EVIDENCE: u32 = 32;

/// Classes of questions by their rows: none, 1, 2 and 3, 4 to 7, and so on.
const CLASSES: usize = 16;

/// What a policy's answers cost, as far as another can be held against it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    fuel: HookMap<[Mean; CLASSES]>,
    rows: HookMap<u64>,
    refused: HookMap<u64>,
    /// Of the last question of each hook.
    rows_last: HookMap<u64>,
}

/// A running mean in which old values fade, since fleets and queues grow and shrink.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    counted: u32,
    value: u64,
}

/// One policy's time on probation so far.
#[derive(Debug)]
pub(crate) struct Trial {
    terms: Probation,
    since: Micros,
    /// By hook, that of the policy displaced there.
    before: HookMap<Option<Box<Record>>>,
    /// What the displaced ones had to carry over, at the swap.
    pub(super) states: Vec<(u32, Option<Vec<u8>>)>,
    questions: u32,
    faults: u32,
    rows: u64,
    refused: u64,
    /// In thousandths.
    refused_expected: u64,
    fuel: u64,
    /// Of the questions that could be compared.
    compared: Compared,
}

#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    questions: u32,
    fuel: u64,
    expected: u64,
}

/// One answered question, as it is booked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Booked {
    pub(crate) hook: Hook,
    pub(crate) rows: u64,
    /// Absent: the policy is not metered.
    pub(crate) fuel: Option<u64>,
}

// === impl Record ===

impl Mean {
    /// Values after which an old one has faded.
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

    /// Counts a refusal of an action, or of a whole answer; the rows it was about.
    pub(crate) fn book_refusal(&mut self, hook: Hook, whole: Whole) -> u64 {
        let rows = match whole {
            Whole::Action => 1,
            Whole::Answer => self.rows_last[hook].max(1),
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

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Action,
    Answer,
}

// === impl Trial ===

impl Trial {
    fn new(now: Micros, terms: Probation) -> Self {
        Self {
            terms,
            since: now,
            before: HookMap::default(),
            states: Vec::new(),
            questions: 0,
            faults: 0,
            rows: 0,
            refused: 0,
            refused_expected: 0,
            fuel: 0,
            compared: Compared::default(),
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
        self.fuel = self.fuel.saturating_add(fuel);
        let of_hook = before.map(|record| &record.fuel[booked.hook]);
        if let Some(expected) = of_hook.and_then(|means| means[class(booked.rows)].known()) {
            self.compared.questions += 1;
            self.compared.fuel = self.compared.fuel.saturating_add(fuel);
            self.compared.expected = self.compared.expected.saturating_add(expected);
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

    /// What is out of line.
    fn objection(&self, detail: &str) -> Option<RollbackWhy> {
        let terms = &self.terms;
        if self.faults > terms.faults_max {
            return Some(RollbackWhy::Faults {
                faults: self.faults,
                detail: detail.to_owned(),
            });
        }
        // Rows that were not yet asked about count as well answered: the first refusals of a
        // policy say little.
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
        let Compared {
            questions,
            fuel,
            expected,
        } = self.compared;
        let unminded = u64::from(questions).saturating_mul(terms.fuel_floor);
        let allowed = expected.saturating_mul(terms.fuel_percent.into()) / 100;
        let is_out_of_line = questions >= EVIDENCE && fuel > allowed.max(unminded);
        is_out_of_line.then_some(RollbackWhy::Fuel {
            questions,
            used: fuel,
            expected,
        })
    }
}

// === impl PolicyHost ===

impl PolicyHost {
    /// Puts `policy` on probation. Call it right after the bind, swap or promotion that put it in
    /// force, while whom it displaced still stands behind it: theirs is the state that a rollback
    /// brings back, and theirs are the numbers it is held against. A canary is held against the
    /// policy in force beside it, as that goes on.
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
            let known = trial.states.iter().any(|(kept, _)| *kept == number);
            if !known {
                let state = self.handover(now, number).map(|snapshot| snapshot.state);
                trial.states.push((number, state));
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

    /// Before a canary on probation is asked: what it is held against is what the policy in force
    /// has done by now, since both are asked in runs, and those are shorter than batches were.
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

    /// Whether `policy` is on probation.
    #[must_use]
    pub fn is_on_probation(&self, policy: u32) -> bool {
        let member = self.members.get(&policy);
        member.is_some_and(|member| member.trial.is_some())
    }

    /// Takes `policy` out, on somebody's order, as a probation does that it fails: whom it
    /// displaced is in force again, and its fingerprint is listed. The policies that are in
    /// force again.
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

    /// Ends the probation of `policy` if it is served, or if something is out of line; `detail`
    /// tells of the last thing that happened to it.
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
        for (number, state) in trial.into_iter().flat_map(|trial| trial.states) {
            // One that went on deciding something else has a state that is no older than its own.
            let went_on = !self.in_force(number).is_empty();
            let member = self.members.get_mut(&number);
            if let Some(member) = member.filter(|_| !went_on) {
                member.restart(state, now, &mut self.shared);
            }
        }
        let mut to = Vec::new();
        for hook in self.in_force(policy).iter() {
            self.shut.remove(hook);
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
            } => write!(
                f,
                "{used} units of fuel in {questions} questions, {expected} were to be expected"
            ),
            RollbackWhy::FuelCeiling { questions, used } => {
                write!(f, "{used} units of fuel in {questions} questions")
            }
            RollbackWhy::Ordered(why) => f.write_str(why),
        }
    }
}
