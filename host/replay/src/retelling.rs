//! A journal retold without its policies: [`Retelling`].
//!
//! A machine is given the recorded inputs and the recorded answers. No policy is asked, so no component
//! is needed, and nothing but the questions is compared.
//!
//! # Invariants
//! 1. A machine goes on with the entries of its own run alone
//!    (`a_run_is_told_from_its_own_keyframe_on`, in `tests/tests/operating/retelling.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use pointsman_core::{
    Answer, Asked, Hook, Machine, Micros, Policies, Reply, RequestId, Stamped, View,
};
use pointsman_journal::{Decision, Entry, Keyframe, Located, PolicyRecord, Roster};

use crate::passed_over::PassedOver;
use crate::replay::{End, ReplayError};

/// A watcher of the rounds that are retold.
pub trait Rounds {
    /// Sees the machine at `now`, before it is called to decide. It may find that no round is due.
    fn before(&mut self, now: Micros, machine: &Machine, roster: &Roster);

    /// Sees the machine after that, with the facts of the round.
    fn after(&mut self, machine: &Machine, facts: &[Stamped]);
}

/// A machine that goes as its journal says.
#[derive(Debug, Default)]
pub struct Retelling {
    machine: Option<Machine>,
    has_begun: bool,
    passed_over: PassedOver,
    roster: Roster,
    /// Policies with the components and states that an earlier entry brought.
    brought: BTreeMap<u32, PolicyRecord>,
    pending: Option<Pending>,
}

/// A round whose decisions are being read.
#[derive(Debug)]
struct Pending {
    now: Micros,
    answers: VecDeque<Decision<'static>>,
}

/// Recorded answers, to questions that have to be the recorded ones.
struct Recorded {
    answers: VecDeque<Decision<'static>>,
    questions: Questions,
}

/// The questions of a machine beside those that have recorded answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Questions {
    Same,
    /// More were asked.
    More,
    /// Others were asked.
    Others,
}

// === impl Retelling ===

impl Retelling {
    /// Makes a retelling that begins with the first keyframe.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs that were passed over.
    #[must_use]
    pub fn passed_over(&self) -> &PassedOver {
        &self.passed_over
    }

    /// Goes on with an entry. A run that cannot be read is passed over ([`Self::passed_over`]).
    ///
    /// # Errors
    /// If the machine does not go as the journal says.
    pub fn take(&mut self, located: Located, rounds: &mut dyn Rounds) -> Result<(), ReplayError> {
        let begins_run = self.passed_over.begins_run(&located);
        if self.passed_over.hear(&located) {
            self.decide((&located.file, located.offset), End::CutOff, rounds)?;
            self.interrupted();
            return Ok(());
        }
        let Located {
            file,
            offset,
            entry,
        } = located;
        let entry = match entry {
            Entry::Decision(decision) => {
                if let Some(pending) = &mut self.pending {
                    pending.answers.push_back(decision);
                }
                return Ok(());
            }
            // These may stand between the decisions of a round, and are about policies alone.
            Entry::PolicyEvent(_) | Entry::Briefed(_) | Entry::Restarted(_) | Entry::Saved(_) => {
                return Ok(());
            }
            entry @ (Entry::Header(_)
            | Entry::Input { .. }
            | Entry::Round { .. }
            | Entry::Bound(_)
            | Entry::Fact(_)
            | Entry::Keyframe(_)
            | Entry::Gap(_)) => entry,
        };
        // The run before this file may have been cut off.
        let is_next_file = matches!(entry, Entry::Header(_));
        let end = if is_next_file {
            End::CutOff
        } else {
            End::Whole
        };
        self.decide((&file, offset), end, rounds)?;
        match entry {
            Entry::Header(_) if begins_run => self.interrupted(),
            Entry::Keyframe(keyframe) => self.keyframe((&file, offset), *keyframe),
            Entry::Gap(_) => self.interrupted(),
            Entry::Bound(bound) => self.meet(bound.roster),
            Entry::Round { now, .. } => {
                self.pending = self.machine.is_some().then(|| Pending {
                    now,
                    answers: VecDeque::new(),
                });
            }
            Entry::Input { now, input } => {
                if let Some(machine) = &mut self.machine {
                    machine.handle(now, input.into_owned());
                    drop(polled(machine));
                }
            }
            // The machine makes its facts again, and the others are about policies.
            Entry::Header(_)
            | Entry::Decision(_)
            | Entry::Fact(_)
            | Entry::PolicyEvent(_)
            | Entry::Briefed(_)
            | Entry::Restarted(_)
            | Entry::Saved(_) => {}
        }
        Ok(())
    }

    /// Forgets the machine, since entries are missing or damaged. The next keyframe has another.
    pub fn interrupted(&mut self) {
        self.machine = None;
        self.pending = None;
    }

    /// Ends with the end of the journal. Returns whether that is in the midst of a round, of
    /// which some decisions are missing.
    ///
    /// # Errors
    /// If the machine does not go as the journal says, or all runs of it were passed over.
    pub fn finish(&mut self, rounds: &mut dyn Rounds) -> Result<bool, ReplayError> {
        let reason = self.passed_over.take_reason();
        if let Some(reason) = reason.filter(|_| !self.has_begun) {
            return Err(reason);
        }
        self.decide((Path::new("end of the journal"), 0), End::CutOff, rounds)
    }

    fn keyframe(&mut self, at: (&Path, u64), keyframe: Keyframe) {
        self.meet(keyframe.roster);
        let machine = &self.machine;
        let goes_on = machine
            .as_ref()
            .is_some_and(|machine| machine.round() <= keyframe.round);
        if goes_on {
            return;
        }
        self.machine = match keyframe.machine.read() {
            Ok(machine) => Some(machine),
            Err(error) => {
                self.passed_over.unreadable(ReplayError::Machine {
                    file: at.0.display().to_string(),
                    offset: at.1,
                    why: error.to_string(),
                });
                None
            }
        };
        self.has_begun |= self.machine.is_some();
    }

    /// Takes a roster, with the components and states of those that are known already.
    fn meet(&mut self, mut roster: Roster) {
        for record in &mut roster.policies {
            if let Some(known) = self.brought.remove(&record.number) {
                record.code = record.code.take().or(known.code);
                record.state = record.state.take().or(known.state);
            }
            self.brought.insert(record.number, record.clone());
        }
        self.roster = roster;
    }

    /// Lets the machine decide in the round whose decisions have been read. Returns whether some are
    /// missing.
    fn decide(
        &mut self,
        at: (&Path, u64),
        end: End,
        rounds: &mut dyn Rounds,
    ) -> Result<bool, ReplayError> {
        let (Some(pending), Some(machine)) = (self.pending.take(), &mut self.machine) else {
            return Ok(false);
        };
        rounds.before(pending.now, machine, &self.roster);
        let mut recorded = Recorded {
            answers: pending.answers,
            questions: Questions::Same,
        };
        machine.decide(pending.now, &mut recorded);
        if recorded.questions == Questions::More && end == End::CutOff {
            return Ok(true);
        }
        if recorded.questions != Questions::Same || !recorded.answers.is_empty() {
            return Err(ReplayError::Differs {
                file: at.0.display().to_string(),
                offset: at.1,
            });
        }
        let facts = polled(machine);
        rounds.after(machine, &facts);
        Ok(false)
    }
}

/// The facts of a machine, whose effects are nobody's.
fn polled(machine: &mut Machine) -> Vec<Stamped> {
    while machine.poll_effect().is_some() {}
    std::iter::from_fn(|| machine.poll_fact()).collect()
}

// === impl Recorded ===

impl Policies for Recorded {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Some(decision) = self.answers.pop_front() else {
            if self.questions == Questions::Same {
                self.questions = Questions::More;
            }
            return Answer::unbound();
        };
        let is_same = decision.hook == asked.question.hook()
            && asked
                .question
                .requests()
                .eq(decision.requests.iter().copied());
        if !is_same {
            self.questions = Questions::Others;
        }
        decision.answer.into_owned()
    }

    /// As many requests as the recorded question had.
    fn run(&self, _: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        let next = self.answers.front();
        let same = next.filter(|decision| decision.hook == hook);
        same.map_or(requests.len(), |decision| {
            decision.requests.len().clamp(1, requests.len().max(1))
        })
    }
}
