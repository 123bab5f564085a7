//! Rights: the tenant of a key, the models that it may use, and the urgency that its requests may
//! claim.
//!
//! # Invariants
//! 1. A model that a key may not use is, for its holder, not there: neither lists nor errors name it,
//!    and neither do they name executors of such models
//!    (`tests::a_holder_sees_what_the_key_may_use`, and `keys` in `host/server/tests/http`).

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use pointsman_driver::catalog::Catalog;

/// The rights of an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The name of a tenant in the configuration.
    pub tenant: String,
    /// The models that requests may use. Default all.
    pub models: UsableModels,
    /// The priority of requests that claim none, or the highest one where that is lower. Default 0.
    pub priority: i32,
    /// The highest priority that requests may claim. By default the tenant's is the bound.
    pub priority_max: i32,
}

/// The models that requests with a key may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UsableModels {
    /// All models.
    #[default]
    All,
    /// Models that one of the patterns fits.
    Listed(Vec<ModelPattern>),
}

/// A model's name, or the beginning of models' names with `*` behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelPattern {
    /// The model of this name.
    Name(String),
    /// The models whose names begin so.
    Beginning(String),
}

/// A text that is no [`ModelPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a model, or the beginning of names and a `*`")]
pub struct NoModelPattern;

/// The holder of a key, or anybody where no key is needed.
#[derive(Debug)]
pub struct KeyHolder {
    // Immutable.
    rights: Rights,
    // Owned.
    /// The newest catalogue, as the holder sees it. Locked while it is compared or made: each request
    /// needs it, and few are of one key at one moment.
    view: Mutex<Option<View>>,
}

/// A catalogue, whole and as a holder sees it.
#[derive(Debug)]
struct View {
    whole: Arc<Catalog>,
    seen: Arc<Catalog>,
}

// === impl Rights ===

impl Rights {
    /// The rights of all keys of `tenant` that have none of their own.
    #[must_use]
    pub fn of_tenant(tenant: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            models: UsableModels::All,
            priority: 0,
            priority_max: i32::MAX,
        }
    }
}

// === impl UsableModels ===

impl UsableModels {
    /// `catalog` without the models that may not be used, and without executors that serve none but
    /// those.
    fn of(&self, catalog: &Catalog) -> Catalog {
        let mut seen = catalog.clone();
        seen.models.retain(|model| self.contains(&model.name));
        seen.executors.retain(|executor| {
            let mut models = executor.models.iter();
            models.any(|name| self.contains(name))
        });
        seen
    }

    fn contains(&self, model: &str) -> bool {
        match self {
            UsableModels::All => true,
            UsableModels::Listed(patterns) => patterns.iter().any(|it| it.fits(model)),
        }
    }
}

// === impl ModelPattern ===

impl ModelPattern {
    fn fits(&self, model: &str) -> bool {
        match self {
            ModelPattern::Name(name) => model == name,
            ModelPattern::Beginning(beginning) => model.starts_with(beginning),
        }
    }
}

impl FromStr for ModelPattern {
    type Err = NoModelPattern;

    fn from_str(text: &str) -> Result<Self, NoModelPattern> {
        let (name, pattern): (&str, fn(String) -> Self) = match text.strip_suffix('*') {
            Some(beginning) => (beginning, Self::Beginning),
            None => (text, Self::Name),
        };
        if name.contains('*') {
            return Err(NoModelPattern);
        }
        Ok(pattern(name.to_owned()))
    }
}

// === impl KeyHolder ===

impl KeyHolder {
    /// The holder of a key with these rights.
    #[must_use]
    pub fn new(rights: Rights) -> Self {
        Self {
            rights,
            view: Mutex::default(),
        }
    }

    /// The rights of the key.
    #[must_use]
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// The part of a catalogue that the holder may know.
    pub fn view(&self, whole: Arc<Catalog>) -> Arc<Catalog> {
        if self.rights.models == UsableModels::All {
            return whole;
        }
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = view.as_ref().filter(|it| Arc::ptr_eq(&it.whole, &whole)) {
            return Arc::clone(&known.seen);
        }
        let seen = Arc::new(self.rights.models.of(&whole));
        *view = Some(View {
            whole,
            seen: Arc::clone(&seen),
        });
        seen
    }
}

#[cfg(test)]
mod tests {
    use pointsman_driver::catalog::ExecutorEntry;
    use pointsman_events::rows::ExecutorKind;

    use super::*;

    fn catalog(executors: &[(&str, &[&str])]) -> Arc<Catalog> {
        let executors = executors.iter().map(|(name, models)| ExecutorEntry {
            name: (*name).to_owned(),
            device: "cpu0".to_owned(),
            kind: ExecutorKind::Cpu,
            models: models.iter().map(|&model| model.to_owned()).collect(),
            tokens_per_block: None,
        });
        Arc::new(Catalog {
            executors: executors.collect(),
            ..Catalog::default()
        })
    }

    fn holder(patterns: &[&str]) -> KeyHolder {
        let patterns = patterns.iter().map(|text| text.parse().unwrap());
        KeyHolder::new(Rights {
            models: UsableModels::Listed(patterns.collect()),
            ..Rights::of_tenant("a")
        })
    }

    fn names(catalog: &Catalog) -> Vec<&str> {
        let executors = catalog.executors.iter();
        executors.map(|executor| &*executor.name).collect()
    }

    #[test]
    fn a_pattern_is_a_name_or_a_beginning_of_names() {
        for (pattern, model, fits) in [
            ("llama", "llama", true),
            ("llama", "llama-2", false),
            ("llama*", "llama", true),
            ("llama*", "llama-2", true),
            ("llama*", "my-llama", false),
            ("*", "anything", true),
        ] {
            let models = UsableModels::Listed(vec![pattern.parse().unwrap()]);
            assert_eq!(models.contains(model), fits, "{pattern} {model}");
        }
        for text in ["*llama", "l*a", "**"] {
            assert_eq!(text.parse::<ModelPattern>(), Err(NoModelPattern), "{text}");
        }
    }

    #[test]
    fn a_holder_sees_what_the_key_may_use() {
        let whole = catalog(&[("one", &["a"]), ("two", &["b"]), ("both", &["a", "b"])]);
        let any = KeyHolder::new(Rights::of_tenant("a"));
        assert!(Arc::ptr_eq(&any.view(Arc::clone(&whole)), &whole));
        let of_a = holder(&["a", "c*"]);
        let seen = of_a.view(Arc::clone(&whole));
        assert_eq!(names(&seen), ["one", "both"]);
        // As long as nothing changes it is made once.
        assert!(Arc::ptr_eq(&of_a.view(whole), &seen));
        let changed = catalog(&[("two", &["b"]), ("three", &["cc"])]);
        assert_eq!(names(&of_a.view(changed)), ["three"]);
        assert!(names(&holder(&["d"]).view(catalog(&[("one", &["a"])]))).is_empty());
    }
}
