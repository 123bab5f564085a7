//! Requests that the host would have go first before long, put first in time.
//!
//! The host counts how often later, not more urgent requests overtake one that waits. At `overtaken-max` it has the
//! request go first and strikes the policy. A policy whose order may leave a request behind for so long keeps itself from
//! that by going through [`overtaken_first`] at the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::mirror::Mirror;
use crate::urgency::Urgency;
use crate::wire::lifecycle::Bounds;
use crate::wire::types::AskedRequest;

/// The order with each request that was overtaken three quarters as often as the host allows before the first one that
/// would overtake it again. Several go by urgency, then by arrival; the others stay in their order.
#[must_use]
pub fn overtaken_first(mirror: &Mirror, requests: &[AskedRequest], order: Vec<u64>) -> Vec<u64> {
    let mut owed = Owed::of(mirror, requests);
    if owed.by_urgency.is_empty() {
        return order;
    }
    let mut spared = Vec::with_capacity(order.len());
    for id in order {
        if owed.given.contains(&id) {
            continue;
        }
        let urgency = mirror.request(id).map(Urgency::from);
        spared.extend(urgency.into_iter().flat_map(|it| owed.give(it, id)));
        spared.push(id);
    }
    spared
}

/// Returns whether a request was overtaken so often that it goes first.
fn is_owed(asked: &AskedRequest, bounds: &Bounds) -> bool {
    u64::from(asked.overtaken) >= u64::from(bounds.overtaken_max) * 3 / 4 && asked.overtaken > 0
}

/// Requests that are to go before those that would overtake them.
#[derive(Debug, Default)]
struct Owed {
    by_urgency: BTreeMap<Urgency, BTreeSet<u64>>,
    /// Requests that have their place.
    given: BTreeSet<u64>,
}

impl Owed {
    fn of(mirror: &Mirror, requests: &[AskedRequest]) -> Self {
        let bounds = mirror.bounds();
        let mut owed = Self::default();
        for asked in requests.iter().filter(|asked| is_owed(asked, bounds)) {
            if let Some(request) = mirror.request(asked.request) {
                let alike = owed.by_urgency.entry(Urgency::from(request)).or_default();
                alike.insert(request.id);
            }
        }
        owed
    }

    /// Takes those that a request of this urgency would overtake, in the order in which they go before it, and the
    /// request itself if it is one of them.
    fn give(&mut self, urgency: Urgency, id: u64) -> Vec<u64> {
        let mut before = Vec::new();
        for alike in self.by_urgency.range_mut(urgency..).rev().map(|it| it.1) {
            let later = alike.split_off(&id);
            before.extend(std::mem::replace(alike, later));
            alike.remove(&id);
        }
        self.given.extend(&before);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::{is_owed, overtaken_first};
    use crate::fixture::{asked, bounds, request};
    use crate::mirror::Mirror;
    use crate::wire::lifecycle::Bounds;
    use crate::wire::types::{Change, Request, RequestClass};

    /// The order that follows from `order` where these requests were overtaken so often, and all wait.
    fn check(requests: &[Request], overtaken: &[u32], order: &[u64], expected: &[u64]) {
        let mut mirror = Mirror::default();
        mirror.bind(bounds());
        for request in requests {
            mirror.apply(&mut Change::Waiting(request.clone()));
        }
        let ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
        let mut asked = asked(&ids);
        for (asked, overtaken) in asked.iter_mut().zip(overtaken) {
            asked.overtaken = *overtaken;
        }
        assert_eq!(overtaken_first(&mirror, &asked, order.to_vec()), expected);
    }

    #[test]
    fn three_quarters_of_the_bound_are_enough() {
        let of = |overtaken, bound| {
            let bounds = Bounds {
                overtaken_max: bound,
                ..bounds()
            };
            let mut asked = asked(&[1]);
            asked[0].overtaken = overtaken;
            is_owed(&asked[0], &bounds)
        };
        assert!(!of(191, 256) && of(192, 256));
        assert!(!of(5, 8) && of(6, 8));
        assert!(!of(0, 1) && of(1, 1));
        assert!(!of(u32::MAX / 2, u32::MAX) && of(u32::MAX, u32::MAX));
    }

    #[test]
    fn several_go_by_arrival_and_the_others_stay_as_they_were() {
        let requests = [1, 2, 3, 4, 5].map(request);
        check(&requests, &[0; 5], &[5, 3, 1, 2, 4], &[5, 3, 1, 2, 4]);
        let overtaken = [0, 200, 0, 192, 191];
        check(&requests, &overtaken, &[5, 3, 1, 4, 2], &[2, 4, 5, 3, 1]);
        // 4 does not overtake 5, and goes before 2 as it was.
        check(&requests, &[0, 0, 0, 0, 200], &[4, 5, 2], &[4, 5, 2]);
    }

    #[test]
    fn more_urgent_ones_overtake_nobody() {
        let of = |id, class, priority| Request {
            class,
            priority,
            ..request(id)
        };
        let requests = [
            of(1, RequestClass::Throughput, 0),
            of(2, RequestClass::Throughput, 1),
            of(3, RequestClass::Throughput, 1),
            of(4, RequestClass::LatencyCritical, 0),
            of(5, RequestClass::Throughput, 0),
        ];
        let overtaken = [192, 192, 0, 0, 0];
        check(&requests, &overtaken, &[4, 3, 5, 2, 1], &[4, 2, 3, 1, 5]);
    }

    #[test]
    fn requests_left_out_have_a_place_before_those_that_would_overtake_them() {
        let requests = [1, 2, 3].map(request);
        check(&requests, &[192, 0, 192], &[9, 2], &[9, 1, 2]);
    }
}
