//! Subjects: the policies that are checked.

use std::fmt;

use fastrand::Rng;
use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{Bounds, HookSet, Micros, Moment, Question, Reply};
use pointsman_policy::{
    Candidate, Fault, Instance, Limits, LogLine, PolicyComponent, PolicyDescription, PolicySource,
    WasmInstance,
};
use serde_json::{Map, Value};

use crate::kit::Flavour;
use crate::native::{self, Make};

/// A policy with its settings, to be checked.
#[derive(Clone)]
pub struct Subject {
    code: Code,
    settings: Map<String, Value>,
}

#[derive(Clone)]
enum Code {
    Native(String, Make),
    Component(PolicyComponent, Limits),
}

// === impl Subject ===

impl Subject {
    /// Makes a subject of a native policy; the SDK's `export!` defined `make` as `instance`.
    #[must_use]
    pub fn native(name: &str, make: Make, settings: &Map<String, Value>) -> Self {
        Self {
            code: Code::Native(name.to_owned(), make),
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
            code: Code::Component(component.clone(), limits),
            settings: settings.clone(),
        }
    }

    /// The flavour in which the policy is compiled.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        match self.code {
            Code::Native(..) => Flavour::Native,
            Code::Component(..) => Flavour::Component,
        }
    }

    pub(super) fn source(&self) -> PolicySource {
        match &self.code {
            Code::Native(name, make) => native::source(name, *make, &self.settings),
            Code::Component(component, limits) => {
                PolicySource::component(component, &self.settings, *limits)
            }
        }
    }

    /// Makes a source whose instances are told rows in an order that depends on `seed`.
    pub(super) fn shuffled(&self, seed: u64) -> PolicySource {
        let source = self.source();
        let (digest, limits) = (source.digest(), *source.limits());
        let code = self.code.clone();
        let make = move || -> Box<dyn Instance> {
            Box::new(Shuffled {
                inner: code.instance(),
                rng: Rng::with_seed(seed),
            })
        };
        PolicySource::native(digest, make, &self.settings, limits)
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

// === impl Code ===

impl Code {
    /// Makes an instance. A fault is possible, although the policy has been instantiated before.
    fn instance(&self) -> Result<Box<dyn Instance>, Fault> {
        match self {
            Self::Native(_, make) => Ok(native::boxed(*make)),
            Self::Component(component, limits) => {
                Ok(Box::new(WasmInstance::new(component, *limits)?))
            }
        }
    }
}

/// An instance that is told its rows in another order. Names still come first, as the interface
/// promises.
struct Shuffled {
    inner: Result<Box<dyn Instance>, Fault>,
    rng: Rng,
}

// === impl Shuffled ===

impl Shuffled {
    fn inner(&mut self) -> Result<&mut dyn Instance, Fault> {
        match &mut self.inner {
            Ok(instance) => Ok(instance.as_mut()),
            Err(fault) => Err(fault.clone()),
        }
    }
}

impl Instance for Shuffled {
    fn hooks(&self) -> HookSet {
        let inner = self.inner.as_ref();
        inner.map_or(HookSet::EMPTY, |instance| instance.hooks())
    }

    fn explains(&self) -> bool {
        self.inner
            .as_ref()
            .is_ok_and(|instance| instance.explains())
    }

    fn describe(&mut self) -> Result<PolicyDescription, Fault> {
        self.inner()?.describe()
    }

    fn configure(&mut self, settings: &str, bounds: &Bounds) -> Result<Result<(), String>, Fault> {
        self.inner()?.configure(settings, bounds)
    }

    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<(), Fault> {
        let (mut shuffled, mut rest): (Vec<Change>, Vec<Change>) = changes
            .iter()
            .cloned()
            .partition(|change| matches!(change, Change::Name(_)));
        self.rng.shuffle(&mut shuffled);
        self.rng.shuffle(&mut rest);
        shuffled.extend(rest);
        self.inner()?.observe(now, extent, &shuffled)
    }

    fn ask(&mut self, at: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        self.inner()?.ask(at, question)
    }

    fn explain(
        &mut self,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Result<Vec<Candidate>, Fault> {
        self.inner()?.explain(at, request, cached)
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        self.inner()?.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<Result<(), String>, Fault> {
        self.inner()?.restore(state)
    }

    fn last_fuel(&self) -> Option<u64> {
        self.inner.as_ref().ok()?.last_fuel()
    }

    fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        self.inner
            .as_mut()
            .map_or(0, |instance| instance.take_log(out))
    }
}
