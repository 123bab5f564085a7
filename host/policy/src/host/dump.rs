//! Fault dumps: the traces of faults for the authors of policies.
//!
//! # Bounds
//! [`DUMPS_MAX`] dumps are kept until they are polled. While that many are waiting, further faults
//! are only counted.
//!
//! # Not here
//! The dumps of a shadow before they are fetched ([`crate::shadow`]).

use std::collections::VecDeque;
use std::fmt::{self, Write};

use pointsman_component::Digest;
use pointsman_core::rows::Change;
use pointsman_core::{FaultKind, Feed, Micros, Needs, Question, Round, RowKinds, View};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::PolicyHost;
use crate::runner::Rows;

/// One fault, with all that its author needs to find the cause. Serialised as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FaultDump {
    /// Time of the fault, in µs of the host's clock.
    pub at: Micros,
    /// Round of the fault; `None` outside of rounds.
    pub round: Option<Round>,
    /// The policy's number.
    pub policy: u32,
    /// Name of the policy.
    pub name: String,
    /// Version, in the author's words.
    pub version: String,
    /// Digest of the code, in hexadecimal.
    pub digest: String,
    /// Digest of code and settings, in hexadecimal.
    pub fingerprint: String,
    /// Settings, a JSON object.
    pub settings: String,
    /// Number of the instance, counted from 1.
    pub generation: u32,
    /// The call that faulted.
    pub asked: DumpedCall,
    /// The rows that the policy had been told; `None` at a snapshot, and for a shadow.
    pub mirror: Option<MirrorDigest>,
    /// Kind of the fault.
    pub kind: FaultKind,
    /// The failure in one line, and below it the policy's functions in which it happened, if the
    /// component has their names.
    pub detail: String,
    /// Every frame of the backtrace; empty: there is none.
    #[serde(default)]
    pub trace: String,
}

/// The call that ended with a fault. A fault in `observe` is listed with the question that was to
/// follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DumpedCall {
    /// A call for the policy's state.
    Snapshot,
    /// A question of a hook.
    #[serde(untagged)]
    Question(Question<'static>),
}

/// A digest of the rows that a policy's mirror should hold, by which two runs are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorDigest {
    /// Number of rows.
    pub rows: usize,
    /// SHA-256 of the rows as text, in hexadecimal.
    pub digest: String,
}

/// Number of dumps kept for [`PolicyHost::poll_dump`].
const DUMPS_MAX: usize = 16;

/// The dumps that wait to be polled.
#[derive(Debug, Default)]
pub(crate) struct Dumps {
    queue: VecDeque<FaultDump>,
    dropped: u64,
}

impl Dumps {
    /// Keeps the result of `dump`, if there is room.
    pub(crate) fn keep(&mut self, dump: impl FnOnce() -> FaultDump) {
        if self.queue.len() < DUMPS_MAX {
            self.queue.push_back(dump());
        } else {
            self.dropped += 1;
        }
    }

    /// Counts faults whose dumps were dropped elsewhere.
    pub(crate) fn count_dropped(&mut self, faults: u64) {
        self.dropped += faults;
    }
}

/// A SHA-256 into which text is written.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl MirrorDigest {
    /// Computes the digest for a policy that is told rows of `kinds`.
    #[must_use]
    pub fn of(view: &View<'_>, kinds: RowKinds) -> Self {
        Self::of_rows(view, kinds)
    }

    pub(super) fn of_rows(rows: &dyn Rows, kinds: RowKinds) -> Self {
        let mut changes: Vec<Change> = Vec::new();
        rows.changes(&mut Feed::new(Needs::every(kinds)), kinds, &mut changes);
        let mut hashing = Hashing(Sha256::new());
        for change in &changes {
            writeln!(hashing, "{change:?}").expect("a digest takes any text");
        }
        Self {
            rows: changes.len(),
            digest: Digest(hashing.0.finalize().into()).to_string(),
        }
    }
}

impl DumpedCall {
    /// The question; `None` for a snapshot.
    #[must_use]
    pub fn question(&self) -> Option<&Question<'static>> {
        match self {
            DumpedCall::Question(question) => Some(question),
            DumpedCall::Snapshot => None,
        }
    }
}

impl PolicyHost {
    /// Returns the oldest dump that was not polled.
    pub fn poll_dump(&mut self) -> Option<FaultDump> {
        self.fetch_shadow_output();
        self.shared.dumps.queue.pop_front()
    }

    /// Number of faults without a dump, because nobody polled.
    #[must_use]
    pub fn dumps_dropped(&self) -> u64 {
        self.shared.dumps.dropped
    }
}
