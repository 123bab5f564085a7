//! Policies that are part of a program.

use pointsman_packed::Packed;

use crate::component::{LoadError, PolicyComponent};
use crate::engine::PolicyEngine;

/// A policy in the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedPolicy {
    /// The policy's name, which a file in the policy folder can take over.
    pub name: &'static str,
    pub wasm: &'static [u8],
    /// Machine code that was made of it ahead; absent: it is compiled when it is loaded.
    pub code: Option<Packed>,
}

impl EmbeddedPolicy {
    /// The policy by the code that was made ahead; absent: there is none that can be used here.
    ///
    /// # Errors
    /// If it is not a component that this host can ask.
    pub fn precompiled(&self, engine: &PolicyEngine) -> Result<Option<PolicyComponent>, LoadError> {
        let code = self.code.and_then(|code| code.unpack().ok());
        let load = |code: Vec<u8>| PolicyComponent::load_precompiled(engine, self.wasm, &code);
        code.map_or(Ok(None), load)
    }
}
