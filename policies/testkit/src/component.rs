//! Policies as the components that are shipped.
//!
//! `cargo xtask policies` makes the files. This module finds them, loads them under the default
//! limits of a server, and makes [`PolicySource`]s of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use pointsman_component::{
    CompileCache, EngineError, Fault, Limits, LoadError, PolicyComponent, PolicyEngine,
    WasmInstance,
};
use pointsman_policy::PolicySource;
use serde_json::{Map, Value};

/// The folder for machine code, beside the components.
const COMPILED: &str = "compiled";

/// A reason why there is no component.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComponentError {
    /// The component was not built.
    #[error("no component {}: run `cargo xtask policies`", .0.display())]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("component {} cannot be read", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is no policy.
    #[error("component {} is no policy", .0.display())]
    Load(PathBuf, #[source] LoadError),
    /// The component cannot be instantiated.
    #[error(transparent)]
    Instance(#[from] Fault),
    /// The machine cannot run compiled components.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The path at which `cargo xtask policies` puts the component of policy `name`.
#[must_use]
pub fn component_path(name: &str) -> PathBuf {
    target().join("policies").join(format!("{name}.wasm"))
}

/// Cargo's target folder, by the rule of that command. Nothing else reads the environment.
fn target() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new("."));
    let chosen = std::env::var_os("CARGO_TARGET_DIR").filter(|chosen| !chosen.is_empty());
    workspace.join(chosen.as_deref().unwrap_or(OsStr::new("target")))
}

/// The components loaded so far. Each file is compiled once.
#[derive(Debug, Default)]
pub struct Components {
    engine: Option<PolicyEngine>,
    loaded: BTreeMap<String, PolicyComponent>,
}

impl Components {
    /// Makes a source of instances of the component of policy `name`, configured with `settings`.
    ///
    /// # Errors
    /// If there is no such component, or it cannot be loaded.
    pub fn source(
        &mut self,
        name: &str,
        settings: &Map<String, Value>,
    ) -> Result<PolicySource, ComponentError> {
        Ok(source(self.component(name)?, settings))
    }

    /// Makes a bare instance of the component of policy `name`, under the default limits.
    ///
    /// # Errors
    /// If there is no such component, or it cannot be loaded or instantiated.
    pub fn instance(&mut self, name: &str) -> Result<WasmInstance, ComponentError> {
        let component = self.component(name)?;
        Ok(WasmInstance::new(component, Limits::default())?)
    }

    /// Loads the component of policy `name`.
    ///
    /// # Errors
    /// If there is no such component, or it cannot be loaded.
    pub fn component(&mut self, name: &str) -> Result<&PolicyComponent, ComponentError> {
        let engine = match &self.engine {
            Some(engine) => engine.clone(),
            None => self.engine.insert(PolicyEngine::new()?).clone(),
        };
        match self.loaded.entry(name.to_owned()) {
            Entry::Occupied(loaded) => Ok(loaded.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(load(&engine, &component_path(name))?)),
        }
    }
}

pub(crate) fn source(component: &PolicyComponent, settings: &Map<String, Value>) -> PolicySource {
    PolicySource::component(component, settings, Limits::default())
}

/// Loads the component at `path`. Its machine code is kept in a folder beside it, so that of all tests and runs the
/// first one compiles it.
///
/// # Errors
/// If there is no such component, or it is no policy.
pub fn load(engine: &PolicyEngine, path: &Path) -> Result<PolicyComponent, ComponentError> {
    let bytes = fs::read(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            ComponentError::Missing(path.to_owned())
        } else {
            ComponentError::Read(path.to_owned(), error)
        }
    })?;
    let cache = CompileCache::open(&path.with_file_name(COMPILED)).ok();
    PolicyComponent::load_with(engine, &bytes, cache.as_ref())
        .map_err(|error| ComponentError::Load(path.to_owned(), error))
}

/// The folder of the machine code of built components that tests loaded, for tests that load them by other ways.
#[must_use]
pub fn code_folder() -> PathBuf {
    component_path("any").with_file_name(COMPILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_component_says_how_to_make_it() {
        let error = Components::default().source("nobody", &Map::new());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("nobody.wasm"), "{text}");
        assert!(text.ends_with("run `cargo xtask policies`"), "{text}");
    }
}
