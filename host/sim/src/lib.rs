//! Deterministic runs of the core machine with scripted engines and real policies.
//!
//! A [`World`] is a whole host without I/O: the machine of `pointsman-core`, whoever answers it,
//! and one scripted [`Engine`] per executor, on logical time. After every step it checks the
//! machine's invariants and that no two sequences write the same block.
//!
//! [`Adversary`] answers at random, validly and not, for property tests.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod adversary;
mod engine;
mod world;

pub use adversary::Adversary;
pub use engine::{Engine, EngineProfile, PrefillShares};
pub use world::{Recorded, Tape, World, replay};
