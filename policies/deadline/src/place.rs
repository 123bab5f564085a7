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
    /// Its best place for any request, and how much of it is in use; absent without room.
    used: Option<Used>,
}

/// The smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Used {
    seat: Seat,
    permille: u64,
}

/// How good an executor that can take the request is; the smaller is the better, and of equals the
/// one attached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    standing: Standing,
    used: Used,
    micros: u64,
}

/// What is found among all executors.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The best of those that can take it now, its place, and what it is.
    best: Option<(Rank, u32, Seat)>,
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
            let reason = match (best.standing, case.need.request.deadline) {
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
    rows.each(request, |id, row| {
        let micros = row.pace.micros(tokens);
        let standing = Standing::of(request, case.need.now, micros);
        let better = row.used.and_then(|used| {
            let rank = Rank {
                standing,
                used,
                micros,
            };
            let beats = |best: (Rank, u32, Seat)| (rank, id) < (best.0, best.1);
            found.best.is_none_or(beats).then_some(rank)
        });
        let brighter = found.outlook.is_none_or(|outlook| standing < outlook);
        if better.is_none() && !brighter {
            return;
        }
        let Some(executor) = case.mirror.executor(id) else {
            return;
        };
        if brighter && case.need.check_lasting(&executor).is_ok() {
            found.outlook = Some(standing);
        }
        if let Some(rank) = better
            && let Ok(seat) = case.fit(&executor)
        {
            let used = Used { seat, ..rank.used };
            let rank = Rank { used, ..rank };
            // Its place for this request may be a worse one than that for any.
            if found.best.is_none_or(|best| (rank, id) < (best.0, best.1)) {
                found.best = Some((rank, id, seat));
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
        let permille = used_permille(case.placed, executor);
        Ok(Rank {
            standing,
            used: Used { seat, permille },
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
            used: open_seat(placed, executor).map(|seat| Used {
                seat,
                permille: used_permille(placed, executor),
            }),
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
