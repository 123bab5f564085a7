//! The host's news: policies that were taken out, or have proven themselves.

use std::collections::BTreeSet;

use pointsman_policy::{Cause, Commit, Committed, Quarantined};

use super::Reconciler;
use crate::binding::Place;
use crate::port::{HostEnded, PolicyPort};
use crate::registry::{Installed, Version};
use crate::report::{ReloadStep, TransactionOutcome, Trigger, VersionRefusal};
use crate::tell;

impl<P: PolicyPort> Reconciler<P> {
    /// Tells the host the versions in quarantine since an earlier life.
    pub(super) fn recall(&mut self) -> Result<(), HostEnded> {
        let recall = Commit {
            quarantine: self.state.remembered().quarantine.clone(),
            ..Commit::default()
        };
        // There is nothing in it to be refused.
        self.port.commit(recall).map(drop)
    }

    /// Asks the host for its policies.
    pub(super) fn ask_host(&mut self) -> Result<(), HostEnded> {
        // There is nothing in it to be refused.
        if let Ok(committed) = self.port.commit(Commit::default())? {
            self.heed(committed, None);
        }
        Ok(())
    }

    /// Takes note of the host's answer. Of the policies that are gone, those in `serving` should
    /// not be; where `serving` is absent, those in quarantine.
    pub(super) fn heed(&mut self, committed: Committed, serving: Option<&BTreeSet<u32>>) {
        let Committed {
            held,
            on_probation,
            closed,
            quarantine,
            dumps,
            retired,
            ..
        } = committed;
        self.registry.closed = closed;
        let cause = std::mem::replace(&mut self.transactions.cause, Trigger::Conduct);
        let lost = self.registry.note_held(&held, |installed| match serving {
            Some(serving) => serving.contains(&installed.number),
            None => listed(&quarantine, &installed.version).is_some(),
        });
        for (name, installed) in lost {
            self.lose(&name, &installed, &quarantine);
        }
        for (name, version) in self.registry.end_probation(&on_probation) {
            self.prove(&name, &version);
        }
        if self.state.remembered().quarantine != quarantine {
            self.state.change(|state| state.quarantine = quarantine);
        }
        for dump in dumps {
            match serde_json::to_vec_pretty(&dump) {
                Ok(text) => self.state.keep_dump(&text),
                Err(error) => tell::no_dump(&error),
            }
        }
        self.transactions.cause = cause;
        // Here, where nobody waits: to free their memories takes its time.
        drop(retired);
    }

    /// Goes on without `lost`, which the host has taken out.
    fn lose(&mut self, name: &str, lost: &Installed, quarantine: &[Quarantined]) {
        let version = &lost.version;
        let listed = listed(quarantine, version);
        let cause = listed.map(|listed| listed.cause);
        let why = listed.map_or("the host took it out", |listed| &listed.detail);
        let why = why.to_owned();
        let digest = version.source.digest();
        let entry = self.registry.entry(name);
        let newest = entry.version(version.place());
        let is_newest = newest.is_some_and(|newest| newest.is_same(version));
        entry.do_without(version);
        if is_newest {
            // The file that the sidecar waits for is still waited for.
            entry.refusal = Some(VersionRefusal {
                step: ReloadStep::Serve,
                why: why.clone(),
                digest: Some(digest),
                at: self.transactions.at,
            });
        }
        if cause == Some(Cause::Faulted) && !lost.held.is_empty() {
            self.leave_closed(name, version);
        }
        // What decides in its stead shall do so after a restart, too.
        if let Some(older) = self.registry.entry(name).proven().cloned() {
            self.keep(name, &older);
        }
        if self.state.remembered().last_good.get(name) == Some(&version.as_last_good()) {
            self.state.change(|state| state.last_good.remove(name));
        }
        let outcome = match cause {
            Some(Cause::RolledBack) => TransactionOutcome::RolledBack { why },
            Some(Cause::Faulted) | None => TransactionOutcome::Dropped { why },
        };
        self.transactions.end_new(name, digest, outcome);
    }

    /// Keeps `version`, which has stood its probation, as the last good one.
    fn prove(&mut self, name: &str, version: &Version) {
        let entry = self.registry.entry(name);
        // One that stands behind a newer one which has proven itself does not take its place.
        let is_behind = entry.proven().is_some_and(|it| !it.is_same(version));
        if !is_behind {
            self.keep(name, version);
        }
        let digest = version.source.digest();
        self.transactions
            .end_new(name, digest, TransactionOutcome::Proven);
    }

    /// Keeps a version as the last good one of the file `name`, whatever is in the folder by now.
    fn keep(&mut self, name: &str, good: &Version) {
        if let (Place::Folder, Some(code)) = (good.place(), good.source.code()) {
            self.state.prove(name, code.bytes(), good.sidecar.clone());
        }
    }

    /// True if `version` is in quarantine for its faults.
    pub(super) fn is_out_for_faults(&self, version: &Version) -> bool {
        let quarantine = &self.state.remembered().quarantine;
        listed(quarantine, version).is_some_and(|listed| listed.cause == Cause::Faulted)
    }
}

/// The newest entry about `version` in the quarantine.
pub(super) fn listed<'a>(
    quarantine: &'a [Quarantined],
    version: &Version,
) -> Option<&'a Quarantined> {
    let mut newest = quarantine.iter().rev();
    newest.find(|entry| entry.keeps_out(&version.source))
}
