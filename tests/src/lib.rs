//! What the tests and benchmarks of the whole share: fleets, policy hosts, and the code of the
//! benchmarks, which the tests run too, on tiny inputs.

#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
pub mod crowd;
pub mod decide;
pub mod engine;
pub mod fleet;
pub mod fuzz;
pub mod journal;
pub mod mutate;
pub mod reload;
pub mod serving;
pub mod trial;
