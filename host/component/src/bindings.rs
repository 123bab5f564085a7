//! Bindings that wasmtime generates from `wit/`.
//!
//! # Not here
//! The meaning of these types: `convert` maps them to the core's, and only `convert` and `wasm` use
//! them.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "policy",
});

pub(crate) use exports::pointsman::scheduling::*;
pub(crate) use pointsman::scheduling::{log, types};
