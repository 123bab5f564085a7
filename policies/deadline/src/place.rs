//! The choice for one request: the least used of the executors that end it in time.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::{Case, Executor, Pick, Place, Seat, explain};

use crate::pace::{Pace, Timeliness, output_tokens};
use crate::reason::Reason;
use crate::settings::{Late, Settings};
use crate::table::{LATE, NO_ROOM, Row, Table, used_permille};

/// The order in which [`choose`] has executors; the least is the best, and of equals the one
/// attached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    timeliness: Timeliness,
    seat: Seat,
    used_permille: u64,
    micros: u64,
}

/// A search for the best executor.
struct Search<'a> {
    case: &'a Case<'a>,
    table: &'a Table,
    tokens: u32,
    /// Microseconds from which on an answer is late.
    late_from: u64,
}

/// The best executor so far.
struct Best<'a> {
    order: u64,
    micros: u64,
    found: Option<(Timeliness, Place<'a>)>,
}

/// Chooses an executor for the request.
///
/// # Errors
///
/// The verdict on what is held or given up.
pub(crate) fn choose(case: &Case<'_>, table: &Table, settings: &Settings) -> Result<Pick, Verdict> {
    let search = Search::new(case, table, settings);
    let best = search.best();
    let gives_up = settings.late == Late::GiveUp;
    let may_wait = case.hold_end().is_some();
    let (place, reason) = match (best, case.request.deadline) {
        (Some((Timeliness::InTime, place)), Some(_)) => (place, Reason::InTime),
        (Some((Timeliness::InTime, place)), None) => (place, Reason::NoDeadline),
        (Some((Timeliness::Late, place)), _) if !gives_up => (place, Reason::Late),
        // The outlook of a request that has every executor to itself that may ever take it.
        (Some((Timeliness::Late, _)) | None, _) => {
            let held = |reason: Reason| case.hold(None, reason.index());
            match (search.outlook(), best) {
                (None, _) => return Err(held(Reason::Nowhere)),
                (Some(Timeliness::Late), _) if gives_up => return Err(GIVEN_UP),
                (Some(_), None) => return Err(held(Reason::NoRoom)),
                (Some(_), Some(_)) if may_wait => return Err(held(Reason::FasterIsBusy)),
                (Some(_), Some((_, place))) => (place, Reason::Late),
            }
        }
    };
    Ok(Pick::new(&place, reason.index()))
}

// === impl Search ===

impl<'a> Search<'a> {
    fn new(case: &'a Case<'a>, table: &'a Table, settings: &Settings) -> Self {
        let request = case.request;
        let left = |deadline: u64| deadline.checked_sub(case.now);
        let late_from = |deadline| left(deadline).map_or(0, |left| left.saturating_add(1));
        Self {
            case,
            table,
            tokens: output_tokens(settings, request),
            late_from: request.deadline.map_or(u64::MAX, late_from),
        }
    }

    /// The best place for the request now. Classes without such a place are passed over.
    fn best(&self) -> Option<(Timeliness, Place<'a>)> {
        let mut best = Best {
            order: NO_ROOM - 1,
            micros: u64::MAX,
            found: None,
        };
        if let Some(allowed) = &self.case.request.allowed {
            // Of equals the one attached first, in whatever order they are named.
            let mut allowed = allowed.clone();
            allowed.sort_unstable();
            for row in allowed.iter().filter_map(|id| self.table.row(*id)) {
                self.offer(row, &mut best);
            }
            return best.found;
        }
        let tokens = self.case.tokens();
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
    fn offer(&self, row: &Row, best: &mut Best<'a>) {
        let micros = row.pace.micros(self.tokens);
        let order = self.order(row.order, micros);
        if order > best.order {
            return;
        }
        if order == best.order && micros >= best.micros {
            // Of equals the one attached first: classes of one order differ in room.
            let found = best.found.as_ref();
            let is_first = found.is_some_and(|(_, place)| row.id < place.executor.id());
            if micros > best.micros || !is_first {
                return;
            }
        }
        if row.room >= self.case.tokens()
            && let Some(place) = self.case.place(row.id)
        {
            *best = Best {
                order,
                micros,
                found: Some((self.timeliness(micros), place)),
            };
        }
    }

    /// The best timeliness on an executor that may take the request, with or without room.
    fn outlook(&self) -> Option<Timeliness> {
        let mut outlook = None;
        if let Some(allowed) = &self.case.request.allowed {
            for row in allowed.iter().filter_map(|id| self.table.row(*id)) {
                self.brighten(row, &mut outlook);
            }
            return outlook;
        }
        for (_, members) in self.table.classes() {
            let best = self.timeliness(members.pace_min.micros(self.tokens));
            if outlook.is_some_and(|outlook| outlook <= best) {
                continue;
            }
            for row in &members.rows {
                self.brighten(row, &mut outlook);
                if outlook == Some(Timeliness::InTime) {
                    return outlook;
                }
            }
        }
        outlook
    }

    #[inline]
    fn brighten(&self, row: &Row, outlook: &mut Option<Timeliness>) {
        let timeliness = self.timeliness(row.pace.micros(self.tokens));
        if outlook.is_none_or(|outlook| timeliness < outlook)
            && let Some(executor) = self.case.fleet.mirror.executor(row.id)
            && self.case.check_lasting(&executor).is_ok()
        {
            *outlook = Some(timeliness);
        }
    }

    #[inline]
    fn timeliness(&self, micros: u64) -> Timeliness {
        if micros >= self.late_from {
            Timeliness::Late
        } else {
            Timeliness::InTime
        }
    }

    /// The order of an executor that takes so long.
    #[inline]
    fn order(&self, order: u64, micros: u64) -> u64 {
        match self.timeliness(micros) {
            Timeliness::Late => order | LATE,
            Timeliness::InTime => order,
        }
    }
}

/// Lists every executor for the request.
pub(crate) fn explain(case: &Case<'_>, settings: &Settings) -> Vec<Candidate> {
    let tokens = output_tokens(settings, case.request);
    let timeliness_on = |executor: &Executor<'_>| {
        let micros = Pace::of(executor.load).micros(tokens);
        Timeliness::of(case.request, case.now, micros)
    };
    let could_be_in_time = |executor: Executor<'_>| {
        timeliness_on(&executor) == Timeliness::InTime && case.check_lasting(&executor).is_ok()
    };
    // Held for a faster executor until the host let it be held no longer.
    let has_waited =
        case.hold_end().is_none() && case.fleet.mirror.executors().any(could_be_in_time);
    let rank = |place: &Place<'_>| {
        let micros = Pace::of(place.executor.load).micros(tokens);
        let timeliness = timeliness_on(&place.executor);
        let may_be_late = settings.late == Late::RunLast || has_waited;
        if timeliness == Timeliness::Late && !may_be_late {
            return Err("the answer would come too late");
        }
        Ok(Rank {
            timeliness,
            seat: place.seat,
            used_permille: used_permille(case.fleet, &place.executor),
            micros,
        })
    };
    let note = |executor: &Executor<'_>| {
        let micros = Pace::of(executor.load).micros(tokens);
        let permille = used_permille(case.fleet, executor);
        format!("takes {micros}us for {tokens} tokens; {permille} permille in use")
    };
    explain::by_rank(case, rank, note)
}

const GIVEN_UP: Verdict = Verdict {
    choice: Choice::GiveUp,
    reason: Reason::TooLate.index(),
};
