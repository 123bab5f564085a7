//! Compiled code of policies, kept from one command to the next: a component is compiled once on a
//! machine.
//!
//! The folder is `pointsman/code` in the user's cache folder. Where none can be had, each command
//! compiles.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pointsman_component::{CompileCache, EmbeddedPolicy, LoadError, PolicyComponent, PolicyEngine};
use pointsman_replay::ComponentCache;

/// Compiled code that is there already; by default none is.
#[derive(Clone, Debug, Default)]
pub struct KeptCode(Option<CompileCache>);

impl KeptCode {
    /// The code in the user's cache; none where there is no folder for it that only this user can write to.
    #[must_use]
    pub fn of_user() -> Self {
        // Unit tests leave the developer's own alone.
        #[cfg(test)]
        let folder = Some(pointsman_testkit::component::code_folder());
        #[cfg(not(test))]
        let folder = folder(&|name| std::env::var_os(name));
        folder.map_or_else(Self::default, |folder| Self::in_folder(&folder))
    }

    /// The code in a folder; none where it cannot be used safely.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self(CompileCache::open(folder).ok())
    }

    /// Loads a policy, by the code that is kept where it is there.
    ///
    /// # Errors
    /// If the bytes are no policy.
    pub fn load(&self, engine: &PolicyEngine, bytes: &[u8]) -> Result<PolicyComponent, LoadError> {
        PolicyComponent::load_with(engine, bytes, self.0.as_ref())
    }

    /// Loads a default policy, by the code that was made ahead where it can be used.
    ///
    /// # Errors
    /// If it is no policy.
    pub fn embedded(
        &self,
        engine: &PolicyEngine,
        policy: &EmbeddedPolicy,
    ) -> Result<PolicyComponent, LoadError> {
        match policy.precompiled(engine)? {
            Some(component) => Ok(component),
            None => self.load(engine, policy.wasm),
        }
    }

    /// The policies of journals, by the code that is kept where it is there.
    #[must_use]
    pub fn recorded(self, engine: PolicyEngine) -> ComponentCache {
        ComponentCache::new(engine).with_code(self.0)
    }
}

/// The folder for code, by the environment of this process, as the XDG specification has it.
fn folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let whole = |name| {
        let path = PathBuf::from(variable(name)?);
        path.is_absolute().then_some(path)
    };
    let caches = whole("XDG_CACHE_HOME").or_else(|| Some(whole("HOME")?.join(".cache")));
    Some(caches?.join(Path::new("pointsman/code")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_kept_in_the_users_cache_folder() {
        for (cache, home, expected) in [
            ("/var/c", "/home/me", Some("/var/c/pointsman/code")),
            ("", "/home/me", Some("/home/me/.cache/pointsman/code")),
            ("here", "/home/me", Some("/home/me/.cache/pointsman/code")),
            ("", "", None),
        ] {
            let variable = |name: &str| match name {
                "XDG_CACHE_HOME" => Some(cache.into()),
                "HOME" => Some(home.into()),
                _ => None,
            };
            assert_eq!(folder(&variable).as_deref(), expected.map(Path::new));
        }
    }
}
