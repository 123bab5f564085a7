//! The policies of a journal, each with its recorded instances, state and changes.
//!
//! The journal names the policy that was asked, and each fresh instance, so chains, back-off and
//! quarantine are not repeated. Each policy is a [`Runner`] and nothing else.

use std::collections::{BTreeMap, VecDeque};

use pointsman_component::Fault;
use pointsman_core::{Asked, Author, Bounds, FaultKind, Micros, Needs, PolicyFault, View};
use pointsman_journal::{
    Blob, Bound, Briefed, Decision, Keyframe, PolicyRecord, Restarted, Roster, Saved, crc32,
};
use pointsman_policy::{Answered, Briefing, Runner};
use serde_json::json;

use super::{Context, Mismatch, ReplayError, ReplayTally, Stop};
use crate::components::ComponentCache;
use crate::roster::revive;

#[derive(Debug)]
pub(super) struct RecordedPolicies {
    by_number: BTreeMap<u32, RecordedPolicy>,
    /// The bounds of the recorded machine, which policies are told.
    bounds: Bounds,
    /// True if this build counts fuel as the recording one did.
    compares_fuel: bool,
}

#[derive(Debug)]
struct RecordedPolicy {
    name: String,
    runner: Runner,
    track: Track,
}

/// The known part of an instance's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    /// Known from its start on, so that it uses the same fuel.
    Whole,
    /// Known from a keyframe on. It gives the same answers with other fuel.
    Joined,
}

impl RecordedPolicies {
    /// No policies yet, for a machine with these bounds.
    pub(super) fn new(context: &Context<'_>, bounds: Bounds) -> Self {
        Self {
            by_number: BTreeMap::new(),
            bounds,
            compares_fuel: context.compares_fuel,
        }
    }

    /// Starts every policy as of a keyframe.
    pub(super) fn begin(
        &mut self,
        components: &ComponentCache,
        roster: &Roster,
    ) -> Result<(), Stop> {
        for record in &roster.policies {
            let runner = revive(components, record, self.bounds)?;
            self.add(record, runner, Track::Joined);
        }
        Ok(())
    }

    /// Drops the policies that are gone, and starts those that are new.
    pub(super) fn update(
        &mut self,
        components: &ComponentCache,
        bound: &Bound,
        briefings: &mut VecDeque<Briefing>,
    ) -> Result<(), Stop> {
        let records = &bound.roster.policies;
        self.by_number
            .retain(|number, _| records.iter().any(|record| record.number == *number));
        for record in records {
            if self.by_number.contains_key(&record.number) {
                continue;
            }
            let mut runner = revive(components, record, self.bounds)?;
            let needs = runner.description().needs;
            let briefing = record
                .told
                .and_then(|told| take_briefing(briefings, &needs, told));
            // Its briefing came before this journal, so it is told everything instead.
            let mut track = Track::Joined;
            if let Some(briefing) = briefing {
                let told = runner.brief(briefing);
                told.map_err(|error| ReplayError::policy(record, error.into()))?;
                track = Track::Whole;
            } else if record.told.is_none() {
                track = Track::Whole;
            }
            self.add(record, runner, track);
        }
        Ok(())
    }

    fn add(&mut self, record: &PolicyRecord, mut runner: Runner, track: Track) {
        if !record.saves {
            runner.end_snapshots();
        }
        let policy = RecordedPolicy {
            name: record.name.clone(),
            runner,
            track,
        };
        self.by_number.insert(record.number, policy);
    }

    /// Takes no more snapshots of a policy, not even at keyframes.
    pub(super) fn end_snapshots(&mut self, policy: u32) {
        if let Some(policy) = self.by_number.get_mut(&policy) {
            policy.runner.end_snapshots();
        }
    }

    /// Lets a fresh instance take the place of a policy's, which is told `briefing` before it is asked
    /// if it was told that elsewhere.
    pub(super) fn restart(
        &mut self,
        now: Micros,
        restarted: Restarted,
        briefing: Option<Briefing>,
    ) {
        let Some(policy) = self.by_number.get_mut(&restarted.policy) else {
            return;
        };
        let state = restarted.state.map(|Blob(state)| state);
        policy.runner.restart(state, now);
        if let Some(briefing) = briefing {
            policy.runner.brief_next(briefing);
        }
        policy.track = Track::Whole;
    }

    /// Takes the state of a policy and compares it with the recorded one.
    pub(super) fn save(&mut self, saved: &Saved, tally: &mut ReplayTally) -> Result<(), Mismatch> {
        let Some(policy) = self.by_number.get_mut(&saved.policy) else {
            return Ok(());
        };
        let state = policy.runner.handover(saved.now);
        let state = state.map(|snapshot| snapshot.state).unwrap_or_default();
        let found = Saved {
            bytes: u64::try_from(state.len()).unwrap_or(u64::MAX),
            crc32: crc32(&state),
            ..*saved
        };
        if found != *saved {
            let what = format!("the state of policy {} ({})", saved.policy, policy.name);
            return Err(Mismatch::new(what, json!(saved), json!(found)));
        }
        tally.snapshots += 1;
        Ok(())
    }

    /// Takes the state of every policy at a keyframe, and has each told everything anew. One that had no
    /// instance then has none after it: a deadline or a strike ended it, which does not repeat itself.
    pub(super) fn renew(&mut self, view: &View<'_>, keyframe: &Keyframe) -> Result<(), Mismatch> {
        for record in &keyframe.roster.policies {
            let Some(policy) = self.by_number.get_mut(&record.number) else {
                continue;
            };
            if !record.is_up() {
                let state = record.state.clone().map(|Blob(state)| state);
                policy.runner.restart(state, keyframe.now);
                continue;
            }
            // A fault ends snapshots here as it did there; the states are compared next.
            drop(policy.runner.renew(view, keyframe.now));
            let state = policy.runner.state().map(|state| Blob(state.to_vec()));
            if state != record.state {
                let what = format!("the state of policy {} ({})", record.number, record.name);
                return Err(Mismatch::new(what, json!(record.state), json!(state)));
            }
        }
        Ok(())
    }

    /// Asks the policies that were asked then, and compares their answers.
    pub(super) fn answer(
        &mut self,
        asked: &Asked<'_>,
        decision: &Decision<'_>,
        tally: &mut ReplayTally,
    ) -> Result<(), Mismatch> {
        for fault in &decision.answer.faults {
            self.fault(asked, fault, tally)?;
        }
        let Author::Policy(number) = decision.answer.author else {
            return Ok(());
        };
        let compares_fuel = self.compares_fuel;
        let policy = self.policy(number)?;
        let recorded = &decision.answer.value;
        let replayed = policy.ask(asked, tally).map_err(|fault| {
            let what = format!("policy {number} ({})", policy.name);
            Mismatch::new(what, json!(recorded), fault)
        })?;
        if recorded.as_ref() != Some(&replayed.reply) {
            let what = format!("the answer of policy {number} ({})", policy.name);
            return Err(Mismatch::new(what, json!(recorded), json!(replayed.reply)));
        }
        tally.answers += 1;
        if policy.track == Track::Joined || !compares_fuel {
            return Ok(());
        }
        let fuel = policy.runner.counters().fuel;
        if fuel != decision.fuel {
            let what = format!("the fuel of policy {number} ({})", policy.name);
            return Err(Mismatch::new(what, decision.fuel, fuel));
        }
        tally.fuels += 1;
        Ok(())
    }

    /// Asks a policy that faulted then, and compares the fault.
    fn fault(
        &mut self,
        asked: &Asked<'_>,
        fault: &PolicyFault,
        tally: &mut ReplayTally,
    ) -> Result<(), Mismatch> {
        let repeats = match fault.kind {
            FaultKind::Trap | FaultKind::Fuel | FaultKind::Memory | FaultKind::Oversize => true,
            // These come from the clock or from outside. The instance was dropped all the same.
            FaultKind::Deadline | FaultKind::Start | FaultKind::Struck => false,
        };
        if !repeats {
            tally.faults_taken += 1;
            return Ok(());
        }
        let policy = self.policy(fault.policy)?;
        let replayed = policy.ask(asked, tally);
        let kind = replayed.as_ref().err().map(|fault| fault.kind);
        if kind != Some(fault.kind) {
            let what = format!("the fault of policy {} ({})", fault.policy, policy.name);
            let replayed = replayed.map_or_else(
                |fault| fault.to_string(),
                |answered| json!(answered.reply).to_string(),
            );
            return Err(Mismatch::new(what, json!(fault), replayed));
        }
        tally.faults += 1;
        Ok(())
    }

    fn policy(&mut self, number: u32) -> Result<&mut RecordedPolicy, Mismatch> {
        self.by_number.get_mut(&number).ok_or_else(|| {
            Mismatch::new("who is there", format!("policy {number}"), "no such policy")
        })
    }
}

impl RecordedPolicy {
    /// Asks the policy, and counts a fresh instance that was told elsewhere what there was.
    fn ask(&mut self, asked: &Asked<'_>, tally: &mut ReplayTally) -> Result<Answered, Fault> {
        let before = self.runner.counters().briefed;
        let answered = self.runner.ask(asked);
        tally.briefed += self.runner.counters().briefed - before;
        answered
    }
}

/// Collects the rows again that were collected when this was recorded.
pub(super) fn brief_as(view: &View<'_>, recorded: &Briefed) -> Result<Briefing, Mismatch> {
    let Briefed { now, needs, told } = *recorded;
    let briefing = Briefing::new(view, now, needs);
    if briefing.told() != Some(told) {
        let what = "how far the machine's changes had come";
        return Err(Mismatch::new(what, told, json!(briefing.told())));
    }
    Ok(briefing)
}

/// Takes the briefing that was made for a policy with these needs and was told up to `told`.
fn take_briefing(briefings: &mut VecDeque<Briefing>, needs: &Needs, told: u64) -> Option<Briefing> {
    let idx = briefings
        .iter()
        .position(|it| it.needs() == needs && it.told() == Some(told))?;
    briefings.remove(idx)
}
