//! A policy's bytes, made into an instance that can be called. The only crate that knows wasmtime.
//!
//! ```text
//!  bytes ──scan──▶ compile, or fetch from the cache ──link──▶ PolicyComponent ──▶ WasmInstance: an Instance
//! ```
//!
//! | | is |
//! |---|---|
//! | [`PolicyEngine`], [`Compiler`] | the engine that all components share, and the process in which they are compiled |
//! | [`PolicyComponent`], [`LoadError`] | a component that was checked, compiled and linked, or the reason why not |
//! | [`CompileCache`], [`precompile`], [`EmbeddedPolicy`] | machine code, kept on disk or made when the program was built |
//! | [`Instance`], [`Fault`] | the calls that any policy takes, and what ends one without an answer |
//! | [`WasmInstance`], [`Limits`] | a component in a store of its own: each call is limited in fuel, time, memory and the size of its result |
//! | [`PolicyDescription`], [`configured`] | a policy's words about itself, and settings as it takes them |
//!
//! A guest can do nothing but log, and shares its store with nobody. What policies are told, asked and answer is
//! `pointsman-interface`'s; neither the machine nor its events are known here.
//!
//! # Not here
//! When an instance is called, and what a fault costs its policy: `pointsman-policy`.

#![deny(unsafe_code)]

mod bindings;
mod cache;
mod compiler;
mod component;
mod convert;
mod digest;
mod embedded;
mod engine;
mod fault;
#[cfg(any(test, feature = "test-util"))]
pub mod fixture;
mod instance;
#[cfg(any(test, feature = "test-util"))]
mod kept;
mod limits;
mod precompiled;
mod scan;
mod settings;
mod store;
mod wasm;

// For `conversions!`, which names the interface's types in the crate that invokes it.
#[doc(hidden)]
pub use pointsman_interface;

pub use cache::{CacheError, CompileCache, Made};
pub use compiler::{COMPILE_COMMAND, CompileLimits, CompileStop, Compiler, compile_component};
pub use component::{COMPONENT_BYTES_MAX, LoadError, PolicyComponent};
pub use digest::{Digest, NoDigest, read_component};
pub use embedded::EmbeddedPolicy;
pub use engine::{EngineError, PolicyEngine, WASMTIME_VERSION};
pub use fault::Fault;
pub use instance::{Candidate, Instance, LogLevel, LogLine, PolicyDescription};
pub use limits::Limits;
pub use precompiled::precompile;
pub use scan::Hint;
pub use settings::{BadDuration, SettingRange, SettingSchema, TimeUnit, configured};
pub use wasm::WasmInstance;
