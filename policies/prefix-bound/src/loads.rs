//! What loads are measured against, kept current as rows change: the least of the executors that
//! serve a request, or their mean.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::{Change, Request};
use pointsman_sdk::{Case, Executor, Mirror, Ranking, Sheet, Tentative};

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
    counted: Sheet<Counted>,
    all: Total,
    /// Of those that serve any model.
    any: Total,
    /// Of those that name the models they serve.
    by_model: BTreeMap<u32, Total>,
}

/// What one executor adds to the sums.
#[derive(Clone, Debug)]
struct Counted {
    load: u64,
    serves: Option<Vec<u32>>,
}

/// Requests placed there: running, and placed but not started.
pub(crate) fn load(placed: &Tentative, executor: &Executor<'_>) -> u64 {
    executor.depth() + placed.counts(executor).total()
}

// === impl Loads ===

impl Loads {
    pub(crate) fn new(against: Against) -> Self {
        match against {
            Against::Least => Self::Least(Ranking::default()),
            Against::Mean => Self::Mean(Totals::default()),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Least(ranking) => ranking.clear(),
            Self::Mean(totals) => *totals = Totals::default(),
        }
    }

    pub(crate) fn changed(&mut self, mirror: &Mirror, change: &Change) {
        match self {
            Self::Least(ranking) => ranking.changed(mirror, change),
            Self::Mean(totals) => totals.counted.changed(mirror, change),
        }
    }

    pub(crate) fn placed(&mut self, executor: u32) {
        match self {
            Self::Least(ranking) => ranking.placed(executor),
            Self::Mean(totals) => totals.counted.placed(executor),
        }
    }

    pub(crate) fn observed(&mut self) {
        match self {
            Self::Least(ranking) => ranking.observed(),
            Self::Mean(totals) => totals.counted.observed(),
        }
    }

    pub(crate) fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        match self {
            Self::Least(ranking) => {
                ranking.refresh(mirror, placed, |at| at.is_live().then(|| load(placed, at)));
            }
            Self::Mean(totals) => totals.refresh(mirror, placed),
        }
    }

    /// The bound for a request, among the executors that may take it once they have room.
    pub(crate) fn bound(&self, settings: &Settings, case: &Case<'_>) -> Bound {
        let request = case.need.request;
        let may_take = |at: &Executor<'_>| case.need.check_lasting(at).is_ok();
        let load_of = |id| {
            let executor = case.mirror.executor(id).filter(may_take)?;
            Some(load(case.placed, &executor))
        };
        let total = match (self, &request.allowed) {
            (Self::Least(ranking), _) => {
                let least = ranking.serving(request).find_map(load_of);
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
    fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        let Self {
            counted,
            all,
            any,
            by_model,
        } = self;
        let row = |at: &Executor<'_>| {
            at.is_live().then(|| Counted {
                load: load(placed, at),
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
        counted.refresh_telling(mirror, row, |old, new| {
            add(old, Total::subtract);
            add(new, Total::add);
        });
    }

    /// Of the executors that serve the request's model and did not fail it.
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
