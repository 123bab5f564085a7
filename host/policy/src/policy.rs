//! From a component to a policy that can be asked: instantiate, describe, configure, restore.
//!
//! [`start`] runs guest code but touches no host, so that a reload can do it on a thread of its
//! own, while the policy in force goes on answering. The [`Runner`] that it makes is handed to
//! [`crate::PolicyHost::add`].

use std::fmt;
use std::sync::Arc;

use pointsman_core::rows::{Change, Extent, FeedKinds};
use pointsman_core::{FaultKind, Feed, Hook, HookSet, Micros, View};
use serde_json::{Map, Value};

use crate::component::{Digest, PolicyComponent};
use crate::instance::{Fault, Instance, PolicyDescription};
use crate::limits::Limits;
use crate::runner::Runner;
use crate::wasm::WasmInstance;

#[cfg(test)]
mod tests;

/// Makes instances of one policy with one configuration. Cheap to clone.
#[derive(Clone)]
pub struct PolicySource {
    maker: Maker,
    settings: Arc<str>,
    limits: Limits,
    digest: Digest,
    fingerprint: Digest,
}

#[derive(Clone)]
enum Maker {
    Component(PolicyComponent),
    Native(Arc<dyn Fn() -> Box<dyn Instance> + Send + Sync>),
}

impl PolicySource {
    /// Instances of `component`, configured with the operator's `settings`.
    #[must_use]
    pub fn component(
        component: &PolicyComponent,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Self {
        let digest = component.digest();
        Self::new(
            Maker::Component(component.clone()),
            digest,
            settings,
            limits,
        )
    }

    /// Instances that `make` makes: a policy linked in natively. `digest` stands for its code.
    #[must_use]
    pub fn native(
        digest: Digest,
        make: impl Fn() -> Box<dyn Instance> + Send + Sync + 'static,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Self {
        Self::new(Maker::Native(Arc::new(make)), digest, settings, limits)
    }

    fn new(maker: Maker, digest: Digest, settings: &Map<String, Value>, limits: Limits) -> Self {
        let settings = Value::Object(settings.clone()).to_string();
        let mut text = digest.0.to_vec();
        text.extend_from_slice(settings.as_bytes());
        Self {
            maker,
            settings: settings.into(),
            limits,
            digest,
            fingerprint: Digest::of(&text),
        }
    }

    /// Digest of the code.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Digest of the code and the settings. Quarantine goes by it, so that other settings of
    /// the same code get their own chance.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
    }

    /// Its settings, a JSON object.
    #[must_use]
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// The limits its instances run under.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The bytes of its component; absent: it is linked in natively.
    #[must_use]
    pub fn code(&self) -> Option<&[u8]> {
        match &self.maker {
            Maker::Component(component) => Some(component.bytes()),
            Maker::Native(_) => None,
        }
    }

    fn instantiate(&self) -> Result<Box<dyn Instance>, Fault> {
        match &self.maker {
            Maker::Component(component) => Ok(Box::new(WasmInstance::new(component, self.limits)?)),
            Maker::Native(make) => Ok(make()),
        }
    }

    /// A configured instance without state. Any failure is a [`FaultKind::Start`]: the same
    /// code took the same settings before.
    fn cold(&self) -> Result<Box<dyn Instance>, Fault> {
        let as_start = |fault: Fault| Fault::new(FaultKind::Start, fault.detail);
        let mut instance = self.instantiate().map_err(as_start)?;
        match instance.configure(&self.settings).map_err(as_start)? {
            Ok(()) => Ok(instance),
            Err(refusal) => Err(Fault::new(
                FaultKind::Start,
                format!("configure refused: {refusal}"),
            )),
        }
    }

    /// A configured instance with the state of `snapshot`, or without where it cannot be had.
    pub(crate) fn warm(&self, snapshot: Option<&[u8]>) -> Result<Fresh, Fault> {
        let mut instance = self.cold()?;
        let restored = match snapshot.map(|state| instance.restore(state)) {
            None => Restored::Cold,
            Some(Ok(Ok(()))) => Restored::Warm,
            Some(Ok(Err(refusal))) => Restored::Refused(refusal),
            Some(Err(fault)) => {
                instance = self.cold()?;
                Restored::Faulted(fault)
            }
        };
        Ok(Fresh { instance, restored })
    }
}

impl fmt::Debug for PolicySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySource")
            .field("digest", &self.digest)
            .field("settings", &self.settings)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// An instance that has not been told anything yet.
pub(crate) struct Fresh {
    pub(crate) instance: Box<dyn Instance>,
    pub(crate) restored: Restored,
}

/// What became of a snapshot that a fresh instance was offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// None was offered.
    Cold,
    /// It took the state over.
    Warm,
    /// It refused the state, in its words, and starts without.
    Refused(String),
    /// It faulted on the state; another one started without.
    Faulted(Fault),
}

/// What one policy's [`Instance::snapshot`] returned, for its successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the policy that made it.
    pub name: String,
    /// Its state version.
    pub state_version: u32,
    /// Its bytes.
    pub state: Vec<u8>,
}

/// What a policy must be told before it can take over, gathered in one moment. From then on only
/// what changed after that moment is missing.
#[derive(Debug)]
pub struct Briefing {
    pub(crate) at: Micros,
    pub(crate) feed: Feed,
    pub(crate) extent: Extent,
    pub(crate) changes: Vec<Change>,
}

impl Briefing {
    /// Who it is for: one that wants these kinds.
    #[must_use]
    pub fn kinds(&self) -> FeedKinds {
        self.feed.kinds()
    }

    /// How far in the machine's changes it goes.
    #[must_use]
    pub fn told(&self) -> Option<u64> {
        self.feed.told()
    }

    /// All that `view` shows, for a policy that wants to be told `kinds` besides what everybody is.
    #[must_use]
    pub fn new(view: &View<'_>, at: Micros, kinds: FeedKinds) -> Self {
        let mut feed = Feed::new(kinds);
        let mut changes = Vec::new();
        let extent = feed.changes(view, &mut changes);
        Self {
            at,
            feed,
            extent,
            changes,
        }
    }
}

/// Why a policy did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It faulted.
    #[error("faulted at the start")]
    Faulted(#[from] Fault),
    /// It faulted on its settings.
    #[error("faulted on its settings")]
    ConfigureFaulted(#[source] Fault),
    /// It does not take its settings.
    #[error("settings refused: {0}")]
    SettingsRefused(String),
    /// What it says about itself is no description.
    #[error("description is not usable")]
    Description(#[from] DescriptionError),
}

/// What is wrong with a policy's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// It has no name.
    #[error("name is empty")]
    NoName,
    /// A text is too long.
    #[error("{what} has {bytes} bytes, {max} are allowed")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// It has more reasons than it may.
    #[error("{count} reasons, {max} are allowed")]
    TooManyReasons {
        /// How many.
        count: usize,
        /// The limit.
        max: u32,
    },
    /// It makes no decision.
    #[error("makes no decision: it has no hook")]
    NoHooks,
    /// It would have to answer about what it is never told.
    #[error("exports {hook} but does not ask to be fed {feed}")]
    FeedMissing {
        /// The hook.
        hook: &'static str,
        /// The feed it lacks.
        feed: &'static str,
    },
}

/// Instantiates, asks for the description and configures.
///
/// # Errors
/// If any of the steps faults, or the policy refuses its settings, or its description is not
/// usable. The policy in force is untouched.
pub fn start(source: PolicySource) -> Result<Runner, StartError> {
    let mut instance = source.instantiate()?;
    let description = instance.describe()?;
    check_texts(&description, source.limits())?;
    check_hooks(&description, instance.hooks())?;
    instance
        .configure(&source.settings)
        .map_err(StartError::ConfigureFaulted)?
        .map_err(StartError::SettingsRefused)?;
    Ok(Runner::new(source, description, instance))
}

fn check_texts(said: &PolicyDescription, limits: &Limits) -> Result<(), DescriptionError> {
    if said.name.is_empty() {
        return Err(DescriptionError::NoName);
    }
    if u32::try_from(said.reasons.len()).is_ok_and(|count| count <= limits.reasons) {
        let max = usize::try_from(limits.text_bytes).unwrap_or(usize::MAX);
        check_length("name", &said.name, max)?;
        check_length("version", &said.version, max)?;
        check_length("summary", &said.summary, max.saturating_mul(4))?;
        let mut reasons = said.reasons.iter();
        return reasons.try_for_each(|reason| check_length("a reason", reason, max));
    }
    Err(DescriptionError::TooManyReasons {
        count: said.reasons.len(),
        max: limits.reasons,
    })
}

fn check_length(what: &'static str, text: &str, max: usize) -> Result<(), DescriptionError> {
    let bytes = text.len();
    if bytes > max {
        return Err(DescriptionError::TooLong { what, bytes, max });
    }
    Ok(())
}

/// Only victims cannot be named without their feed: the other hooks are passed the ids that
/// their answers are about.
fn check_hooks(said: &PolicyDescription, hooks: HookSet) -> Result<(), DescriptionError> {
    if hooks.is_empty() {
        return Err(DescriptionError::NoHooks);
    }
    if hooks.contains(Hook::Preemption) && !said.feed.sequences {
        return Err(DescriptionError::FeedMissing {
            hook: Hook::Preemption.as_str(),
            feed: "sequences",
        });
    }
    Ok(())
}
