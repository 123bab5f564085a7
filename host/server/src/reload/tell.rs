//! What the keeper says to the log.

use std::path::Path;

use pointsman_core::{Hook, HookSet};
use pointsman_policy::Digest;
use serde_json::Value;
use tracing::{info, warn};

use super::binding::Conflict;
use super::folder::FolderState;
use super::report::{Outcome, Transaction};
use super::roster::Known;

/// What came of `transaction`, which was about `known`.
pub(crate) fn transaction(transaction: &Transaction, known: Option<&Known>) {
    let policy = transaction.policy.as_str();
    let digest = transaction.digest.map(tracing::field::display);
    match &transaction.outcome {
        Outcome::InForce(held) => {
            let current = known.and_then(Known::current);
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
        Outcome::Canary(tried, share) => info!(
            policy,
            policy.digest = digest,
            hooks = hooks(*tried),
            %share,
            "policy is a canary"
        ),
        Outcome::Shadow(tried) => info!(
            policy,
            policy.digest = digest,
            hooks = hooks(*tried),
            "policy is a shadow"
        ),
        Outcome::Waits { pinned } => warn!(
            policy,
            policy.digest = digest,
            %pinned,
            in_force = in_force(known),
            "policy waits for the file that its sidecar is about"
        ),
        Outcome::Proven => info!(policy, policy.digest = digest, "policy proven"),
        Outcome::Idle => info!(policy, policy.digest = digest, "policy holds no hook"),
        Outcome::Refused { step, why } => warn!(
            policy,
            policy.digest = digest,
            step = step.as_str(),
            why,
            in_force = in_force(known),
            "policy refused"
        ),
        Outcome::Removed => info!(policy, policy.digest = digest, "policy removed"),
        Outcome::Dropped { why } => warn!(
            policy,
            policy.digest = digest,
            why,
            in_force = in_force(known),
            "policy dropped for its faults"
        ),
        Outcome::RolledBack { why } => warn!(
            policy,
            policy.digest = digest,
            why,
            in_force = in_force(known),
            "policy rolled back"
        ),
    }
}

/// The last good version of `policy` cannot be had.
pub(crate) fn kept_is_gone(policy: &str, digest: Digest) {
    warn!(
        policy,
        policy.digest = %digest,
        "last good policy is not in the state folder any more"
    );
}

/// A dump that cannot be written down.
pub(crate) fn no_dump(error: &serde_json::Error) {
    warn!(%error, "dump of a fault cannot be written down");
}

/// Which version of it answers instead.
fn in_force(known: Option<&Known>) -> String {
    let serving = known.and_then(Known::serving);
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
            Conflict::Shut { hook, policy } => {
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

/// How the folder at `path` stands now.
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
