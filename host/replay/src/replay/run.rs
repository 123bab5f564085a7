//! One run of a replay: a machine with recorded inputs, and the facts that it should produce.

use std::collections::VecDeque;

use pointsman_core::{Fact, Input, Machine, Micros, Round, Stamped};
use pointsman_journal::{Blob, Briefed, Entry, Keyframe};
use pointsman_policy::Briefing;
use serde_json::json;

use super::answers::{End, Place, Script, ScriptEntry, ScriptedAnswers};
use super::recorded::{RecordedPolicies, brief_as};
use super::{Context, Mismatch, ReplayError, Stop};
use crate::recorder::SNAPSHOTS_ENDED;

/// Number of briefings kept for policies that may be added.
const BRIEFINGS_MAX: usize = 64;

/// A round whose decisions are being read.
#[derive(Debug)]
struct PendingRound {
    now: Micros,
    script: Script,
}

#[derive(Debug)]
pub(super) struct ReplayRun {
    machine: Machine,
    policies: RecordedPolicies,
    /// Facts of the machine that the journal has not shown yet.
    facts: VecDeque<Stamped>,
    briefings: VecDeque<Briefing>,
    pending: Option<PendingRound>,
    now: Micros,
    /// Place of the decision that differs.
    at: Option<Place>,
}

impl ReplayRun {
    pub(super) fn new(keyframe: Keyframe, context: &mut Context<'_>) -> Result<Self, Stop> {
        let machine: Machine = keyframe.machine.read().map_err(|error| {
            Stop::Error(ReplayError::Machine {
                file: String::new(),
                offset: 0,
                why: error.to_string(),
            })
        })?;
        let bounds = machine.config().bounds();
        let mut policies = RecordedPolicies::new(context, bounds);
        match &mut context.what_if {
            None => policies.begin(context.components, &keyframe.roster)?,
            Some(what_if) => what_if.begin(&keyframe.roster, bounds)?,
        }
        Ok(Self {
            machine,
            policies,
            facts: VecDeque::new(),
            briefings: VecDeque::new(),
            pending: None,
            now: keyframe.now,
            at: None,
        })
    }

    pub(super) fn now(&self) -> Micros {
        self.now
    }

    pub(super) fn round(&self) -> Round {
        self.machine.round()
    }

    pub(super) fn at(&self) -> Option<Place> {
        self.at.clone()
    }

    /// True if `keyframe` belongs to this run.
    pub(super) fn round_is_before(&self, keyframe: &Keyframe) -> bool {
        self.machine.round() <= keyframe.round && self.now <= keyframe.now
    }

    /// Repeats an entry. The decisions of a round are made once all of them are read.
    pub(super) fn act(
        &mut self,
        entry: Entry<'static>,
        place: Place,
        context: &mut Context<'_>,
    ) -> Result<(), Stop> {
        if let (Entry::Briefed(briefed), Some(told)) = (&entry, self.told_elsewhere()) {
            *told = Some(*briefed);
            return Ok(());
        }
        let scripted = match entry {
            Entry::Decision(decision) => ScriptEntry::Decision(decision),
            Entry::Restarted(restarted) => ScriptEntry::Restarted(restarted, None),
            Entry::Saved(saved) => ScriptEntry::Saved(saved),
            // Other events are for people only.
            Entry::PolicyEvent(event) if event.what != SNAPSHOTS_ENDED => return Ok(()),
            entry @ (Entry::Header(_)
            | Entry::Input { .. }
            | Entry::Round { .. }
            | Entry::Bound(_)
            | Entry::Fact(_)
            | Entry::PolicyEvent(_)
            | Entry::Keyframe(_)
            | Entry::Gap(_)
            | Entry::Briefed(_)) => {
                self.perform(End::Whole, context)?;
                return self.act_now(entry, context);
            }
        };
        if let Some(pending) = &mut self.pending {
            pending.script.push_back((place, scripted));
            return Ok(());
        }
        self.between_rounds(scripted, context)
    }

    /// The rows that a fresh instance was told elsewhere, to be noted if that is the last entry of the
    /// round.
    fn told_elsewhere(&mut self) -> Option<&mut Option<Briefed>> {
        match self.pending.as_mut()?.script.back_mut()? {
            (_, ScriptEntry::Restarted(_, told)) => Some(told),
            (_, ScriptEntry::Decision(_) | ScriptEntry::Saved(_)) => None,
        }
    }

    fn act_now(&mut self, entry: Entry<'static>, context: &mut Context<'_>) -> Result<(), Stop> {
        match entry {
            Entry::Input { now, input } => {
                self.now = now;
                context.tally.inputs += 1;
                self.input(now, input.into_owned());
            }
            Entry::Round { now, round } => {
                self.now = now;
                let expected = self.machine.round();
                if round != expected {
                    return Err(Mismatch::new("the number of rounds", round, expected).into());
                }
                let script = VecDeque::new();
                self.pending = Some(PendingRound { now, script });
            }
            Entry::Fact(stamped) => return self.fact(&stamped, context),
            Entry::Bound(bound) => {
                self.now = bound.now;
                match &mut context.what_if {
                    None => {
                        let briefings = &mut self.briefings;
                        self.policies
                            .update(context.components, &bound, briefings)?;
                    }
                    Some(what_if) => what_if.meet(&bound.roster),
                }
            }
            Entry::Briefed(briefed) => return self.brief(briefed),
            // A keyframe does not take the policy's state any more.
            Entry::PolicyEvent(event) => self.policies.end_snapshots(event.policy),
            // The caller has dealt with the others.
            Entry::Header(_)
            | Entry::Decision(_)
            | Entry::Keyframe(_)
            | Entry::Gap(_)
            | Entry::Restarted(_)
            | Entry::Saved(_) => {}
        }
        Ok(())
    }

    fn input(&mut self, now: Micros, input: Input) {
        self.machine.handle(now, input);
        self.poll();
    }

    fn poll(&mut self) {
        self.facts
            .extend(std::iter::from_fn(|| self.machine.poll_fact()));
        while self.machine.poll_effect().is_some() {}
    }

    fn brief(&mut self, briefed: Briefed) -> Result<(), Stop> {
        let briefing = brief_as(&self.machine.view(), &briefed)?;
        if self.briefings.len() == BRIEFINGS_MAX {
            self.briefings.pop_front();
        }
        self.briefings.push_back(briefing);
        Ok(())
    }

    fn fact(&mut self, recorded: &Stamped, context: &mut Context<'_>) -> Result<(), Stop> {
        let replayed = self.facts.pop_front();
        // Another build may describe a fault in other words.
        let is_same = replayed
            .as_ref()
            .is_some_and(|replayed| replayed == recorded || is_same_fault(recorded, replayed));
        if is_same {
            context.tally.facts += 1;
            return Ok(());
        }
        let what = "what happened in the machine";
        Err(Mismatch::new(what, json!(recorded), json!(replayed)).into())
    }

    /// Repeats the changes of policies between two rounds.
    fn between_rounds(
        &mut self,
        scripted: ScriptEntry,
        context: &mut Context<'_>,
    ) -> Result<(), Stop> {
        if context.what_if.is_some() {
            return Ok(());
        }
        match scripted {
            // The journal was cut off before the decision about whose rows it was told.
            ScriptEntry::Restarted(restarted, _) => {
                self.policies.restart(self.now, restarted, None);
            }
            ScriptEntry::Saved(saved) => self.policies.save(&saved, context.tally)?,
            ScriptEntry::Decision(decision) => {
                let what = "a decision outside of any round";
                return Err(Mismatch::new(what, json!(decision), "none").into());
            }
        }
        Ok(())
    }

    /// Lets the machine decide in the round whose decisions have been read.
    fn perform(&mut self, end: End, context: &mut Context<'_>) -> Result<(), Stop> {
        let Some(PendingRound { now, script }) = self.pending.take() else {
            return Ok(());
        };
        context.tally.rounds += 1;
        let mut answers = ScriptedAnswers::new(script, end, &mut self.policies, context);
        self.machine.decide(now, &mut answers);
        let script = answers.finish().map_err(|(at, mismatch)| {
            self.at = at;
            mismatch
        })?;
        self.poll();
        for (place, scripted) in script {
            self.at = Some(place);
            self.between_rounds(scripted, context)?;
        }
        self.at = None;
        Ok(())
    }

    pub(super) fn finish(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        self.perform(End::CutOff, context)
    }

    /// Compares the run with another keyframe of the same run.
    pub(super) fn keyframe(
        &mut self,
        keyframe: &Keyframe,
        context: &mut Context<'_>,
    ) -> Result<(), Stop> {
        self.perform(End::Whole, context)?;
        self.now = keyframe.now;
        let machine = Blob::of(&self.machine).map_err(|error| {
            Mismatch::new("whether the machine can be written down", "yes", error)
        })?;
        if machine != keyframe.machine {
            let what = "the machine at a keyframe";
            return Err(Mismatch::new(what, json!(keyframe.machine), json!(machine)).into());
        }
        match &mut context.what_if {
            None => self.policies.renew(&self.machine.view(), keyframe)?,
            Some(what_if) => what_if.meet(&keyframe.roster),
        }
        context.tally.keyframes += 1;
        Ok(())
    }
}

/// True if two facts are the same fault, even if they describe it in other words.
fn is_same_fault(one: &Stamped, other: &Stamped) -> bool {
    let (Fact::Fault(hook, fault), Fact::Fault(other_hook, other_fault)) = (&one.fact, &other.fact)
    else {
        return false;
    };
    (one.now, one.round, hook) == (other.now, other.round, other_hook)
        && (fault.policy, fault.kind) == (other_fault.policy, other_fault.kind)
}
