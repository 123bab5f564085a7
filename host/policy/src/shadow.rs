//! A policy that is asked what the policy in force is asked, and whose answers are only compared.
//!
//! The driver's side is a [`Shadow`]: it puts the question, what changed since the last one and
//! the answer in force into a bounded channel, and goes on. On a thread of its own the worker
//! tells its instance, asks it, compares and counts.
//!
//! # Invariants
//! 1. The driver waits for no shadow: a question for which there is no room is dropped and
//!    counted, and so are the next ones until the shadow has caught up
//!    (`a_shadow_that_is_stuck_drops_and_counts_and_changes_no_decision`).
//! 2. A shadow is told what it would be told in force: its feed stays where it is over dropped
//!    questions, and what its own answers named it is told again
//!    (`a_copy_of_the_policy_in_force_agrees_with_it_in_every_decision`).
//!
//! # Bounds
//! [`QUESTIONS_MAX`] questions wait. A change that is told costs the driver its copy, as in any
//! feed; a dropped question costs it two counters.
//!
//! # Not here
//! For which hooks there is one, and its promotion (`host::shadow`).

mod compare;
mod left;
mod report;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use pointsman_core::rows::{Change, Extent};
use pointsman_core::{Feed, HookSet, Moment, Question, Reply};

use crate::host::member::Asking;
use crate::limits::Patience;
use crate::runner::Runner;
pub(crate) use left::Left;
pub use report::{Agreement, Disagreement, Said, ShadowReport, ShadowState};
use worker::Worker;

/// Questions that wait for a shadow, the one it works on included.
const QUESTIONS_MAX: u32 = 64;

/// The driver's side of a shadow.
pub(crate) struct Shadow {
    pub(crate) number: u32,
    pub(crate) hooks: HookSet,
    feed: Feed,
    inbox: SyncSender<Put>,
    link: Arc<Link>,
    flow: Flow,
    /// Texts for the reasons of the policy that answered last.
    reasons: Option<(u32, Arc<[String]>)>,
}

/// What both sides know of each other.
#[derive(Debug)]
struct Link {
    /// Questions in the channel, and the one that is worked on.
    pending: AtomicU64,
    /// Questions it was not asked.
    dropped: AtomicU64,
    /// A fresh instance is there that must be told everything.
    forgot: AtomicBool,
    /// Nobody wants its answers any more, or it has none.
    over: AtomicBool,
    /// Something was left since it was last fetched.
    has_left: AtomicBool,
    /// Held to add to it and to take it, never during a call.
    left: Mutex<Left>,
    /// What was counted. Held to add to it and to copy it, never during a call.
    report: Mutex<ShadowReport>,
}

/// Whether questions are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Open,
    /// The channel was full: it is left to run empty, so that the gaps are few.
    Full,
    Ended,
}

/// A question for a shadow.
#[derive(Debug)]
struct Put {
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
}

impl Shadow {
    /// Lets `runner` answer for policy `number` on a thread of its own.
    pub(crate) fn spawn(
        (number, hooks): (u32, HookSet),
        runner: Runner,
        patience: Patience,
    ) -> io::Result<Self> {
        let feed = Feed::new(runner.description.feed);
        let link = Arc::new(Link {
            pending: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            forgot: AtomicBool::new(false),
            over: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            left: Mutex::default(),
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

    /// Passes a question on, if there is room, with the answer in force, which `reasons` explain.
    /// Why it has ended, if it was found so just now.
    pub(crate) fn put(
        &mut self,
        asking: &Asking<'_>,
        in_force: Option<(u32, Reply)>,
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
        let extent = asking.rows.changes(&mut self.feed, &mut changes);
        let in_force = in_force.map(|(policy, reply)| InForce {
            policy,
            reasons: self.reasons(policy, reasons),
            reply,
        });
        self.send(Put {
            at: asking.at,
            question: asking.question.clone().into_owned(),
            extent,
            changes,
            in_force,
        })
    }

    /// Opens and closes the flow by what waits.
    fn look_at_link(&mut self) {
        let pending = self.link.pending.load(Ordering::Acquire);
        self.flow = match self.flow {
            Flow::Open if pending >= u64::from(QUESTIONS_MAX) => Flow::Full,
            Flow::Full if pending == 0 => Flow::Open,
            flow @ (Flow::Open | Flow::Full | Flow::Ended) => flow,
        };
    }

    fn send(&mut self, put: Put) -> Option<String> {
        self.link.pending.fetch_add(1, Ordering::AcqRel);
        match self.inbox.try_send(put) {
            Ok(()) => None,
            Err(TrySendError::Full(_)) => {
                // What it was to be told is lost with the question.
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

    /// What it has left since the last time, if it has anything.
    pub(crate) fn take_left(&self) -> Option<Left> {
        let has_left = self.link.has_left.swap(false, Ordering::AcqRel);
        has_left.then(|| std::mem::take(&mut *self.link.left()))
    }

    /// What came of it so far.
    pub(crate) fn report(&self) -> ShadowReport {
        let mut report = self.link.lock().clone();
        report.hooks = self.hooks;
        report.dropped = self.link.dropped.load(Ordering::Relaxed);
        report.pending = match report.state {
            ShadowState::Running => self.link.pending.load(Ordering::Acquire),
            ShadowState::Ended(_) => 0,
        };
        report
    }
}

/// Its thread ends with the question it is at.
impl Drop for Shadow {
    fn drop(&mut self) {
        self.link.over.store(true, Ordering::Release);
    }
}

impl Link {
    /// A thread that panicked while it held the lock left counts that are at most one short.
    fn lock(&self) -> MutexGuard<'_, ShadowReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that panicked there left a list that is whole.
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
