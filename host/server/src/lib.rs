//! The server: configuration, driver thread, HTTP, policy folder, metrics.
//!
//! One thread, the driver, owns the machine and the policies. Everything else talks to it through
//! bounded channels: HTTP tasks submit requests, executors report steps, the reconciler
//! commits policies. Tokens go from the executor straight to the response.
//!
//! # Not here
//! Decisions (`pointsman-core`, policies), wasmtime (`pointsman-policy`), models and engines
//! (`pointsman-engine`).

#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod embedded;
#[doc(hidden)]
pub mod fuzz;
pub mod journal;
pub mod logging;
pub mod models;
pub mod serve;
pub mod shutdown;
