//! Executors by rows that seldom change: their topology group, their limit of models, and whether they tell
//! which models are loaded.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_sdk::wire::types::{Change, LoadedModels, Request};
use pointsman_sdk::{Executor, Mirror};

/// Executors by group, those with a limit of models, and those that tell which are loaded.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    /// Executor ids by group.
    groups: BTreeMap<u32, BTreeSet<u32>>,
    /// Executors with a `models-max`.
    limited: BTreeSet<u32>,
    /// Executors that tell which models they have loaded.
    telling: BTreeSet<u32>,
}

/// Executors that a request may be looked for a place on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Everywhere,
    /// These, by ascending id.
    Among(Vec<u32>),
}

// === impl Roster ===

impl Roster {
    /// Notes what a row changes, before it does.
    pub(crate) fn note(&mut self, mirror: &Mirror, change: &Change) {
        match change {
            Change::Executor(info) => {
                self.leave(mirror, info.id);
                self.groups.entry(info.group).or_default().insert(info.id);
                if info.models_max.is_some() {
                    self.limited.insert(info.id);
                }
                match info.loaded_models {
                    LoadedModels::Told => drop(self.telling.insert(info.id)),
                    LoadedModels::Untold => {}
                }
            }
            Change::ExecutorGone(id) => self.leave(mirror, *id),
            Change::Name(_)
            | Change::Load(_)
            | Change::Residency(_)
            | Change::ResidencyGone(_)
            | Change::Device(_)
            | Change::Model(_)
            | Change::Tenant(_)
            | Change::Waiting(_)
            | Change::WaitingGone(_)
            | Change::Sequence(_)
            | Change::SequenceGone(_)
            | Change::Completed(_) => {}
        }
    }

    fn leave(&mut self, mirror: &Mirror, id: u32) {
        self.limited.remove(&id);
        self.telling.remove(&id);
        let group = mirror.executor(id).map(|executor| executor.info.group);
        if let Some(group) = group
            && let Some(ids) = self.groups.get_mut(&group)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.groups.remove(&group);
            }
        }
    }

    /// Returns whether any executor has a `models-max`.
    pub(crate) fn limits_models(&self) -> bool {
        !self.limited.is_empty()
    }

    /// Returns whether any executor tells which models it has loaded.
    pub(crate) fn loads_models(&self) -> bool {
        !self.telling.is_empty()
    }

    /// The executors of the group that the request may go to.
    pub(crate) fn group(&self, group: u32, request: &Request) -> Scope {
        let members = self.groups.get(&group).into_iter().flatten().copied();
        let allowed = |id: &u32| match &request.allowed {
            Some(allowed) => allowed.contains(id),
            None => true,
        };
        Scope::Among(members.filter(allowed).collect())
    }
}

// === impl Scope ===

impl Scope {
    /// The executors the request is pinned to, or all.
    pub(crate) fn of(request: &Request) -> Self {
        match &request.allowed {
            Some(allowed) => {
                let mut ids = allowed.clone();
                ids.sort_unstable();
                ids.dedup();
                Self::Among(ids)
            }
            None => Self::Everywhere,
        }
    }

    /// The executors of the scope, in attach order.
    pub(crate) fn executors<'a>(&self, mirror: &'a Mirror) -> impl Iterator<Item = Executor<'a>> {
        let (all, some) = match self {
            Self::Everywhere => (Some(mirror.executors()), &[][..]),
            Self::Among(ids) => (None, ids.as_slice()),
        };
        let some = some.iter().filter_map(|id| mirror.executor(*id));
        all.into_iter().flatten().chain(some)
    }

    pub(crate) fn contains(&self, executor: u32) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Among(ids) => ids.binary_search(&executor).is_ok(),
        }
    }
}
