//! Decides in which order waiting requests are tried.

use pointsman_sdk::wire::types::AskedRequest;
use pointsman_sdk::{Mirror, Moment, Priority, Feed};

use crate::Decisions;

impl Priority for Decisions {
    const NEEDS: Feed = Feed::WAITING;

    /// Puts the shortest prompt first; of equals the oldest.
    fn order(&mut self, mirror: &Mirror, _: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let known = requests.iter().filter_map(|asked| mirror.request(asked.request));
        let mut order: Vec<_> = known.map(|row| (row.prompt_tokens, row.id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }
}
