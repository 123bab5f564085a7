//! Runs of a host, recorded and replayed.
//!
//! A [`JournalRecorder`] writes the inputs of a host, the answers of its policies, and the facts. A
//! [`Replay`] repeats all of it from the journal alone, and stops at the first difference. With a
//! [`WhatIf`] it counts the decisions that another policy would have made differently. A [`Retelling`] goes
//! through a journal without asking anybody, for what the machine was at a round. Runs that cannot be read, as another
//! version wrote them, are counted by [`PassedOver`].
//!
//! # Invariants
//! 1. A replay needs nothing but the journal and the binary that wrote it
//!    (`tests/tests/operating/replay.rs`).
//!
//! # Not here
//! The format and the files of a journal (`pointsman-journal`); commands that print a replay
//! (`pointsman-cli`).

#![forbid(unsafe_code)]

mod components;
mod passed_over;
mod recorder;
mod replay;
mod retelling;
mod roster;

pub use components::ComponentCache;
pub use passed_over::PassedOver;
pub use recorder::JournalRecorder;
pub use replay::{
    Difference, HookComparison, Replay, ReplayError, ReplayTally, WhatIf, WhatIfTally,
};
pub use retelling::{Retelling, Rounds};
pub use roster::recorded_source;
