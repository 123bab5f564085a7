//! What a journal says.
//!
//! These types are the format: their fields are written in this order, variants by position. A
//! change to one of them, or to a type of the core in them, is a new version of the format (see
//! the README). Large ones are borrowed by those who write and owned by those who read.

use std::borrow::Cow;

use pointsman_core::rows::FeedKinds;
use pointsman_core::{Answer, Hook, Input, Micros, Reply, RequestId, Round, Stamped};
use serde::{Deserialize, Serialize};

use crate::blob::{Blob, Digest};

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry<'a> {
    /// First in each file: by whom and when.
    Header(Header),
    /// The machine is given something.
    Input {
        /// When.
        now: Micros,
        /// What.
        input: Cow<'a, Input>,
    },
    /// The machine is told to decide.
    Round {
        /// The round's one time.
        now: Micros,
        /// The last round before: whether there is another is the machine's to say.
        round: Round,
    },
    /// What came back from a question of the round that was called for last.
    Decision(Decision<'a>),
    /// Others answer from now on.
    Bound(Bound),
    /// What happened in the machine.
    Fact(Cow<'a, Stamped>),
    /// What happened to a policy besides answering. No replay goes by it.
    PolicyEvent(PolicyEvent),
    /// From here a replay can start. Second in each file, and after each gap.
    Keyframe(Box<Keyframe>),
    /// Entries are missing.
    Gap(Gap),
    /// Everything was gathered that a policy is told which is taken in later.
    Briefed(Briefed),
    /// A fresh instance took the place of one that faulted, was struck or rolled back.
    Restarted(Restarted),
    /// A policy was asked for its state.
    Saved(Saved),
}

/// By whom a file was written, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of Pointsman.
    pub pointsman: String,
    /// Version of wasmtime: another one may count fuel differently.
    pub wasmtime: String,
    /// When the run started whose journal this is, in milliseconds since 1970. Names the run.
    pub started_unix_ms: u64,
    /// Which of the run's files this is, from 0.
    pub file: u32,
}

/// A policy's answer, before the interlock has looked at it. What that made of it are facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision<'a> {
    /// What was asked.
    pub hook: Hook,
    /// Whom the verdicts are about, in their order; empty where an answer names them itself.
    pub requests: Cow<'a, [RequestId]>,
    /// Who answered what, and who faulted before. Policies by their numbers in the [`Roster`].
    pub answer: Cow<'a, Answer<Reply>>,
    /// Which of its policy's instances answered, counted from 1; 0: no policy did.
    pub generation: u32,
    /// Fuel the answer took, what it was told before it included; 0 for a native one.
    pub fuel: u64,
}

/// What one who wants these kinds of rows was to be told at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Briefed {
    /// When, between two rounds.
    pub now: Micros,
    /// Besides what everybody is told.
    pub kinds: FeedKinds,
    /// How far the machine's changes were then: [`PolicyRecord::told`] of those who were told.
    pub told: u64,
}

/// A policy begins anew: between the decision before and the one after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarted {
    /// The policy's number.
    pub policy: u32,
    /// Which of its instances this is, counted from 1.
    pub generation: u32,
    /// The state it was offered; absent: none.
    pub state: Option<Blob>,
}

/// What a policy's snapshot was: a replay that took another one has gone astray unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// When.
    pub now: Micros,
    /// The policy's number.
    pub policy: u32,
    /// Its length.
    pub bytes: u64,
    /// Its CRC-32.
    pub crc32: u32,
}

/// The roster from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// When, between two rounds.
    pub now: Micros,
    /// All of it: that makes each such entry understandable by itself.
    pub roster: Roster,
}

/// Which policies there are, and who is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// In the order of their numbers.
    pub policies: Vec<PolicyRecord>,
    /// One for each hook that a policy holds.
    pub chains: Vec<Chain>,
}

/// Who is asked for one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// What is asked.
    pub hook: Hook,
    /// Numbers of policies: the one in force, then those behind it, in the order of asking.
    pub policies: Vec<u32>,
}

/// A policy: enough to start it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// As facts and decisions name it; never used again within a run.
    pub number: u32,
    /// What it calls itself.
    pub name: String,
    /// Which version.
    pub version: String,
    /// The texts of its reasons, which verdicts name by their index.
    pub reasons: Vec<String>,
    /// SHA-256 of its code.
    pub digest: Digest,
    /// SHA-256 of its code and settings.
    pub fingerprint: Digest,
    /// Its settings, as JSON.
    pub settings: String,
    /// Its limits, as JSON.
    pub limits: String,
    /// Which of its instances runs, counted from 1.
    pub generation: u32,
    /// Its component, so that a journal is replayed with nothing else; absent: it is no component,
    /// or it has been running since an entry before this one.
    pub code: Option<Blob>,
    /// Its state as a snapshot, for one who starts it here; absent: it keeps none, or it has been
    /// running since an entry before this one.
    pub state: Option<Blob>,
    /// Whether its state is still taken, at keyframes too.
    pub saves: bool,
    /// How far in the machine's changes it had been told when it was taken in; absent: it knew
    /// nothing, or it has been running since an entry before this one.
    pub told: Option<u64>,
}

/// What happened to a policy, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyEvent {
    /// When.
    pub now: Micros,
    /// The policy's number.
    pub policy: u32,
    /// What, as a short name: `restarted`, `quarantined`.
    pub what: String,
    /// Anything more there is to say.
    pub detail: String,
}

/// Everything a replay needs to start here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyframe {
    /// When.
    pub now: Micros,
    /// The last round before it.
    pub round: Round,
    /// The machine, between two rounds.
    pub machine: Blob,
    /// The policies, with their states.
    pub roster: Roster,
}

/// Entries that were to stand here and do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// How many.
    pub dropped: u64,
}
