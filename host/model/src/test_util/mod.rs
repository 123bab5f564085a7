//! Model files of tests: the demo model, and tiny random models in every format.
#![expect(
    clippy::unwrap_used,
    missing_docs,
    missing_debug_implementations,
    reason = "helpers of tests"
)]

pub mod fp8;
pub mod gguf;
pub mod models;
