//! Executors as [`Explanation`](crate::Explanation) lists them, and obstacles in words.

use crate::case::{Case, Obstacle};
use crate::executor::Executor;
use crate::fleet::{Place, Seat};
use crate::wire::explanation::Candidate;
use crate::wire::types::{Health, NameKind};

/// Lists the executors in attach order. The cost of one is its place in the order of `rank`, of
/// which the least is chosen and equals are taken in attach order. Executors that cannot take the
/// request, or that `rank` gives a reason not to choose, cost more than all others. A candidate's
/// note has that and the text of `note`.
pub fn by_rank<R: Ord>(
    case: &Case<'_>,
    rank: impl Fn(&Place<'_>) -> Result<R, &'static str>,
    note: impl Fn(&Executor<'_>) -> String,
) -> Vec<Candidate> {
    let ranked = |executor: &Executor<'_>| match case.fit(executor) {
        Ok(seat) => {
            let place = Place {
                fleet: case.fleet,
                executor: *executor,
                seat,
            };
            match rank(&place) {
                Ok(rank) => Ok(((rank, executor.position), seated(executor, seat))),
                Err(excluded) => Err(excluded.to_owned()),
            }
        }
        Err(obstacle) => Err(obstructed(case, executor, obstacle)),
    };
    let executors: Vec<_> = case.fleet.mirror.executors().collect();
    let ranked: Vec<_> = executors.iter().map(ranked).collect();
    let mut order: Vec<_> = ranked.iter().flatten().map(|(rank, _)| rank).collect();
    order.sort_unstable();
    let candidate = |(executor, ranked): (&Executor<'_>, &Result<_, String>)| {
        let (before, fits) = match ranked {
            Ok((rank, seated)) => (order.partition_point(|other| *other < rank), seated),
            Err(excluded) => (order.len(), excluded),
        };
        Candidate {
            executor: executor.id(),
            eligible: ranked.is_ok(),
            cost: i64::try_from(before).unwrap_or(i64::MAX),
            note: joined(fits, &note(executor)),
        }
    };
    executors.iter().zip(&ranked).map(candidate).collect()
}

/// Joins two texts into one note; either may be empty.
pub(crate) fn joined(first: &str, second: &str) -> String {
    match (first, second) {
        ("", text) | (text, "") => text.to_owned(),
        (first, second) => format!("{first}; {second}"),
    }
}

/// Says how an executor is, and which seat it has.
#[must_use]
pub fn seated(executor: &Executor<'_>, seat: Seat) -> String {
    let place = match seat {
        Seat::Slot => "a slot is free",
        Seat::Queue => "its queue has room",
    };
    format!("{}, {place}", health(executor))
}

/// Says what stands in the way of a request on an executor.
#[must_use]
pub fn obstructed(case: &Case<'_>, executor: &Executor<'_>, obstacle: Obstacle) -> String {
    let mirror = case.fleet.mirror;
    match obstacle {
        Obstacle::ModelLimit => "the model runs as often as it may".to_owned(),
        Obstacle::NotLive => format!("it is {}", health(executor)),
        Obstacle::NotServed => "it does not serve the model".to_owned(),
        Obstacle::NotAllowed => "the request is pinned to others".to_owned(),
        Obstacle::FailedBefore => "it failed this request before".to_owned(),
        Obstacle::NeverFits => "it has fewer KV blocks than the request may need".to_owned(),
        Obstacle::ModelsMax => {
            let running = executor.residencies.iter().filter(|row| row.sequences > 0);
            format!("{} models run there, as many as may", running.count())
        }
        Obstacle::NoSlot => format!(
            "{}/{} slots in use and no room in its queue",
            executor.load.slots_used, executor.info.slots_total
        ),
        Obstacle::NoBlocks => {
            let device = mirror.device(executor.info.device);
            let free = device.map_or(0, |device| device.blocks_available());
            let needed = case.blocks_on(executor).unwrap_or(0);
            format!("needs {needed} blocks, {free} are free")
        }
        Obstacle::WarmHold { until } => {
            let mut held = executor.residencies.iter();
            let warm = held
                .find(|row| row.warm_until == Some(until))
                .and_then(|row| mirror.name(NameKind::Model, row.model))
                .unwrap_or("another model");
            format!("{warm} is kept warm there until {until}us")
        }
    }
}

/// The health of an executor, as one word.
#[must_use]
pub fn health(executor: &Executor<'_>) -> &'static str {
    match executor.load.health {
        Health::Up => "up",
        Health::Degraded => "degraded",
        Health::Draining => "draining",
        Health::Down => "down",
    }
}
