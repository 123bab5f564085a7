//! What runs sequences: the contract every executor keeps, and the engine on this machine's
//! processors.
//!
//! An executor takes [`contract::Command`]s and says [`contract::Event`]s, both through bounded channels. Tokens do
//! not pass the host's driver: they go from the executor straight to the response, through a
//! [`delivery`] channel.
//!
//! # Not here
//! Which sequence runs where, and which blocks it has (the core); sockets (the server).

#![deny(missing_docs)]

pub mod contract;
pub mod cpu;
pub mod delivery;
pub mod engine;
pub mod job;
pub mod model;
pub mod sample;
pub mod text;
