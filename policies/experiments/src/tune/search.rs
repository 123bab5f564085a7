//! The search: which settings are tried, in which order, and which is best.
//!
//! 1. A Latin hypercube (McKay, Beckman and Conover 1979) of points over the whole range. In every
//!    second one each setting stays as it was with a chance of one half, since a good point is more
//!    often one in which little is changed.
//! 2. Successive halving (Karnin, Koren and Somekh 2013; Jamieson and Talwalkar 2016): all of them see
//!    the first ninth of each workload, the best third of them the first third, the best third of
//!    these the whole.
//! 3. A compass search (Kolda, Lewis and Torczon 2003) from the best so far: a step either way along
//!    each setting's line, half the step where nothing along any is better.
//! 4. What makes nothing better is put back as it was.
//!
//! Of two points the one that lacks fewer numbers is better, then the one that breaks the bounds less, then the
//! one with the better number (Deb 2000). Points are tried in batches that do not depend on the number of cores.
//!
//! # Invariants
//! 1. The same seed, budget and results give the same points in the same order
//!    (`the_search_is_a_function_of_its_seed`).
//! 2. The point before is never replaced by one that is not better
//!    (`what_was_best_before_stays`).

use std::cmp::Ordering;
use std::ops::ControlFlow;

use anyhow::Result;
use fastrand::Rng;

use super::space::{Point, Space};

/// The part of each workload that a trial sees, as one over this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Share(pub(super) u64);

impl Share {
    /// The number that the part is one over.
    #[expect(clippy::cast_precision_loss, reason = "it is small")]
    pub(super) fn of(self) -> f64 {
        self.0 as f64
    }
}

/// The whole of each workload.
pub(super) const WHOLE: Share = Share(1);

/// Parts of the budget for a point that sees the whole of each workload.
const PARTS: u64 = 9;

/// The part of the points that see more of the workload.
const KEPT: usize = 3;

/// Settings that are stepped along at once.
const AT_ONCE: usize = 4;

/// The first step along a setting's line, and the least.
const STEPS: (f64, f64) = (0.25, 1.0 / 64.0);

/// The quality of a point; the least is the best.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Standing {
    /// Numbers that runs lack: all, where nobody is served.
    pub(super) missing: usize,
    /// The sum of what bounds are broken by; 0: none is broken.
    pub(super) broken: f64,
    /// The goal's change from what it was before, or the goal itself where there was none; less is better.
    pub(super) goal: f64,
}

// === impl Standing ===

impl Standing {
    /// The standing of settings that the policy refuses.
    pub(super) const REFUSED: Self = Self {
        missing: usize::MAX,
        broken: f64::INFINITY,
        goal: f64::INFINITY,
    };

    pub(super) fn order(&self, other: &Self) -> Ordering {
        let missing = self.missing.cmp(&other.missing);
        let broken = self.broken.total_cmp(&other.broken);
        missing.then(broken).then(self.goal.total_cmp(&other.goal))
    }

    pub(super) fn is_better(&self, other: &Self) -> bool {
        self.order(other) == Ordering::Less
    }
}

/// Tries points on a part of each workload.
pub(super) trait Trials {
    /// Standings of all points. Broken off: it was told to stop.
    fn run(&mut self, share: Share, points: &[Point]) -> Result<ControlFlow<(), Vec<Standing>>>;
}

/// The plan of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchPlan {
    /// Points that are tried, but for those that put settings back. One that sees a part of the
    /// workloads counts as that part.
    pub(super) budget: u32,
    pub(super) seed: u64,
    /// Requests of the smallest workload.
    pub(super) requests: u64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) best: Point,
    pub(super) standing: Standing,
    /// True if it was told to stop before it was over.
    pub(super) is_stopped: bool,
}

/// A search under way.
struct Search<'a> {
    space: &'a Space,
    trials: &'a mut dyn Trials,
    rng: Rng,
    /// The rest of the budget, in parts of a point.
    left: u64,
    best: Point,
    standing: Standing,
}

/// A step of a search; broken off where trials are.
type Step<T = ()> = Result<ControlFlow<(), T>>;

/// The value of a step, or the end of the one around it.
macro_rules! go_on {
    ($step:expr) => {
        match $step? {
            ControlFlow::Continue(value) => value,
            ControlFlow::Break(()) => return Ok(ControlFlow::Break(())),
        }
    };
}

/// Searches.
pub(super) fn search(space: &Space, plan: SearchPlan, trials: &mut dyn Trials) -> Result<Found> {
    let mut search = Search {
        space,
        trials,
        rng: Rng::with_seed(plan.seed),
        left: u64::from(plan.budget) * PARTS,
        best: space.start(),
        standing: Standing::REFUSED,
    };
    let ended = search.run(plan)?;
    Ok(Found {
        best: search.best,
        standing: search.standing,
        is_stopped: ended.is_break(),
    })
}

/// The parts of the workload that points see, one after the other. A part of fewer requests than a
/// hundred says too little.
fn shares(requests: u64) -> Vec<Share> {
    let shares = [9, 3, 1].map(Share);
    let is_enough = |share: &Share| *share == WHOLE || requests / share.0 >= 100;
    shares.into_iter().filter(is_enough).collect()
}

// === impl Search ===

impl Search<'_> {
    fn run(&mut self, plan: SearchPlan) -> Step {
        go_on!(self.note(vec![self.best.clone()]));
        let points = self.spread(count(u64::from(plan.budget / 2)));
        go_on!(self.halve(points, &shares(plan.requests)));
        go_on!(self.climb());
        self.put_back()
    }

    /// Tries points on the whole of each workload. The best of all so far is kept.
    fn note(&mut self, points: Vec<Point>) -> Step {
        let (points, standings) = go_on!(self.try_on(WHOLE, points));
        for (point, standing) in points.into_iter().zip(standings) {
            if standing.is_better(&self.standing) {
                (self.best, self.standing) = (point, standing);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Points all over the range.
    fn spread(&mut self, count: usize) -> Vec<Point> {
        let start = self.space.start();
        let mut points = vec![Point::with_capacity(start.len()); count];
        for (dim, before) in self.space.dims().iter().zip(start) {
            let mut places: Vec<u32> = (0..).take(count).collect();
            self.rng.shuffle(&mut places);
            for (idx, (point, place)) in points.iter_mut().zip(places).enumerate() {
                let within = f64::from(place) + self.rng.f64();
                let stays = idx % 2 == 1 && self.rng.bool();
                let drawn = dim.at(within / float(count));
                point.push(if stays { before } else { drawn });
            }
        }
        points
    }

    /// Lets ever fewer points see ever more of the workloads.
    fn halve(&mut self, mut points: Vec<Point>, shares: &[Share]) -> Step {
        for share in shares.iter().filter(|share| **share != WHOLE) {
            let (tried, standings) = go_on!(self.try_on(*share, points));
            points = tried;
            let mut ranked: Vec<(Standing, Point)> = standings.into_iter().zip(points).collect();
            ranked.sort_by(|one, other| one.0.order(&other.0));
            ranked.truncate(ranked.len().div_ceil(KEPT));
            points = ranked.into_iter().map(|(_, point)| point).collect();
        }
        self.note(points)
    }

    /// Tries points, as many as the budget has room for.
    fn try_on(
        &mut self,
        share: Share,
        mut points: Vec<Point>,
    ) -> Step<(Vec<Point>, Vec<Standing>)> {
        let cost = PARTS / share.0;
        points.truncate(count(self.left / cost));
        self.left -= cost * points.len() as u64;
        let standings = go_on!(self.trials.run(share, &points));
        Ok(ControlFlow::Continue((points, standings)))
    }

    /// Steps along each setting from the best point.
    fn climb(&mut self) -> Step {
        let mut step = STEPS.0;
        while self.left >= PARTS && step >= STEPS.1 {
            let before = self.standing;
            let mut order: Vec<usize> = (0..self.space.dims().len()).collect();
            self.rng.shuffle(&mut order);
            for dims in order.chunks(AT_ONCE) {
                let mut points = Vec::new();
                for idx in dims {
                    for value in self.space.dims()[*idx].around(self.best[*idx], step) {
                        let mut point = self.best.clone();
                        point[*idx] = value;
                        points.push(point);
                    }
                }
                go_on!(self.note(points));
            }
            if !self.standing.is_better(&before) {
                step /= 2.0;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Puts back as it was what makes nothing better: all such settings at once if that is as good, and
    /// else one after the other.
    fn put_back(&mut self) -> Step {
        loop {
            let start = self.space.start();
            let differs = |idx: &usize| self.best[*idx] != start[*idx];
            let changed: Vec<usize> = (0..start.len()).filter(differs).collect();
            let back = |dims: &[usize]| {
                let mut point = self.best.clone();
                for idx in dims {
                    point[*idx] = start[*idx];
                }
                point
            };
            if changed.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            let each: Vec<Point> = changed.iter().map(|idx| back(&[*idx])).collect();
            let standings = go_on!(self.trials.run(WHOLE, &each));
            let good = changed.iter().zip(&standings);
            let good = good.filter(|(_, standing)| !self.standing.is_better(standing));
            let (idle, good): (Vec<usize>, Vec<Standing>) = good.unzip();
            let Some(first) = idle.first() else {
                return Ok(ControlFlow::Continue(()));
            };
            let all = back(&idle);
            let together = go_on!(self.trials.run(WHOLE, std::slice::from_ref(&all)));
            (self.best, self.standing) = match together.first() {
                Some(standing) if !self.standing.is_better(standing) => (all, *standing),
                Some(_) | None => (back(&[*first]), good[0]),
            };
        }
    }
}

fn count(points: u64) -> usize {
    usize::try_from(points).unwrap_or(usize::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a number of points is small")]
fn float(count: usize) -> f64 {
    count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use pointsman_component::{SettingRange, SettingSchema};
    use serde_json::Map;

    use super::*;

    fn space(dims: usize) -> Space {
        let dims = (0..dims).map(|idx| SettingSchema {
            key: format!("key-{idx}"),
            about: String::new(),
            values: SettingRange::Number(0..=1000),
            default: Some("500".to_owned()),
        });
        Space::new(&dims.collect::<Vec<_>>(), &[], &Map::new()).unwrap()
    }

    /// A valley at 120 in the first setting and 900 in the second; the others mean nothing.
    struct Valley {
        tried: Vec<(Share, Point)>,
        stops_after: usize,
    }

    impl Valley {
        fn new() -> Self {
            Self {
                tried: Vec::new(),
                stops_after: usize::MAX,
            }
        }
    }

    fn away(value: Option<u64>, from: u64) -> f64 {
        f64::from(u32::try_from(value.unwrap().abs_diff(from)).unwrap())
    }

    impl Trials for Valley {
        fn run(
            &mut self,
            share: Share,
            points: &[Point],
        ) -> Result<ControlFlow<(), Vec<Standing>>> {
            if self.tried.len() >= self.stops_after {
                return Ok(ControlFlow::Break(()));
            }
            self.tried
                .extend(points.iter().map(|it| (share, it.clone())));
            let standing = |point: &Point| Standing {
                missing: 0,
                broken: (away(point[0], 0) - 700.0).max(0.0),
                goal: away(point[0], 120) + away(point[1], 900),
            };
            Ok(ControlFlow::Continue(points.iter().map(standing).collect()))
        }
    }

    fn plan(seed: u64) -> SearchPlan {
        SearchPlan {
            budget: 100,
            seed,
            requests: 10_000,
        }
    }

    #[test]
    fn the_bottom_of_a_valley_is_found_and_what_means_nothing_is_as_it_was() {
        for seed in 0..5 {
            let mut valley = Valley::new();
            let found = search(&space(5), plan(seed), &mut valley).unwrap();
            assert!(away(found.best[0], 120) < 20.0, "{seed}: {found:?}");
            assert!(away(found.best[1], 900) < 20.0, "{seed}: {found:?}");
            assert_eq!(found.best[2..], [Some(500); 3], "{seed}");
            assert!(!found.is_stopped);
        }
    }

    #[test]
    fn ever_fewer_points_see_ever_more() {
        let mut valley = Valley::new();
        search(&space(5), plan(1), &mut valley).unwrap();
        let seen = |share| {
            valley
                .tried
                .iter()
                .filter(|(it, _)| *it == Share(share))
                .count()
        };
        assert_eq!((seen(9), seen(3)), (50, 17));
        let cost = seen(9) + 3 * seen(3) + 9 * seen(1);
        assert!((800..=9 * (100 + 2 * 6)).contains(&cost), "{cost}");
        assert_eq!(shares(899), [Share(3), WHOLE]);
        assert_eq!(shares(100), [WHOLE]);
    }

    #[test]
    fn the_search_is_a_function_of_its_seed() {
        let tried = |seed| {
            let mut valley = Valley::new();
            search(&space(3), plan(seed), &mut valley).unwrap();
            valley.tried
        };
        assert_eq!(tried(7), tried(7));
        assert_ne!(tried(7), tried(8));
    }

    #[test]
    fn the_best_so_far_is_kept_when_it_is_told_to_stop() {
        let mut valley = Valley::new();
        valley.stops_after = 80;
        let found = search(&space(5), plan(1), &mut valley).unwrap();
        assert!(found.is_stopped);
        let whole = valley.tried.iter().filter(|(share, _)| *share == WHOLE);
        let goal = |point: &Point| away(point[0], 120) + away(point[1], 900);
        let goals = whole.map(|(_, point)| goal(point));
        let best = goals.fold(f64::INFINITY, f64::min);
        assert!(goal(&found.best) <= best, "{found:?}");
    }

    #[test]
    fn what_was_best_before_stays() {
        struct Flat;
        impl Trials for Flat {
            fn run(
                &mut self,
                _: Share,
                points: &[Point],
            ) -> Result<ControlFlow<(), Vec<Standing>>> {
                let same = Standing::default();
                Ok(ControlFlow::Continue(vec![same; points.len()]))
            }
        }
        let found = search(&space(3), plan(3), &mut Flat).unwrap();
        assert_eq!(found.best, [Some(500); 3]);
    }
}
