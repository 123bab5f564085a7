//! Policies as components: loaded, limited, told and asked. The only crate that knows wasmtime.
//!
//! A policy's way from a file to a decision:
//!
//! 1. [`PolicyComponent::load`] checks, compiles and links the bytes: slow, so elsewhere;
//! 2. [`start`] makes an instance of a [`PolicySource`], asks what it is and configures it;
//!    [`Runner::restore`] offers it its predecessor's state;
//! 3. [`PolicyHost::commit`] puts it in force: cheap, between two rounds, and all or nothing. Its
//!    steps are [`PolicyHost::add`] and [`PolicyHost::bind`]; [`PolicyHost::bind_canary`] or
//!    [`PolicyHost::bind_shadow`] try it first, and [`PolicyHost::begin_probation`] takes it out
//!    again if it does worse;
//! 4. the core's machine asks the [`PolicyHost`], which implements [`pointsman_core::Policies`].
//!
//! A guest is limited in fuel, time, memory and the size of its answers ([`Limits`]), can do
//! nothing but log, and shares its store with nobody. A fault costs the policy its instance, and
//! several cost it its hooks ([`Patience`]); the next policy in line decides instead.
//!
//! # Not here
//! Folders, files and configuration (the server); the check of an answer (the core's interlock).

#![deny(unsafe_code)]

mod bindings;
mod cache;
pub mod compare;
mod compiler;
mod component;
mod convert;
mod engine;
mod fault;
#[cfg(test)]
mod fixture;
mod host;
mod instance;
mod limits;
mod mode;
mod policy;
mod precompiled;
mod recorder;
mod rehearsal;
mod runner;
mod scan;
mod selftest;
mod settings;
mod shadow;
mod stats;
mod store;
mod wasm;

// For `conversions!`, which names the core's types in the crate that invokes it.
#[doc(hidden)]
pub use pointsman_core;

pub use cache::{CacheError, CompileCache, Made};
pub use compiler::{COMPILE_COMMAND, CompileLimits, CompileStop, Compiler, compile_component};
pub use component::{COMPONENT_BYTES_MAX, Digest, Hint, LoadError, NoDigest, PolicyComponent};
pub use engine::{EngineError, PolicyEngine, WASMTIME_VERSION};
pub use host::{
    AnswerCost, Assignment, Began, BindError, Canary, CanaryCounts, CannotClose, Cause, Commit,
    CommitError, Committed, DumpedCall, FaultDump, Install, LastAsked, MirrorDigest, OnFailure,
    PolicyEvent, PolicyEventKind, PolicyHost, PolicyStats, PolicyStatus, Probation,
    ProbationProgress, Quarantined, Retired, RollbackWhy,
};
pub use instance::{Candidate, Fault, Instance, LogLevel, LogLine, PolicyDescription};
pub use limits::{Limits, Patience};
pub use mode::{CanaryShare, CanaryUnit, Mode, ModeError, Percent};
pub use policy::{
    Briefing, DescriptionError, PolicySource, Restored, Snapshot, StartError, describe, start,
};
pub use precompiled::precompile;
pub use recorder::PolicyRecorder;
pub use rehearsal::{ExplainError, Rehearsal};
pub use runner::{Answered, InstanceCounters, Restarts, Runner, observe_all};
pub use selftest::{Scene, SelfTestError, self_test};
pub use settings::{BadDuration, SettingRange, SettingSchema, TimeUnit, configured};
pub use shadow::{Agreement, DecisionText, Disagreement, ShadowReport, ShadowState};
pub use stats::Spread;
pub use wasm::WasmInstance;
