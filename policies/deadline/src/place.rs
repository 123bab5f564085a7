//! Where one request goes: to an executor that ends it in time, the least used one of them.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Request};
use pointsman_sdk::{Case, Executor, Mirror, Pick, Seat, explain};

use crate::pace::{Pace, Standing, output_tokens};
use crate::reason::Reason;
use crate::settings::{Late, Settings};
use crate::table::{LATE, NO_ROOM, Row, Table, used_permille};

/// How good an executor that can take the request is, as [`choose`] compares them; the smaller is the
/// better, and of equals the one attached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    standing: Standing,
    seat: Seat,
    used_permille: u64,
    micros: u64,
}

/// One request, and what it is compared by.
struct Search<'a> {
    case: &'a Case<'a>,
    table: &'a Table,
    tokens: u32,
    /// From so many micros on it is late.
    late_from: u64,
}

/// The best executor so far.
struct Best {
    order: u64,
    micros: u64,
    /// It, what it makes, and where on it.
    found: Option<(Standing, u32, Seat)>,
}

/// Where the request goes.
///
/// # Errors
///
/// The verdict on what is held or given up.
pub(crate) fn choose(case: &Case<'_>, table: &Table, settings: &Settings) -> Result<Pick, Verdict> {
    let search = Search::new(case, table, settings);
    let best = search.best();
    let gives_up = settings.late == Late::GiveUp;
    let reason = match (best, case.need.request.deadline) {
        (Some((Standing::InTime, ..)), Some(_)) => Reason::InTime,
        (Some((Standing::InTime, ..)), None) => Reason::NoDeadline,
        (Some((Standing::Late, ..)), _) if !gives_up => Reason::Late,
        // What it could make, had it all of those to itself that may ever take it.
        (Some((Standing::Late, ..)) | None, _) => {
            return Err(match search.outlook() {
                None => given(Choice::Hold(None), Reason::Nowhere),
                Some(Standing::Late) if gives_up => given(Choice::GiveUp, Reason::TooLate),
                Some(_) if best.is_none() => given(Choice::Hold(None), Reason::NoRoom),
                Some(_) => given(Choice::Hold(None), Reason::FasterIsBusy),
            });
        }
    };
    match best {
        Some((_, executor, seat)) => Ok(Pick {
            executor,
            seat,
            reason: reason.index(),
        }),
        None => Err(given(Choice::Hold(None), Reason::NoRoom)),
    }
}

// === impl Search ===

impl<'a> Search<'a> {
    fn new(case: &'a Case<'a>, table: &'a Table, settings: &Settings) -> Self {
        let request = case.need.request;
        let left = |deadline: u64| deadline.checked_sub(case.need.now);
        let late_from = |deadline| left(deadline).map_or(0, |left| left.saturating_add(1));
        Self {
            case,
            table,
            tokens: output_tokens(settings, request),
            late_from: request.deadline.map_or(u64::MAX, late_from),
        }
    }

    /// The best executor that can take the request now: classes that cannot have it are passed over.
    fn best(&self) -> Option<(Standing, u32, Seat)> {
        let mut best = Best {
            order: NO_ROOM - 1,
            micros: u64::MAX,
            found: None,
        };
        if let Some(allowed) = &self.case.need.request.allowed {
            // Of equals the one attached first, in whatever order they are named.
            let mut allowed = allowed.clone();
            allowed.sort_unstable();
            for row in allowed.iter().filter_map(|id| self.table.row(*id)) {
                self.offer(row, &mut best);
            }
            return best.found;
        }
        let tokens = self.case.need.tokens();
        for (class, members) in self.table.classes() {
            if class.order > best.order {
                break;
            }
            let micros_min = members.pace_min.micros(self.tokens);
            if class.may_have_room(tokens) && self.order(class.order, micros_min) <= best.order {
                for row in &members.rows {
                    self.offer(row, &mut best);
                }
            }
        }
        best.found
    }

    /// Takes the executor if it is better and can take the request. Most are turned away by two
    /// comparisons.
    #[inline]
    fn offer(&self, row: &Row, best: &mut Best) {
        let micros = row.pace.micros(self.tokens);
        let order = self.order(row.order, micros);
        if order > best.order {
            return;
        }
        if order == best.order && micros >= best.micros {
            // Of equals the one attached first: classes of one order differ in room.
            let is_first = best.found.is_some_and(|(_, id, _)| row.id < id);
            if micros > best.micros || !is_first {
                return;
            }
        }
        if row.room >= self.case.need.tokens()
            && let Some(seat) = self.case.seat(row.id)
        {
            *best = Best {
                order,
                micros,
                found: Some((self.standing(micros), row.id, seat)),
            };
        }
    }

    /// The best standing with any that may take it, with or without room.
    fn outlook(&self) -> Option<Standing> {
        let mut outlook = None;
        if let Some(allowed) = &self.case.need.request.allowed {
            for row in allowed.iter().filter_map(|id| self.table.row(*id)) {
                self.brighten(row, &mut outlook);
            }
            return outlook;
        }
        for (_, members) in self.table.classes() {
            let best = self.standing(members.pace_min.micros(self.tokens));
            if outlook.is_some_and(|outlook| outlook <= best) {
                continue;
            }
            for row in &members.rows {
                self.brighten(row, &mut outlook);
                if outlook == Some(Standing::InTime) {
                    return outlook;
                }
            }
        }
        outlook
    }

    #[inline]
    fn brighten(&self, row: &Row, outlook: &mut Option<Standing>) {
        let standing = self.standing(row.pace.micros(self.tokens));
        if outlook.is_none_or(|outlook| standing < outlook)
            && let Some(executor) = self.case.mirror.executor(row.id)
            && self.case.need.check_lasting(&executor).is_ok()
        {
            *outlook = Some(standing);
        }
    }

    #[inline]
    fn standing(&self, micros: u64) -> Standing {
        if micros >= self.late_from {
            Standing::Late
        } else {
            Standing::InTime
        }
    }

    /// The order of one that takes so long.
    #[inline]
    fn order(&self, order: u64, micros: u64) -> u64 {
        match self.standing(micros) {
            Standing::Late => order | LATE,
            Standing::InTime => order,
        }
    }
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
        format!("takes {micros}us for {tokens} tokens; {permille} permille in use")
    };
    explain::alone(mirror, now, (request, cached), rank, note)
}

fn given(choice: Choice, reason: Reason) -> Verdict {
    Verdict {
        choice,
        reason: reason.index(),
    }
}
