//! The report beside the driver's, as `GET /admin/policies` shows them.

use pointsman_core::{Hook, HookMap, HookSet};
use pointsman_policy::{PolicyStatus, Quarantined, Restored, Spread};
use serde_json::{Map, Value, json};

use super::{
    Conflict, FolderReport, FolderState, Origin, PolicyReport, ReconcilerReport, Transaction,
    TransactionOutcome, VersionRefusal,
};
use crate::state::BoundTo;

/// All that is known about policies: the driver's `status` of each, and the `report`.
#[must_use]
pub fn policies_json(status: &[PolicyStatus], report: &ReconcilerReport) -> Value {
    let policies = report.policies.iter();
    let refused = report.refused.iter();
    json!({
        "hooks": hooks_by_holder(status, report),
        "policies": policies.map(|policy| policy_json(policy, status)).collect::<Value>(),
        "refused": refused.map(|(name, refusal)| refusal_json(name, refusal)).collect::<Value>(),
        "conflicts": report.conflicts.iter().map(conflict_json).collect::<Value>(),
        "folder": folder_json(&report.folder),
        "transactions": report.transactions.iter().map(transaction_json).collect::<Value>(),
        "components_compiled": report.compiled,
        "components_cached": report.cached,
        "quarantine": report.quarantine.iter().map(quarantined_json).collect::<Value>(),
        "ordered": ordered_json(report),
        "state": {
            "path": report.state.path.as_ref().map(|path| path.to_string_lossy()),
            "problem": report.state.problem,
            "set_aside": report.state.set_aside,
        },
    })
}

/// The policy in force for each hook; null: the built-in rule.
fn hooks_by_holder(status: &[PolicyStatus], report: &ReconcilerReport) -> Value {
    let holder = |hook: Hook| {
        let in_force = status
            .iter()
            .find(|policy| policy.in_force.contains(hook))?;
        let number = in_force.number;
        let mut policies = report.policies.iter();
        let known = policies
            .find(|policy| policy.number == Some(number) || policy.earlier.contains(&number));
        Some(json!({
            "policy": known.map_or(in_force.description.name.as_str(), |policy| &policy.name),
            "number": number,
            "digest": in_force.digest.to_string(),
        }))
    };
    let hooks = Hook::ALL.into_iter();
    hooks
        .map(|hook| {
            (
                hook.as_str().to_owned(),
                holder(hook).unwrap_or(Value::Null),
            )
        })
        .collect::<Map<_, _>>()
        .into()
}

fn policy_json(policy: &PolicyReport, status: &[PolicyStatus]) -> Value {
    let running = |number: u32| {
        let status = status.iter().find(|status| status.number == number);
        status.map(status_json)
    };
    let source = match &policy.origin {
        Origin::Embedded => json!({"kind": "embedded"}),
        Origin::File(path) => json!({"kind": "file", "path": path.to_string_lossy()}),
        Origin::LastGood(path) => json!({"kind": "last-good", "path": path.to_string_lossy()}),
    };
    json!({
        "name": policy.name,
        "source": source,
        "digest": policy.digest.to_string(),
        "fingerprint": policy.fingerprint.to_string(),
        "settings": policy.settings,
        "exports": names(policy.hooks),
        "mode": policy.mode.to_string(),
        "waits_for": policy.waits_for.map(|digest| digest.to_string()),
        "holds": names(policy.held),
        "running": policy.number.and_then(running),
        "earlier": policy.earlier.iter().copied().filter_map(running).collect::<Value>(),
    })
}

fn status_json(status: &PolicyStatus) -> Value {
    let stats = &status.stats;
    let faults = stats.faults.iter();
    let faults = faults.map(|(kind, count)| (format!("{kind:?}").to_lowercase(), json!(count)));
    json!({
        "number": status.number,
        "calls_itself": status.description.name,
        "version": status.description.version,
        "digest": status.digest.to_string(),
        "in_force": names(status.in_force),
        "behind": names(status.behind),
        "generation": status.counters.generation,
        "down_until_micros": status.down_until.map(|until| until.0),
        "answers": counts(&stats.answers),
        "refusals": counts(&stats.refusals),
        "refusal_last": stats.refusal_last.map(|refusal| refusal.cause.to_string()),
        "faults": faults.collect::<Map<_, _>>(),
        "fuel_last": status.counters.fuel,
        "fuel_max": status.counters.fuel_max,
        "fuel": spreads_json(&stats.fuel),
        "latency_nanos": spreads_json(&stats.latency),
        "on_trial": names(status.on_trial),
        "on_probation": status.is_on_probation,
        "observes": status.counters.observes,
        "snapshots": status.counters.snapshots_kept,
    })
}

/// Fuel or time by hook, for the hooks that were asked at all.
pub(crate) fn spreads_json(spreads: &HookMap<Spread>) -> Value {
    let asked = spreads.iter().filter(|(_, spread)| spread.total() > 0);
    let shown = asked.map(|(hook, spread)| {
        let spread = json!({
            "questions": spread.total(),
            "p50": spread.quantile(500),
            "p90": spread.quantile(900),
            "p99": spread.quantile(990),
            "max": spread.max(),
        });
        (hook.as_str().to_owned(), spread)
    });
    shown.collect::<Map<_, _>>().into()
}

fn names(hooks: HookSet) -> Vec<&'static str> {
    hooks.iter().map(Hook::as_str).collect()
}

/// Counts by hook, for the hooks that were counted at all.
fn counts(counts: &HookMap<u64>) -> Map<String, Value> {
    let counted = counts.iter().filter(|(_, count)| **count > 0);
    counted
        .map(|(hook, count)| (hook.as_str().to_owned(), (*count).into()))
        .collect()
}

fn refusal_json(name: &str, refusal: &VersionRefusal) -> Value {
    json!({
        "name": name,
        "step": refusal.step.as_str(),
        "why": refusal.why,
        "digest": refusal.digest.map(|digest| digest.to_string()),
        "at_micros": refusal.at.0,
    })
}

fn conflict_json(conflict: &Conflict) -> Value {
    let (kind, hook, policies) = match conflict {
        Conflict::Contested { hook, claimants } => ("contested", hook, claimants.as_slice()),
        Conflict::Absent { hook, policy } => ("absent", hook, std::slice::from_ref(policy)),
        Conflict::NotExported { hook, policy } => {
            ("not-exported", hook, std::slice::from_ref(policy))
        }
        Conflict::NotEnforced { hook, policy } => {
            ("not-enforced", hook, std::slice::from_ref(policy))
        }
        Conflict::Closed { hook, policy } => ("shut", hook, std::slice::from_ref(policy)),
        Conflict::ContestedCanary { hook, claimants } => {
            ("contested-canary", hook, claimants.as_slice())
        }
    };
    json!({"kind": kind, "hook": hook.as_str(), "policies": policies})
}

fn folder_json(folder: &FolderReport) -> Value {
    let why = match &folder.state {
        FolderState::Unreadable(why) => Some(why),
        FolderState::None | FolderState::Watched | FolderState::Missing | FolderState::Emptied => {
            None
        }
    };
    let left_out = folder.left_out.iter();
    json!({
        "path": folder.path.as_ref().map(|path| path.to_string_lossy()),
        "state": folder.state.as_str(),
        "why": why,
        "left_out": left_out.map(|out| json!({"file": out.file, "why": out.why})).collect::<Value>(),
    })
}

fn quarantined_json(entry: &Quarantined) -> Value {
    json!({
        "fingerprint": entry.fingerprint.to_string(),
        "digest": entry.digest.to_string(),
        "name": entry.name,
        "cause": entry.cause,
        "why": entry.detail,
        "at_micros": entry.at.0,
    })
}

/// Hooks bound by order; null: to the embedded default.
fn ordered_json(report: &ReconcilerReport) -> Value {
    let ordered = report.ordered.iter();
    let ordered = ordered.map(|(hook, bound)| {
        let policy = match bound {
            BoundTo::Policy(name) => json!(name),
            BoundTo::Embedded => Value::Null,
        };
        (hook.as_str().to_owned(), policy)
    });
    ordered.collect::<Map<_, _>>().into()
}

fn transaction_json(transaction: &Transaction) -> Value {
    let (outcome, hooks, step, why) = match &transaction.outcome {
        TransactionOutcome::InForce(hooks) => ("in-force", Some(*hooks), None, None),
        TransactionOutcome::Canary(hooks, _) => ("canary", Some(*hooks), None, None),
        TransactionOutcome::Shadow(hooks) => ("shadow", Some(*hooks), None, None),
        TransactionOutcome::Idle => ("idle", None, None, None),
        TransactionOutcome::Proven => ("proven", None, None, None),
        TransactionOutcome::Waits { pinned } => {
            ("waits", None, None, Some(format!("for {pinned}")))
        }
        TransactionOutcome::Refused { step, why } => {
            ("refused", None, Some(step.as_str()), Some(why.clone()))
        }
        TransactionOutcome::Removed => ("removed", None, None, None),
        TransactionOutcome::Dropped { why } => ("dropped", None, None, Some(why.clone())),
        TransactionOutcome::RolledBack { why } => ("rolled-back", None, None, Some(why.clone())),
    };
    let hooks = hooks.map(names);
    let steps = transaction.steps.iter();
    let steps = steps.map(|it| (it.step.to_string(), json!(it.took.0)));
    json!({
        "number": transaction.number,
        "at_micros": transaction.at.0,
        "policy": transaction.policy,
        "digest": transaction.digest.map(|digest| digest.to_string()),
        "cause": transaction.cause.as_str(),
        "outcome": outcome,
        "hooks": hooks,
        "step": step,
        "why": why,
        "phases_micros": steps.collect::<Map<_, _>>(),
        "state": transaction.restored.as_ref().map(restored_json),
        "pause_micros": transaction.pause.map(|pause| pause.0),
    })
}

fn restored_json(restored: &Restored) -> Value {
    match restored {
        Restored::Cold => json!("cold"),
        Restored::Warm => json!("warm"),
        Restored::Refused(why) => json!({ "refused": why }),
        Restored::Faulted(fault) => json!({ "faulted": fault.detail }),
    }
}
