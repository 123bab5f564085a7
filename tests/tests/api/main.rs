//! The OpenAI API and what stands around it: parameters, forms, clients, limits, metrics.
//!
//! Tests that read the process's log have programs of their own: `http2`, `said`, `secrets`, `telemetry`, `tls`.

mod against_the_document;
mod choices;
mod clients;
mod clients_leave;
mod embeddings;
mod forms;
mod fuzz_bodies;
mod gguf;
mod limits;
mod metrics;
mod observability;
mod prefix_cache;
mod sampling;
mod tools;
mod traced;
