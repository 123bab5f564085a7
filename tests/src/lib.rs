//! What the tests and benchmarks of the whole share: fleets, policy hosts, and the code of the
//! benchmarks, which the tests run too, on tiny inputs.

#![forbid(unsafe_code)]

pub mod decide;
pub mod fleet;
