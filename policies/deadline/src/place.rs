//! The choice for one request: the least used of the executors that end it in time.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::{Case, Executor, Pick, Place, Seat, explain};

use crate::pace::{Pace, Timeliness, output_tokens};
use crate::reason::Reason;
use crate::settings::{Late, Settings};
use crate::table::{IDLE, LATE, NO_ROOM, Row, Table, order_on, used_permille};

/// The order in which [`choose`] has executors; the least is the best, and of equals the one
/// attached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    timeliness: Timeliness,
    seat: Seat,
    used_permille: u64,
    micros: u64,
}

/// The outlook of a request that has every executor to itself that may ever take it; the least is
/// the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outlook {
    /// An executor makes the deadline.
    InTime,
    /// An idle executor may: its times, by which it does not, are of what ran there before.
    Open,
    /// No executor makes the deadline.
    Late,
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
        (Some((Timeliness::Late, _)) | None, _) => {
            let held = |reason: Reason| case.hold(None, reason.index());
            match (search.outlook(), best) {
                (None, _) => return Err(held(Reason::Nowhere)),
                (Some(Outlook::Late), _) if gives_up => return Err(GIVEN_UP),
                (Some(_), None) => return Err(held(Reason::NoRoom)),
                (Some(Outlook::Open), Some((_, place)))
                    if order_on(case.fleet, &place.executor) == IDLE =>
                {
                    (place, Reason::OldTimes)
                }
                (Some(_), Some(_)) if may_wait => return Err(held(Reason::FasterIsBusy)),
                (Some(_), Some((_, place))) => (place, Reason::Late),
            }
        }
    };
    Ok(Pick::new(&place, reason.index()))
}

// === impl Outlook ===

impl Outlook {
    /// The outlook on an executor of this order that takes so long. What an idle one takes is not
    /// known: until something runs there, its times stay as the last answers left them.
    #[inline]
    fn on(order: u64, micros: u64, timeliness: impl Fn(u64) -> Timeliness) -> Self {
        match timeliness(micros) {
            Timeliness::InTime => Self::InTime,
            Timeliness::Late if order == IDLE && timeliness(0) == Timeliness::InTime => Self::Open,
            Timeliness::Late => Self::Late,
        }
    }
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

    /// The best outlook on an executor that may take the request, with or without room.
    fn outlook(&self) -> Option<Outlook> {
        let mut outlook = None;
        if let Some(allowed) = &self.case.request.allowed {
            for row in allowed.iter().filter_map(|id| self.table.row(*id)) {
                self.brighten(row, &mut outlook);
            }
            return outlook;
        }
        for (class, members) in self.table.classes() {
            let best = self.outlook_on(class.order, members.pace_min);
            if outlook.is_some_and(|outlook| outlook <= best) {
                continue;
            }
            for row in &members.rows {
                self.brighten(row, &mut outlook);
                if outlook == Some(Outlook::InTime) {
                    return outlook;
                }
            }
        }
        outlook
    }

    #[inline]
    fn brighten(&self, row: &Row, outlook: &mut Option<Outlook>) {
        let here = self.outlook_on(row.order, row.pace);
        if outlook.is_none_or(|outlook| here < outlook)
            && let Some(executor) = self.case.fleet.mirror.executor(row.id)
            && self.case.check_lasting(&executor).is_ok()
        {
            *outlook = Some(here);
        }
    }

    #[inline]
    fn outlook_on(&self, order: u64, pace: Pace) -> Outlook {
        Outlook::on(order, pace.micros(self.tokens), |micros| {
            self.timeliness(micros)
        })
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
    let micros_on = |executor: &Executor<'_>| Pace::of(executor.load).micros(tokens);
    let timeliness = |micros: u64| Timeliness::of(case.request, case.now, micros);
    let outlook_on = |executor: &Executor<'_>| {
        let order = order_on(case.fleet, executor);
        Outlook::on(order, micros_on(executor), timeliness)
    };
    let executors = case.fleet.mirror.executors();
    let lasting = executors.filter(|executor| case.check_lasting(executor).is_ok());
    let outlook = lasting.map(|executor| outlook_on(&executor)).min();
    // Held for a faster executor until the host let it be held no longer.
    let is_hopeful = matches!(outlook, Some(Outlook::InTime | Outlook::Open));
    let has_waited = case.hold_end().is_none() && is_hopeful;
    let rank = |place: &Place<'_>| {
        let micros = micros_on(&place.executor);
        let timeliness = timeliness(micros);
        let is_tried =
            outlook == Some(Outlook::Open) && outlook_on(&place.executor) == Outlook::Open;
        let may_be_late = settings.late == Late::RunLast || has_waited || is_tried;
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
        let micros = micros_on(executor);
        let permille = used_permille(case.fleet, executor);
        format!("takes {micros}us for {tokens} tokens; {permille} permille in use")
    };
    explain::by_rank(case, rank, note)
}

const GIVEN_UP: Verdict = Verdict {
    choice: Choice::GiveUp,
    reason: Reason::TooLate.index(),
};
