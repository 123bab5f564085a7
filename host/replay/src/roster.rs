//! The policies of a host as entries of a journal, and the way back to running policies.

use std::error::Error;
use std::sync::Arc;

use pointsman_component::{Limits, PolicyComponent};
use pointsman_core::{Bounds, Hook};
use pointsman_journal::{Blob, Chain, Component, ContentHash, PolicyRecord, Roster};
use pointsman_notation::NamedLimits;
use pointsman_policy::{PolicyHost, PolicySource, Runner, Snapshot, start};
use serde_json::{Map, Value};

use crate::components::ComponentCache;
use crate::replay::ReplayError;

/// Size of the largest component that stands in each file of a journal, in bytes: several such
/// policies take a small part of a file.
const INLINE_MAX: usize = 1 << 20;

/// The policies that a roster records with all that is needed to start them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InFull<'a> {
    /// All of them.
    All,
    /// All policies but these, which an earlier entry has.
    AllBut(&'a [u32]),
}

/// The policies of `host` and their chains.
pub(crate) fn roster(host: &PolicyHost, in_full: InFull<'_>) -> Roster {
    let policies = host.runners().map(|(number, runner)| match in_full {
        InFull::AllBut(known) if known.contains(&number) => brief(number, runner),
        InFull::All => PolicyRecord {
            told: None,
            ..whole(number, runner)
        },
        InFull::AllBut(_) => whole(number, runner),
    });
    Roster {
        policies: policies.collect(),
        chains: chains(host),
    }
}

/// The components that the roster of `host` names by their digests alone.
pub(crate) fn components(
    host: &PolicyHost,
    in_full: InFull<'_>,
) -> impl Iterator<Item = Component> {
    let runners = host.runners().filter(move |(number, _)| match in_full {
        InFull::All => true,
        InFull::AllBut(known) => !known.contains(number),
    });
    let codes = runners.filter_map(|(_, runner)| runner.source().code());
    codes.filter(|code| is_large(code)).map(|code| Component {
        digest: ContentHash(code.digest().0),
        bytes: Arc::new(code.clone()),
    })
}

/// True if a component is stored beside the journal instead of in each of its files.
fn is_large(component: &PolicyComponent) -> bool {
    component.bytes().len() > INLINE_MAX
}

/// The chain of each hook that a policy holds.
pub(crate) fn chains(host: &PolicyHost) -> Vec<Chain> {
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
        digest: ContentHash(source.digest().0),
        fingerprint: ContentHash(source.fingerprint().0),
        settings: source.settings().to_owned(),
        limits: limits_json(source.limits()),
        generation: if runner.is_up() {
            runner.counters().generation
        } else {
            0
        },
        code: None,
        state: None,
        saves: runner.is_saved(),
        told: None,
    }
}

fn whole(number: u32, runner: &Runner) -> PolicyRecord {
    let code = runner.source().code().filter(|code| !is_large(code));
    PolicyRecord {
        code: code.map(|code| Blob(code.bytes().to_vec())),
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

/// Starts a policy as it was when it was recorded. It has been told nothing yet.
pub(crate) fn revive(
    components: &ComponentCache,
    record: &PolicyRecord,
    bounds: Bounds,
) -> Result<Runner, ReplayError> {
    started(components, record, bounds).map_err(|source| ReplayError::policy(record, source))
}

/// The code and settings of a policy as they were recorded, to start it afresh, and its limits as
/// `change` makes them of the recorded ones.
///
/// # Errors
/// If the journal does not have them whole.
pub fn recorded_source(
    components: &ComponentCache,
    record: &PolicyRecord,
    change: fn(Limits) -> Limits,
) -> Result<PolicySource, ReplayError> {
    source(components, record, change).map_err(|source| ReplayError::policy(record, source))
}

fn started(
    components: &ComponentCache,
    record: &PolicyRecord,
    bounds: Bounds,
) -> Result<Runner, Box<dyn Error + Send + Sync>> {
    let source = source(components, record, |limits| limits)?;
    let mut runner = start(source.within(bounds))?;
    if let Some(state) = &record.state {
        let description = runner.description();
        runner.restore(&Snapshot {
            name: description.name.clone(),
            state_version: description.state_version,
            state: state.0.clone(),
        })?;
    }
    Ok(runner)
}

fn source(
    components: &ComponentCache,
    record: &PolicyRecord,
    change: fn(Limits) -> Limits,
) -> Result<PolicySource, Box<dyn Error + Send + Sync>> {
    let code = record.code.as_ref().ok_or_else(|| {
        format!(
            "its component is not in the journal: it was linked in, or the entry that brought it or \
             the file `components/{}.*` beside the journal is missing",
            record.digest
        )
    })?;
    let component = components.component(&code.0)?;
    if component.digest().0 != record.digest.0 {
        let digest = component.digest();
        return Err(format!("its component is damaged: its digest is {digest}").into());
    }
    let settings: Map<String, Value> = serde_json::from_str(&record.settings)?;
    let limits = change(limits(&record.limits)?);
    Ok(PolicySource::component(&component, &settings, limits))
}

fn limits(recorded: &str) -> Result<Limits, Box<dyn Error + Send + Sync>> {
    let rows: Map<String, Value> =
        serde_json::from_str(recorded).map_err(|error| format!("limits: {error}"))?;
    let mut limits = Limits::default();
    for (name, value) in rows {
        let value = value.as_u64().unwrap_or(0);
        limits.set(&name, value, &NamedLimits::CEILING)?;
    }
    Ok(limits)
}
