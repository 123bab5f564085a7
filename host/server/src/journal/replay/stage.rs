//! A machine that is given what another one was given, and what is expected of it.

use std::collections::VecDeque;

use pointsman_core::rows::FeedKinds;
use pointsman_core::{
    Answer, Asked as AskedNow, Hook, Input, Machine, Micros, Policies, Reply, RequestId, Round,
    Stamped, View,
};
use pointsman_journal::{Blob, Briefed, Decision, Entry, Keyframe, PolicyEvent, Restarted, Saved};
use pointsman_policy::Briefing;

use super::super::roster::Library;
use super::troupe::Troupe;
use super::{Asked, Mismatch, ReplayError, SameFuel, Stop, Tally};

/// Briefings kept for policies that may be taken in.
const BRIEFINGS_MAX: usize = 64;

/// What the journal has between the beginning of a round and its first fact.
#[derive(Debug)]
enum Scripted {
    Decision(Decision<'static>),
    Restarted(Restarted),
    Saved(Saved),
}

/// A round whose decisions are being read.
#[derive(Debug)]
struct Pending {
    now: Micros,
    script: VecDeque<(u64, Scripted)>,
}

/// How a script may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With the last question.
    Whole,
    /// Anywhere: the journal was cut off.
    CutOff,
}

#[derive(Debug)]
pub(super) struct Stage {
    machine: Machine,
    troupe: Troupe,
    /// What happened in the machine and is to be read yet.
    facts: VecDeque<Stamped>,
    briefings: VecDeque<Briefing>,
    pending: Option<Pending>,
    now: Micros,
    /// Of the decision where something came out otherwise.
    at: Option<u64>,
}

/// What a step of a stage works with.
pub(super) type With<'a> = (&'a Library, &'a mut Asked, &'a mut Tally);

impl Stage {
    pub(super) fn new(
        library: &Library,
        keyframe: Keyframe,
        same_fuel: SameFuel,
        asked: &mut Asked,
    ) -> Result<Self, Stop> {
        let machine = keyframe.machine.read().map_err(|error| {
            Stop::Error(ReplayError::Machine {
                file: String::new(),
                offset: 0,
                why: error.to_string(),
            })
        })?;
        let mut troupe = Troupe::new(same_fuel);
        match asked {
            Asked::Recorded => troupe.begin(library, &keyframe.roster)?,
            Asked::Rival(rival) => rival.begin(&keyframe.roster)?,
        }
        Ok(Self {
            machine,
            troupe,
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

    pub(super) fn at(&self) -> Option<u64> {
        self.at
    }

    /// Whether a keyframe belongs to the run that this is.
    pub(super) fn round_is_before(&self, keyframe: &Keyframe) -> bool {
        self.machine.round() <= keyframe.round && self.now <= keyframe.now
    }

    pub(super) fn policy_event(
        &mut self,
        event: &PolicyEvent,
        asked: &mut Asked,
        tally: &mut Tally,
    ) -> Result<(), Stop> {
        if event.what == super::super::scribe::SNAPSHOTS_ENDED {
            // The round before it may have taken the last one.
            self.perform(End::Whole, asked, tally)?;
            self.troupe.end_snapshots(event.policy);
        }
        Ok(())
    }

    /// Does what an entry says. What a round decided is done once all of it is known.
    pub(super) fn act(
        &mut self,
        entry: Entry<'static>,
        offset: u64,
        with: With<'_>,
    ) -> Result<(), Stop> {
        let scripted = match entry {
            Entry::Decision(decision) => Scripted::Decision(decision),
            Entry::Restarted(restarted) => Scripted::Restarted(restarted),
            Entry::Saved(saved) => Scripted::Saved(saved),
            entry @ (Entry::Header(_)
            | Entry::Input { .. }
            | Entry::Round { .. }
            | Entry::Bound(_)
            | Entry::Fact(_)
            | Entry::PolicyEvent(_)
            | Entry::Keyframe(_)
            | Entry::Gap(_)
            | Entry::Briefed(_)) => {
                let (library, asked, tally) = with;
                self.perform(End::Whole, asked, tally)?;
                return self.act_now(entry, (library, asked, tally));
            }
        };
        if let Some(pending) = &mut self.pending {
            pending.script.push_back((offset, scripted));
            return Ok(());
        }
        let (_, asked, tally) = with;
        self.between_rounds(scripted, asked, tally)
    }

    fn act_now(&mut self, entry: Entry<'static>, with: With<'_>) -> Result<(), Stop> {
        let (library, asked, tally) = with;
        match entry {
            Entry::Input { now, input } => {
                self.now = now;
                tally.inputs += 1;
                self.input(now, input.into_owned());
            }
            Entry::Round { now, round } => {
                self.now = now;
                let expected = self.machine.round();
                if round != expected {
                    return Err(Mismatch::new("the number of rounds", round, expected).into());
                }
                let script = VecDeque::new();
                self.pending = Some(Pending { now, script });
            }
            Entry::Fact(stamped) => return self.fact(&stamped, tally),
            Entry::Bound(bound) => {
                self.now = bound.now;
                match asked {
                    Asked::Recorded => {
                        let briefings = &mut self.briefings;
                        self.troupe.update(library, &bound, briefings)?;
                    }
                    Asked::Rival(rival) => rival.meet(&bound.roster),
                }
            }
            Entry::Briefed(briefed) => return self.brief(briefed),
            // The others were dealt with before.
            Entry::Header(_)
            | Entry::Decision(_)
            | Entry::PolicyEvent(_)
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
        let Briefed { now, kinds, told } = briefed;
        let briefing = Briefing::new(&self.machine.view(), now, kinds);
        if briefing.told() != Some(told) {
            let what = "how far the machine's changes had come";
            return Err(Mismatch::new(what, told, briefing.told()).into());
        }
        if self.briefings.len() == BRIEFINGS_MAX {
            self.briefings.pop_front();
        }
        self.briefings.push_back(briefing);
        Ok(())
    }

    fn fact(&mut self, recorded: &Stamped, tally: &mut Tally) -> Result<(), Stop> {
        let replayed = self.facts.pop_front();
        if replayed.as_ref() == Some(recorded) {
            tally.facts += 1;
            return Ok(());
        }
        // Where it came from is told in other words by another build: what counts is that it came.
        if let Some(replayed) = &replayed
            && faults_alike(recorded, replayed)
        {
            tally.facts += 1;
            return Ok(());
        }
        let what = "what happened in the machine";
        Err(Mismatch::new(what, recorded, replayed).into())
    }

    /// What happened to policies between two rounds.
    fn between_rounds(
        &mut self,
        scripted: Scripted,
        asked: &mut Asked,
        tally: &mut Tally,
    ) -> Result<(), Stop> {
        if let Asked::Rival(_) = asked {
            return Ok(());
        }
        match scripted {
            Scripted::Restarted(restarted) => self.troupe.restart(self.now, restarted),
            Scripted::Saved(saved) => self.troupe.save(&saved, tally)?,
            Scripted::Decision(decision) => {
                let what = "a decision outside of any round";
                return Err(Mismatch::new(what, decision, "none").into());
            }
        }
        Ok(())
    }

    /// The round whose decisions were read.
    fn perform(&mut self, end: End, asked: &mut Asked, tally: &mut Tally) -> Result<(), Stop> {
        let Some(Pending { now, script }) = self.pending.take() else {
            return Ok(());
        };
        tally.rounds += 1;
        let mut player = Player {
            script,
            end,
            troupe: &mut self.troupe,
            asked,
            tally,
            at: None,
            wrong: None,
        };
        self.machine.decide(now, &mut player);
        let Player {
            script, at, wrong, ..
        } = player;
        if let Some(mismatch) = wrong {
            self.at = at;
            return Err(mismatch.into());
        }
        self.poll();
        for (offset, scripted) in script {
            self.at = Some(offset);
            self.between_rounds(scripted, asked, tally)?;
        }
        self.at = None;
        Ok(())
    }

    pub(super) fn finish(&mut self, asked: &mut Asked, tally: &mut Tally) -> Result<(), Stop> {
        self.perform(End::CutOff, asked, tally)
    }

    /// Another keyframe of the same run: it has to be what came out here.
    pub(super) fn keyframe(
        &mut self,
        keyframe: &Keyframe,
        asked: &mut Asked,
        tally: &mut Tally,
    ) -> Result<(), Stop> {
        self.perform(End::Whole, asked, tally)?;
        self.now = keyframe.now;
        let machine = Blob::of(&self.machine).map_err(|error| {
            Mismatch::new("whether the machine can be written down", "yes", error)
        })?;
        if machine != keyframe.machine {
            let what = "the machine at a keyframe";
            return Err(Mismatch::new(what, &keyframe.machine, machine).into());
        }
        match asked {
            Asked::Recorded => self.troupe.renew(&self.machine.view(), keyframe)?,
            Asked::Rival(rival) => rival.meet(&keyframe.roster),
        }
        tally.keyframes += 1;
        Ok(())
    }
}

/// Whether two facts are the same fault but for the words in which it is told.
fn faults_alike(one: &Stamped, other: &Stamped) -> bool {
    use pointsman_core::Fact::Fault;
    let (Fault(hook, fault), Fault(other_hook, other_fault)) = (&one.fact, &other.fact) else {
        return false;
    };
    (one.now, one.round, hook) == (other.now, other.round, other_hook)
        && (fault.policy, fault.kind) == (other_fault.policy, other_fault.kind)
}

/// Answers a machine from a script, once the policies have said the same.
struct Player<'a> {
    script: VecDeque<(u64, Scripted)>,
    end: End,
    troupe: &'a mut Troupe,
    asked: &'a mut Asked,
    tally: &'a mut Tally,
    /// The decision that is being made.
    at: Option<u64>,
    /// The first thing that came out otherwise. Nothing after it is looked at.
    wrong: Option<Mismatch>,
}

impl Player<'_> {
    /// The recorded decision that answers this question.
    fn next(&mut self, now: &AskedNow<'_>) -> Result<Option<Decision<'static>>, Mismatch> {
        while let Some((offset, scripted)) = self.script.pop_front() {
            self.at = Some(offset);
            match scripted {
                Scripted::Restarted(restarted) => {
                    if matches!(self.asked, Asked::Recorded) {
                        self.troupe.restart(now.at.now, restarted);
                    }
                }
                Scripted::Saved(saved) => {
                    if matches!(self.asked, Asked::Recorded) {
                        self.troupe.save(&saved, self.tally)?;
                    }
                }
                Scripted::Decision(decision) => {
                    let question = (now.question.hook(), now.question.requests());
                    let recorded = (decision.hook, decision.requests.clone().into_owned());
                    if question != recorded {
                        return Err(Mismatch::new("what was asked", recorded, question));
                    }
                    return Ok(Some(decision));
                }
            }
        }
        match self.end {
            End::CutOff => Ok(None),
            End::Whole => Err(Mismatch::new(
                "what was asked",
                "nothing more",
                &now.question,
            )),
        }
    }

    fn answer(&mut self, now: &AskedNow<'_>) -> Result<Answer<Reply>, Mismatch> {
        let Some(decision) = self.next(now)? else {
            return Ok(Answer::unbound());
        };
        self.tally.decisions += 1;
        match &mut self.asked {
            Asked::Recorded => self.troupe.answer(now, &decision, self.tally)?,
            Asked::Rival(rival) => rival.answer(now, &decision),
        }
        Ok(decision.answer.into_owned())
    }
}

impl Policies for Player<'_> {
    fn ask(&mut self, now: &AskedNow<'_>) -> Answer<Reply> {
        if self.wrong.is_some() {
            return Answer::unbound();
        }
        self.answer(now).unwrap_or_else(|mismatch| {
            self.wrong = Some(mismatch);
            Answer::unbound()
        })
    }

    /// As many together as then.
    fn run(&self, _: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        let decisions = self.script.iter().find_map(|(_, scripted)| match scripted {
            Scripted::Decision(decision) => Some(decision),
            Scripted::Restarted(_) | Scripted::Saved(_) => None,
        });
        let same = decisions.filter(|decision| decision.hook == hook);
        same.map_or(requests.len(), |decision| {
            decision.requests.len().clamp(1, requests.len().max(1))
        })
    }
}

/// Takes the briefing that was made for a policy that wants `kinds` and was told up to `told`.
pub(super) fn take_briefing(
    briefings: &mut VecDeque<Briefing>,
    kinds: FeedKinds,
    told: u64,
) -> Option<Briefing> {
    let idx = briefings
        .iter()
        .position(|it| it.kinds() == kinds && it.told() == Some(told))?;
    briefings.remove(idx)
}
