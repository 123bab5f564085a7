//! The settings and rules of HTTP, which `pointsman-server` makes from the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use pointsman_events::rows::RequestClass;

use super::auth::ApiKeys;
use super::cors::Origins;
use super::rights::Rights;

/// The settings of HTTP: bounds, and the treatment of requests.
#[derive(Debug)]
pub struct HttpSettings {
    /// The most connections of clients at once; few more are answered if they are probes.
    pub connections_max: u32,
    /// The most requests of one connection, which then closes: so clients come to know of other servers,
    /// and what a connection has gathered goes.
    pub connection_requests_max: u32,
    /// The most bytes of a request's body.
    pub body_bytes_max: usize,
    /// The most bytes of all bodies together, beyond the first 16 KiB of one at a time of each connection.
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
    /// The requests that may use what executors have of each other's prompts.
    pub prefix_cache: PrefixCache,
    /// The treatment of requests that name no model.
    pub unnamed_model: UnnamedModel,
    /// The number of requests whose decisions the driver remembers.
    pub decisions_max: u32,
    /// Waiting time that a client without room is told, in seconds.
    pub retry_after_secs: u32,
    /// The most requests that may wait in the machine's queue.
    pub queue_max: u32,
}

/// The rules for clients and operators that may be replaced while the server runs: keys, origins, the
/// claims of tenants, and hints. A request goes by one edition of them from its arrival on.
#[derive(Debug)]
pub struct AccessRules {
    /// Keys of clients and operators.
    pub keys: ApiKeys,
    /// Origins of pages that may use the server as clients do.
    pub origins: Origins,
    /// Keys of labels that clients may set.
    pub label_keys: Vec<String>,
    /// The highest priority. The lowest is the same number below zero.
    pub priority_max: i32,
    /// The claims of tenants, by name. A tenant that is missing has the default ones.
    pub claims: BTreeMap<String, Claims>,
}

/// The requests that may use what executors have of each other's prompts. The time to the first token
/// tells a client whether others have sent the same beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixCache {
    /// All requests.
    #[default]
    Shared,
    /// The requests of one tenant.
    Tenant,
    /// No requests.
    Off,
}

/// The treatment of requests that name no model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnnamedModel {
    /// Each is refused.
    #[default]
    Refuse,
    /// Each goes to any executor of one model, if all their models read prompts alike.
    Any,
}

/// The most urgency that requests of a tenant may claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The highest priority. Requests that claim none have their key's, or this where it is lower. By default
    /// [`AccessRules::priority_max`] is the bound.
    pub priority_max: i32,
    /// The most urgent class. Requests that claim none have this one. Default latency-critical.
    pub class_max: RequestClass,
    /// The longest waiting time that is granted in advance. Default [`HEAD_START_MAX`].
    pub head_start_max: Duration,
}

/// The longest waiting time that any request may be granted in advance.
pub const HEAD_START_MAX: Duration = Duration::from_secs(60);

// === impl AccessRules ===

impl AccessRules {
    /// The most urgency that requests with these rights may claim: what key and tenant both allow.
    #[must_use]
    pub fn claims_of(&self, rights: &Rights) -> Claims {
        let claims = self.claims.get(&rights.tenant).copied().unwrap_or_default();
        let priority_max = claims.priority_max.min(rights.priority_max);
        Claims {
            priority_max: priority_max.min(self.priority_max),
            ..claims
        }
    }
}

// === impl Claims ===

impl Default for Claims {
    fn default() -> Self {
        Self {
            priority_max: i32::MAX,
            class_max: RequestClass::LatencyCritical,
            head_start_max: HEAD_START_MAX,
        }
    }
}
