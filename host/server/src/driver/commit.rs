//! Putting policies in force between two rounds, all or nothing.

use pointsman_core::{Hook, HookSet, Micros};
use pointsman_policy::{BindError, OnFailure, PolicyHost};

use super::message::{Commit, CommitError, Committed, Install, Stand};

/// Makes the whole commit, or nothing of it. The time it took is the caller's to measure.
pub(super) fn commit(
    host: &mut PolicyHost,
    now: Micros,
    commit: Commit,
) -> Result<Committed, CommitError> {
    check(host, &commit)?;
    host.restore_quarantine(commit.quarantine);
    for fingerprint in commit.release {
        host.release(fingerprint);
    }
    let installed = install(host, now, commit.install)?;
    for (policy, why) in commit.roll_back {
        host.rollback(now, policy, why)?;
    }
    for (policy, hooks) in commit.bind {
        host.bind(now, policy, hooks)?;
    }
    for policy in commit.remove {
        host.remove(now, policy);
    }
    for hook in commit.eject.iter() {
        host.eject(now, hook);
    }
    if let Some(on_failure) = commit.on_failure {
        set_on_failure(host, on_failure);
    }
    for hook in commit.shut.iter() {
        host.leave_shut(hook);
    }
    Ok(Committed {
        installed,
        ..present(host)
    })
}

/// How things stand.
fn present(host: &mut PolicyHost) -> Committed {
    let numbers = || host.numbers();
    Committed {
        held: numbers().map(|it| (it, host.in_force(it))).collect(),
        on_probation: numbers().filter(|it| host.is_on_probation(*it)).collect(),
        shut: host.shut(),
        quarantine: host.quarantined().cloned().collect(),
        dumps: std::iter::from_fn(|| host.poll_dump()).collect(),
        retired: host.poll_retired().unwrap_or_default(),
        ..Committed::default()
    }
}

/// Takes policies in and puts them where they shall stand, all or none.
fn install(
    host: &mut PolicyHost,
    now: Micros,
    installs: Vec<Install>,
) -> Result<Vec<u32>, CommitError> {
    let mut installed = Vec::new();
    let mut terms = Vec::new();
    for (at, install) in installs.into_iter().enumerate() {
        let (stand, default_of) = (install.stand, install.default_of);
        terms.push(install.probation);
        let added = host.add(install.policy).and_then(|number| {
            installed.push((number, stand));
            host.set_default(now, number, default_of)?;
            // A shadow needs a thread, which may not be had.
            match stand {
                Stand::Shadow(hooks) => host.bind_shadow(now, number, hooks),
                Stand::Enforce(_) | Stand::Canary(..) => Ok(()),
            }
        });
        if let Err(error) = added {
            for (number, _) in installed {
                host.remove(now, number);
            }
            return Err(CommitError::Install { at, error });
        }
    }
    for ((policy, stand), terms) in installed.iter().copied().zip(terms) {
        match (stand, terms) {
            (Stand::Enforce(hooks), None) => host.bind(now, policy, hooks)?,
            (Stand::Enforce(hooks), Some(terms)) => {
                host.bind(now, policy, hooks)?;
                host.begin_probation(now, policy, terms)?;
            }
            (Stand::Canary(hooks, share), _) => host.bind_canary(now, policy, hooks, share)?,
            (Stand::Shadow(_), _) => {}
        }
    }
    Ok(installed.into_iter().map(|(number, _)| number).collect())
}

fn set_on_failure(host: &mut PolicyHost, on_failure: OnFailure) {
    let set = host.set_on_failure(Hook::Admission, on_failure);
    set.expect("admission can be closed");
}

/// What would make a step fail half way through.
fn check(host: &PolicyHost, commit: &Commit) -> Result<(), CommitError> {
    for (at, install) in commit.install.iter().enumerate() {
        let (Stand::Enforce(hooks) | Stand::Canary(hooks, _) | Stand::Shadow(hooks)) =
            install.stand;
        check_exported(install.policy.hooks(), hooks)
            .map_err(|error| CommitError::Install { at, error })?;
    }
    for (policy, hooks) in &commit.bind {
        let has = host.hooks(*policy).ok_or(BindError::Unknown(*policy))?;
        check_exported(has, *hooks)?;
    }
    for (policy, _) in &commit.roll_back {
        host.hooks(*policy).ok_or(BindError::Unknown(*policy))?;
    }
    Ok(())
}

fn check_exported(has: HookSet, wanted: HookSet) -> Result<(), BindError> {
    let mut wanted = wanted.iter();
    let missing = wanted.find(|hook| !has.contains(*hook));
    missing.map_or(Ok(()), |hook| Err(BindError::NotExported(hook)))
}
