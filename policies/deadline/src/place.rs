//! Where one request goes: to an executor that ends it in time, the least used one of them.

use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::{Executor, Mirror, Need, Seat, Tentative, fit};

use crate::pace::{Pace, Standing, output_tokens};
use crate::reason::Reason;
use crate::settings::{Late, Settings};

/// How good an executor that can take the request is; the smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    standing: Standing,
    seat: Seat,
    used_permille: u64,
    micros: u64,
    position: usize,
    executor: u32,
}

/// What is found among all executors.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The best of those that can take it now.
    best: Option<Rank>,
    /// The best it could make, had it all of those to itself that may ever take it.
    outlook: Option<Standing>,
}

/// The verdict on one request. Its placement is counted in `placed`.
pub(crate) fn verdict(
    mirror: &Mirror,
    placed: &mut Tentative,
    settings: &Settings,
    now: u64,
    id: u64,
) -> Verdict {
    let Some(request) = mirror.request(id) else {
        return given(Choice::Hold(None), Reason::Unknown);
    };
    let need = Need::new(mirror, placed, request, now);
    let found = find(mirror, placed, &need, settings);
    let gives_up = settings.late == Late::GiveUp;
    match (found.outlook, found.best) {
        (None, _) => given(Choice::Hold(None), Reason::Nowhere),
        (Some(Standing::Late), _) if gives_up => given(Choice::GiveUp, Reason::TooLate),
        (Some(_), None) => given(Choice::Hold(None), Reason::NoRoom),
        (Some(_), Some(best)) => {
            let reason = match (best.standing, request.deadline) {
                (Standing::Late, _) if gives_up => {
                    return given(Choice::Hold(None), Reason::FasterIsBusy);
                }
                (Standing::Late, _) => Reason::Late,
                (Standing::InTime, Some(_)) => Reason::InTime,
                (Standing::InTime, None) => Reason::NoDeadline,
            };
            if let Some(executor) = mirror.executor_at(best.position) {
                placed.place(mirror, &need, &executor, best.seat);
            }
            given(Choice::Place(vec![best.executor]), reason)
        }
    }
}

fn find(mirror: &Mirror, placed: &Tentative, need: &Need<'_>, settings: &Settings) -> Found {
    let mut found = Found::default();
    let tokens = output_tokens(settings, need.request);
    for executor in mirror.executors() {
        if need.check_lasting(&executor).is_err() {
            continue;
        }
        let micros = Pace::of(executor.load).micros(tokens);
        let standing = Standing::of(need.request, need.now, micros);
        let outlook = found.outlook.unwrap_or(standing).min(standing);
        found.outlook = Some(outlook);
        if let Ok(seat) = fit(mirror, placed, need, &executor) {
            let rank = Rank {
                standing,
                seat,
                used_permille: used_permille(placed, &executor),
                micros,
                position: executor.position,
                executor: executor.id(),
            };
            found.best = Some(found.best.map_or(rank, |best| best.min(rank)));
        }
    }
    found
}

fn used_permille(placed: &Tentative, executor: &Executor<'_>) -> u64 {
    let used = executor.depth() + placed.counts(executor).total();
    used * 1000 / u64::from(executor.info.slots_total.max(1))
}

fn given(choice: Choice, reason: Reason) -> Verdict {
    Verdict {
        choice,
        reason: reason.index(),
    }
}
