//! Requests that have not started, by id.
//!
//! The host counts ids up, so that a new request nearly always comes last, and a look-up nearly always
//! finds its row at the distance of its id from the first. Rows that went leave a gap, and once there are
//! more gaps than rows these move together. So no request costs an allocation of its own.
//!
//! # Invariants
//! 1. Ids strictly ascend, and at most half of the places, or [`GAPS_KEPT`], are gaps
//!    (`tests::any_order_of_changes_keeps_requests_in_id_order`).

use crate::wire::types::Request;

/// Gaps that are kept however few rows there are.
const GAPS_KEPT: usize = 64;

/// Requests by ascending id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    places: Vec<(u64, Option<Request>)>,
    gaps: usize,
}

impl Requests {
    /// The place of the request of `id`, or the one it would go to.
    #[inline]
    fn search(&self, id: u64) -> Result<usize, usize> {
        let first = self.places.first().map_or(id, |place| place.0);
        let guess = usize::try_from(id.wrapping_sub(first)).unwrap_or(usize::MAX);
        match self.places.get(guess) {
            Some(&(found, _)) if found == id => Ok(guess),
            Some(_) | None => self.places.binary_search_by_key(&id, |place| place.0),
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&Request> {
        self.places[self.search(id).ok()?].1.as_ref()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Request> {
        self.places.iter().filter_map(|place| place.1.as_ref())
    }

    /// Puts a request in the place of the one with its id.
    pub(crate) fn insert(&mut self, request: Request) {
        let id = request.id;
        if self.places.last().is_none_or(|last| last.0 < id) {
            self.places.push((id, Some(request)));
            return;
        }
        match self.search(id) {
            Ok(at) => {
                let before = self.places[at].1.replace(request);
                self.gaps -= usize::from(before.is_none());
            }
            Err(at) => self.places.insert(at, (id, Some(request))),
        }
    }

    pub(crate) fn remove(&mut self, id: u64) {
        let Ok(at) = self.search(id) else {
            return;
        };
        let before = self.places[at].1.take();
        self.gaps += usize::from(before.is_some());
        if self.gaps > GAPS_KEPT.max(self.places.len() / 2) {
            self.places.retain(|place| place.1.is_some());
            self.gaps = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{GAPS_KEPT, Requests};
    use crate::fixture;
    use crate::wire::types::Request;

    #[test]
    fn any_order_of_changes_keeps_requests_in_id_order() {
        let mut requests = Requests::default();
        let mut model = BTreeMap::new();
        // A linear congruential walk over ids of a window that moves on: requests come, are replaced, go and
        // come again.
        let mut state = 1_u32;
        for step in 0..20_000_u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = u64::from(step / 8 + (state >> 16) % 200);
            if state >> 31 == 0 {
                requests.remove(id);
                model.remove(&id);
            } else {
                let request = Request {
                    prompt_tokens: step,
                    ..fixture::request(id)
                };
                requests.insert(request);
                model.insert(id, step);
            }
            let all = requests.iter().map(|row| (row.id, row.prompt_tokens));
            assert!(all.eq(model.iter().map(|(id, tokens)| (*id, *tokens))));
            let tokens = requests.get(id).map(|row| row.prompt_tokens);
            assert_eq!(tokens, model.get(&id).copied());
            assert!(requests.places.is_sorted_by(|a, b| a.0 < b.0));
            let places = requests.places.len();
            assert_eq!(places - requests.gaps, model.len());
            assert!(requests.gaps <= GAPS_KEPT.max(places / 2));
        }
    }
}
