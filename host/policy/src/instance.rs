//! One running policy, by what it can be asked, in the core's types.
//!
//! [`Instance`] is the seam behind which a WebAssembly component ([`crate::WasmInstance`]), a
//! policy linked in natively and a scripted fake of a test look alike. [`crate::PolicyHost`]
//! decides when each method is called; `wit/hooks.wit` says what it means.
//!
//! # Invariants
//! 1. After a [`Fault`] an instance is dropped and never asked again: its memory is in an
//!    unknown state (`host::tests`).

use pointsman_core::rows::{Cached, Change, Extent, FeedKinds, Request};
use pointsman_core::{ExecutorId, FaultKind, HookSet, Micros, Moment, Question, Reply};

/// One running policy.
///
/// A hook that [`Instance::hooks`] does not name is never asked.
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

    /// Answers a question of a hook that it has. [`Fault::not_exported`] answers any other.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn ask(&mut self, at: Moment, question: &Question<'_>) -> Result<Reply, Fault>;

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

    /// The fault of a call to an interface that the policy does not export.
    #[must_use]
    pub fn not_exported(interface: &str) -> Self {
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

impl PolicyDescription {
    /// The text behind a reason of an answer.
    #[must_use]
    pub fn reason(&self, reason: u16) -> Option<&str> {
        self.reasons.get(usize::from(reason)).map(String::as_str)
    }
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

/// `text` cut to `bytes_max` bytes, at a character.
pub(crate) fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
    }
    text
}
