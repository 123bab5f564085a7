//! A server in a process of its own, as operators have it: their questions and orders to it, and files that were
//! made to harm it.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, its helpers too"
)]

mod authors;
mod commands;
mod dev;
mod fleet;
mod host;
mod hostile;
mod kept;
mod manager;
mod orders;
mod packaged;
#[path = "../policy_cli/said.rs"]
mod said;
#[path = "../policy_cli/scenario.rs"]
mod scenario;
mod starting;
mod state;
mod upgrade;
