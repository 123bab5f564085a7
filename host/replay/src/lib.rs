//! Runs of a host, recorded and replayed.
//!
//! [`JournalRecorder`] writes down what a host was told, which policies answered and what came of
//! it. A [`Replay`] does all that again from the journal alone, and stops at the first difference.
//! With a [`WhatIf`] it counts what another policy would have decided otherwise.
//!
//! # Invariants
//! 1. A journal is replayed with nothing but itself and the binary that wrote it
//!    (`tests/tests/replay.rs`).
//!
//! # Not here
//! The format and the files of a journal (`pointsman-journal`); commands that print a replay
//! (`pointsman-cli`).

#![forbid(unsafe_code)]

mod components;
mod recorder;
mod replay;
mod roster;

pub use components::ComponentCache;
pub use recorder::JournalRecorder;
pub use replay::{
    Difference, HookComparison, Replay, ReplayError, ReplayTally, WhatIf, WhatIfTally,
};
