//! Fixtures and benchmark code of the tests of the whole: fleets, policy hosts, servers, and
//! clients. The tests run the benchmarks too, on tiny inputs.

#![forbid(unsafe_code)]

pub mod backend;
pub mod bandwidth;
pub mod baseline;
pub mod browser;
pub mod client;
pub mod clock;
pub mod cuda;
pub mod decide;
pub mod engine;
pub mod engine_peers;
pub mod exposition;
pub mod extras;
pub mod fairness;
pub mod fate;
pub mod fidelity;
pub mod fleet;
pub mod fuzz;
pub mod gate;
pub mod gateway;
pub mod journal;
pub mod lengths;
pub mod liveness;
pub mod load;
pub mod log;
pub mod mutate;
pub mod otlp;
pub mod overload;
pub mod reload;
pub mod routers;
pub mod served;
pub mod serving;
pub mod simulated;
mod stepped;
pub mod tls;
pub mod tools;
pub mod trial;

use std::time::Duration;

/// Longest wait of a test for something that must happen, on a machine that is many times slower than most.
pub const PATIENCE: Duration = Duration::from_mins(5);
