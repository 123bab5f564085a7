//! The policies of a journal, each as it was: its instances, its state, what it was told.
//!
//! Who was asked when, and who began anew, is the journal's to say; chains, back-off and quarantine
//! are not repeated. So each is a runner of its own.

use std::collections::{BTreeMap, VecDeque};

use pointsman_core::Asked as AskedNow;
use pointsman_core::{Author, FaultKind, Micros, PolicyFault, View};
use pointsman_journal::{
    Blob, Bound, Decision, Keyframe, PolicyRecord, Restarted, Roster, Saved, crc32,
};
use pointsman_policy::{Briefing, Runner};

use super::super::roster::{Library, revive, tell};
use super::stage::take_briefing;
use super::{Mismatch, SameFuel, Stop, Tally};

#[derive(Debug)]
pub(super) struct Troupe {
    members: BTreeMap<u32, Member>,
    same_fuel: SameFuel,
}

#[derive(Debug)]
struct Member {
    name: String,
    runner: Runner,
    track: Track,
}

/// Whether all is known that was done to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    /// From its start on, so it takes the same fuel.
    Whole,
    /// It was restored from a keyframe: the same answers, by other ways.
    Joined,
}

impl Troupe {
    pub(super) fn new(same_fuel: SameFuel) -> Self {
        Self {
            members: BTreeMap::new(),
            same_fuel,
        }
    }

    /// Everybody as of a keyframe.
    pub(super) fn begin(&mut self, library: &Library, roster: &Roster) -> Result<(), Stop> {
        for record in &roster.policies {
            let started = revive(library, record)?;
            self.admit(record, started, Track::Joined);
        }
        Ok(())
    }

    /// Who is there from now on.
    pub(super) fn update(
        &mut self,
        library: &Library,
        bound: &Bound,
        briefings: &mut VecDeque<Briefing>,
    ) -> Result<(), Stop> {
        let records = &bound.roster.policies;
        self.members
            .retain(|number, _| records.iter().any(|record| record.number == *number));
        for record in records {
            if self.members.contains_key(&record.number) {
                continue;
            }
            let mut started = revive(library, record)?;
            let kinds = started.description().feed;
            let briefing = record
                .told
                .and_then(|told| take_briefing(briefings, kinds, told));
            // Without its briefing, which came before this journal, it is told everything.
            let mut track = Track::Joined;
            if let Some(briefing) = briefing {
                tell(record, &mut started, briefing)?;
                track = Track::Whole;
            } else if record.told.is_none() {
                track = Track::Whole;
            }
            self.admit(record, started, track);
        }
        Ok(())
    }

    fn admit(&mut self, record: &PolicyRecord, mut runner: Runner, track: Track) {
        if !record.saves {
            runner.end_snapshots();
        }
        let member = Member {
            name: record.name.clone(),
            runner,
            track,
        };
        self.members.insert(record.number, member);
    }

    /// No more of a policy's state was taken: a keyframe does not take it either.
    pub(super) fn end_snapshots(&mut self, policy: u32) {
        if let Some(member) = self.members.get_mut(&policy) {
            member.runner.end_snapshots();
        }
    }

    pub(super) fn restart(&mut self, now: Micros, restarted: Restarted) {
        if let Some(member) = self.members.get_mut(&restarted.policy) {
            let state = restarted.state.map(|Blob(state)| state);
            member.runner.restart(state, now);
            member.track = Track::Whole;
        }
    }

    /// Its state was taken: it has to be the same.
    pub(super) fn save(&mut self, saved: &Saved, tally: &mut Tally) -> Result<(), Mismatch> {
        let Some(member) = self.members.get_mut(&saved.policy) else {
            return Ok(());
        };
        let state = member.runner.handover(saved.now);
        let state = state.map(|snapshot| snapshot.state).unwrap_or_default();
        let found = Saved {
            bytes: u64::try_from(state.len()).unwrap_or(u64::MAX),
            crc32: crc32(&state),
            ..*saved
        };
        if found != *saved {
            let what = format!("the state of policy {} ({})", saved.policy, member.name);
            return Err(Mismatch::new(what, saved, found));
        }
        tally.snapshots += 1;
        Ok(())
    }

    /// A keyframe: everybody's state is taken, and everybody is told everything anew.
    pub(super) fn renew(&mut self, view: &View<'_>, keyframe: &Keyframe) -> Result<(), Mismatch> {
        for record in &keyframe.roster.policies {
            let Some(member) = self.members.get_mut(&record.number) else {
                continue;
            };
            // A fault ends snapshots there as here, and then the states differ or do not.
            drop(member.runner.renew(view, keyframe.now));
            let state = member.runner.state().map(|state| Blob(state.to_vec()));
            if state != record.state {
                let what = format!("the state of policy {} ({})", record.number, record.name);
                return Err(Mismatch::new(what, &record.state, state));
            }
        }
        Ok(())
    }

    /// Asks those who were asked then. They have to say the same.
    pub(super) fn answer(
        &mut self,
        now: &AskedNow<'_>,
        decision: &Decision<'_>,
        tally: &mut Tally,
    ) -> Result<(), Mismatch> {
        for fault in &decision.answer.faults {
            self.fault(now, fault, tally)?;
        }
        let Author::Policy(number) = decision.answer.author else {
            return Ok(());
        };
        let same_fuel = self.same_fuel;
        let member = self.member(number)?;
        let recorded = &decision.answer.value;
        let replayed = member.runner.ask(now).map_err(|fault| {
            let what = format!("policy {number} ({})", member.name);
            Mismatch::new(what, recorded, fault)
        })?;
        if recorded.as_ref() != Some(&replayed.reply) {
            let what = format!("the answer of policy {number} ({})", member.name);
            return Err(Mismatch::new(what, recorded, Some(replayed.reply)));
        }
        tally.answers += 1;
        if member.track == Track::Joined || same_fuel == SameFuel::No {
            return Ok(());
        }
        let fuel = member.runner.counters().fuel;
        if fuel != decision.fuel {
            let what = format!("the fuel of policy {number} ({})", member.name);
            return Err(Mismatch::new(what, decision.fuel, fuel));
        }
        tally.fuels += 1;
        Ok(())
    }

    /// Asks one that faulted then.
    fn fault(
        &mut self,
        now: &AskedNow<'_>,
        fault: &PolicyFault,
        tally: &mut Tally,
    ) -> Result<(), Mismatch> {
        let repeats = match fault.kind {
            FaultKind::Trap | FaultKind::Fuel | FaultKind::Memory | FaultKind::Oversize => true,
            // Of the clock, or of what was outside: the instance is gone all the same.
            FaultKind::Deadline | FaultKind::Start | FaultKind::Struck => false,
        };
        if !repeats {
            tally.faults_taken += 1;
            return Ok(());
        }
        let member = self.member(fault.policy)?;
        let replayed = member.runner.ask(now);
        let kind = replayed.as_ref().err().map(|fault| fault.kind);
        if kind != Some(fault.kind) {
            let what = format!("the fault of policy {} ({})", fault.policy, member.name);
            return Err(Mismatch::new(what, fault, replayed));
        }
        tally.faults += 1;
        Ok(())
    }

    fn member(&mut self, number: u32) -> Result<&mut Member, Mismatch> {
        self.members.get_mut(&number).ok_or_else(|| {
            Mismatch::new("who is there", format!("policy {number}"), "no such policy")
        })
    }
}
