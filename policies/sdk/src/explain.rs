//! Executors as [`Explanation`](crate::Explanation) lists them, and obstacles in words.

use crate::fit::{Need, Obstacle, Seat};
use crate::mirror::{Executor, Mirror};
use crate::router::Case;
use crate::tentative::Tentative;
use crate::wire::explanation::Candidate;
use crate::wire::types::{Cached, Health, NameKind, Request};

/// Explains one request with [`ranked`], as if it came alone.
pub fn alone<R: Ord>(
    mirror: &Mirror,
    now: u64,
    (request, cached): (&Request, &Cached),
    rank: impl Fn(&Case<'_>, &Executor<'_>, Seat) -> Result<R, &'static str>,
    note: impl Fn(&Case<'_>, &Executor<'_>) -> String,
) -> Vec<Candidate> {
    let placed = Tentative::default();
    let case = Case {
        mirror,
        placed: &placed,
        need: Need::new(mirror, &placed, request, now),
        cached,
    };
    let rank = |executor: &Executor<'_>, seat| rank(&case, executor, seat);
    ranked(&case, rank, |executor| note(&case, executor))
}

/// The executors in attach order. The cost of one is its place in the order of `rank`, of which
/// the least is chosen and equals are taken in attach order; those that cannot take the request, or
/// that the policy says why it would not send there, come after all others. The note says that and
/// what `note` adds.
pub fn ranked<R: Ord>(
    case: &Case<'_>,
    rank: impl Fn(&Executor<'_>, Seat) -> Result<R, &'static str>,
    note: impl Fn(&Executor<'_>) -> String,
) -> Vec<Candidate> {
    let place = |executor: &Executor<'_>| match case.fit(executor) {
        Ok(seat) => match rank(executor, seat) {
            Ok(rank) => Ok(((rank, executor.position), seated(executor, seat))),
            Err(excluded) => Err(excluded.to_owned()),
        },
        Err(obstacle) => Err(obstructed(case, executor, obstacle)),
    };
    let executors: Vec<_> = case.mirror.executors().collect();
    let placed: Vec<_> = executors.iter().map(place).collect();
    let mut order: Vec<_> = placed.iter().flatten().map(|(place, _)| place).collect();
    order.sort_unstable();
    let candidate = |(executor, placed): (&Executor<'_>, &Result<_, String>)| {
        let (before, fits) = match placed {
            Ok((place, seated)) => (order.partition_point(|other| *other < place), seated),
            Err(excluded) => (order.len(), excluded),
        };
        Candidate {
            executor: executor.id(),
            eligible: placed.is_ok(),
            cost: i64::try_from(before).unwrap_or(i64::MAX),
            note: format!("{fits}; {}", note(executor)),
        }
    };
    executors.iter().zip(&placed).map(candidate).collect()
}

/// How an executor is, and which place it has.
#[must_use]
pub fn seated(executor: &Executor<'_>, seat: Seat) -> String {
    let place = match seat {
        Seat::Slot => "a slot is free",
        Seat::Queue => "its queue has room",
    };
    format!("{}, {place}", health(executor))
}

/// What stands in the way of a request on an executor.
#[must_use]
pub fn obstructed(case: &Case<'_>, executor: &Executor<'_>, obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::ModelLimit => "the model runs as often as it may".to_owned(),
        Obstacle::NotLive => format!("it is {}", health(executor)),
        Obstacle::NotServed => "it does not serve the model".to_owned(),
        Obstacle::NotAllowed => "the request is pinned to others".to_owned(),
        Obstacle::FailedBefore => "it failed this request before".to_owned(),
        Obstacle::ModelsMax => {
            let running = executor.residencies.iter().filter(|row| row.sequences > 0);
            format!("{} models run there, as many as may", running.count())
        }
        Obstacle::NoSlot => format!(
            "{}/{} slots in use and no room in its queue",
            executor.load.slots_used, executor.info.slots_total
        ),
        Obstacle::NoBlocks => {
            let device = case.mirror.device(executor.info.device);
            let free = device.map_or(0, |device| {
                u64::from(device.blocks_free) + u64::from(device.blocks_cached)
            });
            let needed = case.need.blocks_on(executor).unwrap_or(0);
            format!("needs {needed} blocks, {free} are free")
        }
        Obstacle::WarmHold { until } => {
            let mut held = executor.residencies.iter();
            let warm = held
                .find(|row| row.warm_until == Some(until))
                .and_then(|row| case.mirror.name(NameKind::Model, row.model))
                .unwrap_or("another model");
            format!("{warm} is kept warm there until {until}us")
        }
    }
}

/// How an executor is.
#[must_use]
pub fn health(executor: &Executor<'_>) -> &'static str {
    match executor.load.health {
        Health::Up => "up",
        Health::Degraded => "degraded",
        Health::Draining => "draining",
        Health::Down => "down",
    }
}
