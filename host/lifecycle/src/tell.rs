//! The reconciler's log lines.

use std::path::Path;

use pointsman_component::Digest;
use pointsman_interface::{Hook, HookSet};
use serde_json::Value;
use tracing::{info, warn};

use super::binding::Conflict;
use super::folder::FolderState;
use super::registry::Entry;
use super::report::{Transaction, TransactionOutcome};

/// Logs the outcome of `transaction`, which was about the policy of `entry`.
pub(crate) fn transaction(transaction: &Transaction, entry: Option<&Entry>) {
    let policy = transaction.policy.as_str();
    let digest = transaction.digest.map(tracing::field::display);
    match &transaction.outcome {
        TransactionOutcome::InForce(held) => {
            let current = entry.and_then(Entry::current);
            let settings = current.map(|version| Value::Object(version.settings.clone()));
            info!(
                policy,
                policy.digest = digest,
                hooks = hooks(*held),
                settings = settings.map(tracing::field::display),
                pause_micros = transaction.pause.map(|pause| pause.0),
                "policy in force"
            );
        }
        TransactionOutcome::Canary(tried, share) => info!(
            policy,
            policy.digest = digest,
            hooks = hooks(*tried),
            %share,
            "policy is a canary"
        ),
        TransactionOutcome::Shadow(tried) => info!(
            policy,
            policy.digest = digest,
            hooks = hooks(*tried),
            "policy is a shadow"
        ),
        TransactionOutcome::Waits { pinned } => warn!(
            policy,
            policy.digest = digest,
            %pinned,
            in_force = in_force(entry),
            "policy waits for the file that its sidecar is about"
        ),
        TransactionOutcome::Proven => info!(policy, policy.digest = digest, "policy proven"),
        TransactionOutcome::Idle { why } => {
            info!(policy, policy.digest = digest, why, "policy holds no hook");
        }
        TransactionOutcome::Refused { step, why } => warn!(
            policy,
            policy.digest = digest,
            step = step.as_str(),
            why,
            in_force = in_force(entry),
            "policy refused"
        ),
        TransactionOutcome::Removed => info!(policy, policy.digest = digest, "policy removed"),
        TransactionOutcome::Dropped { why } => warn!(
            policy,
            policy.digest = digest,
            why,
            in_force = in_force(entry),
            "policy dropped for its faults"
        ),
        TransactionOutcome::RolledBack { why } => warn!(
            policy,
            policy.digest = digest,
            why,
            in_force = in_force(entry),
            "policy rolled back"
        ),
    }
}

/// Logs that nothing waits for the file of `policy` any longer.
pub(crate) fn late(policy: &str) {
    warn!(
        policy,
        "policy takes long to be made ready, and is not waited for"
    );
}

/// Logs that the last good version of `policy` is gone.
pub(crate) fn last_good_is_gone(policy: &str, digest: Digest) {
    warn!(
        policy,
        policy.digest = %digest,
        "last good policy is not in the state folder any more"
    );
}

/// Logs that a dump cannot be written down.
pub(crate) fn no_dump(error: &serde_json::Error) {
    warn!(%error, "dump of a fault cannot be written down");
}

/// The version of the policy that answers instead.
fn in_force(entry: Option<&Entry>) -> String {
    let serving = entry.and_then(Entry::serving);
    serving.map_or_else(
        || "no version of it".to_owned(),
        |serving| serving.version.source.digest().to_string(),
    )
}

pub(crate) fn conflicts(conflicts: &[Conflict]) {
    for conflict in conflicts {
        match conflict {
            Conflict::Contested { hook, claimants } => {
                let claimants = claimants.join(", ");
                warn!(
                    hook = hook.as_str(),
                    claimants, "hook claimed by several policies"
                );
            }
            Conflict::Absent { hook, policy } => {
                warn!(
                    hook = hook.as_str(),
                    policy, "hook bound to a policy that is not there"
                );
            }
            Conflict::NotEnforced { hook, policy } => {
                warn!(
                    hook = hook.as_str(),
                    policy, "hook bound to a policy whose answers do not count"
                );
            }
            Conflict::Closed { hook, policy } => {
                warn!(
                    hook = hook.as_str(),
                    policy,
                    "hook closed: its policy faulted too often, and nobody may answer instead"
                );
            }
            Conflict::ContestedCanary { hook, claimants } => {
                let claimants = claimants.join(", ");
                warn!(
                    hook = hook.as_str(),
                    claimants, "several policies want to be the canary for a hook"
                );
            }
            Conflict::NotExported { hook, policy } => {
                warn!(
                    hook = hook.as_str(),
                    policy, "hook bound to a policy that does not export it"
                );
            }
        }
    }
}

/// Logs that the folder at `path` has come to another state.
pub(crate) fn folder(path: &Path, state: &FolderState) {
    let path = path.display();
    match state {
        FolderState::None => {}
        FolderState::Watched => info!(%path, "policy folder watched"),
        FolderState::Missing => warn!(%path, "policy folder missing"),
        FolderState::Emptied => warn!(%path, "policy folder replaced by an empty one"),
        FolderState::Unreadable(why) => warn!(%path, why, "policy folder unreadable"),
    }
}

fn hooks(held: HookSet) -> String {
    let names: Vec<&str> = held.iter().map(Hook::as_str).collect();
    names.join(",")
}
