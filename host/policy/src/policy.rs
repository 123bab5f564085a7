//! The way from a component to a running policy: instantiate, describe, configure, restore.
//!
//! [`start`] runs guest code and touches no host, so that a reload can do it on a thread of its own
//! while the policy in force goes on answering. [`crate::PolicyHost::add`] takes the [`Runner`]
//! that it makes.

use std::fmt;
use std::sync::Arc;

use pointsman_component::{
    BadDuration, Digest, Fault, Instance, Limits, PolicyComponent, PolicyDescription,
    SettingSchema, WasmInstance, configured,
};
use pointsman_core::rows::{Change, Extent};
use pointsman_core::{Bounds, Config, FaultKind, Feed, Hook, Micros, Needs, RowKinds, View};
use serde_json::{Map, Value};

use crate::description::{self, DescriptionError};
use crate::runner::{Rows, Runner, observe_metered};

#[cfg(test)]
mod tests;

/// Makes instances of one policy with one configuration. Cheap to clone.
#[derive(Clone)]
pub struct PolicySource {
    code: Code,
    /// The name by which the operator knows the policy; absent: what the policy calls itself.
    name: Option<Arc<str>>,
    /// As the operator wrote them.
    settings: Arc<str>,
    /// As `configure` gets them; the same until the policy has described them.
    configures: Arc<str>,
    limits: Limits,
    bounds: Bounds,
    digest: Digest,
    fingerprint: Digest,
}

#[derive(Clone)]
enum Code {
    Component(PolicyComponent),
    Native(Arc<dyn Fn() -> Box<dyn Instance> + Send + Sync>),
}

impl PolicySource {
    /// Makes a source of instances of `component`, configured with the operator's `settings`.
    #[must_use]
    pub fn component(
        component: &PolicyComponent,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Self {
        let digest = component.digest();
        Self::new(Code::Component(component.clone()), digest, settings, limits)
    }

    /// Makes a source of native instances, which `make` returns. `digest` stands for the code.
    #[must_use]
    pub fn native(
        digest: Digest,
        make: impl Fn() -> Box<dyn Instance> + Send + Sync + 'static,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Self {
        Self::new(Code::Native(Arc::new(make)), digest, settings, limits)
    }

    fn new(code: Code, digest: Digest, settings: &Map<String, Value>, limits: Limits) -> Self {
        let mut settings = Value::Object(settings.clone());
        // The same settings are the same policy, in whatever order they were written.
        settings.sort_all_objects();
        let settings: Arc<str> = settings.to_string().into();
        let mut text = digest.0.to_vec();
        text.extend_from_slice(settings.as_bytes());
        Self {
            code,
            name: None,
            configures: Arc::clone(&settings),
            settings,
            limits,
            bounds: Config::default().bounds(),
            digest,
            fingerprint: Digest::of(&text),
        }
    }

    /// The same source for a machine with these bounds, which instances are told. Without this they
    /// are told the default ones.
    #[must_use]
    pub fn within(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// The same source of a policy that the operator knows as `name`, after its file: under that it
    /// is shown, and no policy can pass for another by what it calls itself.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let name = Some(name.into());
        Self { name, ..self }
    }

    /// The same source of a policy that calls itself `own`, and is known by that unless it has been
    /// named.
    fn or_named(self, own: &str) -> Self {
        let name = self.name.or_else(|| Some(own.into()));
        Self { name, ..self }
    }

    /// The same source, whose policy takes the settings that it describes.
    fn taking(self, described: &[SettingSchema]) -> Result<Self, BadDuration> {
        let written: Map<String, Value> = serde_json::from_str(&self.settings).unwrap_or_default();
        let configures = Value::Object(configured(described, &written)?).to_string();
        Ok(Self {
            configures: configures.into(),
            ..self
        })
    }

    /// The name by which the operator knows the policy; absent: it was not named, and has not been
    /// started.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The same `fault`, of the policy by its name if it has one.
    pub(crate) fn blamed(&self, fault: Fault) -> Fault {
        match &self.name {
            Some(name) => fault.of(name),
            None => fault,
        }
    }

    /// The bounds that instances are told.
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Digest of the code.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Digest of the code and the settings. Quarantine lists it with the limits, so that the same code
    /// with other settings or limits gets its own chance.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
    }

    /// The operator's settings, a JSON object.
    #[must_use]
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// Limits of each instance.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The component; `None` for a native policy.
    #[must_use]
    pub fn code(&self) -> Option<&PolicyComponent> {
        match &self.code {
            Code::Component(component) => Some(component),
            Code::Native(_) => None,
        }
    }

    /// Makes an instance, which nobody has configured.
    ///
    /// # Errors
    /// The fault that ended its start.
    pub fn instantiate(&self) -> Result<Box<dyn Instance>, Fault> {
        match &self.code {
            Code::Component(component) => Ok(Box::new(WasmInstance::new(component, self.limits)?)),
            Code::Native(make) => Ok(make()),
        }
    }

    /// Makes a configured instance without state. Any failure is a [`FaultKind::Start`]: the same
    /// code has accepted the same settings before.
    fn cold(&self) -> Result<Box<dyn Instance>, Fault> {
        let mut instance = self.instantiate().map_err(Fault::at_start)?;
        let configured = instance.configure(&self.configures, &self.bounds);
        match configured.map_err(Fault::at_start)? {
            Ok(()) => Ok(instance),
            Err(refusal) => Err(Fault::new(
                FaultKind::Start,
                format!("refused the settings that it had taken: {refusal}"),
            )),
        }
    }

    /// Makes a configured instance with the state of `snapshot`, or without state if that fails.
    pub(crate) fn warm(&self, snapshot: Option<&[u8]>) -> Result<Fresh, Fault> {
        let fresh = self.warmed(snapshot);
        fresh.map_err(|fault| self.blamed(fault))
    }

    fn warmed(&self, snapshot: Option<&[u8]>) -> Result<Fresh, Fault> {
        let mut instance = self.cold()?;
        let restored = match snapshot.map(|state| instance.restore(state)) {
            None => Restored::Cold,
            Some(Ok(Ok(()))) => Restored::Warm,
            Some(Ok(Err(refusal))) => Restored::Refused(refusal),
            Some(Err(fault)) => {
                instance = self.cold()?;
                Restored::Faulted(self.blamed(fault))
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

/// A new instance, and the result of offering it a state.
pub(crate) struct Fresh {
    pub(crate) instance: Box<dyn Instance>,
    pub(crate) restored: Restored,
}

/// The result of offering a snapshot to a fresh instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// No snapshot was offered.
    Cold,
    /// The instance has the state.
    Warm,
    /// The instance refused the state, for this reason, and runs without.
    Refused(String),
    /// The instance faulted on the state. Another one runs without.
    Faulted(Fault),
}

/// The result, in words that follow `restarted`.
impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cold => f.write_str("without a state"),
            Self::Warm => f.write_str("with its state"),
            Self::Refused(why) => write!(f, "without its state, which it refused: {why}"),
            Self::Faulted(fault) => write!(f, "without its state, on which {fault}"),
        }
    }
}

/// A policy's state from [`Instance::snapshot`], for its successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the policy that made it.
    pub name: String,
    /// Version of the state's format.
    pub state_version: u32,
    /// The state itself.
    pub state: Vec<u8>,
}

/// Everything that a policy, or a fresh instance of it, must be told before it can take over, collected
/// at one time. Only later changes are missing.
#[derive(Debug)]
pub struct Briefing {
    pub(crate) at: Micros,
    pub(crate) feed: Feed,
    pub(crate) extent: Extent,
    pub(crate) changes: Vec<Change>,
}

impl Briefing {
    /// The needs of the policy that the briefing is for.
    #[must_use]
    pub fn needs(&self) -> &Needs {
        self.feed.needs()
    }

    /// Position in the machine's changes up to which the briefing goes.
    #[must_use]
    pub fn told(&self) -> Option<u64> {
        self.feed.told()
    }

    /// Collects all rows of `view` for a policy with these needs.
    #[must_use]
    pub fn new(view: &View<'_>, at: Micros, needs: Needs) -> Self {
        Self::of_rows(view, at, needs)
    }

    pub(crate) fn of_rows(rows: &dyn Rows, at: Micros, needs: Needs) -> Self {
        let mut feed = Feed::new(needs);
        let mut changes = Vec::new();
        let extent = rows.changes(&mut feed, needs.decided(), &mut changes);
        Self {
            at,
            feed,
            extent,
            changes,
        }
    }

    /// Tells an instance all of it, as long as it `is_wanted`. Returns the fuel of that.
    pub(crate) fn tell(
        &self,
        instance: &mut dyn Instance,
        limits: &Limits,
        is_wanted: impl Fn() -> bool,
    ) -> Result<u64, Fault> {
        let when = (self.at, self.extent);
        observe_metered(instance, limits, when, &self.changes, is_wanted)
    }
}

/// A reason why a policy did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The policy faulted while it was instantiated or described.
    #[error("faulted at the start")]
    Faulted(#[from] Fault),
    /// The policy faulted on its settings.
    #[error("faulted on its settings")]
    ConfigureFaulted(#[source] Fault),
    /// The policy refused its settings, for this reason.
    #[error("settings refused: {0}")]
    SettingsRefused(String),
    /// The policy's description is not usable.
    #[error("description is not usable")]
    Description(#[from] DescriptionError),
}

/// Instantiates a policy, asks for its description and configures it.
///
/// # Errors
/// If any of these steps faults, the policy refuses its settings, or its description is not usable.
/// The policy in force is not affected.
pub fn start(source: PolicySource) -> Result<Runner, StartError> {
    let (description, mut instance) = described(&source)?;
    let source = source.or_named(&description.name);
    let source = source
        .taking(&description.settings)
        .map_err(|refused| StartError::SettingsRefused(refused.to_string()))?;
    instance
        .configure(&source.configures, &source.bounds)
        .map_err(|fault| StartError::ConfigureFaulted(source.blamed(fault)))?
        .map_err(StartError::SettingsRefused)?;
    Ok(Runner::new(source, description, instance))
}

/// Instantiates a policy and asks for its description, and no more.
///
/// # Errors
/// If one of these steps faults, or the description is not usable.
pub fn describe(source: &PolicySource) -> Result<PolicyDescription, StartError> {
    described(source).map(|(description, _)| description)
}

fn described(source: &PolicySource) -> Result<(PolicyDescription, Box<dyn Instance>), StartError> {
    let instance = source.instantiate();
    let mut instance = instance.map_err(|fault| source.blamed(fault))?;
    let described = instance.describe();
    let mut description = described.map_err(|fault| source.blamed(fault))?;
    forget_needs_of_absent(&mut description.needs, instance.as_ref());
    description::check(&description, instance.hooks(), source.limits())?;
    Ok((description, instance))
}

/// Takes out the needs of hooks that the policy does not have: nobody would read those rows.
fn forget_needs_of_absent(needs: &mut Needs, instance: &dyn Instance) {
    let hooks = instance.hooks();
    for hook in Hook::ALL.into_iter().filter(|hook| !hooks.contains(*hook)) {
        needs.decisions[hook] = RowKinds::EMPTY;
    }
    if !instance.explains() {
        needs.explanation = RowKinds::EMPTY;
    }
}
