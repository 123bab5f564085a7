//! The settings of HTTP, which `pointsman-server` makes from the configuration.

use std::time::Duration;

use super::auth::ApiKeys;

/// The settings of HTTP: bounds, keys, and the rules of hints.
#[derive(Debug)]
pub struct HttpSettings {
    /// The most connections of clients at once.
    pub connections_max: u32,
    /// The most bytes of a request's body.
    pub body_bytes_max: usize,
    /// The longest time that a client may take over a request's head, and again over the body.
    pub read_timeout: Duration,
    /// The longest time that a client may leave bytes unread while more wait.
    pub write_timeout: Duration,
    /// Keys of clients and operators.
    pub keys: ApiKeys,
    /// Keys of labels that clients may set.
    pub label_keys: Vec<String>,
    /// The highest priority. The lowest is the same number below zero.
    pub priority_max: i32,
    /// The number of requests whose decisions the driver remembers.
    pub decisions_max: u32,
    /// Waiting time that a client without room is told, in seconds.
    pub retry_after_secs: u32,
    /// The most requests that may wait in the machine's queue.
    pub queue_max: u32,
}
