//! The scheduling interface as the host's own types: what policies are told, asked and answer.
//!
//! Each type has its counterpart in `wit/types.wit` or `wit/hooks.wit`, where its meaning is
//! written for authors. The state machine speaks in these types and `pointsman-component` carries
//! them over to components and back.
//!
//! # Not here
//! Decisions, and the state that they are made from (`pointsman-core`, which exports all of this
//! again).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod answer;
mod bounds;
#[cfg(feature = "test-util")]
pub mod fixture;
mod hook;
mod ids;
mod needs;
mod question;
mod refusal;
pub mod rows;

pub use answer::*;
pub use bounds::Bounds;
pub use hook::{Hook, HookMap, HookSet};
pub use ids::{
    AdapterId, BlockHash, BlockId, DeviceId, ExecutorId, HostBlockId, Incarnation, LabelId, Micros,
    ModelId, RequestId, Round, SessionKey, TenantId,
};
pub use needs::{Needs, RowKind, RowKinds};
pub use question::*;
pub use refusal::{Refusal, RefusalCause};
pub use rows::Moment;
