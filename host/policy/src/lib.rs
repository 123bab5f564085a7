//! Policies in a host: started, told, asked, tried, judged and replaced.
//!
//! A policy's way from a file to a decision:
//!
//! 1. [`PolicyComponent::load`](pointsman_component::PolicyComponent::load) checks, compiles and links the bytes: slow, so elsewhere;
//! 2. [`start`] makes an instance of a [`PolicySource`], asks what it is and configures it;
//!    [`Runner::restore`] offers it its predecessor's state;
//! 3. [`PolicyHost::commit`] puts it in force: cheap, between two rounds, and all or nothing. Its
//!    steps are [`PolicyHost::add`] and [`PolicyHost::bind`]; [`PolicyHost::bind_canary`] or
//!    [`PolicyHost::bind_shadow`] try it first, and [`PolicyHost::begin_probation`] takes it out
//!    again if it does worse;
//! 4. the core's machine asks the [`PolicyHost`], which implements [`pointsman_core::Policies`].
//!
//! A policy is an [`Instance`](pointsman_component::Instance), whatever is behind it. A fault costs it its instance, and
//! several cost it its hooks ([`Patience`]); the next policy in line decides instead.
//!
//! # Not here
//! Components, and the limits of a call (`pointsman-component`); folders, files and configuration (the server);
//! the check of an answer (the core's interlock).

#![forbid(unsafe_code)]

pub mod compare;
mod description;
#[cfg(test)]
mod fixture;
mod host;
mod mode;
mod name;
mod patience;
mod policy;
mod recorder;
mod rehearsal;
mod runner;
mod selftest;
mod shadow;
mod stats;

pub use description::DescriptionError;
pub use host::{
    AnswerCost, Assignment, Began, BindError, BriefedElsewhere, Canary, CanaryCounts, CannotClose,
    Cause, Commit, CommitError, Committed, DumpedCall, FaultDump, Install, LastAsked, MirrorDigest,
    OnFailure, PolicyEvent, PolicyEventKind, PolicyHost, PolicyStats, PolicyStatus, Probation,
    ProbationProgress, Quarantined, Retired, RollbackWhy,
};
pub use mode::{CanaryShare, CanaryUnit, Mode, ModeError, Percent};
pub use name::{POLICY_NAME, is_policy_name};
pub use patience::Patience;
pub use policy::{Briefing, PolicySource, Restored, Snapshot, StartError, describe, start};
pub use recorder::PolicyRecorder;
pub use rehearsal::{ExplainError, Rehearsal};
pub use runner::{Answered, InstanceCounters, Restarts, Runner, observe_all};
pub use selftest::{Scene, SelfTestError, self_test};
pub use shadow::{Agreement, DecisionText, Disagreement, ShadowReport, ShadowState};
pub use stats::Spread;
