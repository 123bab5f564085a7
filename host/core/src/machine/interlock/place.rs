//! Checks of placements.

use pointsman_events::rows::Health;
use pointsman_events::{ExecutorId, PlacedIn, Refusal, RefusalCause, RefusedWhy};

use super::super::count;
use super::super::ledger::{Attachment, Executor, Ledger};
use super::super::requests::Request;

/// Checks that an executor may serve a request at all, its health and room aside.
pub(crate) fn check_eligible(
    ledger: &Ledger,
    request: &Request,
    executor: &Executor,
) -> Result<(), RefusalCause> {
    let row = &request.row;
    if !executor.serves(row.model) {
        return Err(RefusalCause::NotServed);
    }
    if let Some(allowed) = &row.allowed
        && allowed.binary_search(&executor.id).is_err()
    {
        return Err(RefusalCause::NotAllowed);
    }
    if row.failed_on.contains(&executor.id) {
        return Err(RefusalCause::FailedBefore);
    }
    ledger.could_ever_place(request, executor)
}

/// Checks that an executor takes anything new, and this request among it, room aside.
pub(crate) fn check_open_to(
    ledger: &Ledger,
    request: &Request,
    executor: &Executor,
) -> Result<(), RefusalCause> {
    let health = executor.health_seen();
    if !health.takes_new() {
        return Err(RefusalCause::Unavailable(health));
    }
    check_eligible(ledger, request, executor)
}

/// Checks that a waiting request can be placed on an executor now, and finds its place there.
pub(crate) fn check_place(
    ledger: &Ledger,
    request: &Request,
    executor: &Executor,
) -> Result<PlacedIn, RefusalCause> {
    check_open_to(ledger, request, executor)?;
    ledger.can_place(request, executor)
}

/// The first of these executors on which a request can be placed now; otherwise the reason that
/// speaks against the first of them. More executors than there are have not been ranked, and
/// looking at each is work that a policy gets for nothing.
pub(crate) fn first_in_order(
    ledger: &Ledger,
    request: &Request,
    executors: &[ExecutorId],
) -> Result<(ExecutorId, PlacedIn), Refusal> {
    let (named, attached) = (count(executors.len()), ledger.attached());
    if named > attached {
        return Err(RefusalCause::TooMany { named, attached }.of(request.id()));
    }
    let mut first = None;
    for executor in executors {
        let checked = match ledger.find(*executor) {
            Some(record) => check_place(ledger, request, record),
            None => Err(RefusalCause::UnknownExecutor),
        };
        match checked {
            Ok(into) => return Ok((*executor, into)),
            Err(cause) => first.get_or_insert(cause.at(request.id(), *executor)),
        };
    }
    Err(first.unwrap_or(RefusalCause::NamesNone.of(request.id())))
}

/// The prospect of a waiting request of being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// Some executor serves it, sooner or later.
    Served,
    /// No executor serves it at present.
    Unserved,
    /// It fits nowhere, however long it waits; on no executor does anything else speak against it.
    NeverFits(RefusedWhy),
}

/// The prospect of a waiting request. Where it can never fit, the refusal names the executor where it
/// comes closest.
pub(crate) fn prospect(ledger: &Ledger, request: &Request) -> Prospect {
    let mut unserved = false;
    let mut closest: Option<(u32, u32)> = None;
    let attached = ledger.executors();
    for executor in attached.filter(|e| e.attachment == Attachment::Attached) {
        match check_eligible(ledger, request, executor) {
            Ok(()) if executor.health_seen() == Health::Down => unserved = true,
            Ok(()) => return Prospect::Served,
            Err(RefusalCause::NeverFits { needed, total }) => {
                if closest.is_none_or(|(n, t)| needed - total < n - t) {
                    closest = Some((needed, total));
                }
            }
            Err(_) => {}
        }
    }
    let too_large = closest.filter(|_| !unserved);
    too_large.map_or(Prospect::Unserved, |(blocks_needed, blocks_total)| {
        Prospect::NeverFits(RefusedWhy::NeverFits {
            blocks_needed,
            blocks_total,
        })
    })
}
