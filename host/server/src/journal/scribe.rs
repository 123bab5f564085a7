//! Who writes the journal: [`Scribe`], owned by whoever drives the machine.
//!
//! # Invariants
//! 1. What a replay cannot know by itself stands before the decision that depends on it: who is
//!    new, with code and state; who began anew, and with which state.
//! 2. After a keyframe every policy is told everything anew, here as in a replay that begins there.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pointsman_core::rows::FeedKinds;
use pointsman_core::{
    Answer, Asked, Author, Input, Machine, Micros, Policies, Recorder, Reply, Round, Sink, Stamped,
};
use pointsman_journal::{
    Blob, Bound, Briefed, Chain, Decision, Entry, JournalMonitor, JournalWriter, Keyframe,
    PolicyEvent, Restarted, Saved, crc32,
};
use pointsman_policy::{self as policy, Began, Briefing, PolicyEventKind, PolicyHost};

use super::roster::{self, Whole};

/// Writes a run down.
#[derive(Debug)]
pub struct Scribe {
    writer: JournalWriter,
    /// Snapshots that each policy had given when it was last looked at.
    seen: BTreeMap<u32, u64>,
    /// Who was asked, as of the last entry that says so.
    chains: Vec<Chain>,
}

impl Scribe {
    /// One that writes with `writer`.
    #[must_use]
    pub fn new(writer: JournalWriter) -> Self {
        Self {
            writer,
            seen: BTreeMap::new(),
            chains: Vec::new(),
        }
    }

    /// Watches the journal.
    #[must_use]
    pub fn monitor(&self) -> JournalMonitor {
        self.writer.monitor()
    }

    /// When [`Self::turn`] is to be called at the latest.
    #[must_use]
    pub fn flush_at(&self) -> Option<Micros> {
        self.writer.flush_at()
    }

    /// A turn of whoever drives the machine ends.
    pub fn turn(&mut self, now: Micros, machine: &Machine, host: &mut PolicyHost) {
        if self.writer.is_keyframe_due() && machine.is_polled() {
            self.keyframe(now, machine, host);
        }
        self.writer.turn(now);
    }

    /// Writes all that a replay needs to begin here.
    fn keyframe(&mut self, now: Micros, machine: &Machine, host: &mut PolicyHost) {
        // A machine that cannot be written down makes a keyframe that no replay begins with.
        let blob = Blob::of(machine).unwrap_or_default();
        host.renew(now, &machine.view());
        self.look(host);
        self.chains = roster::chains(host);
        self.writer.write_keyframe(Keyframe {
            now,
            round: machine.round(),
            machine: blob,
            roster: roster::roster(host, Whole::All),
        });
    }

    /// Notes how many snapshots each policy has given.
    fn look(&mut self, host: &PolicyHost) {
        let runners = host.runners();
        self.seen = runners
            .map(|(policy, runner)| (policy, runner.counters().snapshots))
            .collect();
    }

    /// Something was done to the policies between two rounds: notes who answers from now on, and
    /// whose state was taken.
    pub fn policies_changed(&mut self, now: Micros, host: &PolicyHost) {
        let known: Vec<u32> = self.seen.keys().copied().collect();
        let chains = roster::chains(host);
        if chains != self.chains || !host.numbers().eq(known.iter().copied()) {
            let roster = roster::roster(host, Whole::AllBut(&known));
            self.writer.write(&Entry::Bound(Bound { now, roster }));
            self.chains = chains;
        }
        for policy in known {
            self.saved(now, host, policy);
        }
        self.look(host);
    }

    /// Something happened to a policy.
    pub fn policy_event(&mut self, event: &policy::PolicyEvent) {
        let what = match &event.kind {
            PolicyEventKind::Faulted(_) => "faulted",
            PolicyEventKind::Restarted { .. } => "restarted",
            PolicyEventKind::SnapshotsEnded { .. } => SNAPSHOTS_ENDED,
            PolicyEventKind::Quarantined { .. } => "quarantined",
            PolicyEventKind::OnProbation => "on-probation",
            PolicyEventKind::Proven { .. } => "proven",
            PolicyEventKind::RolledBack { .. } => "rolled-back",
            PolicyEventKind::Struck { .. } => "struck",
            PolicyEventKind::Ejected(_) => "ejected",
            PolicyEventKind::ShadowEnded { .. } => "shadow-ended",
            PolicyEventKind::Shut(_) => "shut",
            PolicyEventKind::Retired => "retired",
            PolicyEventKind::Logged(_) => "logged",
            PolicyEventKind::LogDropped(_) => "log-dropped",
            _ => "other",
        };
        self.writer.write(&Entry::PolicyEvent(PolicyEvent {
            now: event.at,
            policy: event.policy,
            what: what.to_owned(),
            detail: format!("{:?}", event.kind),
        }));
    }

    /// Everything was gathered for a policy that may be taken in later.
    pub fn briefed(&mut self, now: Micros, briefing: &Briefing) {
        let kinds: FeedKinds = briefing.kinds();
        let told = briefing.told().unwrap_or_default();
        self.writer
            .write(&Entry::Briefed(Briefed { now, kinds, told }));
    }

    /// Notes that a policy's state was taken, as often as it was.
    fn saved(&mut self, now: Micros, host: &PolicyHost, policy: u32) {
        let (Some(runner), Some(seen)) = (host.runner(policy), self.seen.get_mut(&policy)) else {
            return;
        };
        let snapshots = runner.counters().snapshots;
        let times = snapshots.saturating_sub(*seen);
        *seen = snapshots;
        let state = runner.state().unwrap_or_default();
        for _ in 0..times {
            self.writer.write(&Entry::Saved(Saved {
                now,
                policy,
                bytes: u64::try_from(state.len()).unwrap_or(u64::MAX),
                crc32: crc32(state),
            }));
        }
    }

    /// Notes who began anew to answer the last question.
    fn began(&mut self, began: &[Began]) {
        for Began {
            policy,
            generation,
            state,
        } in began
        {
            self.writer.write(&Entry::Restarted(Restarted {
                policy: *policy,
                generation: *generation,
                state: state.clone().map(Blob),
            }));
        }
    }
}

/// No more of a policy's state is taken, at a keyframe neither.
pub(super) const SNAPSHOTS_ENDED: &str = "snapshots-ended";

impl Recorder for Scribe {
    fn input(&mut self, now: Micros, input: &Input) {
        let input = Cow::Borrowed(input);
        self.writer.write(&Entry::Input { now, input });
    }

    fn round(&mut self, now: Micros, round: Round) {
        self.writer.write(&Entry::Round { now, round });
    }

    fn fact(&mut self, stamped: &Stamped) {
        self.writer.write(&Entry::Fact(Cow::Borrowed(stamped)));
    }
}

impl Sink<PolicyHost> for Scribe {
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        let hook = asked.question.hook();
        let answer = host.ask(asked);
        let last = host.last_asked();
        self.began(&last.began);
        let counters = last.counters.unwrap_or_default();
        self.writer.write(&Entry::Decision(Decision {
            hook,
            requests: Cow::Owned(asked.question.requests()),
            answer: Cow::Borrowed(&answer),
            generation: counters.generation,
            fuel: counters.fuel,
        }));
        if let Author::Policy(policy) = answer.author {
            self.saved(asked.at.now, host, policy);
        }
        answer
    }
}

/// For a tap that lasts a round.
impl Sink<&mut PolicyHost> for &mut Scribe {
    fn ask(&mut self, host: &mut &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        Sink::<PolicyHost>::ask(&mut **self, host, asked)
    }
}
