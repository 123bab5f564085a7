//! The state of a server, as it was found. What is unknown is absent, never zero.

use std::sync::Arc;

use pointsman_events::Availability;
use pointsman_executor::handle::FoundModel;
use pointsman_executor::server::{ServerLoad, ServerSoftware};

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
    /// The most models that it has loaded at once; absent: it does not say, or sets no bound.
    pub(crate) models_max: Option<u32>,
    pub(crate) load: ServerLoad,
}

impl Findings {
    /// The findings about a server that answers that it takes nothing now.
    pub(crate) fn busy(why: String) -> Self {
        Self {
            availability: Availability::Busy,
            why,
            software: None,
            models: None,
            loaded: None,
            models_max: None,
            load: ServerLoad::default(),
        }
    }
}
