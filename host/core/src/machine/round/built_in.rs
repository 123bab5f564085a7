//! The rules for when no policy answers: small, native, and enough to serve.
//!
//! Admission admits while there is room (`admission`), order is arrival, routing takes the first
//! executor in attach order with room, preemption takes the newest among the least urgent,
//! budgets are equal shares, and an engine serves the most urgent sequence first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use pointsman_events::{
    DeviceId, EvictHow, Eviction, ExecutorId, PlacedIn, RequestId, Shortage, Victim,
};

use super::super::count;
use super::super::interlock::{Books, check_place};
use super::super::ledger::{Budgets, Executor, Ledger};
use super::super::requests::{Phase, Request, Requests};

/// The requests that the built-in rule makes give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Insistence {
    /// Less urgent ones only.
    MoreUrgentOnly,
    /// Also equals that arrived later.
    Arrival,
}

/// The first executor in attach order that could take a waiting request now.
pub(super) fn first_with_room(
    ledger: &Ledger,
    request: &Request,
) -> Option<(ExecutorId, PlacedIn)> {
    let place_on = |id: ExecutorId| {
        let into = check_place(ledger, request, ledger.find(id)?).ok()?;
        Some((id, into))
    };
    // The shorter list is walked: what is not open takes nothing. Both are in attach order.
    let open = &ledger.sets().open;
    match &request.row.allowed {
        Some(few) if few.len() < open.len() => few.iter().copied().find_map(place_on),
        Some(_) | None => open.iter().copied().find_map(place_on),
    }
}

/// The newest among the least urgent whose leaving covers the shortage, on the first executor in
/// attach order where that is so.
pub(super) fn eviction(
    books: Books<'_>,
    shortage: &Shortage,
    insistence: Insistence,
) -> Option<Eviction> {
    let needy = &books.requests[shortage.needy];
    let on = |executor: &Executor| victims(books, (needy, shortage), executor, insistence);
    match shortage.executor {
        Some(executor) => on(&books.ledger[executor]),
        None => books.ledger.executors().find_map(on),
    }
}

fn victims(
    books: Books<'_>,
    (needy, shortage): (&Request, &Shortage),
    executor: &Executor,
    insistence: Insistence,
) -> Option<Eviction> {
    let mut eviction = Eviction {
        executor: executor.id,
        victims: Vec::new(),
        reason: 0,
    };
    for victim in candidates(books, needy, executor) {
        let gives_way = match insistence {
            Insistence::MoreUrgentOnly => victim.urgency() < needy.urgency(),
            Insistence::Arrival => needy.precedes(victim) || victim.is_queued_on_executor(),
        };
        let (request, how) = (victim.id(), EvictHow::Recompute);
        if !gives_way || books.check_victim(needy, request, how, executor).is_err() {
            continue;
        }
        eviction.victims.push(Victim { request, how });
        if books.check_eviction(shortage, &eviction).is_ok() {
            return Some(without_idle_victims(books, shortage, eviction));
        }
    }
    None
}

/// Sequences that hold something on the executor's device: least urgent first, the executor's own
/// before others of the same urgency, then the newest first.
fn candidates<'a>(books: Books<'a>, needy: &Request, executor: &Executor) -> Vec<&'a Request> {
    let mut found = Vec::new();
    for other in books.ledger.executors_on(executor.spec.device) {
        for id in other.slots.keys().copied().chain(other.queue.iter()) {
            let request = &books.requests[id];
            if matches!(request.phase, Phase::Placed(_)) && id != needy.id() {
                let is_elsewhere = other.id != executor.id;
                found.push(((request.urgency(), is_elsewhere, Reverse(id)), request));
            }
        }
    }
    found.sort_unstable_by_key(|(key, _)| *key);
    found.into_iter().map(|(_, request)| request).collect()
}

/// Takes back victims without whom the shortage is covered as well.
fn without_idle_victims(books: Books<'_>, shortage: &Shortage, mut eviction: Eviction) -> Eviction {
    let mut idx = 0;
    while idx < eviction.victims.len() && eviction.victims.len() > 1 {
        let victim = eviction.victims.remove(idx);
        if books.check_eviction(shortage, &eviction).is_err() {
            eviction.victims.insert(idx, victim);
            idx += 1;
        }
    }
    eviction
}

/// These sequences of an engine, the most urgent first, equals in order of arrival.
pub(super) fn order(requests: &Requests, sequences: BTreeSet<RequestId>) -> Vec<RequestId> {
    let mut order: Vec<RequestId> = sequences.into_iter().collect();
    order.sort_by_key(|id| requests[*id].precedence());
    order
}

/// Equal shares for the busy executors of a device, or for all where none is busy. The first ones
/// get the tokens that rounding leaves.
pub(super) fn budgets(ledger: &Ledger, device: DeviceId, tokens_total: u32) -> Budgets {
    let executors = &ledger[device].executors;
    let is_busy = |id: &ExecutorId| !ledger[*id].is_idle();
    let busy: Vec<ExecutorId> = executors.iter().copied().filter(is_busy).collect();
    let sharing = if busy.is_empty() { executors } else { &busy };
    let n = count(sharing.len()).max(1);
    let (share, rest) = (tokens_total / n, tokens_total % n);
    let shares = (0..n).map(|idx| share + u32::from(idx < rest));
    let mut budgets: Budgets = executors.iter().map(|id| (*id, 0)).collect();
    budgets.extend(sharing.iter().copied().zip(shares));
    budgets
}
