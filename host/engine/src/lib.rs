//! The local engine: an executor that runs models like Llama on this machine.
//!
//! [`thread::spawn`] starts an engine: a thread that turns a [`step_loop`] over a
//! [`backend`]. [`cpu`] has the backend for processors; another device brings its own
//! [`ops`](pointsman_model::ops).
//!
//! # Not here
//! Models, their files and weights (`pointsman-model`), tokens out of prompts, and text out of tokens (`pointsman-text`), the contract that every executor
//! keeps (`pointsman-executor`), the choice of what runs where
//! (the core), sockets (the server).

#![deny(missing_docs)]

pub mod backend;
pub mod cpu;
pub mod embedding;
pub mod sample;
pub mod step_loop;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
pub mod thread;
