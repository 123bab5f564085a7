//! The settings of HTTP, which `pointsman-server` makes from the configuration.

use std::time::Duration;

use super::auth::ApiKeys;
use super::cors::Origins;

/// The settings of HTTP: bounds, keys, and the rules of hints.
#[derive(Debug)]
pub struct HttpSettings {
    /// The most connections of clients at once; few more are answered if they are probes.
    pub connections_max: u32,
    /// The most bytes of a request's body.
    pub body_bytes_max: usize,
    /// The most bytes of all bodies together, beyond the first 16 KiB of each.
    pub bodies_bytes_max: usize,
    /// Gives memory that was freed back to the system; called when that is much, where it may take
    /// its time.
    pub memory_freed: fn(),
    /// The most long requests that may wait for their turn to be parsed and tokenised.
    pub reading_queue_max: u32,
    /// The longest time that a client may take over a request's head, and again over the body.
    pub read_timeout: Duration,
    /// The longest time that a client may leave bytes unread while more wait.
    pub write_timeout: Duration,
    /// Keys of clients and operators.
    pub keys: ApiKeys,
    /// Origins of pages that may use the server as clients do.
    pub origins: Origins,
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
