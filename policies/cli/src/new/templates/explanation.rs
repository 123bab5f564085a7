//! Explains where a request would go.

use std::cmp::Reverse;

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::{Case, Explanation, Feed, Place, explain};

use crate::Decisions;

impl Explanation for Decisions {
    const NEEDS: Feed = Feed::FIT.union(Feed::NAMES);

    /// Lists each executor with its place in an order: a slot goes before a place in the queue,
    /// then the most free slots.
    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        let rank = |place: &Place<'_>| Ok((place.seat, Reverse(place.slots_free())));
        explain::by_rank(case, rank, |_| String::new())
    }
}
