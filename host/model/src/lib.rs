//! Models like Llama: their files, architectures and weights, and the computation of a step over a device's
//! operations.
//!
//! [`open::OpenModel`] reads the heads of a model's files; [`host::HostModel`] has its weights in this machine's
//! memory, and another device takes them straight from the files. [`graph::forward`] computes a step by
//! whatever [`ops::Ops`] a device has. [`split`] gives each of several devices a part of a model.
//!
//! # Not here
//! Arithmetic, KV blocks, steps and samples (`pointsman-engine`, `pointsman-cuda`), tokens and text
//! (`pointsman-text`), the hub that files come from (the server).

#![deny(missing_docs)]

pub mod config;
pub mod dummy;
pub mod files;
pub mod gguf;
pub mod graph;
pub mod host;
pub mod open;
pub mod ops;
pub mod split;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
pub mod weights;
