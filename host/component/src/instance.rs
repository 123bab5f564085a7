//! One running instance of a policy, in the core's types.
//!
//! [`Instance`] is the interface that a WebAssembly component ([`crate::WasmInstance`]), a native
//! policy and a scripted fake of a test have in common. `Runner`, in `pointsman-policy`, decides when
//! each method is called; `wit/hooks.wit` says what it means.
//!
//! # Invariants
//! 1. After a [`Fault`] an instance is dropped and never asked again: its memory is in an unknown
//!    state (`host::tests` of `pointsman-policy`).

use std::fmt;

use pointsman_interface::rows::{Cached, Change, Extent, Request};
use pointsman_interface::{Bounds, ExecutorId, HookSet, Micros, Moment, Needs, Question, Reply};

use crate::fault::Fault;
use crate::settings::SettingSchema;

/// One running instance of a policy.
///
/// A hook that is not in [`Instance::hooks`] is never asked.
pub trait Instance: Send {
    /// Hooks that the policy exports.
    fn hooks(&self) -> HookSet;

    /// True if [`Instance::explain`] can be called.
    fn explains(&self) -> bool {
        false
    }

    /// Returns the policy's description of itself.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn describe(&mut self) -> Result<PolicyDescription, Fault>;

    /// Passes the operator's settings, a JSON object, and the host's bounds; called once. The inner
    /// error is the policy's refusal of the settings, for the operator.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn configure(&mut self, settings: &str, bounds: &Bounds) -> Result<Result<(), String>, Fault>;

    /// Tells the policy which rows of the machine have changed.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<(), Fault>;

    /// Asks a question of an exported hook. For any other hook the answer is
    /// [`Fault::not_exported`].
    ///
    /// # Errors
    /// The fault that ended the call.
    fn ask(&mut self, at: Moment, question: &Question<'_>) -> Result<Reply, Fault>;

    /// Explains how the policy would route a request.
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

    /// Returns the state that a successor can start with.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn snapshot(&mut self) -> Result<Vec<u8>, Fault>;

    /// Passes the state that [`Instance::snapshot`] of a predecessor returned. The inner error is
    /// the policy's refusal: it starts without state.
    ///
    /// # Errors
    /// The fault that ended the call.
    fn restore(&mut self, state: &[u8]) -> Result<Result<(), String>, Fault>;

    /// Fuel of the last call; `None` if the policy is not metered.
    fn last_fuel(&self) -> Option<u64> {
        None
    }

    /// Moves the lines logged since the last call to `out`, and returns the number of lines
    /// dropped.
    fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        let _ = out;
        0
    }
}

/// A policy's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDescription {
    /// Name of the policy.
    pub name: String,
    /// Version, in the author's words.
    pub version: String,
    /// One sentence about the policy's behaviour.
    pub summary: String,
    /// The kinds of rows that its hooks read, and that it is told.
    pub needs: Needs,
    /// Texts for the reasons of its answers, by index.
    pub reasons: Vec<String>,
    /// Version of the snapshots' format.
    pub state_version: u32,
    /// True if it is asked for the order of a single request too.
    pub orders_one: bool,
    /// Its settings.
    pub settings: Vec<SettingSchema>,
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
    /// Executor that the candidate is.
    pub executor: ExecutorId,
    /// True if the executor could take the request.
    pub eligible: bool,
    /// Cost; smaller is better. Comparable within one answer only.
    pub cost: i64,
    /// Note in the policy's words.
    pub note: String,
}

/// The importance of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// A line for the policy's author.
    Debug,
    /// A line for the operator.
    Info,
    /// A warning: something works worse than it should.
    Warn,
}

/// A line that a policy logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Importance of the line.
    pub level: LogLevel,
    /// Text, cut to the limit on line length.
    pub message: String,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
        })
    }
}
