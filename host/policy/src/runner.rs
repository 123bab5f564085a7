//! One running policy: [`Runner`] tells it, asks it, and keeps its state.
//!
//! The policy in force, a shadow on its thread, a replay and the test kit each ask a `Runner`. It
//! drops an instance that faulted, and has a fresh one made from the last state. How often a policy may fail and what follows from it is for the owner to say:
//! [`crate::PolicyHost`].
//!
//! # Invariants
//! 1. A policy that was started was configured once, and its description is within the limits
//!    (`policy::tests`).
//! 2. An instance that faulted is never asked again, and its successor is told everything before
//!    it is asked (`host::tests`).

mod elsewhere;
mod life;
mod snapshots;

use std::collections::VecDeque;
use std::fmt;

use pointsman_component::{Digest, Fault, Instance, Limits, LogLine, PolicyDescription};
use pointsman_core::rows::{Change, Extent};
use pointsman_core::{
    Answer, Asked, FaultKind, Feed, HookSet, Micros, Moment, Policies, PolicyFault, Question,
    Reply, RowKinds, View, Walk,
};

use crate::compare::{self, walks_beside};
use crate::host::{BriefedElsewhere, DumpedCall, FaultDump};
use crate::patience::Patience;
use crate::policy::{Briefing, PolicySource, Restored, Snapshot, StartError};
use crate::stats::Stopwatch;
use life::Life;
pub use life::Restarts;
use snapshots::Snapshots;

/// A source of the rows that a policy is told: a [`View`], or a script in tests.
pub(crate) trait Rows {
    /// Writes to `out` what the policy with `feed` must be told now of these kinds.
    fn changes(&self, feed: &mut Feed, kinds: RowKinds, out: &mut Vec<Change>) -> Extent;

    /// The ways of the requests of a routing question, where `reply` sends them; as far as rows alone
    /// tell, every executor has room.
    fn walks(&self, question: &Question<'_>, reply: &Reply) -> Vec<Walk> {
        let open = vec![Walk::default(); question.rows()];
        walks_beside(&open, reply)
    }
}

impl Rows for View<'_> {
    fn changes(&self, feed: &mut Feed, kinds: RowKinds, out: &mut Vec<Change>) -> Extent {
        feed.changes(self, kinds, out)
    }

    fn walks(&self, question: &Question<'_>, reply: &Reply) -> Vec<Walk> {
        compare::walks(self, question, reply)
    }
}

/// One running policy.
pub struct Runner {
    // Immutable.
    pub(crate) source: PolicySource,
    pub(crate) description: PolicyDescription,
    pub(crate) hooks: HookSet,
    pub(crate) explains: bool,
    // Owned state.
    pub(crate) feed: Feed,
    snapshots: Snapshots,
    counters: InstanceCounters,
    /// A buffer, empty between questions.
    changes: Vec<Change>,
    // Lifecycle.
    life: Life,
    restarts: Restarts,
    /// Times of the faults within the window.
    faults: VecDeque<Micros>,
    patience: Patience,
    output: Output,
}

/// Counts of a policy's instances and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceCounters {
    /// Instances so far, the present one included.
    pub generation: u32,
    /// Fresh instances that were told what there was before the question that they were made for.
    pub briefed: u64,
    /// Fuel of its last question, the changes told before it not included; 0 for a native one.
    pub fuel: u64,
    /// Most fuel of one question.
    pub fuel_max: u64,
    /// Calls that told it about changes.
    pub observes: u64,
    /// Snapshots it gave, those that were too large to keep included.
    pub snapshots: u64,
    /// Snapshots that were kept.
    pub snapshots_kept: u64,
}

/// A reply and its cost, with that of what the policy was told before the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The policy's answer.
    pub reply: Reply,
    /// Fuel of the question; absent: the policy is not metered.
    pub fuel: Option<u64>,
    /// Fuel of the changes that were told before it. To be told everything does not count: no
    /// question is the cause of that.
    pub told_fuel: u64,
    /// Wall-clock time of the question and of all that was told before it, in nanoseconds, for
    /// people only.
    pub nanos: u64,
}

/// A fresh instance that took the place of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Woken {
    /// Number of the instance, counted from 1.
    pub(crate) generation: u32,
    /// The state it was offered.
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) restored: Restored,
    /// True if it was told what there is before the question, as [`BriefedElsewhere`] says.
    pub(crate) was_briefed: bool,
}

/// Results of calls besides their answers, for the owner to fetch.
#[derive(Default)]
pub(crate) struct Output {
    pub(crate) woken: Option<Woken>,
    pub(crate) briefed: Option<BriefedElsewhere>,
    pub(crate) lines: Vec<LogLine>,
    pub(crate) lines_dropped: u64,
    /// Instances that faulted, or came and are not wanted any more: dropping one takes a while.
    pub(crate) retired: Vec<Box<dyn Instance>>,
}

/// The result of an attempt to take a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    /// Snapshots of this policy are no longer taken, or it has no instance.
    Skipped,
    /// The snapshot is its state now.
    Kept,
    /// The snapshot has this many bytes, more than are kept. No other one will be taken.
    TooLarge(usize),
}

// === impl Answered ===

impl Answered {
    /// Fuel of the question and of the changes that were told before it; absent: the policy is not
    /// metered.
    #[must_use]
    pub fn fuel_in_all(&self) -> Option<u64> {
        let fuel = self.fuel?;
        Some(fuel.saturating_add(self.told_fuel))
    }
}

// === impl Runner: starting ===

impl Runner {
    pub(crate) fn new(
        source: PolicySource,
        description: PolicyDescription,
        instance: Box<dyn Instance>,
    ) -> Self {
        Self {
            feed: Feed::new(description.needs),
            hooks: instance.hooks(),
            explains: instance.explains(),
            source,
            description,
            snapshots: Snapshots {
                last: None,
                are_taken: true,
            },
            counters: InstanceCounters {
                generation: 1,
                ..InstanceCounters::default()
            },
            changes: Vec::new(),
            life: Life::Up(instance),
            restarts: Restarts::AtTheQuestion,
            faults: VecDeque::new(),
            patience: Patience::default(),
            output: Output::default(),
        }
    }

    /// Offers the policy its predecessor's state, if that has the same name and state version.
    ///
    /// # Errors
    /// If it faults on the state and cannot be started again without.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<Restored, StartError> {
        if !self.is_kind_of(snapshot) {
            return Ok(Restored::Cold);
        }
        let fresh = self.source.warm(Some(&snapshot.state))?;
        self.life = Life::Up(fresh.instance);
        self.feed.reset();
        self.snapshots.last = match fresh.restored {
            Restored::Warm => Some(snapshot.state.clone()),
            Restored::Cold | Restored::Refused(_) | Restored::Faulted(_) => None,
        };
        Ok(fresh.restored)
    }

    /// Tells the policy what there is, so that it need not be told in a round. Call it after
    /// [`Self::restore`], which forgets it.
    ///
    /// # Errors
    /// If it faults.
    pub fn brief(&mut self, briefing: Briefing) -> Result<(), StartError> {
        let limits = *self.source.limits();
        let told = self
            .instance()
            .and_then(|instance| briefing.tell(instance, &limits, || true));
        told.map_err(|fault| self.source.blamed(fault))?;
        self.feed = briefing.feed;
        Ok(())
    }

    /// Sets the patience by which the runner backs off after faults, and where it restarts.
    pub(crate) fn join_host(&mut self, patience: Patience, restarts: Restarts) {
        self.patience = patience;
        self.restarts = restarts;
    }
}

// === impl Runner: reading ===

impl Runner {
    /// The name by which the operator knows the policy: that of its file, or without one its own.
    #[must_use]
    pub fn name(&self) -> &str {
        self.source.name().unwrap_or(&self.description.name)
    }

    /// The policy's description of itself.
    #[must_use]
    pub fn description(&self) -> &PolicyDescription {
        &self.description
    }

    /// The decisions it makes.
    #[must_use]
    pub fn hooks(&self) -> HookSet {
        self.hooks
    }

    /// Digest of its code.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.source.digest()
    }

    /// The source that its instances are made of.
    #[must_use]
    pub fn source(&self) -> &PolicySource {
        &self.source
    }

    /// Its position in the machine's changes; absent: it has not been told anything.
    #[must_use]
    pub fn told(&self) -> Option<u64> {
        self.feed.told()
    }

    /// Counts of its instances and calls.
    #[must_use]
    pub fn counters(&self) -> InstanceCounters {
        self.counters
    }

    /// Its last snapshot, or the state it was started with.
    #[must_use]
    pub fn state(&self) -> Option<&[u8]> {
        self.snapshots.last.as_deref()
    }

    /// Its last snapshot, for a successor.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        Some(Snapshot {
            name: self.description.name.clone(),
            state_version: self.description.state_version,
            state: self.snapshots.last.clone()?,
        })
    }

    /// Moves what it has logged to `out`; returns the number of lines that were dropped.
    pub fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        self.fetch_log();
        out.append(&mut self.output.lines);
        std::mem::take(&mut self.output.lines_dropped)
    }

    pub(crate) fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.output)
    }

    /// True while snapshots are taken.
    #[must_use]
    pub fn is_saved(&self) -> bool {
        self.snapshots.are_taken
    }

    /// Faults within the window of its patience.
    pub(crate) fn faults(&self) -> usize {
        self.faults.len()
    }

    /// The trace of `fault` for the policy's author. `policy` is its number.
    pub(crate) fn dump(
        &self,
        (policy, now): (u32, Micros),
        asked: DumpedCall,
        fault: &Fault,
    ) -> FaultDump {
        FaultDump {
            at: now,
            round: None,
            policy,
            name: self.name().to_owned(),
            version: self.description.version.clone(),
            digest: self.source.digest().to_string(),
            fingerprint: self.source.fingerprint().to_string(),
            settings: self.source.settings().to_owned(),
            generation: self.counters.generation,
            asked,
            mirror: None,
            kind: fault.kind,
            detail: fault.detail(),
            trace: fault.trace().to_owned(),
        }
    }

    fn is_kind_of(&self, snapshot: &Snapshot) -> bool {
        snapshot.name == self.description.name
            && snapshot.state_version == self.description.state_version
    }

    fn instance(&mut self) -> Result<&mut dyn Instance, Fault> {
        match &mut self.life {
            Life::Up(instance) => Ok(instance.as_mut()),
            Life::Down(_) | Life::Lent => Err(Fault::new(FaultKind::Start, "has no instance")),
        }
    }
}

// === impl Runner: asking ===

impl Runner {
    /// Tells the policy what has changed since the last question, then asks. Where it has no
    /// instance, a fresh one is made first.
    ///
    /// # Errors
    /// The fault that ended one of the calls. The instance is gone then.
    pub fn ask(&mut self, asked: &Asked<'_>) -> Result<Answered, Fault> {
        self.ask_with(&asked.view, asked.at, &asked.question)
    }

    /// [`Self::ask`] with rows from elsewhere.
    pub(crate) fn ask_with(
        &mut self,
        rows: &dyn Rows,
        at: Moment,
        question: &Question<'_>,
    ) -> Result<Answered, Fault> {
        if let Some(reply) = self.spare(question) {
            return Ok(Answered {
                reply,
                fuel: None,
                told_fuel: 0,
                nanos: 0,
            });
        }
        let kinds = self.kinds(question);
        let answered = self.put(at, question, |it, row_fuel| {
            it.tell((rows, kinds), at.now, row_fuel)
        });
        if let Ok(answered) = &answered {
            let needs = &self.description.needs;
            self.feed.named.by_reply(needs, question, &answered.reply);
        }
        self.settle(at.now, answered)
    }

    /// The answer to a question that has only one, which the policy is spared: the order of a
    /// single request. It is told what changed with its next question.
    pub(crate) fn spare(&mut self, question: &Question<'_>) -> Option<Reply> {
        let Question::Priority(requests) = question else {
            return None;
        };
        if self.description.orders_one || requests.len() > 1 {
            return None;
        }
        self.counters.fuel = 0;
        let order = requests.iter().map(|asked| asked.request);
        Some(Reply::Priority(order.collect()))
    }

    /// Asks a policy that is told `changes` by its owner instead of its own feed.
    pub(crate) fn ask_told(
        &mut self,
        (extent, changes): (Extent, &[Change]),
        at: Moment,
        question: &Question<'_>,
    ) -> Result<Answered, Fault> {
        let answered = self.put(at, question, |it, _| it.observe(at.now, extent, changes));
        self.settle(at.now, answered)
    }

    /// Has `tell` tell the policy what is new, which returns the fuel of that, then asks. Where
    /// there is no instance, a fresh one is made first; `tell` gets the fuel of a row that this one was
    /// told before.
    fn put(
        &mut self,
        at: Moment,
        question: &Question<'_>,
        tell: impl FnOnce(&mut Self, u64) -> Result<u64, Fault>,
    ) -> Result<Answered, Fault> {
        let row_fuel = self.wake()?;
        let stopwatch = Stopwatch::start();
        let told_fuel = tell(self, row_fuel)?;
        let instance = self.instance()?;
        let reply = instance.ask(at, question)?;
        Ok(Answered {
            fuel: instance.last_fuel(),
            reply,
            told_fuel,
            nanos: stopwatch.nanos(),
        })
    }

    /// Counts the fuel of the last call and fetches the log; after a fault drops the instance.
    fn settle<T>(&mut self, now: Micros, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Life::Up(instance) = &self.life {
            self.counters.fuel = instance.last_fuel().unwrap_or(0);
            self.counters.fuel_max = self.counters.fuel_max.max(self.counters.fuel);
        }
        self.fetch_log();
        if result.is_err() {
            self.back_off(now);
        }
        result.map_err(|fault| self.source.blamed(fault))
    }

    fn fetch_log(&mut self) {
        if let Life::Up(instance) = &mut self.life {
            self.output.lines_dropped += instance.take_log(&mut self.output.lines);
        }
    }

    /// The kinds of rows that the policy must know of to answer `question`.
    fn kinds(&self, question: &Question<'_>) -> RowKinds {
        self.description.needs.of(question.hook())
    }

    /// Brings its mirror up to date in rows of these kinds, at the pace of a fresh instance
    /// ([`Self::check_pace`]). Returns the fuel of [`Self::observe`].
    fn tell(
        &mut self,
        (rows, kinds): (&dyn Rows, RowKinds),
        now: Micros,
        row_fuel: u64,
    ) -> Result<u64, Fault> {
        let mut changes = std::mem::take(&mut self.changes);
        let extent = rows.changes(&mut self.feed, kinds, &mut changes);
        let checked = self.check_pace(row_fuel, changes.len());
        let told = checked.and_then(|()| self.observe(now, extent, &changes));
        // Its memory is kept, and not the rows: the machine copies a row that somebody holds before it changes it.
        changes.clear();
        self.changes = changes;
        told
    }

    /// Tells it `changes`, if there is anything to tell. Returns the fuel of that, which is 0 where
    /// the policy is told everything.
    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<u64, Fault> {
        let Life::Up(instance) = &mut self.life else {
            return Ok(0);
        };
        if changes.is_empty() && extent == Extent::SinceLast {
            return Ok(0);
        }
        self.counters.observes += 1;
        let limits = self.source.limits();
        let fuel = observe_metered(instance.as_mut(), limits, (now, extent), changes, || true)?;
        Ok(match extent {
            Extent::SinceLast => fuel,
            Extent::Everything => 0,
        })
    }
}

// === impl Policies ===

/// The runner as the only policy of a host: it answers for every hook it has, as number 0, however
/// often it has faulted.
impl Policies for Runner {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        if !self.hooks.contains(asked.question.hook()) {
            return Answer::unbound();
        }
        match Runner::ask(self, asked) {
            Ok(answered) => Answer::by(0, answered.reply),
            Err(fault) => Answer {
                faults: vec![PolicyFault {
                    policy: 0,
                    kind: fault.kind,
                    detail: fault.detail(),
                }],
                ..Answer::unbound()
            },
        }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("source", &self.source)
            .field("description", &self.description)
            .field("hooks", &self.hooks)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Tells an instance `changes`, in as many calls as its limits demand, `extent` with the first.
///
/// # Errors
/// The fault that ended one of the calls.
pub fn observe_all(
    instance: &mut dyn Instance,
    limits: &Limits,
    when: (Micros, Extent),
    changes: &[Change],
) -> Result<(), Fault> {
    observe_metered(instance, limits, when, changes, || true).map(drop)
}

/// [`observe_all`] as long as it `is_wanted`, which returns the fuel of all its calls.
pub(crate) fn observe_metered(
    instance: &mut dyn Instance,
    limits: &Limits,
    (now, extent): (Micros, Extent),
    changes: &[Change],
    is_wanted: impl Fn() -> bool,
) -> Result<u64, Fault> {
    let rows_max = limits.rows_at_once();
    let (first, rest) = changes.split_at(changes.len().min(rows_max));
    instance.observe(now, extent, first)?;
    let mut fuel = instance.last_fuel().unwrap_or(0);
    for chunk in rest.chunks(rows_max).take_while(|_| is_wanted()) {
        instance.observe(now, Extent::SinceLast, chunk)?;
        fuel = fuel.saturating_add(instance.last_fuel().unwrap_or(0));
    }
    Ok(fuel)
}
