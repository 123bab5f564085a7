//! Requests that may wait: by the tokens their tenant has used, by how long they would wait, then by room in
//! order of arrival, then by the operator's choice of overflow.
//!
//! # Bounds
//! At most [`CHECKS_MAX`] executors, and tenants with waiting requests, are looked at for one question, to find out
//! whether others want the room of a tenant that is over its tokens per minute, whether all executors are
//! saturated, and who goes before an arrival. Past that no request is refused for it.

mod late;
mod others;

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use pointsman_sdk::tenants::{Contest, Tenants};
use pointsman_sdk::wire::admission::{Choice, Displacement, Verdict};
use pointsman_sdk::wire::types::Request;
use pointsman_sdk::{Mirror, Urgency};

use crate::queue::{Queue, Queued};
use crate::reason::Reason;
use crate::settings::{Overflow, Settings};

/// Executors and tenants looked at for one question.
const CHECKS_MAX: u32 = 50_000;
/// Looks that one at a tenant's share of the last minute counts as: it takes as long.
const CHECKS_OF_SHARE: u32 = 4;

/// The queue, and the tokens that tenants have used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Books<'a> {
    pub(crate) mirror: &'a Mirror,
    pub(crate) queue: &'a Queue,
    pub(crate) tenants: &'a Tenants,
    pub(crate) now: u64,
}

/// Answers one question, arrival by arrival.
#[derive(Debug)]
pub(crate) struct Door<'a> {
    books: Books<'a>,
    settings: &'a Settings,
    contest: Contest,
    /// The same among the tenants of the last minute, found when first asked for.
    contest_of_minute: OnceCell<Contest>,
    /// Tenants that were looked at: true for those beyond their share of the last minute.
    beyond_of_minute: BTreeMap<u32, bool>,
    /// The tenants beyond their share, found when first asked for.
    furthest_beyond: OnceCell<Vec<(Reverse<u128>, u32)>>,
    room: u32,
    /// Requests that there is room for outside the queue.
    parking: usize,
    /// Requests displaced in this answer, each once.
    displaced: BTreeSet<u64>,
    /// Requests let in by this answer, by tenant.
    entered: BTreeMap<u32, usize>,
    checks_left: u32,
}

impl<'a> Door<'a> {
    pub(crate) fn new(books: Books<'a>, settings: &'a Settings, room: u32) -> Self {
        let parking = usize::try_from(books.mirror.bounds().parking_max).unwrap_or(usize::MAX);
        Self {
            books,
            settings,
            parking: parking.saturating_sub(books.queue.parked()),
            contest: books.tenants.contest(books.mirror.tenants(), books.now),
            contest_of_minute: OnceCell::new(),
            beyond_of_minute: BTreeMap::new(),
            furthest_beyond: OnceCell::new(),
            room,
            displaced: BTreeSet::new(),
            entered: BTreeMap::new(),
            checks_left: CHECKS_MAX,
        }
    }

    pub(crate) fn verdict(&mut self, id: u64) -> Verdict {
        let (choice, reason) = self.choice(id);
        Verdict {
            choice,
            reason: reason.index(),
        }
    }

    fn choice(&mut self, id: u64) -> (Choice, Reason) {
        let request = self.books.mirror.request(id);
        let retry_after = request.and_then(|request| self.overdrawn_secs(request));
        if let Some(secs) = retry_after {
            let secs = secs.max(self.settings.retry_after);
            return (Choice::Shed(secs), Reason::Overdrawn);
        }
        let shed = Choice::Shed(self.settings.retry_after);
        if request.is_some_and(|request| !request.may_wait && self.is_saturated_for(request)) {
            return (shed, Reason::Saturated);
        }
        if let Some((secs, reason)) = request.and_then(|request| self.late_secs(request)) {
            let secs = secs.max(self.settings.retry_after);
            return (Choice::Shed(secs), reason);
        }
        if self.room > 0 {
            self.room -= 1;
            self.enters(request);
            return (Choice::Admit, Reason::Room);
        }
        match request {
            None => (shed, Reason::Unknown),
            Some(request) if !request.may_wait => (shed, Reason::Background),
            Some(request) => self.without_room(request, shed),
        }
    }

    fn without_room(&mut self, request: &Request, shed: Choice) -> (Choice, Reason) {
        if let Some(queued) = self.place_of_another(request) {
            return self.displace(request, queued, Reason::PlaceOfAnother);
        }
        match self.settings.overflow {
            Overflow::Block if self.parking == 0 => (shed, Reason::NoRoom),
            Overflow::Block => {
                self.parking -= 1;
                (Choice::Park, Reason::Parked)
            }
            Overflow::DropNewest => (shed, Reason::Full),
            Overflow::DropOldest => {
                let beyond =
                    self.beyond_share(request.tenant, 1000 + self.settings.share_tolerance);
                let (oldest, otherwise) = match beyond {
                    Some(_) => (self.oldest_of(request.tenant), Reason::BeyondShare),
                    None => (self.oldest(), Reason::LeastUrgent),
                };
                let urgency = Urgency::from(request);
                match oldest.filter(|queued| queued.urgency <= urgency) {
                    Some(queued) => self.displace(request, queued, Reason::Displaced),
                    None => (shed, otherwise),
                }
            }
        }
    }

    fn displace(&mut self, request: &Request, queued: Queued, reason: Reason) -> (Choice, Reason) {
        self.displaced.insert(queued.request);
        self.enters(Some(request));
        let displaced = Displacement {
            request: queued.request,
            retry_after: self.settings.retry_after,
        };
        (Choice::Displace(displaced), reason)
    }

    fn enters(&mut self, request: Option<&Request>) {
        if let Some(request) = request {
            *self.entered.entry(request.tenant).or_default() += 1;
        }
    }

    /// The oldest of the least urgent requests in the queue.
    fn oldest(&self) -> Option<Queued> {
        let lanes = self.books.queue.lanes();
        lanes
            .filter_map(|(_, lane)| lane.oldest(&self.displaced))
            .min()
    }

    /// The oldest of the least urgent requests of one tenant.
    fn oldest_of(&self, tenant: u32) -> Option<Queued> {
        self.books.queue.lane(tenant)?.oldest(&self.displaced)
    }
}

#[cfg(test)]
mod tests;
