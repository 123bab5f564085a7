//! One policy in the host: its instance and its feed, its faults and its fresh starts.
//!
//! # Invariants
//! 1. An instance that faulted is dropped at once, and its feed starts anew with the next one
//!    (`host::tests`).
//! 2. Nothing is asked before the back-off is over (`host::tests`).

use std::collections::VecDeque;

use pointsman_core as core;
use pointsman_core::rows::{Change, Extent};
use pointsman_core::{FaultKind, Feed, Hook, Micros, Moment, PolicyFault, Refusal, View};

use crate::host::chain::Arm;
use crate::host::dump::{DumpedCall, Dumps, FaultDump, MirrorDigest};
use crate::host::event::{Events, PolicyEventKind};
use crate::host::probation::{Booked, Record, Trial, Whole};
use crate::host::record::{Began, LastAsked};
use crate::host::retired::Scrap;
use crate::host::status::PolicyStats;
use crate::instance::{Fault, HookSet, Instance, LogLine, PolicyDescription};
use crate::limits::Patience;
use crate::policy::{PolicySource, Restored, Snapshot, StartedPolicy, observe_all};
use crate::stats::Stopwatch;

/// Where a policy's rows come from: a [`View`], or a script in tests.
pub(crate) trait Rows {
    /// Writes to `out` what the policy with `feed` must be told now.
    fn changes(&self, feed: &mut Feed, out: &mut Vec<Change>) -> Extent;
}

impl Rows for View<'_> {
    fn changes(&self, feed: &mut Feed, out: &mut Vec<Change>) -> Extent {
        feed.changes(self, out)
    }
}

/// What is asked, but for its arguments.
pub(crate) struct Question<'a> {
    pub(crate) asked: core::Question<'a>,
    pub(crate) at: Moment,
    pub(crate) rows: &'a dyn Rows,
    pub(crate) arm: Arm,
}

/// What all policies share while one is asked.
pub(crate) struct Shared {
    pub(crate) patience: Patience,
    pub(crate) events: Events,
    pub(crate) dumps: Dumps,
    pub(crate) scrap: Scrap,
    /// Kept between questions, like the next.
    pub(crate) changes: Vec<Change>,
    pub(crate) lines: Vec<LogLine>,
    /// Of the question that is asked, or was last.
    pub(crate) last: LastAsked,
}

/// Passes a question's arguments on.
pub(crate) type Ask<'a, R> = &'a mut dyn FnMut(&mut dyn Instance) -> Result<R, Fault>;

/// What came of asking one policy.
pub(crate) enum Asked<R> {
    Answered(R),
    Faulted(PolicyFault),
    /// It faulted before, and it is too early to ask again.
    TooEarly,
}

/// One policy.
pub(crate) struct Member {
    // Immutable.
    pub(crate) number: u32,
    pub(crate) source: PolicySource,
    pub(crate) description: PolicyDescription,
    pub(crate) hooks: HookSet,
    pub(crate) explains: bool,
    // Owned state.
    pub(crate) feed: Feed,
    pub(crate) stats: PolicyStats,
    /// What a successor is held against.
    pub(crate) record: Record,
    /// While it is on probation.
    pub(crate) trial: Option<Trial>,
    /// Hooks that went to others when it took the rest from that policy.
    pub(crate) gave_up: Option<(u32, HookSet)>,
    state: Option<Vec<u8>>,
    saving: Saving,
    /// Those that were too large to keep as well.
    pub(super) snapshots_given: u64,
    // Lifecycle.
    life: Life,
    /// When it faulted, within the window.
    faults: VecDeque<Micros>,
    pub(crate) tenure: Tenure,
}

enum Life {
    Up(Box<dyn Instance>),
    Down {
        until: Micros,
    },
    /// A shadow's thread has it.
    Lent,
}

/// Whether snapshots are taken.
enum Saving {
    After { questions: u32 },
    Ended,
}

/// Whether a policy has ever held a hook.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tenure {
    Candidate,
    Bound,
}

impl Member {
    pub(crate) fn new(number: u32, policy: StartedPolicy, patience: &Patience) -> Self {
        Self {
            number,
            feed: policy.feed,
            source: policy.source,
            description: policy.description,
            hooks: policy.hooks,
            explains: policy.explains,
            stats: PolicyStats {
                generation: 1,
                ..PolicyStats::default()
            },
            record: Record::default(),
            trial: None,
            gave_up: None,
            state: policy.state,
            saving: Saving::After {
                questions: patience.snapshot_every,
            },
            snapshots_given: 0,
            life: Life::Up(policy.instance),
            faults: VecDeque::new(),
            tenure: Tenure::Candidate,
        }
    }

    /// Until when it is not asked, if it is down.
    pub(crate) fn down_until(&self) -> Option<Micros> {
        match self.life {
            Life::Up(_) | Life::Lent => None,
            Life::Down { until } => Some(until),
        }
    }

    /// Faults in the window.
    pub(crate) fn faults(&self) -> usize {
        self.faults.len()
    }

    /// Tells it what has changed, then asks.
    pub(crate) fn ask<R>(
        &mut self,
        shared: &mut Shared,
        question: &Question<'_>,
        ask: Ask<'_, R>,
    ) -> Asked<R> {
        let now = question.at.now;
        match self.life {
            Life::Down { until } if now < until => return Asked::TooEarly,
            Life::Lent => return Asked::TooEarly,
            Life::Up(_) | Life::Down { .. } => {}
        }
        let told = self
            .wake(shared, now)
            .and_then(|()| self.tell(shared, question.rows, now));
        let stopwatch = Stopwatch::start();
        let answer = told.and_then(|()| ask(self.instance()?));
        let nanos = stopwatch.nanos();
        self.count_fuel();
        self.fetch_log(shared, now);
        match answer {
            Ok(value) => {
                self.book(question, nanos);
                Asked::Answered(value)
            }
            Err(fault) => {
                shared.dumps.keep(|| FaultDump {
                    round: Some(question.at.round),
                    mirror: Some(MirrorDigest::of_rows(question.rows, self.description.feed)),
                    ..self.dump(now, question.asked.into(), &fault)
                });
                Asked::Faulted(self.fault(fault, now, shared))
            }
        }
    }

    /// Counts an answered question.
    fn book(&mut self, question: &Question<'_>, nanos: u64) {
        let hook = question.asked.hook();
        let fuel = match &self.life {
            Life::Up(instance) => instance.last_fuel(),
            Life::Down { .. } | Life::Lent => None,
        };
        self.stats.answers.count(hook);
        self.stats.latency.count(hook, nanos);
        if let Some(fuel) = fuel {
            self.stats.fuel.count(hook, fuel);
        }
        let booked = Booked {
            hook,
            rows: rows_of(&question.asked),
            fuel,
        };
        self.record.book(booked);
        if let Some(trial) = &mut self.trial {
            trial.book(booked);
        }
    }

    /// Counts what the interlock refused.
    pub(crate) fn count_refusal(&mut self, hook: Hook, refusal: &Refusal) {
        self.stats.refusals.count(hook);
        self.stats.refusal_last = Some(*refusal);
        let whole = match (refusal.request, refusal.executor) {
            (None, None) => Whole::Answer,
            (Some(_), _) | (None, Some(_)) => Whole::Action,
        };
        let rows = self.record.book_refusal(hook, whole);
        if let Some(trial) = &mut self.trial {
            trial.book_refusal(rows);
        }
    }

    /// Makes a fresh instance where the last one is gone.
    fn wake(&mut self, shared: &mut Shared, now: Micros) -> Result<(), Fault> {
        if matches!(self.life, Life::Up(_)) {
            return Ok(());
        }
        let fresh = self.source.warm(self.state.as_deref())?;
        self.stats.generation = self.stats.generation.saturating_add(1);
        shared.last.began.push(Began {
            policy: self.number,
            generation: self.stats.generation,
            state: self.state.clone(),
        });
        if matches!(fresh.restored, Restored::Refused(_) | Restored::Faulted(_)) {
            self.state = None;
        }
        self.life = Life::Up(fresh.instance);
        self.feed.reset();
        let kind = PolicyEventKind::Restarted {
            generation: self.stats.generation,
            restored: fresh.restored,
        };
        shared.events.push(now, self.number, kind);
        Ok(())
    }

    /// Brings its mirror up to date.
    fn tell(&mut self, shared: &mut Shared, rows: &dyn Rows, now: Micros) -> Result<(), Fault> {
        let changes = &mut shared.changes;
        let extent = rows.changes(&mut self.feed, changes);
        let Life::Up(instance) = &mut self.life else {
            return Ok(());
        };
        if changes.is_empty() && extent == Extent::SinceLast {
            return Ok(());
        }
        self.stats.observes += 1;
        let limits = self.source.limits();
        observe_all(instance.as_mut(), limits, (now, extent), changes)
    }

    /// Tells it what it has not been told yet, saves its state, and forgets what it was told.
    pub(crate) fn renew(
        &mut self,
        shared: &mut Shared,
        rows: &dyn Rows,
        now: Micros,
    ) -> Result<(), Fault> {
        if matches!(self.life, Life::Down { .. }) {
            return Ok(());
        }
        if let Err(fault) = self.tell(shared, rows, now) {
            self.fault(fault.clone(), now, shared);
            return Err(fault);
        }
        self.save(shared, now);
        self.feed.reset();
        Ok(())
    }

    fn instance(&mut self) -> Result<&mut dyn Instance, Fault> {
        match &mut self.life {
            Life::Up(instance) => Ok(instance.as_mut()),
            Life::Down { .. } | Life::Lent => {
                Err(Fault::new(FaultKind::Start, "there is no instance"))
            }
        }
    }

    fn count_fuel(&mut self) {
        if let Life::Up(instance) = &self.life {
            self.stats.fuel_last = instance.last_fuel().unwrap_or(0);
            self.stats.fuel_max = self.stats.fuel_max.max(self.stats.fuel_last);
        }
    }

    /// Turns what it has logged into events.
    fn fetch_log(&mut self, shared: &mut Shared, now: Micros) {
        let Life::Up(instance) = &mut self.life else {
            return;
        };
        let dropped = instance.take_log(&mut shared.lines);
        let lines = shared.lines.drain(..);
        shared.events.log(now, self.number, lines, dropped);
    }

    /// Drops the instance and backs off.
    fn fault(&mut self, fault: Fault, now: Micros, shared: &mut Shared) -> PolicyFault {
        self.back_off(fault.kind, now, shared);
        PolicyFault {
            policy: self.number,
            kind: fault.kind,
            detail: fault.detail,
        }
    }

    /// Counts a strike as a fault. What it knows is not trusted any more either: its instance
    /// goes, and the next one is told everything.
    pub(crate) fn strike(&mut self, now: Micros, shared: &mut Shared) {
        self.back_off(FaultKind::Struck, now, shared);
    }

    fn back_off(&mut self, kind: FaultKind, now: Micros, shared: &mut Shared) {
        let patience = shared.patience;
        while let Some(first) = self.faults.front()
            && now.since(*first).0 >= patience.window_micros
        {
            self.faults.pop_front();
        }
        self.faults.push_back(now);
        *self.stats.faults.entry(kind).or_default() += 1;
        if let Some(trial) = &mut self.trial {
            trial.book_fault();
        }
        let back_off = Micros(patience.back_off(self.faults.len()));
        let until = now.after(back_off);
        if let Life::Up(instance) = self.replace_life(Life::Down { until }) {
            shared.scrap.put_instance(instance);
        }
    }

    fn replace_life(&mut self, life: Life) -> Life {
        std::mem::replace(&mut self.life, life)
    }

    /// Lets a fresh instance take its place, with `state`, or with none, at the next question.
    pub(crate) fn rewind(&mut self, state: Option<Vec<u8>>, now: Micros, scrap: &mut Scrap) {
        self.state = state;
        match self.replace_life(Life::Down { until: now }) {
            Life::Up(instance) => scrap.put_instance(instance),
            before @ (Life::Down { .. } | Life::Lent) => self.life = before,
        }
    }

    // === Shadow ===

    /// Gives its instance away, if it has one: it is asked elsewhere.
    pub(crate) fn lend(&mut self) -> Option<Box<dyn Instance>> {
        match self.replace_life(Life::Lent) {
            Life::Up(instance) => Some(instance),
            Life::Down { .. } | Life::Lent => None,
        }
    }

    /// It is asked here again, by way of a fresh instance: the one that was lent may be in a call.
    pub(crate) fn take_back(&mut self, now: Micros) {
        if matches!(self.life, Life::Lent) {
            self.life = Life::Down { until: now };
        }
    }

    /// Lets its next instance begin with `snapshot`, if it has no state and this is of its kind;
    /// whether it is.
    pub(crate) fn begin_with(&mut self, snapshot: Snapshot) -> bool {
        let is_its_kind = snapshot.name == self.description.name
            && snapshot.state_version == self.description.state_version;
        if is_its_kind {
            self.state.get_or_insert(snapshot.state);
        }
        is_its_kind
    }

    /// A copy with its last saved state that has been told everything.
    pub(crate) fn copy_told(
        &self,
        rows: &dyn Rows,
        now: Micros,
    ) -> Result<Box<dyn Instance>, Fault> {
        let mut copy = self.source.warm(self.state.as_deref())?.instance;
        let mut changes = Vec::new();
        let extent = rows.changes(&mut Feed::new(self.description.feed), &mut changes);
        observe_all(copy.as_mut(), self.source.limits(), (now, extent), &changes)?;
        Ok(copy)
    }

    // === Snapshots ===

    /// Counts an answered question, and saves the state when it is time.
    pub(crate) fn save_in_turn(&mut self, shared: &mut Shared, now: Micros) {
        let Saving::After { questions } = &mut self.saving else {
            return;
        };
        *questions = questions.saturating_sub(1);
        if *questions == 0 {
            *questions = shared.patience.snapshot_every;
            self.save(shared, now);
        }
    }

    /// Saves the state. A policy that faults at it, or has more than is kept, is not asked for
    /// a snapshot again.
    pub(crate) fn save(&mut self, shared: &mut Shared, now: Micros) {
        if matches!(self.saving, Saving::Ended) {
            return;
        }
        let Life::Up(instance) = &mut self.life else {
            return;
        };
        let max = self.source.limits().snapshot_bytes;
        let given = instance.snapshot();
        self.snapshots_given += u64::from(given.is_ok());
        let why = match given {
            Ok(state) if u64::try_from(state.len()).is_ok_and(|bytes| bytes <= max) => {
                self.stats.snapshots += 1;
                self.state = Some(state);
                return;
            }
            Ok(state) => format!("{} bytes, {max} are allowed", state.len()),
            Err(fault) => {
                let kind = PolicyEventKind::Faulted(fault.clone());
                shared.events.push(now, self.number, kind);
                shared
                    .dumps
                    .keep(|| self.dump(now, DumpedCall::Snapshot, &fault));
                self.fault(fault, now, shared).detail
            }
        };
        self.saving = Saving::Ended;
        let kind = PolicyEventKind::SnapshotsEnded { why };
        shared.events.push(now, self.number, kind);
    }

    /// Whether it is asked for snapshots.
    pub(super) fn saves(&self) -> bool {
        matches!(self.saving, Saving::After { .. })
    }

    /// It is not asked for a snapshot again.
    pub(super) fn end_saving(&mut self) {
        self.saving = Saving::Ended;
    }

    /// Its last snapshot, or what it was started with.
    pub(crate) fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// Its last snapshot, for a successor.
    pub(crate) fn handover(&self) -> Option<Snapshot> {
        Some(Snapshot {
            name: self.description.name.clone(),
            state_version: self.description.state_version,
            state: self.state.clone()?,
        })
    }
}

/// How many rows a question passes.
fn rows_of(question: &core::Question<'_>) -> u64 {
    let rows = match question {
        core::Question::Admission { arrivals, .. } => arrivals.len(),
        core::Question::Priority(requests) => requests.len(),
        core::Question::Routing(requests) => requests.len(),
        core::Question::Preemption(_) | core::Question::Budget { .. } => 1,
    };
    u64::try_from(rows).unwrap_or(u64::MAX)
}
