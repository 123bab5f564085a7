//! The choice for one request: the best executors that can take it, or what stands in the way.

use pointsman_sdk::{Executor, Mirror, Need, Obstacle, Seat, Tentative, fit};

use crate::View;
use crate::index::Index;
use crate::rank::{Rank, Standing};
use crate::settings::CANDIDATES_MAX;

/// The best executors, best first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    kept: [Option<Choice>; CANDIDATES_MAX],
    kept_max: usize,
    count: usize,
}

/// An executor that can take the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) rank: Rank,
    pub(crate) position: usize,
    pub(crate) executor: u32,
    pub(crate) seat: Seat,
}

/// What was found for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    best: Best,
    /// The session's executor, if it can take the request.
    preferred: Option<Choice>,
    /// The best standing among all that can take it.
    standing: Option<Standing>,
    pub(crate) blocked: Blocked,
}

/// Executors in the order they should be tried, at least one.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) executors: Vec<u32>,
    /// Where the first of them takes the request.
    pub(crate) first: Seated,
    /// Whether the first is first for the session's sake.
    pub(crate) by_session: bool,
}

/// A place for the request on one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seated {
    pub(crate) executor: u32,
    pub(crate) position: usize,
    pub(crate) seat: Seat,
}

/// What stood in the way of the executors that could not take the request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blocked {
    /// The earliest end of a warm hold that is all that stands in the way.
    pub(crate) warm_until: Option<u64>,
    /// The greatest lack of any executor.
    pub(crate) lack: Option<Lack>,
}

/// What is lacking for now. Where executors lack different things the greatest is reported: what
/// is closest to being all that is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    Model,
    Slot,
    Blocks,
    ModelLimit,
}

/// The best executors as the index has them, without looking at the others. Absent where it
/// takes a look at every one: nothing fits, or what the session's executor is weighed against
/// is not decided by the best.
pub(crate) fn find_indexed(
    mirror: &Mirror,
    placed: &Tentative,
    need: &Need<'_>,
    view: &View,
    index: &Index,
) -> Option<Ordered> {
    let preferred = match view.preferred {
        Some(preferred) => seat_for_session(mirror, placed, need, preferred)?,
        None => None,
    };
    let mut first = preferred;
    let mut executors = Vec::with_capacity(view.candidates);
    executors.extend(preferred.map(|seated| seated.executor));
    for executor in index.best_first() {
        if executors.len() == view.candidates {
            break;
        }
        let Some(executor) = mirror.executor(executor) else {
            continue;
        };
        if executors.first() == Some(&executor.id()) {
            continue;
        }
        if let Ok(seat) = fit(mirror, placed, need, &executor) {
            executors.push(executor.id());
            first.get_or_insert(Seated::on(&executor, seat));
        }
    }
    Some(Ordered {
        executors,
        first: first?,
        by_session: preferred.is_some(),
    })
}

/// The session's executor, if it can take the request. Absent where whether it goes first depends
/// on the others.
fn seat_for_session(
    mirror: &Mirror,
    placed: &Tentative,
    need: &Need<'_>,
    preferred: u32,
) -> Option<Option<Seated>> {
    let Some(executor) = mirror.executor(preferred) else {
        return Some(None);
    };
    let Ok(seat) = fit(mirror, placed, need, &executor) else {
        return Some(None);
    };
    let standing = Standing::new(&executor, seat);
    standing
        .is_best()
        .then(|| Some(Seated::on(&executor, seat)))
}

/// Looks at every executor.
pub(crate) fn find(mirror: &Mirror, placed: &Tentative, need: &Need<'_>, view: &View) -> Found {
    let mut found = Found {
        best: Best::new(view.candidates),
        preferred: None,
        standing: None,
        blocked: Blocked::default(),
    };
    for executor in mirror.executors() {
        match fit(mirror, placed, need, &executor) {
            Ok(seat) => {
                let choice = Choice::new(mirror, placed, &executor, seat, view);
                if view.preferred == Some(choice.executor) {
                    found.preferred = Some(choice);
                }
                let standing = choice.rank.standing();
                found.standing = Some(found.standing.unwrap_or(standing).min(standing));
                found.best.offer(choice);
            }
            Err(obstacle) => found.blocked.note(obstacle),
        }
    }
    found
}

impl Choice {
    #[inline]
    fn new(
        mirror: &Mirror,
        placed: &Tentative,
        executor: &Executor<'_>,
        seat: Seat,
        view: &View,
    ) -> Self {
        Self {
            rank: Rank::new(mirror, placed, executor, seat, view.scale),
            position: executor.position,
            executor: executor.id(),
            seat,
        }
    }
}

impl Found {
    /// The best first; the session's executor before them, unless it is degraded and another is
    /// up, or would make the request queue where another has a free slot. Absent where nothing
    /// can take the request.
    pub(crate) fn ordered(&self) -> Option<Ordered> {
        let preferred = self
            .preferred
            .filter(|preferred| Some(preferred.rank.standing()) == self.standing);
        let best = self.best.iter().filter(|best| Some(**best) != preferred);
        let choices = preferred.iter().chain(best);
        let executors = choices.map(|choice| choice.executor);
        let first = preferred.as_ref().or(self.best.iter().next())?;
        Some(Ordered {
            executors: executors.take(self.best.kept_max).collect(),
            first: Seated {
                executor: first.executor,
                position: first.position,
                seat: first.seat,
            },
            by_session: preferred.is_some(),
        })
    }
}

impl Seated {
    fn on(executor: &Executor<'_>, seat: Seat) -> Self {
        Self {
            executor: executor.id(),
            position: executor.position,
            seat,
        }
    }
}

// === impl Best ===

impl Best {
    /// Keeps the best `kept_max`, at most `CANDIDATES_MAX`.
    pub(crate) fn new(kept_max: usize) -> Self {
        Self {
            kept: [None; CANDIDATES_MAX],
            kept_max: kept_max.min(CANDIDATES_MAX),
            count: 0,
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Choice> {
        self.kept[..self.count].iter().flatten()
    }

    /// Insertion into the few kept: most executors are turned away by one comparison.
    #[inline]
    fn offer(&mut self, choice: Choice) {
        let better = |other: &Option<Choice>| other.is_some_and(|other| choice.rank < other.rank);
        if self.count == self.kept_max {
            if !better(&self.kept[self.count - 1]) {
                return;
            }
            self.count -= 1;
        }
        let mut at = self.count;
        while at > 0 && better(&self.kept[at - 1]) {
            self.kept[at] = self.kept[at - 1];
            at -= 1;
        }
        self.kept[at] = Some(choice);
        self.count += 1;
    }
}

// === impl Blocked ===

impl Blocked {
    #[inline]
    fn note(&mut self, obstacle: Obstacle) {
        match obstacle {
            Obstacle::WarmHold { until } => {
                let earliest = self.warm_until.unwrap_or(until).min(until);
                self.warm_until = Some(earliest);
            }
            Obstacle::ModelLimit => self.lacks(Lack::ModelLimit),
            Obstacle::NoBlocks => self.lacks(Lack::Blocks),
            Obstacle::NoSlot => self.lacks(Lack::Slot),
            Obstacle::ModelsMax => self.lacks(Lack::Model),
            Obstacle::NotLive
            | Obstacle::NotServed
            | Obstacle::NotAllowed
            | Obstacle::FailedBefore => {}
        }
    }

    #[inline]
    fn lacks(&mut self, lack: Lack) {
        self.lack = self.lack.max(Some(lack));
    }
}
