//! The part of the configuration that HTTP works by.

use std::time::Duration;

use super::auth::ApiKeys;

/// Bounds, keys and the rules of hints.
#[derive(Debug)]
pub struct HttpSettings {
    /// Connections of clients at once.
    pub connections_max: u32,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Longest time a client may take over its request's head, and again over its body.
    pub read_timeout: Duration,
    /// Longest time a client may leave bytes unread while more wait.
    pub write_timeout: Duration,
    /// Keys of clients and operators.
    pub keys: ApiKeys,
    /// Keys of labels that clients may set.
    pub label_keys: Vec<String>,
    /// Priorities run from minus this to this.
    pub priority_max: i32,
    /// Requests whose decisions the driver remembers.
    pub decisions_max: u32,
    /// Waiting time that a client without room is told, in seconds.
    pub retry_after_secs: u32,
    /// Requests that may wait in the machine's queue.
    pub queue_max: u32,
}
