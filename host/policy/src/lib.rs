//! Loads, limits, feeds and asks policy components; the only crate that knows wasmtime.
