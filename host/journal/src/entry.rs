//! The entries of a journal.
//!
//! These types are the format: fields are written in this order, variants by position. A change to
//! one of them, or to a type of `pointsman-events` in them, is a new version of the format (see the README).
//! Writers borrow the large ones; readers own them.

use std::borrow::Cow;

use pointsman_events::{Answer, Hook, Input, Micros, Needs, Reply, RequestId, Round, Stamped};
use serde::{Deserialize, Serialize};

use crate::blob::{Blob, ContentHash};

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry<'a> {
    /// First in each file: the program that wrote the file, and the run it belongs to.
    Header(Header),
    /// An input that the machine was given.
    Input {
        /// Time that the machine was told, in µs.
        now: Micros,
        /// The input itself.
        input: Cow<'a, Input>,
    },
    /// A call of the machine to decide.
    Round {
        /// The one time of the round, in µs.
        now: Micros,
        /// The last round before this call: the machine says whether there is another.
        round: Round,
    },
    /// The answer to a question of the round that was called for last.
    Decision(Decision<'a>),
    /// A new roster: other policies answer from now on.
    Bound(Bound),
    /// A fact from the machine.
    Fact(Cow<'a, Stamped>),
    /// An event in a policy's life. A replay reads only `snapshots-ended`.
    PolicyEvent(PolicyEventEntry),
    /// A state from which a replay can start. Second in each file, and after each gap.
    Keyframe(Box<Keyframe>),
    /// A place where entries are missing.
    Gap(Gap),
    /// The collection of everything that a policy which is taken in later will be told; right after
    /// `Restarted`, that the fresh instance is told before its first question.
    Briefed(Briefed),
    /// The start of a fresh instance, after a fault, a strike or a rollback of the old one.
    Restarted(Restarted),
    /// A request for a policy's state.
    Saved(Saved),
}

/// The program that wrote a file, and the run it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of Pointsman, as in `0.1.0`.
    pub pointsman: String,
    /// Version of wasmtime. Another version may count fuel differently.
    pub wasmtime: String,
    /// Start of the run, in milliseconds since 1970. Names the run.
    pub started_unix_ms: u64,
    /// Index of the file in its run, from 0.
    pub file: u32,
}

/// A policy's answer before the interlock checks it. The facts that follow say what the interlock
/// made of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision<'a> {
    /// Kind of question.
    pub hook: Hook,
    /// Requests that the verdicts are about, in the same order. Empty where an answer names its
    /// requests itself.
    pub requests: Cow<'a, [RequestId]>,
    /// The reply with its author, and the faults that came before it. Policies are given as numbers
    /// of the [`Roster`].
    pub answer: Cow<'a, Answer<Reply>>,
    /// Instance of the policy that answered, counted from 1; 0 if no policy answered.
    pub generation: u32,
    /// Fuel for the answer, with the fuel for taking in what was told before it; 0 for a native
    /// policy.
    pub fuel: u64,
}

/// A collection of the machine's rows, for one policy that is taken in later, or for a fresh instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Briefed {
    /// Time of the collection, in µs.
    pub now: Micros,
    /// The kinds of rows that the policy's hooks read.
    pub needs: Needs,
    /// Position in the machine's changes up to which it was collected. [`PolicyRecord::told`] of a
    /// policy that got this collection has the same value.
    pub told: u64,
}

/// A fresh instance of a policy, started between the decision before this entry and the one after
/// it. It is told everything with its first question; or, if [`Briefed`] follows, the rows of the next
/// decision before it is asked a later one. Where something ends it before it is asked, such as a
/// keyframe, the one in its place has the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarted {
    /// The policy's number in the [`Roster`].
    pub policy: u32,
    /// Number of the new instance, counted from 1.
    pub generation: u32,
    /// State that the instance was offered; absent if there was none.
    pub state: Option<Blob>,
}

/// Length and checksum of a policy's snapshot, by which a replay notices that its own differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Time of the snapshot, in µs.
    pub now: Micros,
    /// The policy's number in the [`Roster`].
    pub policy: u32,
    /// Length of the snapshot in bytes.
    pub bytes: u64,
    /// CRC-32 of the snapshot.
    pub crc32: u32,
}

/// The roster that is in force from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Time between two rounds, in µs.
    pub now: Micros,
    /// The whole roster, so that each such entry can be understood alone.
    pub roster: Roster,
}

/// The policies there are, and the order in which they are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// All policies, ascending by number.
    pub policies: Vec<PolicyRecord>,
    /// One chain for each hook that a policy holds.
    pub chains: Vec<Chain>,
}

/// The policies that are asked for one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The hook that the chain is for.
    pub hook: Hook,
    /// Numbers of policies in the order of asking: the one in force first, then its fallbacks.
    pub policies: Vec<u32>,
}

/// A policy, with all that is needed to start it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// Number by which facts and decisions name the policy; never used again within a run.
    pub number: u32,
    /// Name from the policy's own metadata.
    pub name: String,
    /// Version from the policy's own metadata.
    pub version: String,
    /// Texts of the policy's reasons. Verdicts name a reason by its index here.
    pub reasons: Vec<String>,
    /// SHA-256 of the component's bytes.
    pub digest: ContentHash,
    /// SHA-256 of code and settings together.
    pub fingerprint: ContentHash,
    /// Settings, as JSON.
    pub settings: String,
    /// Limits, as JSON.
    pub limits: String,
    /// Number of the instance that runs, counted from 1; 0: none does, after a fault or a strike,
    /// or while a shadow has it.
    pub generation: u32,
    /// The component, so that a replay needs nothing but the journal. Absent for a native policy,
    /// for one that an entry before this one brought, and in a file for a large one: it lies beside
    /// the file, and the reader puts it here.
    pub code: Option<Blob>,
    /// A snapshot of its state, for a replay that starts here. Absent if the policy keeps none, and
    /// for one that an entry before this one brought.
    pub state: Option<Blob>,
    /// True as long as its state is saved, at keyframes too.
    pub saves: bool,
    /// Position in the machine's changes up to which the policy had been told when it was taken in.
    /// Absent if it had been told nothing, and for a policy that an entry before this one brought.
    pub told: Option<u64>,
}

impl PolicyRecord {
    /// Returns whether it has an instance, which can be asked.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.generation > 0
    }
}

/// An event in a policy's life, mostly for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyEventEntry {
    /// Time of the event, in µs.
    pub now: Micros,
    /// The policy's number in the [`Roster`].
    pub policy: u32,
    /// Short name of the event: `restarted`, `quarantined`.
    pub what: String,
    /// Further text; may be empty.
    pub detail: String,
}

/// Everything that a replay needs to start here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyframe {
    /// Time of the state, in µs.
    pub now: Micros,
    /// The last round before the keyframe.
    pub round: Round,
    /// The machine between two rounds.
    pub machine: Blob,
    /// The policies, with their states.
    pub roster: Roster,
}

/// A place where entries could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Number of entries that are missing.
    pub dropped: u64,
}
