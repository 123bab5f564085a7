//! Every executor, with its place in the order or what stands in the way.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::types::{NameKind, Request};
use pointsman_sdk::{Executor, Mirror, Need, Obstacle, Seat, Tentative, fit};

use crate::View;
use crate::choose;
use crate::rank::{Pool, Rank, tier};

/// The executors in attach order. The cost of one is its place in the order of choice; those that
/// cannot take the request all come after.
pub(crate) fn candidates(
    mirror: &Mirror,
    request: &Request,
    now: u64,
    view: View,
) -> Vec<Candidate> {
    let placed = Tentative::default();
    let need = Need::new(mirror, &placed, request, now);
    let ordered = choose::find(mirror, &placed, &need, &view).ordered();
    let first = ordered.filter(|ordered| ordered.by_session);
    let first = first.map(|ordered| ordered.first);
    let session = first.map(|choice| choice.executor);

    let seat_of = |executor: &Executor<'_>| fit(mirror, &placed, &need, executor);
    let place = |executor: &Executor<'_>, seat| {
        let rank = Rank::new(mirror, &placed, executor, seat, view.scale);
        (session != Some(executor.id()), rank)
    };
    let mut order: Vec<_> = mirror
        .executors()
        .filter_map(|executor| Some(place(&executor, seat_of(&executor).ok()?)))
        .collect();
    order.sort_unstable();

    mirror
        .executors()
        .map(|executor| {
            let fitted = seat_of(&executor);
            let cost = match fitted {
                Ok(seat) => order.partition_point(|other| *other < place(&executor, seat)),
                Err(_) => order.len(),
            };
            Candidate {
                executor: executor.id(),
                eligible: fitted.is_ok(),
                cost: i64::try_from(cost).unwrap_or(i64::MAX),
                note: match fitted {
                    Ok(seat) => eligible(mirror, &executor, seat, session),
                    Err(obstacle) => ineligible(mirror, &executor, request, obstacle),
                },
            }
        })
        .collect()
}

fn eligible(mirror: &Mirror, executor: &Executor<'_>, seat: Seat, session: Option<u32>) -> String {
    let session = if session == Some(executor.id()) {
        "the session's; "
    } else {
        ""
    };
    let seat = match seat {
        Seat::Slot => "a slot is free",
        Seat::Queue => "its queue has room",
    };
    let load = executor.load;
    let slots = format!("{}/{} slots", load.slots_used, executor.info.slots_total);
    let memory = match Pool::of(mirror, &Tentative::default(), executor) {
        Some(pool) => format!(
            "tier {} ({} permille), {} blocks free",
            tier(pool.permille()),
            pool.permille(),
            pool.free
        ),
        None => "no paged KV".to_owned(),
    };
    format!(
        "{session}{}, {seat}; {slots}, depth {}; {memory}; {} placed",
        health(executor),
        executor.depth(),
        load.placed_total
    )
}

fn ineligible(
    mirror: &Mirror,
    executor: &Executor<'_>,
    request: &Request,
    obstacle: Obstacle,
) -> String {
    match obstacle {
        Obstacle::ModelLimit => "the model runs as often as it may".to_owned(),
        Obstacle::NotLive => format!("it is {}", health(executor)),
        Obstacle::NotServed => "it does not serve the model".to_owned(),
        Obstacle::NotAllowed => "the request is pinned to others".to_owned(),
        Obstacle::FailedBefore => "it failed this request before".to_owned(),
        Obstacle::ModelsMax => format!(
            "{} models run there, as many as may",
            executor
                .residencies
                .iter()
                .filter(|row| row.sequences > 0)
                .count()
        ),
        Obstacle::NoSlot => format!(
            "{}/{} slots in use and no room in its queue",
            executor.load.slots_used, executor.info.slots_total
        ),
        Obstacle::NoBlocks => {
            let need = Need::new(mirror, &Tentative::default(), request, mirror.now());
            format!(
                "needs {} blocks, {} are free",
                need.blocks_on(executor).unwrap_or(0),
                Pool::of(mirror, &Tentative::default(), executor).map_or(0, |pool| pool.free)
            )
        }
        Obstacle::WarmHold { until } => {
            let warm = executor
                .residencies
                .iter()
                .find(|row| row.warm_until == Some(until))
                .and_then(|row| mirror.name(NameKind::Model, row.model))
                .unwrap_or("another model");
            format!("{warm} is kept warm there until {until} µs")
        }
    }
}

fn health(executor: &Executor<'_>) -> &'static str {
    use pointsman_sdk::wire::types::Health;
    match executor.load.health {
        Health::Up => "up",
        Health::Degraded => "degraded",
        Health::Draining => "draining",
        Health::Down => "down",
    }
}
