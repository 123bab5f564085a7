//! A memory of which requests some executor could take.

use std::collections::BTreeMap;

use pointsman_events::ModelId;
use pointsman_events::rows::RequestClass;

use super::super::ledger::Ledger;
use super::super::requests::Request;
use super::built_in;

/// Answers to the question whether some executor could take a request now, remembered for requests
/// that differ only in their length. Good for as long as nothing is placed or freed.
#[derive(Debug, Default)]
pub(super) struct Feasibility {
    known: BTreeMap<(Option<ModelId>, RequestClass), Known>,
}

/// Lengths known to fit somewhere and known to fit nowhere.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    fits: Option<Length>,
    too_long: Option<Length>,
}

/// The sizes with which a request's need of blocks grows, in tokens.
#[derive(Clone, Copy, Debug)]
struct Length {
    prompt: u32,
    bound: u64,
}

impl Length {
    fn within(self, other: Length) -> bool {
        self.prompt <= other.prompt && self.bound <= other.bound
    }
}

impl Feasibility {
    /// Tells whether some executor could take this waiting request now.
    pub(super) fn check(&mut self, ledger: &Ledger, request: &Request) -> bool {
        let row = &request.row;
        if row.allowed.is_some() || !row.failed_on.is_empty() {
            return built_in::first_with_room(ledger, request).is_some();
        }
        let length = Length {
            prompt: row.prompt_tokens,
            bound: request.tokens_bound(),
        };
        let known = self.known.entry((row.model, row.class)).or_default();
        if known.fits.is_some_and(|fits| length.within(fits)) {
            return true;
        }
        // A cached prefix shortens what is needed, so nothing follows from what did not fit.
        let plain = request.prompt_blocks.hashes.is_empty();
        if plain && known.too_long.is_some_and(|long| long.within(length)) {
            return false;
        }
        let fits = built_in::first_with_room(ledger, request).is_some();
        match (plain, fits) {
            (true, true) => known.fits = Some(length),
            (true, false) => known.too_long = Some(length),
            (false, _) => {}
        }
        fits
    }
}
