//! The contract between the host's driver and the executors, which run sequences.
//!
//! An executor takes [`contract::Command`]s and reports [`contract::Event`]s, both through bounded
//! channels. Tokens do not pass the driver: their text goes from the executor straight to the
//! response, through a [`delivery`] channel. An executor that is a server elsewhere is given the
//! request as it came, and its response goes through as it comes ([`relay`]).
//!
//! With the feature `test-util`, `test_util` has the contract as a suite of tests, and a scripted
//! executor that passes the suite.
//!
//! # Not here
//! The placing of sequences and their blocks (the core), an executor that computes (the engine),
//! sockets (the server).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod contract;
pub mod delivery;
pub mod form;
pub mod handle;
pub mod job;
pub mod prompt;
pub mod relay;
pub mod server;
pub mod shares;
pub mod stats;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
pub mod text;
pub mod tools;
pub mod trace;
