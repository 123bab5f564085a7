//! A model: its files, its architecture, its weights, and the graph over them.

pub mod backend;
pub mod config;
pub mod dummy;
pub mod files;
pub mod gguf;
pub mod graph;
pub mod host;
pub mod open;
pub mod ops;
pub mod weights;
