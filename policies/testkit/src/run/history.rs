//! The history of requests, read from the facts of a run.

use std::collections::BTreeMap;

use pointsman_core::{Decided, ExecutorId, Fact, Hook, Micros, RequestId, Stamped, Stay};

/// The request that a fact is about.
pub(super) fn subject(fact: &Fact) -> Option<RequestId> {
    match fact {
        Fact::Arrived { request, .. }
        | Fact::Admitted(request, _)
        | Fact::Parked(request, _)
        | Fact::Unparked(request)
        | Fact::TurnedAway(request, _)
        | Fact::Held(request, _, _)
        | Fact::Placed { request, .. }
        | Fact::Started(request, _)
        | Fact::Left(request, _)
        | Fact::Requeued(request, _)
        | Fact::Reserved(request, _)
        | Fact::ReservationDropped(request, _)
        | Fact::Short(request, _)
        | Fact::Strike(_, _, request)
        | Fact::Ended(request, _)
        | Fact::StayEnded(Stay { request, .. })
        | Fact::Evicted {
            victim: request, ..
        } => Some(*request),
        Fact::Refused(_, _, refusal) => refusal.request,
        Fact::DeviceAttached(_)
        | Fact::ExecutorAttached(..)
        | Fact::HealthChanged(..)
        | Fact::Saturated(_)
        | Fact::Relieved(_)
        | Fact::ExecutorLost(_)
        | Fact::ExecutorDetached(_)
        | Fact::Allotted { .. }
        | Fact::Arranged { .. }
        | Fact::Fault(..) => None,
    }
}

/// The decision that a fact reports.
pub(super) fn decided(fact: &Fact) -> Option<Decided> {
    match fact {
        Fact::Admitted(_, by)
        | Fact::Parked(_, by)
        | Fact::TurnedAway(_, by)
        | Fact::Held(_, _, by)
        | Fact::Placed { by, .. }
        | Fact::Evicted { by, .. } => Some(*by),
        Fact::DeviceAttached(_)
        | Fact::ExecutorAttached(..)
        | Fact::HealthChanged(..)
        | Fact::Saturated(_)
        | Fact::Relieved(_)
        | Fact::ExecutorLost(_)
        | Fact::ExecutorDetached(_)
        | Fact::Arrived { .. }
        | Fact::Unparked(_)
        | Fact::Started(..)
        | Fact::Left(..)
        | Fact::Requeued(..)
        | Fact::Reserved(..)
        | Fact::ReservationDropped(..)
        | Fact::Short(..)
        | Fact::Allotted { .. }
        | Fact::Arranged { .. }
        | Fact::Refused(..)
        | Fact::Fault(..)
        | Fact::Strike(..)
        | Fact::StayEnded(_)
        | Fact::Ended(..) => None,
    }
}

/// The last decision about a request.
pub(super) fn newest_decision(facts: &[Stamped], request: RequestId) -> Option<Decided> {
    let mut about = newest_first(facts, request);
    about.find_map(decided)
}

/// The executor of a request's last placement.
pub(super) fn placed_on(facts: &[Stamped], request: RequestId) -> Option<ExecutorId> {
    newest_first(facts, request).find_map(|fact| {
        if let Fact::Placed { executor, .. } = fact {
            Some(*executor)
        } else {
            None
        }
    })
}

/// The request for which a request was last evicted.
pub(super) fn evicted_for(facts: &[Stamped], request: RequestId) -> Option<RequestId> {
    newest_first(facts, request).find_map(|fact| {
        if let Fact::Evicted { needy, .. } = fact {
            Some(*needy)
        } else {
            None
        }
    })
}

/// The end of a request's hold. The outer `None` means that the last fact about it is no hold. It stays held while
/// room is looked for, in vain or not.
pub(super) fn held(facts: &[Stamped], request: RequestId) -> Option<Option<Micros>> {
    let mut others = newest_first(facts, request).filter(|fact| {
        !matches!(
            fact,
            Fact::Short(..) | Fact::Refused(_, Hook::Preemption, _)
        )
    });
    if let Fact::Held(_, until, _) = others.next()? {
        Some(*until)
    } else {
        None
    }
}

fn newest_first(facts: &[Stamped], request: RequestId) -> impl Iterator<Item = &Fact> {
    let facts = facts.iter().rev().map(|stamped| &stamped.fact);
    facts.filter(move |fact| subject(fact) == Some(request))
}

/// The longest time that each request waited for a place without a break, up to `now`.
pub(super) fn longest_waits(facts: &[Stamped], now: Micros) -> BTreeMap<RequestId, Micros> {
    let mut since: BTreeMap<RequestId, Micros> = BTreeMap::new();
    let mut longest: BTreeMap<RequestId, Micros> = BTreeMap::new();
    let mut note = |request: RequestId, wait: Micros| {
        let known = longest.entry(request).or_default();
        *known = (*known).max(wait);
    };
    for stamped in facts {
        if let Fact::Arrived { request, .. } | Fact::Requeued(request, _) = &stamped.fact {
            since.insert(*request, stamped.now);
        }
        if let Fact::Placed { request, .. } | Fact::Ended(request, _) = &stamped.fact
            && let Some(since) = since.remove(request)
        {
            note(*request, stamped.now.since(since));
        }
    }
    for (request, since) in since {
        note(request, now.since(since));
    }
    longest
}

#[cfg(test)]
mod tests {
    use pointsman_core::{Author, RefusalCause, Round, ShortageCause};

    use super::*;

    #[test]
    fn a_request_is_held_though_an_eviction_for_it_is_refused() {
        let (id, until) = (RequestId(1), Some(Micros(9)));
        let (author, reason) = (Author::Policy(0), 0);
        let refused = |hook| Fact::Refused(author, hook, RefusalCause::NotCovered.of(id));
        let facts = [
            Fact::Held(id, until, Decided { author, reason }),
            Fact::Short(id, ShortageCause::Slots),
            refused(Hook::Preemption),
            refused(Hook::Routing),
        ];
        let facts = facts.map(|fact| Stamped {
            now: Micros(1),
            round: Round(1),
            fact,
        });
        assert_eq!(held(&facts[..3], id), Some(until));
        assert_eq!(held(&facts, id), None);
    }
}
