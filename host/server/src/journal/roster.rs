//! Policies as a journal names them, and from there back to policies that can be asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pointsman_core::Hook;
use pointsman_journal::{Blob, Chain, Digest, PolicyRecord, Roster};
use pointsman_policy::{
    Briefing, Limits, LoadError, PolicyComponent, PolicyEngine, PolicyHost, PolicySource, Runner,
    Snapshot, start,
};
use serde_json::{Map, Value};

/// Of which policies everything is said that it takes to start them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whole<'a> {
    /// Of all.
    All,
    /// Of all but these, which have been running.
    AllBut(&'a [u32]),
}

/// The policies of `host`, and who is asked.
pub(super) fn roster(host: &PolicyHost, whole: Whole<'_>) -> Roster {
    let policies = host.runners().map(|(number, runner)| match whole {
        Whole::AllBut(known) if known.contains(&number) => brief(number, runner),
        Whole::All => PolicyRecord {
            told: None,
            ..in_full(number, runner)
        },
        Whole::AllBut(_) => in_full(number, runner),
    });
    Roster {
        policies: policies.collect(),
        chains: chains(host),
    }
}

/// Who is asked for each hook that a policy holds.
pub(super) fn chains(host: &PolicyHost) -> Vec<Chain> {
    let hooks = Hook::ALL.into_iter().map(|hook| Chain {
        hook,
        policies: host.chain(hook).collect(),
    });
    hooks.filter(|chain| !chain.policies.is_empty()).collect()
}

fn brief(number: u32, runner: &Runner) -> PolicyRecord {
    let (description, source) = (runner.description(), runner.source());
    PolicyRecord {
        number,
        name: description.name.clone(),
        version: description.version.clone(),
        reasons: description.reasons.clone(),
        digest: Digest(source.digest().0),
        fingerprint: Digest(source.fingerprint().0),
        settings: source.settings().to_owned(),
        limits: limits_json(source.limits()),
        generation: runner.counters().generation,
        code: None,
        state: None,
        saves: runner.is_saved(),
        told: None,
    }
}

fn in_full(number: u32, runner: &Runner) -> PolicyRecord {
    PolicyRecord {
        code: runner.source().code().map(|code| Blob(code.to_vec())),
        state: runner.state().map(|state| Blob(state.to_vec())),
        told: runner.told(),
        ..brief(number, runner)
    }
}

fn limits_json(limits: &Limits) -> String {
    let rows = limits.rows();
    let rows: Map<String, Value> = rows
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    Value::Object(rows).to_string()
}

/// Why a policy of a journal does not come back to life.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {name} of the journal cannot be started: {why}")]
pub(super) struct Lifeless {
    name: String,
    why: String,
}

impl Lifeless {
    fn new(record: &PolicyRecord, why: impl ToString) -> Self {
        Self {
            name: record.name.clone(),
            why: why.to_string(),
        }
    }
}

/// Components that were compiled, for replays one after the other. Clones share them.
#[derive(Clone, Debug)]
pub struct Library {
    engine: PolicyEngine,
    /// By the digest of their bytes. Locked to look one up and to put one in; a library may serve
    /// several threads.
    components: Arc<Mutex<BTreeMap<[u8; 32], PolicyComponent>>>,
}

/// Components kept; past it all are dropped.
const COMPONENTS_MAX: usize = 64;

impl Library {
    /// An empty one.
    #[must_use]
    pub fn new(engine: PolicyEngine) -> Self {
        Self {
            engine,
            components: Arc::default(),
        }
    }

    fn component(&self, code: &[u8]) -> Result<PolicyComponent, LoadError> {
        let digest = pointsman_policy::Digest::of(code).0;
        let components = || {
            let components = self.components.lock();
            components.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(component) = components().get(&digest) {
            return Ok(component.clone());
        }
        let component = PolicyComponent::load(&self.engine, code)?;
        let mut components = components();
        if components.len() >= COMPONENTS_MAX {
            components.clear();
        }
        components.insert(digest, component.clone());
        Ok(component)
    }
}

/// A policy as it was when it was written down, without what it had been told.
pub(super) fn revive(library: &Library, record: &PolicyRecord) -> Result<Runner, Lifeless> {
    let lifeless = |why: &dyn std::error::Error| Lifeless::new(record, chain(why));
    let code = record.code.as_ref().ok_or_else(|| {
        let why = "its component is not in the journal: it was linked in, or the entry that \
                   brought it is missing";
        Lifeless::new(record, why)
    })?;
    let component = library
        .component(&code.0)
        .map_err(|error| lifeless(&error))?;
    let settings: Map<String, Value> =
        serde_json::from_str(&record.settings).map_err(|error| lifeless(&error))?;
    let limits = limits(record)?;
    let source = PolicySource::component(&component, &settings, limits);
    let mut started = start(source).map_err(|error| lifeless(&error))?;
    if let Some(state) = &record.state {
        let said = started.description();
        let snapshot = Snapshot {
            name: said.name.clone(),
            state_version: said.state_version,
            state: state.0.clone(),
        };
        started
            .restore(&snapshot)
            .map_err(|error| lifeless(&error))?;
    }
    Ok(started)
}

/// Tells a revived policy what it was told when it was taken in.
pub(super) fn tell(
    record: &PolicyRecord,
    started: &mut Runner,
    briefing: Briefing,
) -> Result<(), Lifeless> {
    let told = started.brief(briefing);
    told.map_err(|error| Lifeless::new(record, chain(&error)))
}

fn limits(record: &PolicyRecord) -> Result<Limits, Lifeless> {
    let rows: Map<String, Value> = serde_json::from_str(&record.limits)
        .map_err(|error| Lifeless::new(record, format!("limits: {error}")))?;
    let mut limits = Limits::default();
    for (name, value) in rows {
        let value = value.as_u64().unwrap_or(0);
        limits
            .set(&name, value, &Limits::CEILING)
            .map_err(|error| Lifeless::new(record, error))?;
    }
    Ok(limits)
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
