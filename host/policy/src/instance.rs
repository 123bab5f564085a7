//! One running policy, by what it can be asked, in the core's types.
//!
//! [`Instance`] is the seam behind which a WebAssembly component ([`crate::WasmInstance`]), a
//! policy linked in natively and a scripted fake of a test look alike. [`crate::PolicyHost`]
//! decides when each method is called; `wit/hooks.wit` says what it means.
//!
//! # Invariants
//! 1. After a [`Fault`] an instance is dropped and never asked again: its memory is in an
//!    unknown state (`host::tests`).

use std::fmt;

use pointsman_core::rows::{Cached, Change, Extent, FeedKinds, Request};
use pointsman_core::{
    Allotment, DeviceId, Eviction, ExecutorId, FaultKind, Hook, Micros, Moment, RequestId,
    Shortage, admission, routing,
};

/// One running policy.
///
/// A hook that [`Instance::hooks`] does not name is never asked; the methods of the hooks are
/// provided, so that an implementation writes only those it has.
pub trait Instance: Send {
    /// The decisions it makes.
    fn hooks(&self) -> HookSet;

    /// Whether it can be asked to [`Instance::explain`].
    fn explains(&self) -> bool {
        false
    }

    /// What it is and wants to be told.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn describe(&mut self) -> Result<PolicyDescription, Fault>;

    /// Takes its settings, a JSON object; called once. The inner error is the policy's refusal
    /// of them, for the operator.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn configure(&mut self, settings: &str) -> Result<Result<(), String>, Fault>;

    /// Brings its mirror of the host up to date.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<(), Fault>;

    /// One verdict per arrival, in order; `room` more may wait.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn admit(
        &mut self,
        at: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Result<Vec<admission::Verdict>, Fault> {
        let _ = (at, arrivals, room);
        Err(Fault::not_exported(Hook::Admission.as_str()))
    }

    /// These requests, most urgent first.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn order(&mut self, at: Moment, requests: &[RequestId]) -> Result<Vec<RequestId>, Fault> {
        let _ = (at, requests);
        Err(Fault::not_exported(Hook::Priority.as_str()))
    }

    /// One verdict per request, in order.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn route(&mut self, at: Moment, requests: &[Cached]) -> Result<Vec<routing::Verdict>, Fault> {
        let _ = (at, requests);
        Err(Fault::not_exported(Hook::Routing.as_str()))
    }

    /// Who gives way; `None`: nobody.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn evict(&mut self, at: Moment, shortage: &Shortage) -> Result<Option<Eviction>, Fault> {
        let _ = (at, shortage);
        Err(Fault::not_exported(Hook::Preemption.as_str()))
    }

    /// Tokens per step for the engines of a device.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn allot(
        &mut self,
        at: Moment,
        device: DeviceId,
        tokens_total: u32,
    ) -> Result<Vec<Allotment>, Fault> {
        let _ = (at, device, tokens_total);
        Err(Fault::not_exported(Hook::Budget.as_str()))
    }

    /// Why a request would go where it would go.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn explain(
        &mut self,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Result<Vec<Candidate>, Fault> {
        let _ = (at, request, cached);
        Err(Fault::not_exported("explanation"))
    }

    /// State worth carrying over a reload or a fault.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn snapshot(&mut self) -> Result<Vec<u8>, Fault>;

    /// Takes over state that [`Instance::snapshot`] made. The inner error is the policy's
    /// refusal: it starts cold.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn restore(&mut self, state: &[u8]) -> Result<Result<(), String>, Fault>;

    /// Fuel that the last call used; absent: it is not metered.
    fn last_fuel(&self) -> Option<u64> {
        None
    }

    /// Moves what it has logged since the last time to `out`; the number of lines dropped.
    fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        let _ = out;
        0
    }
}

/// A call that ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?}: {detail}")]
pub struct Fault {
    /// What kind of failure.
    pub kind: FaultKind,
    /// Which call, the message, and the backtrace as far as known. Bounded.
    pub detail: String,
}

impl Fault {
    /// A fault of kind `kind`.
    #[must_use]
    pub fn new(kind: FaultKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }

    fn not_exported(interface: &str) -> Self {
        Self::new(FaultKind::Trap, format!("{interface} is not exported"))
    }
}

/// What a policy says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDescription {
    /// Its name.
    pub name: String,
    /// Its version, in its author's words.
    pub version: String,
    /// What it does, in a sentence.
    pub summary: String,
    /// What it wants to be told besides what everybody is.
    pub feed: FeedKinds,
    /// Texts for the reasons of its answers, by index.
    pub reasons: Vec<String>,
    /// Version of what its snapshots hold.
    pub state_version: u32,
}

/// One executor as a policy sees it for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which executor.
    pub executor: ExecutorId,
    /// Whether it could take the request.
    pub eligible: bool,
    /// Smaller is better; comparable within one answer only.
    pub cost: i64,
    /// The policy's words.
    pub note: String,
}

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For the author.
    Debug,
    /// For the operator.
    Info,
    /// Something is degraded.
    Warn,
}

/// One line a policy logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How much it matters.
    pub level: LogLevel,
    /// The text, cut to the limit on line length.
    pub message: String,
}

/// A set of hooks.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct HookSet(u8);

impl HookSet {
    /// No hook.
    pub const EMPTY: HookSet = HookSet(0);

    /// Whether `hook` is in the set.
    #[must_use]
    pub fn contains(self, hook: Hook) -> bool {
        self.0 & bit(hook) != 0
    }

    /// Whether no hook is.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds `hook`.
    pub fn insert(&mut self, hook: Hook) {
        self.0 |= bit(hook);
    }

    /// Takes `hook` out.
    pub fn remove(&mut self, hook: Hook) {
        self.0 &= !bit(hook);
    }

    /// The hooks that are in one of the two.
    #[must_use]
    pub fn union(self, other: HookSet) -> HookSet {
        HookSet(self.0 | other.0)
    }

    /// The hooks in the set, in the order of a round.
    pub fn iter(self) -> impl Iterator<Item = Hook> {
        Hook::ALL
            .into_iter()
            .filter(move |hook| self.contains(*hook))
    }
}

impl FromIterator<Hook> for HookSet {
    fn from_iter<I: IntoIterator<Item = Hook>>(hooks: I) -> Self {
        let mut set = Self::EMPTY;
        for hook in hooks {
            set.insert(hook);
        }
        set
    }
}

impl fmt::Debug for HookSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The place of `hook` in arrays by hook.
pub(crate) fn index(hook: Hook) -> usize {
    match hook {
        Hook::Admission => 0,
        Hook::Priority => 1,
        Hook::Routing => 2,
        Hook::Preemption => 3,
        Hook::Budget => 4,
    }
}

fn bit(hook: Hook) -> u8 {
    1 << index(hook)
}

/// `text` cut to `bytes_max` bytes, at a character.
pub(crate) fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
    }
    text
}
