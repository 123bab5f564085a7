//! What a fault leaves behind for the author of the policy.
//!
//! # Bounds
//! [`DUMPS_MAX`] dumps are kept until they are polled; while as many are waiting, further faults
//! leave none, and are counted.
//!
//! # Not here
//! The dumps of a shadow, until they are polled ([`crate::shadow`]).

use std::collections::VecDeque;
use std::fmt::{self, Write};

use pointsman_core::rows::{Change, FeedKinds};
use pointsman_core::{FaultKind, Feed, Micros, Question, Round, View};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::PolicyHost;
use crate::component::Digest;
use crate::runner::Rows;

/// One fault, with what its author needs to find the cause. Written as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FaultDump {
    /// When, on the host's clock.
    pub at: Micros,
    /// In which round; absent: outside of one.
    pub round: Option<Round>,
    /// The policy's number.
    pub policy: u32,
    /// Its name.
    pub name: String,
    /// Its version, in its author's words.
    pub version: String,
    /// Digest of its code, in hexadecimal.
    pub digest: String,
    /// Digest of its code and settings, in hexadecimal.
    pub fingerprint: String,
    /// Its settings, a JSON object.
    pub settings: String,
    /// Which of its instances it was, counted from 1.
    pub generation: u32,
    /// What it was asked.
    pub asked: DumpedCall,
    /// What it had been told; absent: it was not asked about anything, or was a shadow.
    pub mirror: Option<MirrorDigest>,
    /// What kind of failure.
    pub kind: FaultKind,
    /// Message and backtrace, with the names of functions where the component has them.
    pub detail: String,
}

/// The call that ended with a fault. A fault while it was told of changes has the question that
/// was to follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DumpedCall {
    /// A request for its state.
    Snapshot,
    /// A question.
    #[serde(untagged)]
    Question(Question<'static>),
}

/// What a policy's mirror ought to hold, so that two runs can be told apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorDigest {
    /// Rows.
    pub rows: usize,
    /// Over their text, in hexadecimal.
    pub digest: String,
}

/// Dumps kept for [`PolicyHost::poll_dump`].
const DUMPS_MAX: usize = 16;

/// Dumps that wait to be polled.
#[derive(Debug, Default)]
pub(crate) struct Dumps {
    queue: VecDeque<FaultDump>,
    dropped: u64,
}

impl Dumps {
    /// Keeps what `dump` makes, if there is room.
    pub(crate) fn keep(&mut self, dump: impl FnOnce() -> FaultDump) {
        if self.queue.len() < DUMPS_MAX {
            self.queue.push_back(dump());
        } else {
            self.dropped += 1;
        }
    }

    /// Counts faults that left nothing behind elsewhere.
    pub(crate) fn count_dropped(&mut self, faults: u64) {
        self.dropped += faults;
    }
}

/// A digest that text is written into.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl MirrorDigest {
    /// What the mirror of a policy fed `kinds` ought to hold.
    #[must_use]
    pub fn of(view: &View<'_>, kinds: FeedKinds) -> Self {
        Self::of_rows(view, kinds)
    }

    pub(super) fn of_rows(rows: &dyn Rows, kinds: FeedKinds) -> Self {
        let mut changes: Vec<Change> = Vec::new();
        rows.changes(&mut Feed::new(kinds), &mut changes);
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
    /// The question; absent: it was none.
    #[must_use]
    pub fn question(&self) -> Option<&Question<'static>> {
        match self {
            DumpedCall::Question(question) => Some(question),
            DumpedCall::Snapshot => None,
        }
    }
}

impl PolicyHost {
    /// What the oldest fault since the last call left behind.
    pub fn poll_dump(&mut self) -> Option<FaultDump> {
        self.hear_shadows();
        self.shared.dumps.queue.pop_front()
    }

    /// Faults that left nothing behind because nobody polled.
    #[must_use]
    pub fn dumps_dropped(&self) -> u64 {
        self.shared.dumps.dropped
    }
}
