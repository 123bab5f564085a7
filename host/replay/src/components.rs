//! Compiled components of recorded policies.
//!
//! # Bounds
//! [`COMPONENTS_MAX`] components are kept; above that all are dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pointsman_component::{CompileCache, Digest, LoadError, PolicyComponent, PolicyEngine};

/// The compiled components of recorded policies, for several replays. Clones share them.
#[derive(Clone, Debug)]
pub struct ComponentCache {
    engine: PolicyEngine,
    /// Compiled code on disk; absent: what is not here is compiled.
    code: Option<CompileCache>,
    /// Components by the digest of their bytes. Locked to look one up and to put one in, since a
    /// cache may serve several threads.
    components: Arc<Mutex<BTreeMap<[u8; 32], PolicyComponent>>>,
}

/// Number of components kept.
const COMPONENTS_MAX: usize = 64;

impl ComponentCache {
    /// Makes an empty cache, which compiles with `engine`.
    #[must_use]
    pub fn new(engine: PolicyEngine) -> Self {
        Self {
            engine,
            code: None,
            components: Arc::default(),
        }
    }

    /// Takes compiled code from `code` where it is there, and puts it there otherwise.
    #[must_use]
    pub fn with_code(mut self, code: Option<CompileCache>) -> Self {
        self.code = code;
        self
    }

    pub(crate) fn component(&self, code: &[u8]) -> Result<PolicyComponent, LoadError> {
        let digest = Digest::of(code).0;
        let components = || {
            let components = self.components.lock();
            components.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(component) = components().get(&digest) {
            return Ok(component.clone());
        }
        let component = PolicyComponent::load_with(&self.engine, code, self.code.as_ref())?;
        let mut components = components();
        if components.len() >= COMPONENTS_MAX {
            components.clear();
        }
        components.insert(digest, component.clone());
        Ok(component)
    }
}
