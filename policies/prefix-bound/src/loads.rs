//! The loads that a load is measured against: the least of the executors that serve a request, or
//! their mean.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::Request;
use pointsman_sdk::{Case, Executor, ExecutorTable, Fleet, Ranking};

use crate::bound::{Bound, Total};
use crate::settings::{Against, Settings};

/// The loads of the live executors, with room or without.
#[derive(Debug)]
pub(crate) enum Loads {
    Least(Ranking<u64>),
    Mean(Totals),
}

/// Sums of loads.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    counted: ExecutorTable<Counted>,
    all: Total,
    /// Loads of executors that serve any model.
    any: Total,
    /// Loads of executors that name the models they serve.
    by_model: BTreeMap<u32, Total>,
}

/// The part of one executor in the sums.
#[derive(Clone, Debug)]
struct Counted {
    load: u64,
    serves: Option<Vec<u32>>,
}

// === impl Loads ===

impl Loads {
    pub(crate) fn new(against: Against) -> Self {
        match against {
            Against::Least => Self::Least(Ranking::default()),
            Against::Mean => Self::Mean(Totals::default()),
        }
    }

    pub(crate) fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        match self {
            Self::Least(ranking) => {
                let load = |at: &Executor<'_>| at.is_live().then(|| fleet.depth(at));
                ranking.update_with(fleet, executors, load);
            }
            Self::Mean(totals) => totals.update(fleet, executors),
        }
    }

    /// The bound for a request, among the executors that may take it once they have room.
    pub(crate) fn bound(&self, settings: &Settings, case: &Case<'_>) -> Bound {
        let request = case.request;
        let may_take = |at: &Executor<'_>| case.check_lasting(at).is_ok();
        let load_of = |id| {
            let executor = case.fleet.mirror.executor(id).filter(may_take)?;
            Some(case.fleet.depth(&executor))
        };
        let total = match (self, &request.allowed) {
            (Self::Least(ranking), _) => {
                let mut serving = ranking.best_first(request).with_or_without_room();
                let least = serving.find_map(load_of);
                Total::of(least.unwrap_or(0))
            }
            (Self::Mean(_), Some(allowed)) => {
                let mut ids = allowed.clone();
                ids.sort_unstable();
                ids.dedup();
                ids.into_iter().filter_map(load_of).map(Total::of).sum()
            }
            (Self::Mean(totals), None) => totals.serving(request),
        };
        Bound::new(settings, total)
    }
}

// === impl Totals ===

impl Totals {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        let Self {
            counted,
            all,
            any,
            by_model,
        } = self;
        let row = |at: &Executor<'_>| {
            at.is_live().then(|| Counted {
                load: fleet.depth(at),
                serves: at.info.serves.clone(),
            })
        };
        let mut add = |counted: Option<&Counted>, add: fn(&mut Total, u64)| {
            let Some(Counted { load, serves }) = counted else {
                return;
            };
            add(all, *load);
            match serves {
                None => add(any, *load),
                Some(models) => {
                    for model in models {
                        add(by_model.entry(*model).or_default(), *load);
                    }
                }
            }
        };
        counted.update_telling(fleet.mirror, executors, row, |old, new| {
            add(old, Total::subtract);
            add(new, Total::add);
        });
    }

    /// The loads of the executors that serve the request's model and did not fail it.
    fn serving(&self, request: &Request) -> Total {
        let mut total = match request.model {
            None => self.all,
            Some(model) => {
                let named = self.by_model.get(&model).copied();
                [self.any, named.unwrap_or_default()].into_iter().sum()
            }
        };
        let mut failed = request.failed_on.clone().unwrap_or_default();
        failed.sort_unstable();
        failed.dedup();
        for counted in failed.into_iter().filter_map(|id| self.counted.row(id)) {
            if counted.serves(request.model) {
                total.subtract(counted.load);
            }
        }
        total
    }
}

impl Counted {
    fn serves(&self, model: Option<u32>) -> bool {
        match (model, &self.serves) {
            (Some(model), Some(models)) => models.contains(&model),
            (None, _) | (_, None) => true,
        }
    }
}
