//! Executors elsewhere: servers with OpenAI's API.
//!
//! [`spawn`] starts the task of one server. It asks the server for its software, models, slots, KV
//! blocks, health and load, and tells the driver what has changed; requests that are placed there are
//! passed on byte for byte, each in a task of its own, and the responses go through to the clients as
//! they come.
//!
//! A request fails elsewhere, and not its client, as long as its client has nothing of a response: it goes
//! back to the machine, which finds another executor. A server that says that it has no room (429, 503),
//! that its context has none where another one's is longer, or that it was not built for a request (501, 505), has not
//! failed. Nor has one to which no connection can be made: it is silent, and the request may go there once it is back.
//!
//! # Bounds
//! What is asked of a server is read up to [`client::ANSWER_BYTES_MAX`]. A response waits for its client,
//! and the server with it.
//!
//! # Not here
//! The choice of a server (the machine and its policies), requests and responses of clients
//! (`pointsman-openai`), configuration (`pointsman-server`).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod asker;
pub mod client;
mod continuation;
mod executor;
mod findings;
mod open;
mod poll;
mod residency;
mod router;
mod sequence;
#[cfg(test)]
mod test_util;
mod watch;

pub use executor::{RemoteSpec, spawn};
