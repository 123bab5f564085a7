//! From files in the folder to versions that can be put in force.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pointsman_component::EmbeddedPolicy;
use pointsman_interface::{Hook, HookSet, Micros};
use pointsman_policy::{OnFailure, Quarantined};
use pointsman_state::{FolderId, LastGood};

use super::Reconciler;
use super::host::listed;
use crate::background::JobId;
use crate::binding::Place;
use crate::folder::Pair;
use crate::listing;
use crate::port::PolicyPort;
use crate::preparer::{Inspection, Job, Prepared};
use crate::registry::{Change, Making, Origin, Source, Started, Version};
use crate::report::{ReloadStep, TransactionOutcome, VersionRefusal};
use crate::tell;
use crate::transactions::{Attempt, Failure};

impl<P: PolicyPort> Reconciler<P> {
    // === The policies there are ===

    pub(super) fn take_embedded(&mut self, policy: EmbeddedPolicy) {
        let EmbeddedPolicy { name, wasm, .. } = policy;
        let mut attempt = self.transactions.new_attempt();
        let version = self.preparer.embedded(name, wasm, &mut attempt);
        self.transactions.resume(name, attempt);
        match version {
            Ok(version) => self.registry.entry(name).embedded = Some(Arc::new(version)),
            Err(failure) => self.refuse(name, failure),
        }
    }

    /// Takes note of policies whose files have changed, or are gone.
    pub(super) fn take_all(&mut self, changes: Vec<(String, Option<Pair>)>) {
        for (name, pair) in changes {
            match pair {
                Some(pair) => {
                    let settled_at = Some(self.transactions.at);
                    let source = Source::Files { pair, settled_at };
                    self.registry.entry(&name).prepare(source);
                }
                None => {
                    let settled_at = self.transactions.at;
                    self.registry.entry(&name).note_gone(settled_at);
                }
            }
        }
    }

    /// Makes the changes that are ready, unless they wait for others whose files settled with theirs:
    /// from now on the binding rule goes by them.
    pub(super) fn take_changes(&mut self) {
        for (name, change) in self.registry.take_changes() {
            match change {
                Change::Version { version, started } => self.take_version(&name, version, started),
                Change::Removal => self.take_withdrawn(&name),
            }
        }
    }

    fn take_withdrawn(&mut self, name: &str) {
        self.state.change(|state| {
            state.last_good.remove(name);
            state.modes.remove(name);
        });
        if let Some(on_disk) = self.registry.entry(name).withdraw() {
            let digest = on_disk.version.map(|version| version.source.digest());
            self.transactions.attempt(name).digest = digest;
            self.transactions
                .end(name, TransactionOutcome::Removed, None);
        }
    }

    // === Files on their way ===

    /// Prepares all waiting policies, and waits for their jobs, until `end` at most. Files that take
    /// longer are late. What is ready is judged.
    pub(super) fn prepare_until(&mut self, end: Micros) {
        self.prepare_next();
        while self.registry.is_preparing()
            && let Some(finished) = self.preparer.wait(end.since(self.transactions.now()))
        {
            self.take_finished(finished);
            self.prepare_next();
        }
        self.leave_behind(|_| true);
        self.take_changes();
    }

    /// Has nothing wait any longer for the files of which `is_late` says so by the time at which they
    /// settled.
    pub(super) fn leave_behind(&mut self, is_late: impl Fn(Micros) -> bool) {
        for name in self.registry.leave_behind(is_late) {
            tell::late(&name);
        }
    }

    /// Begins with the policies that wait and have something to be done, as many as there are threads
    /// for them.
    pub(super) fn prepare_next(&mut self) {
        while !self.preparer.is_full()
            && let Some((name, source)) = self.registry.take_waiting()
        {
            match source {
                Source::Files { pair, settled_at } => {
                    self.prepare_files(&name, (pair, settled_at));
                }
                Source::LastGood => self.prepare_last_good(&name),
            }
        }
    }

    fn prepare_files(&mut self, name: &str, (pair, settled_at): (Pair, Option<Micros>)) {
        let Some(path) = self.path_of(name) else {
            return;
        };
        let mut attempt = self.transactions.new_attempt();
        let entry = self.registry.entry(name);
        let on_disk = entry.on_disk.get_or_insert_default();
        let found = (self.preparer).inspect((name, path), &pair, on_disk, &mut attempt);
        let source = Source::Files { pair, settled_at };
        match found {
            Ok(Inspection::Changed(job)) => self.make((name, source), *job, attempt),
            Ok(Inspection::Unchanged(version)) => {
                let started = None;
                entry.note_ready(&source, Change::Version { version, started });
            }
            Ok(Inspection::Unsettled) => self.folder.unsettle(name, self.transactions.at),
            Ok(Inspection::WaitsFor(pinned)) => {
                entry.wait_for(pinned);
                let waits = TransactionOutcome::Waits { pinned };
                self.transactions.resume(name, attempt);
                self.transactions.end(name, waits, None);
            }
            Err(failure) => {
                self.transactions.resume(name, attempt);
                self.refuse(name, failure);
            }
        }
    }

    fn prepare_last_good(&mut self, name: &str) {
        let good = self.state.remembered().last_good.get(name).cloned();
        let (Some(path), Some(LastGood { digest, sidecar })) = (self.path_of(name), good) else {
            return;
        };
        let Some(bytes) = self.state.code(digest) else {
            tell::last_good_is_gone(name, digest);
            self.state.change(|state| state.last_good.remove(name));
            return;
        };
        let mut attempt = self.transactions.new_attempt();
        attempt.digest = Some(digest);
        match self.preparer.last_good((name, path), bytes, sidecar) {
            Ok(job) => self.make((name, Source::LastGood), job, attempt),
            Err(failure) => {
                self.transactions.resume(name, attempt);
                self.give_up_last_good(name, failure);
            }
        }
    }

    fn path_of(&self, name: &str) -> Option<PathBuf> {
        let folder = self.path.as_ref()?;
        Some(folder.join(format!("{name}.wasm")))
    }

    fn make(&mut self, (name, source): (&str, Source), job: Job, attempt: Attempt) {
        let digest = job.digest();
        let job = self.preparer.begin(job, attempt);
        self.registry.entry(name).make(Making {
            job,
            source,
            digest,
        });
    }

    /// Takes a job that has ended. Its result may not be wanted any more.
    pub(super) fn take_finished(
        &mut self,
        (job, attempt, result): (JobId, Attempt, Result<Prepared, Failure>),
    ) {
        let Some((name, source)) = self.registry.take_made(job) else {
            return;
        };
        match result {
            Ok(prepared) => {
                let entry = self.registry.entry(&name);
                if let Some(stamp) = &prepared.stamp {
                    let code = (stamp.clone(), prepared.component.clone());
                    entry.on_disk.get_or_insert_default().code = Some(code);
                }
                let version = Arc::clone(&prepared.version);
                let started = Some((attempt, Box::new(prepared)));
                entry.note_ready(&source, Change::Version { version, started });
            }
            Err(failure) => {
                self.transactions.resume(&name, attempt);
                match source {
                    Source::Files { .. } => self.refuse(&name, failure),
                    Source::LastGood => self.give_up_last_good(&name, failure),
                }
            }
        }
    }

    /// Makes `version` the newest of `name` that is of use, unless it is in quarantine.
    fn take_version(&mut self, name: &str, version: Arc<Version>, started: Option<Started>) {
        let entry = self.registry.entry(name);
        let newest = entry.version(Place::Folder);
        let newest = newest.filter(|newest| newest.is_same(&version));
        let is_newest = newest.is_some();
        // One on probation with other settings may have the same code.
        let good = self.state.remembered().last_good.get(name);
        let is_good = newest.is_some_and(|newest| good == Some(&newest.as_last_good()));
        // The host has judged the newest one: a shadow that has ended may stay.
        if (started.is_some() || !is_newest)
            && let Some(failure) = self.in_quarantine(&version)
        {
            if let Some((attempt, _)) = started {
                self.transactions.resume(name, attempt);
            }
            self.transactions.attempt(name).digest = Some(version.source.digest());
            return self.refuse_version(name, &version, failure);
        }
        let is_of_files = matches!(version.origin, Origin::File(_));
        let entry = self.registry.entry(name);
        if started.is_some() {
            entry.closed = HookSet::EMPTY;
            entry.started = started;
        }
        if is_of_files {
            entry.accept();
        }
        entry.renew(&version);
        self.state.change(|state| {
            // The mode was ordered in the place of one that the file does not say any more. A last good
            // version says what another file said.
            if is_of_files
                && let Some(order) = state.modes.get(name)
                && order.instead_of != version.mode
            {
                state.modes.remove(name);
            }
            if is_good {
                state
                    .last_good
                    .insert(name.to_owned(), version.as_last_good());
            }
        });
    }

    /// The reason to refuse `version`, if it is in quarantine: then it claims nothing.
    pub(super) fn in_quarantine(&self, version: &Version) -> Option<Failure> {
        let quarantine = &self.state.remembered().quarantine;
        listed(quarantine, version).map(kept_out)
    }

    /// Drops the instances that were judged and not put in force: they hold no hook.
    pub(super) fn drop_started(&mut self) {
        for (name, (attempt, _)) in self.registry.drop_started() {
            self.transactions.resume(&name, attempt);
        }
    }

    // === Refusals ===

    /// Refuses the newest version of `name`.
    fn refuse(&mut self, name: &str, failure: Failure) {
        self.registry.entry(name).refuse(VersionRefusal {
            step: failure.step,
            why: failure.why.clone(),
            digest: self.transactions.attempt(name).digest,
            at: self.transactions.at,
        });
        self.note_refused(name, failure);
    }

    /// Counts and records that a version of `name` was not put in force.
    pub(super) fn note_refused(&mut self, name: &str, failure: Failure) {
        let Failure { step, why } = failure;
        self.port.count_refused(step);
        let refused = TransactionOutcome::Refused { step, why };
        self.transactions.end(name, refused, None);
    }

    /// Refuses `version` of `name`, which could not be put in force.
    pub(super) fn refuse_version(&mut self, name: &str, version: &Version, failure: Failure) {
        self.registry.entry(name).do_without(version);
        match version.origin {
            Origin::LastGood(_) => self.give_up_last_good(name, failure),
            Origin::Embedded | Origin::File(_) => {
                if self.is_out_for_faults(version) {
                    self.leave_closed(name, version);
                }
                self.refuse(name, failure);
            }
        }
    }

    /// Goes on without the last good version of `name`. One that could not be compiled may be good still:
    /// the compiler's notes say when it is to be given up. Another is forgotten.
    fn give_up_last_good(&mut self, name: &str, failure: Failure) {
        let Failure { step, why } = failure;
        if step == ReloadStep::Compile {
            self.registry.entry(name).is_spent = true;
        } else {
            self.state.change(|state| state.last_good.remove(name));
        }
        let refused = TransactionOutcome::Refused { step, why };
        self.transactions.end(name, refused, None);
    }

    /// Leaves admission closed after `version`, if nobody may answer in its stead.
    pub(super) fn leave_closed(&mut self, name: &str, version: &Version) {
        let closes = version.on_failure == OnFailure::Closed;
        if closes && version.hooks.contains(Hook::Admission) {
            self.registry.entry(name).closed.insert(Hook::Admission);
        }
    }

    // === The last good versions ===

    /// Tells the folder the identity and the policies that the state folder remembers.
    pub(super) fn expect_remembered(&mut self) {
        let Some(path) = &self.path else {
            return;
        };
        let remembered = self.state.remembered();
        let seen = remembered.folder.as_ref();
        let Some(seen) = seen.and_then(|seen| seen_at(path, seen)) else {
            // The last good versions are of other files.
            return self.state.change(|state| state.last_good.clear());
        };
        let (good, modes) = (&remembered.last_good, &remembered.modes);
        let names: BTreeSet<&String> = good.keys().chain(modes.keys()).collect();
        let names = names.into_iter().cloned();
        self.folder.expect(seen, names, self.transactions.at);
    }

    /// Has all last good versions prepared: the folder is not there.
    pub(super) fn fall_back_on_all(&mut self) {
        if self.path.is_none() {
            return;
        }
        for name in self.state.remembered().last_good.keys() {
            self.registry.entry(name).prepare(Source::LastGood);
        }
    }

    /// Has the last good version prepared for each file of which no version is of use, or only one that
    /// is late. Returns true if there is one.
    pub(super) fn fall_back(&mut self) -> bool {
        self.registry.fall_back(&self.state.remembered().last_good)
    }
}

/// The reason to refuse a version that is in quarantine by `entry`.
pub(super) fn kept_out(entry: &Quarantined) -> Failure {
    let Quarantined { name, detail, .. } = entry;
    let why = format!(
        "it is in quarantine until its code, settings or limits change, or `pointsman policy \
         release {name}` lets it be tried again: {detail}"
    );
    let step = ReloadStep::Bind;
    Failure { step, why }
}

/// The folder that was `seen` in an earlier life, if it is the one at `path`. Where an earlier version remembered a
/// relative path, the folder that is there now tells.
fn seen_at(path: &Path, seen: &FolderId) -> Option<FolderId> {
    if seen.path == path {
        return Some(seen.clone());
    }
    let there = listing::folder_id(path).ok()?;
    let is_there = (seen.device, seen.inode) == (there.device, there.inode);
    (seen.path.is_relative() && is_there).then_some(there)
}
