//! Shadows: policies that are asked the same as the policy in force, only to compare the answers.
//!
//! A [`Shadow`] is the driver's side: it puts the question, the changes since the last one and the
//! answer in force into a bounded channel, and goes on. The worker, on a thread of its own, tells
//! its instance the changes, asks it, compares and counts.
//!
//! # Invariants
//! 1. The driver waits for no shadow: a question that finds no room is dropped and counted, and so
//!    are the next ones until the shadow has caught up
//!    (`a_shadow_that_is_stuck_drops_and_counts_and_changes_no_decision`).
//! 2. A shadow is told the same as if it were in force: its feed stays in place over dropped
//!    questions, and rows that its own answers name are told again
//!    (`a_copy_of_the_policy_in_force_agrees_with_it_in_every_decision`).
//!
//! # Bounds
//! [`QUESTIONS_MAX`] questions wait. The driver copies each change once, as for any feed; a dropped
//! question costs it two counters.
//!
//! # Not here
//! The hooks of a shadow, and its promotion (`host::shadow`).

mod output;
mod report;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use pointsman_core::rows::{Change, Extent};
use pointsman_core::{Feed, HookSet, Moment, Question, Reply, Walk};

use crate::host::member::Asking;
use crate::patience::Patience;
use crate::runner::Runner;
pub(crate) use output::ShadowOutput;
pub use report::{Agreement, DecisionText, Disagreement, ShadowReport, ShadowState};
use worker::Worker;

/// Number of questions that wait for a shadow, the current one included.
const QUESTIONS_MAX: u32 = 64;

/// The driver's side of a shadow.
pub(crate) struct Shadow {
    pub(crate) number: u32,
    pub(crate) hooks: HookSet,
    feed: Feed,
    inbox: SyncSender<ShadowQuestion>,
    link: Arc<Link>,
    flow: Flow,
    /// Texts of the reasons of the policy that answered last.
    reasons: Option<(u32, Arc<[String]>)>,
}

/// The state that both sides share.
#[derive(Debug)]
struct Link {
    /// Questions in the channel, and the current one.
    pending: AtomicU64,
    /// Questions that were dropped.
    dropped: AtomicU64,
    /// True after a fault: the next instance must be told everything.
    forgot: AtomicBool,
    /// True once the shadow has ended, or its answers are not wanted any more.
    over: AtomicBool,
    /// True if there is output that was not fetched.
    has_output: AtomicBool,
    /// Log lines and dumps. Locked to add and to take, never during a call.
    output: Mutex<ShadowOutput>,
    /// Counters. Locked to add and to copy, never during a call.
    report: Mutex<ShadowReport>,
}

/// The state of the channel to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Open,
    /// The channel was full. Questions are dropped until it is empty, so that there are few gaps.
    Full,
    Ended,
}

/// A question with all that the worker needs for it.
#[derive(Debug)]
struct ShadowQuestion {
    at: Moment,
    question: Question<'static>,
    extent: Extent,
    changes: Vec<Change>,
    in_force: Option<InForce>,
}

/// The answer that counts.
#[derive(Debug)]
struct InForce {
    policy: u32,
    reasons: Arc<[String]>,
    reply: Reply,
    /// The way of each request of a routing question.
    walks: Vec<Walk>,
}

impl Shadow {
    /// Starts a thread on which `runner` answers as policy `number`.
    pub(crate) fn spawn(
        (number, hooks): (u32, HookSet),
        runner: Runner,
        patience: Patience,
    ) -> io::Result<Self> {
        let feed = Feed::new(runner.description.needs);
        let link = Arc::new(Link {
            pending: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            forgot: AtomicBool::new(false),
            over: AtomicBool::new(false),
            has_output: AtomicBool::new(false),
            output: Mutex::default(),
            report: Mutex::new(ShadowReport::new(number, hooks)),
        });
        let (inbox, questions) = sync_channel(QUESTIONS_MAX as usize);
        let worker = Worker::new(number, runner, Arc::clone(&link), patience);
        thread::Builder::new()
            .name(format!("shadow-{number}"))
            .spawn(move || worker.run(&questions))?;
        Ok(Self {
            number,
            hooks,
            feed,
            inbox,
            link,
            flow: Flow::Open,
            reasons: None,
        })
    }

    /// Passes a question on, if there is room, with the answer in force and its author's `reasons`.
    /// If the shadow is found to have ended, returns the reason, once.
    pub(crate) fn put(
        &mut self,
        asking: &Asking<'_>,
        in_force: Option<(u32, Reply, Vec<Walk>)>,
        reasons: &[String],
    ) -> Option<String> {
        if self.flow != Flow::Ended && self.link.over.load(Ordering::Acquire) {
            self.flow = Flow::Ended;
            return Some(self.link.lock().end("it has ended"));
        }
        self.look_at_link();
        match self.flow {
            Flow::Open => {}
            Flow::Full => {
                self.link.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Flow::Ended => return None,
        }
        if self.link.forgot.swap(false, Ordering::AcqRel) {
            self.feed.reset();
        }
        let mut changes = Vec::new();
        let kinds = self.feed.needs().of(asking.question.hook());
        let extent = asking.rows.changes(&mut self.feed, kinds, &mut changes);
        let in_force = in_force.map(|(policy, reply, walks)| InForce {
            policy,
            reasons: self.reasons(policy, reasons),
            reply,
            walks,
        });
        self.send(ShadowQuestion {
            at: asking.at,
            question: asking.question.clone().into_owned(),
            extent,
            changes,
            in_force,
        })
    }

    /// True once the shadow was found to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.flow == Flow::Ended
    }

    /// Stops the flow when the channel is full, and opens it again when it is empty.
    fn look_at_link(&mut self) {
        let pending = self.link.pending.load(Ordering::Acquire);
        self.flow = match self.flow {
            Flow::Open if pending >= u64::from(QUESTIONS_MAX) => Flow::Full,
            Flow::Full if pending == 0 => Flow::Open,
            flow @ (Flow::Open | Flow::Full | Flow::Ended) => flow,
        };
    }

    fn send(&mut self, put: ShadowQuestion) -> Option<String> {
        self.link.pending.fetch_add(1, Ordering::AcqRel);
        match self.inbox.try_send(put) {
            Ok(()) => None,
            Err(TrySendError::Full(_)) => {
                // The changes are lost with the question.
                self.feed.reset();
                self.link.pending.fetch_sub(1, Ordering::AcqRel);
                self.link.dropped.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(TrySendError::Disconnected(_)) => {
                self.flow = Flow::Ended;
                Some(self.link.lock().end("its thread has ended"))
            }
        }
    }

    fn reasons(&mut self, policy: u32, texts: &[String]) -> Arc<[String]> {
        match &self.reasons {
            Some((of, reasons)) if *of == policy => Arc::clone(reasons),
            Some(_) | None => {
                let reasons: Arc<[String]> = texts.into();
                self.reasons = Some((policy, Arc::clone(&reasons)));
                reasons
            }
        }
    }

    /// Takes the log lines and dumps since the last call, if there are any.
    pub(crate) fn take_output(&self) -> Option<ShadowOutput> {
        let has_output = self.link.has_output.swap(false, Ordering::AcqRel);
        has_output.then(|| std::mem::take(&mut *self.link.output()))
    }

    /// Returns a copy of the report so far.
    pub(crate) fn report(&self) -> ShadowReport {
        // First: the counts of a question stand in the report before it is no longer pending.
        let pending = self.link.pending.load(Ordering::Acquire);
        let mut report = self.link.lock().clone();
        report.hooks = self.hooks;
        report.dropped = self.link.dropped.load(Ordering::Relaxed);
        report.pending = match report.state {
            ShadowState::Running => pending,
            ShadowState::Ended(_) => 0,
        };
        report
    }
}

/// Ends the thread after its current question.
impl Drop for Shadow {
    fn drop(&mut self) {
        self.link.over.store(true, Ordering::Release);
    }
}

impl Link {
    /// Locks the report. After a panic of the worker its counts are at most one short.
    fn lock(&self) -> MutexGuard<'_, ShadowReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the output. After a panic of the worker the list is whole.
    fn output(&self) -> MutexGuard<'_, ShadowOutput> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
