//! HTTP against a real listener, with the test in the driver's place.
//!
//! Answers and refusals: `answers`. Jobs that reach the driver: `requests`. Bounds: `limits`.
//! Clients that leave: `leaving`. Orders of operators: `orders`. Connections and the server's life: `lifecycle`. The OpenAPI
//! document: `document`. The journal: `journal`.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, where a panic is the report"
)]

mod answers;
mod choosing;
mod client;
mod document;
mod journal;
mod keys;
mod leaving;
mod lifecycle;
mod limits;
mod orders;
mod requests;
mod stage;
