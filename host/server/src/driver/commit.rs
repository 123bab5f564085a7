//! Putting policies in force between two rounds, all or nothing.

use pointsman_core::Micros;
use pointsman_policy::{BindError, HookSet, PolicyHost};

use super::message::{Commit, CommitError, Committed, Install};

/// Makes the whole commit, or nothing of it. The time it took is the caller's to measure.
pub(super) fn commit(
    host: &mut PolicyHost,
    now: Micros,
    commit: Commit,
) -> Result<Committed, CommitError> {
    check(host, &commit)?;
    let mut installed = Vec::new();
    let mut hooks = Vec::new();
    for Install { policy, hooks: its } in commit.install {
        match host.add(policy) {
            Ok(number) => installed.push(number),
            Err(refused) => {
                for number in installed {
                    host.remove(now, number);
                }
                return Err(refused.into());
            }
        }
        hooks.push(its);
    }
    let binds = installed.iter().copied().zip(hooks);
    for (policy, hooks) in binds.chain(commit.bind) {
        host.bind(now, policy, hooks)?;
    }
    for policy in commit.remove {
        host.remove(now, policy);
    }
    Ok(Committed {
        held: held(host),
        installed,
        pause_micros: 0,
        retired: host.poll_retired().unwrap_or_default(),
    })
}

/// What would make a bind fail half way through.
fn check(host: &PolicyHost, commit: &Commit) -> Result<(), CommitError> {
    let installs = commit.install.iter();
    let installs = installs.map(|install| (install.policy.hooks(), install.hooks));
    let mut binds = Vec::new();
    for (policy, hooks) in &commit.bind {
        let has = host.hooks(*policy).ok_or(BindError::Unknown(*policy))?;
        binds.push((has, *hooks));
    }
    for (has, wanted) in installs.chain(binds) {
        if let Some(missing) = wanted.iter().find(|hook| !has.contains(*hook)) {
            return Err(BindError::NotExported(missing).into());
        }
    }
    Ok(())
}

fn held(host: &PolicyHost) -> Vec<(u32, HookSet)> {
    let numbers = host.numbers();
    numbers
        .map(|number| (number, host.in_force(number)))
        .collect()
}
