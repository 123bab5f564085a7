//! Everything that goes into the machine and comes out of it, without the machine.
//!
//! | | is |
//! |---|---|
//! | [`Input`], [`Config`] | what happened outside, and the bounds that the machine keeps |
//! | [`Handled`], [`Effect`], [`Fact`] | the return of an input, what the runtime must do, what happened in the machine |
//! | [`changes`], [`Feed`] | the rows that changed, and those of them that a policy has yet to be told |
//! | [`Recorder`] | the seam behind which a run is written down |
//! | [`Probe`], [`WaitReason`] and others | the machine as monitors and operators are shown it |
//! | [`Sessions`] | the executors that served sessions last, which requests come with |
//!
//! The journal, executors and the surfaces of HTTP know a run by these types alone. What policies are
//! told, asked and answer is `pointsman-interface`'s, and exported again here.
//!
//! # Not here
//! Decisions, and the state that they are made from: `pointsman-core`, which exports all of this
//! again.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(clippy::float_arithmetic)]

pub mod changes;
mod config;
mod effect;
mod fact;
mod feed;
#[cfg(feature = "test-util")]
pub mod fixture;
mod handled;
mod input;
mod monitor;
mod recorder;
mod sessions;

pub use config::{Config, InvalidConfig};
pub use effect::{BlockCopy, Effect, StartOrder};
pub use fact::{
    Clock, Decided, ExpiredWhy, Fact, FailedWhy, Outcome, PlacedIn, RefusedWhy, RequeuedWhy,
    Stamped, Stay, Strike,
};
pub use feed::{Feed, Named, Relay, RowSource};
pub use handled::{AttachError, Handled};
pub use input::{
    Availability, BlockKind, DeviceSpec, ExecutorSpec, ExecutorUpdate, Input, InternedId, Kept,
    KvReport, KvSpec, NewRequest, PlacementTerms, PrefixEvent, Progress, PromptBlocks, PromptCount,
    ReadableBlocks, RetryClass, SequenceRef, StepReport, Tier,
};
pub use monitor::{
    ExecutorSnapshot, Obstacle, PotentialLoad, Probe, ProbedExecutor, QueueSnapshot, WaitReason,
    Walk,
};
pub use pointsman_interface::*;
pub use recorder::Recorder;
pub use sessions::Sessions;
