//! Policies that are told their rows in another order.

use fastrand::Rng;
use pointsman_component::{Candidate, Fault, Instance, LogLine, PolicyDescription};
use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{Bounds, HookSet, Micros, Moment, Question, Reply};
use pointsman_policy::PolicySource;
use serde_json::{Map, Value};

/// Makes a source of instances of the same policy that are told rows in an order that depends on
/// `seed`.
pub(crate) fn source(of: &PolicySource, seed: u64) -> PolicySource {
    let settings: Map<String, Value> =
        serde_json::from_str(of.settings()).expect("settings are a JSON object");
    let plain = of.clone();
    let make = move || -> Box<dyn Instance> {
        Box::new(Shuffled {
            inner: plain.instantiate(),
            rng: Rng::with_seed(seed),
        })
    };
    PolicySource::native(of.digest(), make, &settings, *of.limits()).within(*of.bounds())
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
