//! The parts of the binary `pointsman` that only it needs: command line, configuration, the models of
//! this machine, and the assembly of a server.
//!
//! [`serve`] puts a server together and takes it apart; [`process`] does so for a process, its signals and its service
//! manager; [`config`] reads the configuration and makes
//! the settings of the other crates; [`models`] is the provider of executors on this machine's
//! processors; [`embedded`] has the default policies and the demo model; [`hub`] fetches models of a Hugging Face hub.
//!
//! One thread, the driver, owns the machine and the policies. Everything else talks to it through
//! bounded channels: HTTP tasks submit requests, executors report steps, the reconciler commits
//! policies. Tokens go from the executor straight to the response.
//!
//! # Not here
//! Decisions (`pointsman-core` and the policies), wasmtime (`pointsman-component`), the policy folder
//! (`pointsman-lifecycle`), the driver and the metrics (`pointsman-driver`), HTTP
//! (`pointsman-http`, `pointsman-openai`, `pointsman-admin`), engines (`pointsman-engine`), the author's tools (`pointsman-policy-cli`).

mod advice;
mod backends;
pub mod check;
pub mod cli;
pub mod config;
pub mod devices;
pub mod embedded;
#[doc(hidden)]
pub mod fuzz;
pub mod hub;
pub mod journal;
mod listeners;
mod local_model;
pub mod logging;
pub mod lookup;
mod manager;
mod memory;
pub mod models;
pub mod process;
mod progress;
pub mod reload;
mod remotes;
pub mod routes;
pub mod serve;
pub mod settings;
pub mod signals;
mod state;
