//! From a file to a policy that can be put in force: read whole, validate, compile, start,
//! configure.
//!
//! Guest code runs here, on the keeper's thread, under the limits of its policy; the driver and
//! the policies in force know nothing of it.
//!
//! # Invariants
//! 1. Code that was compiled is not compiled again while it is among the last [`COMPONENTS_MAX`],
//!    or as long as its file has not been touched (`tests/reload`).
//!
//! # Not here
//! State of a predecessor and what there is to observe (`keeper`).

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use pointsman_core::Micros;
use pointsman_policy::{
    COMPONENT_BYTES_MAX, Digest, Limits, LoadError, PolicyComponent, PolicyEngine, PolicySource,
    Restored, StartError, StartedPolicy,
};
use serde_json::{Map, Value};

use super::folder::{Pair, Sight, Stamp};
use super::listing::{self, ReadError};
use super::report::{Phase, Step};
use super::roster::{Origin, Version};
use super::sidecar::{self, SIDECAR_BYTES_MAX, Sidecar};

/// Compiled components kept for when their bytes come back.
const COMPONENTS_MAX: usize = 16;

/// Bytes of a reason.
const WHY_BYTES_MAX: usize = 4096;

/// Reads the host's clock.
pub(crate) type Now = Arc<dyn Fn() -> Micros + Send + Sync>;

/// Makes policies ready.
pub(crate) struct Workshop {
    // Immutable.
    engine: PolicyEngine,
    /// What a policy may use at most.
    limits: Limits,
    /// By policy name, where no sidecar says otherwise.
    settings: BTreeMap<String, Map<String, Value>>,
    // Owned state.
    /// The most recently used last.
    components: VecDeque<PolicyComponent>,
    compiled: u64,
}

/// The code of a file as it was when it was seen as `stamp`.
#[derive(Debug)]
pub(crate) struct Loaded {
    stamp: Stamp,
    component: PolicyComponent,
}

/// A policy that can be put in force.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) version: Arc<Version>,
    pub(crate) started: StartedPolicy,
}

/// What is being done about one policy, for the record.
pub(crate) struct Attempt {
    clock: Now,
    pub(crate) digest: Option<Digest>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) restored: Option<Restored>,
}

/// Which step of an attempt did not succeed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) why: String,
}

/// Why a file did not become a policy.
#[derive(Debug)]
pub(crate) enum Setback {
    /// It is being written: look again.
    Changed,
    /// It is of no use.
    Failed(Failure),
}

// === impl Attempt and Failure ===

impl Attempt {
    pub(crate) fn new(clock: &Now) -> Self {
        Self {
            clock: Arc::clone(clock),
            digest: None,
            phases: Vec::new(),
            restored: None,
        }
    }

    /// Does `work` and notes how long it took.
    pub(crate) fn time<R>(&mut self, step: Step, work: impl FnOnce() -> R) -> R {
        let begun = (self.clock)();
        let done = work();
        let took = (self.clock)().since(begun);
        self.phases.push(Phase { step, took });
        done
    }
}

impl Failure {
    /// `error` with all its sources.
    pub(crate) fn new(step: Step, error: &(dyn Error + 'static)) -> Self {
        let mut why = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            why = format!("{why}: {cause}");
            source = cause.source();
        }
        why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
        Self { step, why }
    }

    fn load(error: &LoadError) -> Self {
        let compiler = matches!(
            error,
            LoadError::Compile(_) | LoadError::Link(_) | LoadError::Panicked(_)
        );
        let step = if compiler {
            Step::Compile
        } else {
            Step::Validate
        };
        Self::new(step, error)
    }

    fn start(error: &StartError) -> Self {
        let configure = matches!(
            error,
            StartError::ConfigureFaulted(_) | StartError::SettingsRefused(_)
        );
        let step = if configure {
            Step::Configure
        } else {
            Step::Start
        };
        Self::new(step, error)
    }
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ReadError> for Setback {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Changed => Self::Changed,
            ReadError::TooLarge { .. } | ReadError::Io(_) => {
                Self::Failed(Failure::new(Step::Read, &error))
            }
        }
    }
}

// === impl Workshop ===

impl Workshop {
    /// Policies may use `limits`; `settings` are those of the configuration.
    pub(crate) fn new(
        engine: PolicyEngine,
        limits: Limits,
        settings: BTreeMap<String, Map<String, Value>>,
    ) -> Self {
        Self {
            engine,
            limits,
            settings,
            components: VecDeque::new(),
            compiled: 0,
        }
    }

    /// Components compiled so far.
    pub(crate) fn compiled(&self) -> u64 {
        self.compiled
    }

    /// Makes the embedded policy `name` ready.
    pub(crate) fn embedded(
        &mut self,
        name: &str,
        wasm: &[u8],
        attempt: &mut Attempt,
    ) -> Result<Ready, Failure> {
        let component = self.component(wasm, attempt)?;
        let said = Sidecar::absent(&self.limits);
        self.ready((name, Origin::Embedded), &component, said, attempt)
    }

    /// Makes the file at `path` ready, which was seen as `pair`. `loaded` is its code as it was
    /// before, and then as it is.
    pub(crate) fn file(
        &mut self,
        (name, path): (&str, PathBuf),
        pair: &Pair,
        loaded: &mut Option<Loaded>,
        attempt: &mut Attempt,
    ) -> Result<Ready, Setback> {
        let component = self.code(file(&pair.wasm)?, loaded, attempt)?;
        attempt.digest = Some(component.digest());
        let sidecar = match &pair.sidecar {
            Some(seen) => listing::read(file(seen)?, SIDECAR_BYTES_MAX)?,
            None => Vec::new(),
        };
        let said_by = format!("{name}.toml");
        let said = sidecar::parse(said_by.as_ref(), sidecar, &self.limits)
            .map_err(|error| Failure::new(Step::Validate, &error))?;
        Ok(self.ready((name, Origin::File(path)), &component, said, attempt)?)
    }

    /// The code of the file that was seen as `seen`.
    fn code(
        &mut self,
        seen: &Stamp,
        loaded: &mut Option<Loaded>,
        attempt: &mut Attempt,
    ) -> Result<PolicyComponent, Setback> {
        if let Some(loaded) = loaded
            && loaded.stamp == *seen
        {
            return Ok(loaded.component.clone());
        }
        let bytes = attempt.time(Step::Read, || listing::read(seen, COMPONENT_BYTES_MAX))?;
        let component = self.component(&bytes, attempt)?;
        *loaded = Some(Loaded {
            stamp: seen.clone(),
            component: component.clone(),
        });
        Ok(component)
    }

    /// `bytes` compiled.
    fn component(
        &mut self,
        bytes: &[u8],
        attempt: &mut Attempt,
    ) -> Result<PolicyComponent, Failure> {
        let digest = Digest::of(bytes);
        attempt.digest = Some(digest);
        let known = self
            .components
            .iter()
            .position(|known| known.digest() == digest);
        let component = match known.and_then(|idx| self.components.remove(idx)) {
            Some(component) => component,
            None => {
                let load = || PolicyComponent::load(&self.engine, bytes);
                let component = attempt.time(Step::Compile, load);
                let component = component.map_err(|error| Failure::load(&error))?;
                self.compiled += 1;
                component
            }
        };
        self.shelve(component.clone());
        Ok(component)
    }

    /// Compiles all of `codes` at once. What cannot be compiled says so when it is its turn.
    pub(crate) fn compile_ahead(&mut self, codes: &[&[u8]]) {
        let engine = &self.engine;
        let loaded: Vec<_> = thread::scope(|scope| {
            let load = |code| scope.spawn(move || PolicyComponent::load(engine, code));
            let threads: Vec<_> = codes.iter().copied().map(load).collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        for component in loaded.into_iter().flatten().flatten() {
            self.compiled += 1;
            self.shelve(component);
        }
    }

    fn shelve(&mut self, component: PolicyComponent) {
        if self.components.len() >= COMPONENTS_MAX {
            self.components.pop_front();
        }
        self.components.push_back(component);
    }

    fn ready(
        &self,
        (name, origin): (&str, Origin),
        component: &PolicyComponent,
        said: Sidecar,
        attempt: &mut Attempt,
    ) -> Result<Ready, Failure> {
        let configured = || self.settings.get(name).cloned().unwrap_or_default();
        let settings = said.settings.unwrap_or_else(configured);
        let version = Version {
            origin,
            source: PolicySource::component(component, &settings, said.limits),
            settings,
            hooks: component.hooks(),
        };
        Ok(Ready {
            started: start(&version, attempt)?,
            version: Arc::new(version),
        })
    }
}

/// An instance of `version`, configured.
pub(crate) fn start(version: &Version, attempt: &mut Attempt) -> Result<StartedPolicy, Failure> {
    let source = version.source.clone();
    attempt
        .time(Step::Start, || pointsman_policy::start(source))
        .map_err(|error| Failure::start(&error))
}

/// The file that was seen, if it was one.
fn file(seen: &Sight) -> Result<&Stamp, Failure> {
    let why = match seen {
        Sight::File(stamp) => return Ok(stamp),
        Sight::NotAFile => "not a regular file".to_owned(),
        Sight::Unreadable(why) => why.clone(),
    };
    let step = Step::Read;
    Err(Failure { step, why })
}
