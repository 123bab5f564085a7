//! The parts of the binary `pointsman` that only it needs: command line, logs, and the assembly of a server.
//!
//! [`serve`] puts a server together and takes it apart; [`process`] does so for a process, its signals and its service
//! manager; [`embedded`] has the default policies.
//!
//! One thread, the driver, owns the machine and the policies. Everything else talks to it through
//! bounded channels: HTTP tasks submit requests, executors report steps, the reconciler commits
//! policies. Tokens go from the executor straight to the response.
//!
//! # Not here
//! The configuration (`pointsman-config`), the models of this machine (`pointsman-local`), decisions (`pointsman-core` and the policies), wasmtime (`pointsman-component`), the policy folder
//! (`pointsman-lifecycle`), the driver and the metrics (`pointsman-driver`), HTTP
//! (`pointsman-http`, `pointsman-openai`, `pointsman-admin`), engines (`pointsman-engine`), the author's tools (`pointsman-policy-cli`).

mod advice;
mod backends;
pub mod check;
pub mod cli;
pub mod embedded;
#[doc(hidden)]
pub mod fuzz;
pub mod journal;
mod listeners;
pub mod logging;
pub mod lookup;
mod manager;
mod memory;
pub mod process;
pub mod reload;
mod remotes;
pub mod routes;
pub mod serve;
pub mod settings;
pub mod signals;
mod state;
