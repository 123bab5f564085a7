//! Executors that are kept free for models that are warm nowhere.
//!
//! Where `models-max` alone keeps such a model from starting on an executor with a free slot, the
//! one with the most free slots is reserved for it. Other models may not refill that executor, so
//! it drains, as long as a waiting request asks for the model. The models that run there lose
//! nothing by it: another live executor serves each of them, and each has stayed there for some times
//! as long as it took to start.
//!
//! They are found anew at every `observe`, from the mirror alone.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::{ExecutorInfo, Request, Residency, Stage};
use pointsman_sdk::{BatchPlacements, Case, Executor, Fleet, Mirror, Obstacle, Seat};

use crate::MemoryAware;
use crate::search::{MayLook, Search};

/// The executors that are kept free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drains(Vec<Drain>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drain {
    executor: u32,
    model: u32,
}

/// Returns whether no live executor runs the model or keeps it loaded; placements of this batch
/// count.
pub(crate) fn is_cold(fleet: Fleet<'_>, model: u32, now: u64) -> bool {
    let Fleet { mirror, placed } = fleet;
    let warm = |executor: &Executor<'_>| executor.is_live() && executor.is_warm(model, now);
    placed.running(mirror, model) == 0
        && !mirror.presences(model).any(|(executor, _)| warm(&executor))
}

/// The oldest queued request of each model that is warm nowhere, by arrival, of so many models.
fn oldest_cold(mirror: &Mirror, models_max: usize) -> Vec<&Request> {
    let waiting = mirror.models().filter(|model| model.waiting > 0);
    let mut cold: Vec<u32> = waiting
        .map(|model| model.id)
        .filter(|&model| is_cold(Fleet::from(mirror), model, mirror.now()))
        .collect();
    let mut oldest = Vec::new();
    if cold.is_empty() || models_max == 0 {
        return oldest;
    }
    for request in mirror.requests() {
        let asked = cold.iter().position(|&cold| request.model == Some(cold));
        if let (Some(at), Stage::Queued) = (asked, request.stage) {
            cold.swap_remove(at);
            oldest.push(request);
            if cold.is_empty() || oldest.len() == models_max {
                break;
            }
        }
    }
    oldest
}

// === impl Drains ===

impl Drains {
    /// Finds an executor for each waiting model that is warm nowhere and cannot start, after those
    /// that have waited longer were served.
    pub(crate) fn find(policy: &MemoryAware, mirror: &Mirror) -> Self {
        let mut drains = Self::default();
        let mut placed = BatchPlacements::default();
        let mut servers = None;
        for request in oldest_cold(mirror, policy.settings.cold_models_max()) {
            let fleet = Fleet {
                mirror,
                placed: &placed,
            };
            let case = Case::new(fleet, request, mirror.now());
            let search = Search {
                drains: &drains,
                ..Search::new(policy, &policy.settings, &case)
            };
            match search.choose(MayLook::Yes) {
                (_, Ok(choice)) => {
                    let (id, seat) = (choice.first.executor.id(), choice.first.seat);
                    if let Some(executor) = mirror.executor(id) {
                        placed.place(mirror, request, &executor, seat);
                    }
                }
                (search, Err(_)) => {
                    let servers = servers.get_or_insert_with(|| Servers::of(mirror));
                    let executor = executor_for(&search, servers);
                    let kept = executor.zip(request.model);
                    let drain = kept.map(|(executor, model)| Drain { executor, model });
                    drains.0.extend(drain);
                }
            }
        }
        drains
    }

    /// The model that an executor is kept free for.
    pub(crate) fn model_at(&self, executor: u32) -> Option<u32> {
        let drain = self.0.iter().find(|drain| drain.executor == executor)?;
        Some(drain.model)
    }

    /// Returns whether a request of this model may not be placed there. One that names no model
    /// keeps no other from starting.
    #[inline]
    pub(crate) fn keeps_out(&self, executor: u32, model: Option<u32>) -> bool {
        self.model_at(executor)
            .zip(model)
            .is_some_and(|(kept_for, model)| kept_for != model)
    }
}

/// The executor to keep free; absent where that would not help. Not one that another model is
/// about to start on, or is kept free for.
fn executor_for(search: &Search<'_>, servers: &Servers) -> Option<u32> {
    let fleet = search.case.fleet;
    let mut best: Option<(u32, u32)> = None;
    for executor in search.scope().executors(fleet.mirror) {
        let free = fleet.slots_free(&executor);
        if best.is_none_or(|(most, _)| free > most)
            && search.drains.model_at(executor.id()).is_none()
            && fleet.placed.started(&executor).is_empty()
            && has_stayed(search, &executor)
            && is_all_models_max(search.case, &executor)
            && servers.replace(&executor)
        {
            best = Some((free, executor.id()));
        }
    }
    best.map(|(_, executor)| executor)
}

/// Returns whether each model that runs there has been of use for long enough: changing models takes
/// time, in which nothing runs.
fn has_stayed(search: &Search<'_>, executor: &Executor<'_>) -> bool {
    let stay = u64::from(search.settings.model_tenure);
    let now = search.case.fleet.mirror.now();
    let has_stayed = |row: &Residency| {
        row.first_token.is_some_and(|first| {
            let start = first.saturating_sub(row.started);
            now.saturating_sub(first) >= start.saturating_mul(stay)
        })
    };
    let mut active = executor.residencies.iter().filter(|row| row.sequences > 0);
    stay == 0 || active.all(has_stayed)
}

/// Returns whether `models-max` is all that stands in the way of a slot.
fn is_all_models_max(case: &Case<'_>, executor: &Executor<'_>) -> bool {
    if case.fit(executor) != Err(Obstacle::ModelsMax) {
        return false;
    }
    let unlimited = ExecutorInfo {
        models_max: None,
        ..executor.info.clone()
    };
    let info = &unlimited;
    case.fit(&Executor { info, ..*executor }) == Ok(Seat::Slot)
}

/// Numbers of live executors, by the models they serve.
#[derive(Debug, Default)]
struct Servers {
    /// Executors that serve any model.
    any: usize,
    by_model: BTreeMap<u32, usize>,
}

// === impl Servers ===

impl Servers {
    fn of(mirror: &Mirror) -> Self {
        let mut servers = Self::default();
        for executor in mirror.executors().filter(Executor::is_live) {
            match &executor.info.serves {
                Some(serves) => {
                    for model in serves {
                        *servers.by_model.entry(*model).or_default() += 1;
                    }
                }
                None => servers.any += 1,
            }
        }
        servers
    }

    /// Returns whether each model that runs on this live executor is served by another.
    fn replace(&self, executor: &Executor<'_>) -> bool {
        let serves = |model| match &executor.info.serves {
            Some(serves) => serves.contains(&model),
            None => true,
        };
        let mut active = executor.residencies.iter().filter(|row| row.sequences > 0);
        active.all(|row| {
            let listed = self.by_model.get(&row.model).copied().unwrap_or(0);
            self.any + listed > usize::from(serves(row.model))
        })
    }
}
