//! Subjects: the policies that are checked.

use std::fmt;

use pointsman_component::{Limits, PolicyComponent};
use pointsman_policy::PolicySource;
use serde_json::{Map, Value};

use crate::kit::Flavour;
use crate::native::{self, Make};

/// A policy with its settings, to be checked.
#[derive(Clone)]
pub struct Subject {
    flavour: Flavour,
    source: PolicySource,
    settings: Map<String, Value>,
}

// === impl Subject ===

impl Subject {
    /// Makes a subject of a native policy; the SDK's `export!` defined `make` as `instance`.
    #[must_use]
    pub fn native(name: &str, make: Make, settings: &Map<String, Value>) -> Self {
        Self {
            flavour: Flavour::Native,
            source: native::source(name, make, settings),
            settings: settings.clone(),
        }
    }

    /// Makes a subject of a component with these limits.
    #[must_use]
    pub fn component(
        component: &PolicyComponent,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Self {
        Self {
            flavour: Flavour::Component,
            source: PolicySource::component(component, settings, limits),
            settings: settings.clone(),
        }
    }

    /// The flavour in which the policy is compiled.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub(super) fn source(&self) -> &PolicySource {
        &self.source
    }

    pub(super) fn settings(&self) -> &Map<String, Value> {
        &self.settings
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("flavour", &self.flavour())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
