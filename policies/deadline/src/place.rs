//! Where one request goes: to an executor that ends it in time, the least used one of them.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Request};
use pointsman_sdk::{Case, Executor, Mirror, Pick, Seat, Sheet, Tentative, explain, open_seat};

use crate::pace::{Pace, Standing, output_tokens};
use crate::reason::Reason;
use crate::settings::{Late, Settings};

/// A live executor, by what it is compared by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) pace: Pace,
    /// Its best place for any request, and how much of it is in use.
    order: u64,
}

/// In the order of a row: that it has no room.
const NO_ROOM: u64 = 1 << 63;
/// Added for a request that it would end too late.
const LATE: u64 = 1 << 62;
/// That there is only a place in its queue. What is left is how much is in use.
const QUEUE: u64 = 1 << 61;

/// How good an executor that can take the request is, as `find` compares them; the smaller is the
/// better, and of equals the one attached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    standing: Standing,
    seat: Seat,
    used_permille: u64,
    micros: u64,
}

/// What is found among all executors.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The best of those that can take it now, what it makes, and where on it.
    best: Option<(Standing, u32, Seat)>,
    /// The best it could make, had it all of those to itself that may ever take it.
    outlook: Option<Standing>,
}

/// Where the request goes.
///
/// # Errors
///
/// The verdict on what is held or given up.
pub(crate) fn choose(
    case: &Case<'_>,
    rows: &Sheet<Row>,
    settings: &Settings,
) -> Result<Pick, Verdict> {
    let found = find(case, rows, settings);
    let gives_up = settings.late == Late::GiveUp;
    match (found.outlook, found.best) {
        (None, _) => Err(given(Choice::Hold(None), Reason::Nowhere)),
        (Some(Standing::Late), _) if gives_up => Err(given(Choice::GiveUp, Reason::TooLate)),
        (Some(_), None) => Err(given(Choice::Hold(None), Reason::NoRoom)),
        (Some(_), Some((best, executor, seat))) => {
            let reason = match (best, case.need.request.deadline) {
                (Standing::Late, _) if gives_up => {
                    return Err(given(Choice::Hold(None), Reason::FasterIsBusy));
                }
                (Standing::Late, _) => Reason::Late,
                (Standing::InTime, Some(_)) => Reason::InTime,
                (Standing::InTime, None) => Reason::NoDeadline,
            };
            Ok(Pick {
                executor,
                seat,
                reason: reason.index(),
            })
        }
    }
}

/// An executor is asked whether it can take the request only where it would be the best so far.
fn find(case: &Case<'_>, rows: &Sheet<Row>, settings: &Settings) -> Found {
    let mut found = Found::default();
    let request = case.need.request;
    let tokens = output_tokens(settings, request);
    // From so many micros on it is late.
    let late_from = match request.deadline {
        Some(deadline) => {
            let left = deadline.checked_sub(case.need.now);
            left.map_or(0, |left| left.saturating_add(1))
        }
        None => u64::MAX,
    };
    // Of the best so far: its order and its time. Most executors are turned away by these.
    let (mut best, mut best_micros) = (NO_ROOM - 1, u64::MAX);
    rows.each(request, |id, row| {
        let micros = row.pace.micros(tokens);
        let late = micros >= late_from;
        let order = if late { row.order | LATE } else { row.order };
        let brighter = match found.outlook {
            None => true,
            Some(Standing::Late) => !late,
            Some(Standing::InTime) => false,
        };
        if order > best && !brighter {
            return;
        }
        let better = order < best || order == best && micros < best_micros;
        if !better && !brighter {
            return;
        }
        let standing = if late {
            Standing::Late
        } else {
            Standing::InTime
        };
        let Some(executor) = case.mirror.executor(id) else {
            return;
        };
        if brighter && case.need.check_lasting(&executor).is_ok() {
            found.outlook = Some(standing);
        }
        if better && let Ok(seat) = case.fit(&executor) {
            // Its place for this request may be a worse one than that for any.
            let order = match seat {
                Seat::Slot => order,
                Seat::Queue => order | QUEUE,
            };
            if order < best || order == best && micros < best_micros {
                (best, best_micros) = (order, micros);
                found.best = Some((standing, id, seat));
            }
        }
    });
    found
}

/// Every executor, as if the request came alone.
pub(crate) fn explain(
    mirror: &Mirror,
    now: u64,
    (request, cached): (&Request, &Cached),
    settings: &Settings,
) -> Vec<Candidate> {
    let tokens = output_tokens(settings, request);
    let rank = |case: &Case<'_>, executor: &Executor<'_>, seat| {
        let micros = Pace::of(executor.load).micros(tokens);
        let standing = Standing::of(request, now, micros);
        if standing == Standing::Late && settings.late == Late::GiveUp {
            return Err("the answer would come too late");
        }
        Ok(Rank {
            standing,
            seat,
            used_permille: used_permille(case.placed, executor),
            micros,
        })
    };
    let note = |case: &Case<'_>, executor: &Executor<'_>| {
        let micros = Pace::of(executor.load).micros(tokens);
        let permille = used_permille(case.placed, executor);
        format!("takes {micros} µs for {tokens} tokens; {permille} permille in use")
    };
    explain::alone(mirror, now, (request, cached), rank, note)
}

// === impl Row ===

impl Row {
    /// Absent where it takes nothing new.
    pub(crate) fn of(placed: &Tentative, executor: &Executor<'_>) -> Option<Self> {
        executor.is_live().then(|| Self {
            pace: Pace::of(executor.load),
            order: match open_seat(placed, executor) {
                Some(Seat::Slot) => used_permille(placed, executor),
                Some(Seat::Queue) => used_permille(placed, executor) | QUEUE,
                None => NO_ROOM,
            },
        })
    }
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
