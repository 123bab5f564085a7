//! An arrival against everything else: tenants that want the room of one that has used too much, the
//! place that one takes which has used too little, and executors that are saturated.

use std::cmp::Reverse;

use pointsman_sdk::Executor;
use pointsman_sdk::wire::types::Request;

use super::Door;
use crate::queue::{Demand, Queued};

impl Door<'_> {
    /// Seconds until the request's tenant is within its tokens per minute again; absent where it is,
    /// or where no other tenant wants the room.
    pub(super) fn overdrawn_secs(&mut self, request: &Request) -> Option<u32> {
        let tenant = self.books.mirror.tenant(request.tenant)?;
        let secs = self.books.tenants.overdrawn_secs(tenant, self.books.now)?;
        self.is_wanted(request).then_some(secs)
    }

    /// Returns whether another tenant, one within its tokens per minute, has a request in the queue
    /// that could go where this one could. Requests in the queue have found no place so far.
    fn is_wanted(&mut self, request: &Request) -> bool {
        let books = self.books;
        let is_entitled = |tenant: u32| {
            let row = books.mirror.tenant(tenant);
            row.is_some_and(|row| books.tenants.overdrawn_secs(row, books.now).is_none())
        };
        let lanes = books.queue.lanes();
        let others = lanes.filter(|&(tenant, _)| tenant != request.tenant && is_entitled(tenant));
        let mut demands = others.flat_map(|(_, lane)| lane.demands());
        demands.any(|demand| self.is_wanted_for(request, demand))
    }

    /// Returns whether all executors that could take the request are saturated, of which there is at
    /// least one.
    pub(super) fn is_saturated_for(&mut self, request: &Request) -> bool {
        let mut saturated = false;
        for executor in self.books.mirror.executors() {
            if self.checks_left == 0 {
                return false;
            }
            self.checks_left -= 1;
            if executor.is_live() && takes(&executor, request.model, request.allowed.as_deref()) {
                if !executor.load.saturated {
                    return false;
                }
                saturated = true;
            }
        }
        saturated
    }

    fn is_wanted_for(&mut self, request: &Request, demand: &Demand) -> bool {
        let mut executors = self.books.mirror.executors();
        executors.any(|executor| {
            if self.checks_left == 0 {
                return false;
            }
            self.checks_left -= 1;
            executor.is_live()
                && takes(&executor, request.model, request.allowed.as_deref())
                && takes(&executor, demand.model, demand.allowed.as_deref())
        })
    }

    /// The queued request that makes place for `request`: of the tenant that is furthest beyond
    /// its share of the tokens served, the newest of the least urgent. Only for a tenant that is
    /// within its share, of the tokens and of the places in the queue.
    pub(super) fn place_of_another(&self, request: &Request) -> Option<Queued> {
        let queue = self.books.queue;
        let tenant = self.books.mirror.tenant(request.tenant)?;
        let entered = self.entered.get(&tenant.id).copied().unwrap_or(0);
        let places = queue.lane(tenant.id).map_or(0, |lane| lane.len()) + entered;
        let is_due = self.contest.leaves_room(tenant, places, queue.len())
            && self.beyond_share(tenant.id, 1000).is_none();
        if !is_due {
            return None;
        }
        let others = self.furthest_beyond.get_or_init(|| self.rank_beyond());
        let mut others = others.iter().filter(|(_, other)| *other != tenant.id);
        others.find_map(|(_, other)| queue.lane(*other)?.newest(&self.displaced))
    }

    /// The tenants with queued requests that are beyond the tolerance, the furthest first; ties in
    /// the order they were made known.
    fn rank_beyond(&self) -> Vec<(Reverse<u128>, u32)> {
        let tolerated = 1000 + self.settings.share_tolerance;
        let lanes = self.books.queue.lanes();
        let beyond = lanes.filter_map(|(tenant, _)| {
            let beyond = self.beyond_share(tenant, tolerated)?;
            Some((Reverse(beyond), tenant))
        });
        let mut ranked: Vec<_> = beyond.collect();
        ranked.sort_unstable();
        ranked
    }

    /// The excess of a tenant's use over `permille` of its share, if there is one.
    pub(super) fn beyond_share(&self, tenant: u32, permille: u32) -> Option<u128> {
        let tenant = self.books.mirror.tenant(tenant)?;
        let tenants = self.books.tenants;
        tenants.beyond_share(tenant, self.contest, permille)
    }
}

/// Returns whether an executor serves a model, and is allowed.
fn takes(executor: &Executor<'_>, model: Option<u32>, allowed: Option<&[u32]>) -> bool {
    let serves = match (model, &executor.info.serves) {
        (Some(model), Some(serves)) => serves.contains(&model),
        (Some(_), None) | (None, Some(_) | None) => true,
    };
    serves && allowed.is_none_or(|allowed| allowed.contains(&executor.id()))
}
