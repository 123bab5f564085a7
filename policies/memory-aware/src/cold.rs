//! Models that are warm nowhere: executors that are kept free for them.
//!
//! Where `models-max` alone keeps such a model from starting on an executor with a free slot,
//! the one with the most free slots is reserved for it: other models may not refill it, so that it
//! drains, as long as a waiting request asks for the model. What runs there loses nothing
//! by it: another live executor serves each of its models.
//!
//! Found anew at every `observe`, from what the mirror says: there is nothing to keep in step.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::{Cached, ExecutorInfo, Request, Stage};
use pointsman_sdk::{Executor, Mirror, Need, Obstacle, Seat, Tentative, fit};

use crate::choose::Case;
use crate::roster::Scope;
use crate::{MemoryAware, View};

/// Most models that are looked at. Each may take a look at the whole fleet, and a question must
/// end.
const COLD_MAX: usize = 8;

/// The executors that are kept free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drains(Vec<Drain>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drain {
    executor: u32,
    model: u32,
}

/// Whether no live executor runs the model or keeps it loaded, placements of this batch included.
pub(crate) fn is_cold(mirror: &Mirror, placed: &Tentative, model: u32, now: u64) -> bool {
    let warm = |executor: &Executor<'_>| executor.is_live() && executor.is_warm(model, now);
    placed.running(mirror, model) == 0
        && !mirror.presences(model).any(|(executor, _)| warm(&executor))
}

/// Whether a slot is free there, earlier placements of the batch counted.
pub(crate) fn has_slot(placed: &Tentative, executor: &Executor<'_>) -> bool {
    free_slots(placed, executor) > 0
}

fn free_slots(placed: &Tentative, executor: &Executor<'_>) -> u32 {
    let total = executor.info.slots_total;
    let used = executor.load.slots_used;
    total.saturating_sub(used.saturating_add(placed.counts(executor).slots))
}

/// The oldest queued request of each model that is warm nowhere, by arrival.
fn oldest_cold(mirror: &Mirror) -> Vec<&Request> {
    let placed = Tentative::default();
    let waiting = mirror.models().filter(|model| model.waiting > 0);
    let mut cold: Vec<u32> = waiting
        .map(|model| model.id)
        .filter(|&model| is_cold(mirror, &placed, model, mirror.now()))
        .collect();
    let mut oldest = Vec::new();
    if cold.is_empty() {
        return oldest;
    }
    for request in mirror.requests() {
        let asked = cold.iter().position(|&cold| request.model == Some(cold));
        if let (Some(at), Stage::Queued) = (asked, request.stage) {
            cold.swap_remove(at);
            oldest.push(request);
            if cold.is_empty() || oldest.len() == COLD_MAX {
                break;
            }
        }
    }
    oldest
}

// === impl MemoryAware ===

impl MemoryAware {
    /// An executor for each waiting model that is warm nowhere and cannot start, after those that
    /// have waited longer were served.
    pub(crate) fn find_drains(&self, mirror: &Mirror) -> Drains {
        let mut drains = Drains::default();
        let mut placed = Tentative::default();
        let mut servers = None;
        for request in oldest_cold(mirror) {
            let need = Need::new(mirror, &placed, request, mirror.now());
            let asked = Cached {
                request: request.id,
                overlaps: None,
                floor_tokens: 0,
                shared_tokens: 0,
            };
            let case = Case {
                mirror,
                placed: &placed,
                need: &need,
                asked: &asked,
                view: View {
                    drains: &drains,
                    ..self.view(request)
                },
            };
            match self.ordered(&case) {
                Ok(ordered) => {
                    if let Some(executor) = mirror.executor_at(ordered.first.position) {
                        placed.place(mirror, &need, &executor, ordered.first.seat);
                    }
                }
                Err(_) => {
                    let (_, scope) = self.search(&case);
                    let servers = servers.get_or_insert_with(|| Servers::of(mirror));
                    let executor = drains.executor_for(&case, servers, &scope);
                    let kept = executor.zip(request.model);
                    drains
                        .0
                        .extend(kept.map(|(executor, model)| Drain { executor, model }));
                }
            }
        }
        drains
    }
}

// === impl Drains ===

impl Drains {
    /// The executor to keep free; absent where that would not help. Not one that another model is
    /// about to start on, or is kept free for.
    fn executor_for(&self, case: &Case<'_>, servers: &Servers, scope: &Scope) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        for executor in scope.executors(case.mirror) {
            let free = free_slots(case.placed, &executor);
            if best.is_none_or(|(most, _)| free > most)
                && self.model_at(executor.id()).is_none()
                && case.placed.started(&executor).is_empty()
                && is_all_models_max(case, &executor)
                && servers.replace(&executor)
            {
                best = Some((free, executor.id()));
            }
        }
        best.map(|(_, executor)| executor)
    }

    /// The model that an executor is kept free for.
    pub(crate) fn model_at(&self, executor: u32) -> Option<u32> {
        let drain = self.0.iter().find(|drain| drain.executor == executor)?;
        Some(drain.model)
    }

    /// Whether a request of this model may not be placed there. One that names no model keeps no
    /// other from starting.
    #[inline]
    pub(crate) fn keeps_out(&self, executor: u32, model: Option<u32>) -> bool {
        self.model_at(executor)
            .zip(model)
            .is_some_and(|(kept_for, model)| kept_for != model)
    }
}

/// Whether `models-max` is all that stands in the way of a slot.
fn is_all_models_max(case: &Case<'_>, executor: &Executor<'_>) -> bool {
    let seat = |executor: &Executor<'_>| fit(case.mirror, case.placed, case.need, executor);
    if seat(executor) != Err(Obstacle::ModelsMax) {
        return false;
    }
    let unlimited = ExecutorInfo {
        models_max: None,
        ..executor.info.clone()
    };
    let info = &unlimited;
    seat(&Executor { info, ..*executor }) == Ok(Seat::Slot)
}

/// How many live executors serve what.
#[derive(Debug, Default)]
struct Servers {
    /// Any model.
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

    /// Whether each model that runs on this live executor is served by another.
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
