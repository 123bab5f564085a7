//! The recorder of a run: [`JournalRecorder`], owned by the driver of a machine.
//!
//! # Invariants
//! 1. Facts that a replay cannot find out by itself come before the decision that depends on them:
//!    new policies with code and state, and fresh instances with the state they were offered and with
//!    what they were told elsewhere (`tests/tests/operating/replay.rs`).
//! 2. After a keyframe every policy is told everything anew, here and in a replay that begins
//!    there.
//! 3. What policies log, which no replay reads, takes no more of a journal than all the rest; the
//!    lines that are left out are counted in it (`a_noisy_log_is_cut_and_what_is_cut_is_counted`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use pointsman_core::{
    Answer, Asked, Author, Input, Machine, Micros, Policies, Recorder, Reply, Round, Stamped,
};
use pointsman_journal::{
    Blob, Bound, Briefed, Chain, Decision, Entry, JournalMonitor, JournalWriter, Keyframe,
    PolicyEventEntry, Restarted, Saved, crc32,
};
use pointsman_policy::{
    Began, BriefedElsewhere, Briefing, PolicyEvent, PolicyEventKind, PolicyHost, PolicyRecorder,
};

use crate::roster::{self, InFull};

/// Records everything that a replay of a run needs.
#[derive(Debug)]
pub struct JournalRecorder {
    writer: JournalWriter,
    /// Number of snapshots that each policy had given when it was last looked at.
    seen: BTreeMap<u32, u64>,
    /// The chains in the last entry that has them.
    chains: Vec<Chain>,
    /// Lines of each policy's log that found no room since the last round.
    unlogged: BTreeMap<u32, u64>,
}

impl JournalRecorder {
    /// Makes a recorder that writes with `writer`.
    #[must_use]
    pub fn new(writer: JournalWriter) -> Self {
        Self {
            writer,
            seen: BTreeMap::new(),
            chains: Vec::new(),
            unlogged: BTreeMap::new(),
        }
    }

    /// A handle to watch the journal from any thread.
    #[must_use]
    pub fn monitor(&self) -> JournalMonitor {
        self.writer.monitor()
    }

    /// Writes a keyframe, with all that a replay needs to begin here.
    fn keyframe(&mut self, now: Micros, machine: &Machine, host: &mut PolicyHost) {
        // If the machine cannot be serialised, no replay can begin with this keyframe.
        let blob = Blob::of(machine).unwrap_or_default();
        host.renew(now, &machine.view());
        self.look(host);
        self.chains = roster::chains(host);
        for component in roster::components(host, InFull::All) {
            self.writer.bring(component);
        }
        self.writer.write_keyframe(Keyframe {
            now,
            round: machine.round(),
            machine: blob,
            roster: roster::roster(host, InFull::All),
        });
    }

    /// Notes the number of snapshots that each policy has given.
    fn look(&mut self, host: &PolicyHost) {
        let runners = host.runners();
        self.seen = runners
            .map(|(policy, runner)| (policy, runner.counters().snapshots))
            .collect();
    }

    /// Records the snapshots that a policy has given since it was last looked at.
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

    /// Records the fresh instances that were made to answer the last question. Those that were told
    /// what there is elsewhere are recorded already.
    fn began(&mut self, began: &[Began]) {
        for began in began.iter().filter(|began| !began.was_briefed) {
            self.restarted(began.policy, began.generation, began.state.as_deref());
        }
    }

    /// Records the fresh instances that are told elsewhere, from the last question on, what there is.
    fn told_elsewhere(&mut self, now: Micros, briefed: &[(u32, BriefedElsewhere)]) {
        for (policy, briefed) in briefed {
            self.restarted(*policy, briefed.generation, briefed.state.as_deref());
            self.writer.write(&Entry::Briefed(Briefed {
                now,
                needs: briefed.needs,
                told: briefed.told,
            }));
        }
    }

    fn restarted(&mut self, policy: u32, generation: u32, state: Option<&[u8]>) {
        self.writer.write(&Entry::Restarted(Restarted {
            policy,
            generation,
            state: state.map(|state| Blob(state.to_vec())),
        }));
    }

    /// Records the number of lines that found no room.
    fn tell_unlogged(&mut self, now: Micros) {
        for (policy, lines) in std::mem::take(&mut self.unlogged) {
            self.writer.write(&Entry::PolicyEvent(PolicyEventEntry {
                now,
                policy,
                what: LOG_DROPPED.to_owned(),
                detail: format!("{lines} lines that the journal has no room for"),
            }));
        }
    }
}

/// Number of lines of a log that an event stands for; absent: it is no such event.
fn lines(kind: &PolicyEventKind) -> Option<u64> {
    if let PolicyEventKind::LogDropped(lines) = kind {
        return Some(*lines);
    }
    matches!(kind, PolicyEventKind::Logged(_)).then_some(1)
}

/// Name of the event that tells how many lines a log lacks.
const LOG_DROPPED: &str = "log-dropped";

/// Name of the event after which a policy's state is no longer saved, not even at a keyframe.
pub(crate) const SNAPSHOTS_ENDED: &str = "snapshots-ended";

impl Recorder for JournalRecorder {
    fn input(&mut self, now: Micros, input: &Input) {
        let input = Cow::Borrowed(input);
        self.writer.write(&Entry::Input { now, input });
    }

    fn round(&mut self, now: Micros, round: Round) {
        self.writer.write(&Entry::Round { now, round });
        self.tell_unlogged(now);
    }

    fn fact(&mut self, stamped: &Stamped) {
        self.writer.write(&Entry::Fact(Cow::Borrowed(stamped)));
    }
}

impl PolicyRecorder for JournalRecorder {
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = host.ask(asked);
        let last = host.last_asked();
        self.told_elsewhere(asked.at.now, &last.briefed);
        self.began(&last.began);
        let counters = last.counters.unwrap_or_default();
        self.writer.write(&Entry::Decision(Decision {
            hook: asked.question.hook(),
            requests: asked.question.requests().collect(),
            answer: Cow::Borrowed(&answer),
            generation: counters.generation,
            fuel: counters.fuel,
        }));
        if let Author::Policy(policy) = answer.author {
            self.saved(asked.at.now, host, policy);
        }
        answer
    }

    fn policies_changed(&mut self, now: Micros, host: &PolicyHost) {
        let known: Vec<u32> = self.seen.keys().copied().collect();
        let chains = roster::chains(host);
        if chains != self.chains || !host.numbers().eq(known.iter().copied()) {
            let roster = roster::roster(host, InFull::AllBut(&known));
            for component in roster::components(host, InFull::AllBut(&known)) {
                self.writer.bring(component);
            }
            self.writer.write(&Entry::Bound(Bound { now, roster }));
            self.chains = chains;
        }
        for policy in known {
            self.saved(now, host, policy);
        }
        self.look(host);
    }

    fn policy_event(&mut self, event: &PolicyEvent) {
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
            PolicyEventKind::Closed(_) => "closed",
            PolicyEventKind::Retired => "retired",
            PolicyEventKind::Logged(_) => "logged",
            PolicyEventKind::LogDropped(_) => LOG_DROPPED,
            _ => "other",
        };
        let entry = Entry::PolicyEvent(PolicyEventEntry {
            now: event.at,
            policy: event.policy,
            what: what.to_owned(),
            detail: event.kind.to_string(),
        });
        match lines(&event.kind) {
            None => self.writer.write(&entry),
            Some(_) if self.writer.write_spare(&entry) => {}
            Some(lines) => *self.unlogged.entry(event.policy).or_default() += lines,
        }
    }

    fn briefed(&mut self, now: Micros, briefing: &Briefing) {
        let needs = *briefing.needs();
        let told = briefing.told().unwrap_or_default();
        self.writer
            .write(&Entry::Briefed(Briefed { now, needs, told }));
    }

    fn turn(&mut self, now: Micros, machine: &Machine, host: &mut PolicyHost) {
        if self.writer.is_keyframe_due() && machine.is_polled() {
            self.keyframe(now, machine, host);
        }
        self.writer.turn(now);
    }

    fn flush_at(&self) -> Option<Micros> {
        self.writer.flush_at()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pointsman_component::{LogLevel, LogLine};
    use pointsman_core::{Config, Hook};
    use pointsman_journal::{Folder, JournalReader, JournalSettings, RunInfo};
    use pointsman_policy::Patience;

    use super::*;

    fn logged() -> PolicyEvent {
        let line = LogLine {
            level: LogLevel::Info,
            message: "x".repeat(1000),
        };
        PolicyEvent {
            at: Micros(1),
            policy: 7,
            kind: PolicyEventKind::Logged(line),
        }
    }

    /// A recorder of a run that has begun, whose journal is in this folder.
    fn begun(place: &Path) -> JournalRecorder {
        let info = RunInfo {
            pointsman: String::new(),
            wasmtime: String::new(),
            started_unix_ms: 0,
        };
        let folder = Folder::open(place).unwrap();
        let writer = JournalWriter::start(folder, info, JournalSettings::default()).unwrap();
        let mut recorder = JournalRecorder::new(writer);
        let machine = Machine::new(Config::default()).unwrap();
        let mut host = PolicyHost::new(Patience::default());
        recorder.turn(Micros(0), &machine, &mut host);
        recorder
    }

    #[test]
    fn a_hook_that_is_closed_is_recorded_in_the_word_of_the_sidecar() {
        let place = tempfile::tempdir().unwrap();
        let mut recorder = begun(place.path());
        recorder.policy_event(&PolicyEvent {
            at: Micros(1),
            policy: 7,
            kind: PolicyEventKind::Closed(Hook::Admission),
        });
        drop(recorder);
        let mut told = Vec::new();
        for located in JournalReader::open(place.path()).unwrap() {
            if let Entry::PolicyEvent(event) = located.unwrap().entry {
                told.push((event.policy, event.what));
            }
        }
        assert_eq!(told, [(7, "closed".to_owned())]);
    }

    #[test]
    fn a_noisy_log_is_cut_and_what_is_cut_is_counted() {
        let place = tempfile::tempdir().unwrap();
        let mut recorder = begun(place.path());
        for round in 1..=2 {
            recorder.round(Micros(round), Round(round));
            (0..1000).for_each(|_| recorder.policy_event(&logged()));
        }
        recorder.round(Micros(3), Round(3));
        drop(recorder);
        let (mut kept, mut cut) = (0, Vec::new());
        for located in JournalReader::open(place.path()).unwrap() {
            let entry = located.unwrap().entry;
            assert!(!matches!(entry, Entry::Gap(_)), "a replay misses nothing");
            let Entry::PolicyEvent(event) = entry else {
                continue;
            };
            if event.what == "logged" {
                kept += 1;
            } else {
                cut.push((event.policy, event.detail));
            }
        }
        let said = |lines| (7, format!("{lines} lines that the journal has no room for"));
        assert!((50..64).contains(&kept), "{kept}");
        assert_eq!(cut, [said(1000 - kept), said(1000)]);
    }
}
