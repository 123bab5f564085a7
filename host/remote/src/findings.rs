//! The state of a server, as it was found. What is unknown is absent, never zero.

use std::sync::Arc;

use pointsman_core::{Availability, KvReport};
use pointsman_executor::handle::FoundModel;
use pointsman_executor::server::ServerSoftware;

use crate::residency::Loaded;

/// Everything that one round of questions found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) availability: Availability,
    /// The reason why it is not open, for the operator's log; empty where it is.
    pub(crate) why: String,
    /// The software; absent: not found out yet.
    pub(crate) software: Option<ServerSoftware>,
    pub(crate) models: Option<Arc<[FoundModel]>>,
    /// The models that are loaded; absent: it does not tell.
    pub(crate) loaded: Option<Loaded>,
    pub(crate) load: ServerLoad,
}

/// The capacity and the load of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerLoad {
    /// Requests that it runs at once.
    pub(crate) capacity: Option<u32>,
    /// Requests that run or wait there, ours and others'.
    pub(crate) present: Option<u32>,
    /// Tokens in a KV block.
    pub(crate) tokens_per_block: Option<u32>,
    pub(crate) kv: Option<KvReport>,
}

impl Findings {
    /// The findings about a server that did not answer, or answered so.
    pub(crate) fn not_open(availability: Availability, why: String) -> Self {
        Self {
            availability,
            why,
            software: None,
            models: None,
            loaded: None,
            load: ServerLoad::default(),
        }
    }
}

impl ServerLoad {
    /// The load with what `other` knows where this one does not.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            capacity: self.capacity.or(other.capacity),
            present: self.present.or(other.present),
            tokens_per_block: self.tokens_per_block.or(other.tokens_per_block),
            kv: self.kv.or(other.kv),
        }
    }
}
