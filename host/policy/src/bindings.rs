//! Bindings that wasmtime generates from `wit/`.
//!
//! # Not here
//! Meaning: `convert` maps these types to the core's, and nothing but `convert` and `wasm` uses
//! them.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "policy",
});

pub(crate) use exports::pointsman::scheduling::{
    admission, budget, explanation, lifecycle, preemption, priority, routing,
};
pub(crate) use pointsman::scheduling::{log, types};
