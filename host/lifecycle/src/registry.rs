//! The policies that are known: one [`Entry`] each, by name.
//!
//! A policy is known by its name: that of its file without `.wasm`, or of the embedded default. It
//! has a current version, the one to put in force, and installed versions: the one that was put in
//! force last and, behind it, the one that this displaced.
//!
//! # Invariants
//! 1. The policies believed to be in force are those that the host named last
//!    (`host/server/tests/reload`).
//!
//! # Not here
//! The difference to the policies that the host has (`plan`); starting policies and talking to the
//! host (`reconciler`); the choice of holders (`binding`).

mod entry;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pointsman_component::Digest;
use pointsman_interface::{Hook, HookSet, Micros};
use pointsman_policy::{Assignment, OnFailure, Quarantined};
use pointsman_state::{LastGood, Remembered};

use super::background::JobId;
use super::binding::{Bindings, Circumstances, Claimant, Place, bind};
pub use entry::Origin;
pub(crate) use entry::{Change, Entry, Installed, Making, OnDisk, Source, Started, Version};
pub(crate) use plan::{Plan, Wanted};

/// Every policy by name.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    // Immutable.
    /// Names of the embedded policies.
    defaults: Vec<&'static str>,
    /// Hooks that the configuration binds by name.
    configured: Vec<(Hook, String)>,
    // Owned state.
    entries: BTreeMap<String, Entry>,
    /// The host's treatment of arrivals that no policy answers for.
    pub(crate) on_failure: OnFailure,
    /// Hooks that the host keeps closed.
    pub(crate) closed: HookSet,
}

impl Registry {
    /// A registry without policies. The defaults will have the names `defaults`, and the
    /// configuration has bound hooks by name.
    pub(crate) fn new(defaults: Vec<&'static str>, configured: Vec<(Hook, String)>) -> Self {
        Self {
            defaults,
            configured,
            ..Self::default()
        }
    }

    /// The policy `name`, made known if necessary.
    pub(crate) fn entry(&mut self, name: &str) -> &mut Entry {
        self.entries.entry(name.to_owned()).or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(name, entry)| (name.as_str(), entry))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets policies of which nothing is left.
    pub(crate) fn forget(&mut self) {
        self.entries.retain(|_, entry| !entry.is_forgotten());
    }

    /// The policies whose refused version has that code.
    pub(crate) fn refused(&self, digest: Digest) -> Vec<String> {
        let refused = self.iter().filter(|(_, entry)| {
            let refusal = entry.refusal.as_ref();
            refusal.is_some_and(|refusal| refusal.digest == Some(digest))
        });
        refused.map(|(name, _)| name.to_owned()).collect()
    }

    // === Preparation ===

    /// The first policy by name that waits to be prepared, a last good version before all files: nothing
    /// of its policy answers. It does not wait any more.
    pub(crate) fn take_waiting(&mut self) -> Option<(String, Source)> {
        let mut entries = self.entries.iter_mut();
        let fallback =
            entries.find_map(|(name, entry)| Some((name.clone(), entry.take_waiting_fallback()?)));
        let mut entries = self.entries.iter_mut();
        let files = || entries.find_map(|(name, it)| Some((name.clone(), it.take_waiting()?)));
        fallback.or_else(files)
    }

    /// The policy for which `job` was done; absent: the result is not wanted any more.
    pub(crate) fn take_made(&mut self, job: JobId) -> Option<(String, Source)> {
        let mut entries = self.entries.iter_mut();
        entries.find_map(|(name, entry)| Some((name.clone(), entry.take_made(job)?)))
    }

    /// The changes that are ready and wait for no other file that settled with theirs, by the names of
    /// the policies.
    pub(crate) fn take_changes(&mut self) -> Vec<(String, Change)> {
        let awaited = self.entries.values().filter_map(Entry::awaited_since);
        let awaited: BTreeSet<Micros> = awaited.collect();
        let changes = self.entries.iter_mut().filter_map(|(name, entry)| {
            let change = entry.take_change(&awaited)?;
            Some((name.clone(), change))
        });
        changes.collect()
    }

    /// The time at which those files settled first that are ready and wait for others; absent: none do.
    pub(crate) fn ready_since(&self) -> Option<Micros> {
        let ready = self.entries.values().filter_map(Entry::ready_since);
        ready.min()
    }

    /// The instance of `version` of `name`, if there is one that is not in force yet.
    pub(crate) fn take_started(&mut self, name: &str, version: &Version) -> Option<Started> {
        let started = &mut self.entries.get_mut(name)?.started;
        started.take_if(|(_, prepared)| prepared.version.is_same(version))
    }

    /// Drops all instances that are not in force. Returns them, with the names of the policies.
    pub(crate) fn drop_started(&mut self) -> Vec<(String, Started)> {
        let entries = self.entries.iter_mut();
        let started = entries.filter_map(|(name, it)| Some((name.clone(), it.started.take()?)));
        started.collect()
    }

    /// True while a job makes a version ready, unless it is late.
    pub(crate) fn is_preparing(&self) -> bool {
        self.entries.values().any(Entry::is_being_made)
    }

    /// Makes the files late that are still being prepared, or wait for that, of which `is_late` says so
    /// by the time at which they settled. Returns the names of their policies.
    pub(crate) fn leave_behind(&mut self, is_late: impl Fn(Micros) -> bool) -> Vec<String> {
        let entries = self.entries.iter_mut();
        let late = entries.filter_map(|(name, entry)| {
            let is_left = entry.leave_behind(&is_late);
            is_left.then(|| name.clone())
        });
        late.collect()
    }

    /// Has the last good version prepared for each policy of whose file no version is of use yet, or
    /// any more. Returns true if there is one.
    pub(crate) fn fall_back(&mut self, last_good: &BTreeMap<String, LastGood>) -> bool {
        let mut falls_back = false;
        for (name, entry) in &mut self.entries {
            if last_good.get(name).is_some_and(|good| entry.lacks(good)) {
                entry.prepare(Source::LastGood);
                falls_back = true;
            }
        }
        falls_back
    }

    // === Holders ===

    /// Every version that the host has, with the name of its policy.
    pub(crate) fn installed(&self) -> impl Iterator<Item = (&str, &Installed)> {
        self.iter()
            .flat_map(|(name, entry)| entry.installed.iter().map(move |it| (name, it)))
    }

    /// The answer of the binding rule under the `remembered` orders.
    pub(crate) fn bindings(&self, remembered: &Remembered) -> Bindings {
        let claimants = self
            .iter()
            .map(|(name, entry)| (name, claimant(name, entry, remembered)));
        bind(Circumstances {
            ordered: &remembered.bindings,
            configured: &self.configured,
            defaults: &self.defaults,
            claimants: &claimants.collect(),
            holders: &remembered.holders,
            canaries: &remembered.canaries,
        })
    }

    /// The numbers of the shadows that are in quarantine by `entry`: their faults have ended them, and
    /// the host still has them.
    pub(crate) fn ended_shadows(&self, entry: &Quarantined) -> Vec<u32> {
        let ended = self.installed().filter(|(_, it)| match it.assignment {
            Assignment::Shadow(_) => entry.keeps_out(&it.version.source),
            Assignment::Enforce(_) | Assignment::Canary(..) => false,
        });
        ended.map(|(_, installed)| installed.number).collect()
    }

    /// The policies of the host that serve as `bindings` say.
    pub(crate) fn serving(&self, bindings: &Bindings) -> BTreeSet<u32> {
        let mut serving = BTreeSet::new();
        for (name, entry) in self.iter() {
            let places = [Place::Folder, Place::Embedded].into_iter();
            let places = places.filter(|place| !bindings.held_by(name, *place).is_empty());
            let holding = places.filter_map(|place| entry.enforcing(place));
            let trial = bindings.trials.get(name);
            let trying = trial.and_then(|trial| entry.trying(*trial));
            serving.extend(holding.chain(trying).map(|installed| installed.number));
        }
        serving
    }

    /// True if the newest version of `name` is installed as `wanted`. A version that is to be in
    /// force must hold at least those hooks.
    pub(crate) fn is_installed(&self, name: &str, wanted: Assignment) -> bool {
        let serving = self.get(name).and_then(Entry::serving);
        serving.is_some_and(|serving| match (wanted, serving.assignment) {
            (Assignment::Enforce(hooks), Assignment::Enforce(_)) => {
                let mut hooks = hooks.iter();
                hooks.all(|hook| serving.held.contains(hook))
            }
            (wanted, installed) => wanted == installed,
        })
    }

    /// The policy whose state the next version of `name` may take over: the newest one of its name
    /// whose answers count, or else a holder of one of its `hooks`.
    pub(crate) fn predecessor(&self, name: &str, hooks: HookSet) -> Option<u32> {
        let installed = self.get(name).map_or(&[][..], |entry| &entry.installed);
        let mut in_earnest = installed.iter().rev().filter(|it| match it.assignment {
            Assignment::Enforce(_) | Assignment::Canary(..) => true,
            Assignment::Shadow(_) => false,
        });
        let of_its_name = in_earnest.next();
        let displaced = || {
            let mut holders = self.installed().map(|(_, installed)| installed);
            holders.find(|it| it.held.iter().any(|hook| hooks.contains(hook)))
        };
        of_its_name
            .or_else(displaced)
            .map(|installed| installed.number)
    }

    // === News of the host ===

    /// Takes note that the host has `wanted` as `number`.
    pub(crate) fn install(&mut self, number: u32, wanted: Wanted) {
        self.entry(&wanted.name).installed.push(Installed {
            number,
            version: wanted.version,
            assignment: wanted.assignment,
            held: HookSet::EMPTY,
            is_on_probation: false,
        });
    }

    /// Takes note of the policies that the host has, with the hooks they hold. Returns those that
    /// are gone and should not be.
    pub(crate) fn note_held(
        &mut self,
        held: &[(u32, HookSet)],
        should_be: impl Fn(&Installed) -> bool,
    ) -> Vec<(String, Installed)> {
        let held: BTreeMap<u32, HookSet> = held.iter().copied().collect();
        let mut lost = Vec::new();
        for (name, entry) in &mut self.entries {
            for mut installed in std::mem::take(&mut entry.installed) {
                if let Some(hooks) = held.get(&installed.number) {
                    installed.held = *hooks;
                    entry.installed.push(installed);
                } else if should_be(&installed) {
                    lost.push((name.clone(), installed));
                }
            }
        }
        lost
    }

    /// Takes note that of the policies in `put`, those in `on_probation` begin their probation.
    pub(crate) fn begin_probation(&mut self, on_probation: &[u32], put: &[u32]) {
        for installed in self.entries.values_mut().flat_map(|it| &mut it.installed) {
            let number = installed.number;
            installed.is_on_probation |= put.contains(&number) && on_probation.contains(&number);
        }
    }

    /// Returns the installed versions that were on probation and are not `on_probation` any more.
    pub(crate) fn end_probation(&mut self, on_probation: &[u32]) -> Vec<(String, Arc<Version>)> {
        let mut proven = Vec::new();
        for (name, entry) in &mut self.entries {
            for installed in &mut entry.installed {
                if installed.is_on_probation && !on_probation.contains(&installed.number) {
                    installed.is_on_probation = false;
                    proven.push((name.clone(), Arc::clone(&installed.version)));
                }
            }
        }
        proven
    }
}

/// The policy `name` as the binding rule sees it.
fn claimant(name: &str, entry: &Entry, remembered: &Remembered) -> Claimant {
    let of_file = || {
        let version = entry.version(Place::Folder)?;
        let mode = entry.mode(name, remembered)?;
        Some(Assignment::new(mode, version.hooks))
    };
    let tried = entry.installed.iter().map(|it| match it.assignment {
        Assignment::Canary(hooks, _) => hooks,
        Assignment::Enforce(_) | Assignment::Shadow(_) => HookSet::EMPTY,
    });
    Claimant {
        embedded: entry
            .embedded
            .as_ref()
            .map_or(HookSet::EMPTY, |it| it.hooks),
        file: of_file(),
        is_late: entry.is_late(),
        closed: entry.closed,
        holds: entry
            .installed
            .iter()
            .flat_map(|it| it.held.iter())
            .collect(),
        tries: tried.flat_map(HookSet::iter).collect(),
    }
}
