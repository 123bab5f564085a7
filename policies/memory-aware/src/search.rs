//! The choice for one request: the first executors, in one order, that pass the filters.
//!
//! The order is by [`Rank`], whatever the request. Filters turn away the executors that may not
//! take the request: those of other groups, those kept free for other models, and those where the
//! host would refuse it. Scorers put some of the rest ahead of the order, see [`lead`].

mod lead;
mod look;

use std::vec;

use pointsman_sdk::wire::types::Request;
use pointsman_sdk::{BestFirst, Case, Executor, Obstacle, Pick, Place, Readiness, Seat, Turn};

use crate::MemoryAware;
use crate::cold::Drains;
use crate::credit;
use crate::loading::Loading;
use crate::rank::Rank;
use crate::reason::Reason;
use crate::roster::Scope;
use crate::settings::{Balance, GroupHint, Rendezvous, Settings};
pub(crate) use lead::{Lead, Why};
pub(crate) use look::{Blocked, Lack};

/// One request, and the policy that searches executors for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    pub(crate) policy: &'a MemoryAware,
    /// The settings for the request.
    pub(crate) settings: &'a Settings,
    pub(crate) drains: &'a Drains,
    pub(crate) case: &'a Case<'a>,
    /// The group that the request is kept to.
    pub(crate) group: Option<u32>,
    /// The session, where it is hashed to an executor.
    pub(crate) session: Option<u64>,
    /// The loading of its model, which it may wait for.
    pub(crate) loading: Loading,
    /// The prompts of others that it may wait for where it goes.
    pub(crate) behind: Behind,
    /// The host lets it be held. Where not, no warm hold, drain, group, share or prompt of others keeps it from a place, nor a
    /// model that is being loaded.
    pub(crate) may_wait: bool,
}

/// An obstacle to a request on an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurdle {
    Obstacle(Obstacle),
    /// The request could go there, but the executor is kept free for another model.
    Drained,
    /// The request could go there, but what is left there is kept free of tenants beyond their share.
    Reserved,
    /// The request could go there, but would wait there for the prompts of others.
    Prefilling,
    /// The request could go there, but its model would have to be loaded, and that is being done already.
    Loading,
}

/// The prompts of others that a request may wait for on an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    Any,
    /// As many tokens as the settings let be pending.
    Few,
}

/// Executors for a request.
#[derive(Clone, Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) lead: Lead<'a>,
    /// Executors that the answer names, best first, at least one.
    executors: Vec<u32>,
    /// The place on the first of them.
    pub(crate) first: Place<'a>,
}

// === impl Search ===

impl<'a> Search<'a> {
    pub(crate) fn new(policy: &'a MemoryAware, settings: &'a Settings, case: &'a Case<'a>) -> Self {
        let group = case.request.group;
        let group = group.filter(|_| settings.group_hint != GroupHint::Ignore);
        let hashes = match settings.rendezvous {
            Rendezvous::Never => false,
            Rendezvous::Groups => group.is_some(),
            Rendezvous::Always => true,
        };
        let model = case.request.model;
        let model = model.filter(|_| policy.roster.loads_models());
        let loading = model.map_or(Loading::Nowhere, |model| Loading::of(case.fleet, model));
        Self {
            policy,
            settings,
            drains: &policy.drains,
            case,
            group,
            session: case.request.session.filter(|_| hashes),
            loading,
            behind: Behind::Any,
            may_wait: case.hold_end().is_some(),
        }
    }

    pub(crate) fn request(&self) -> &'a Request {
        self.case.request
    }

    /// Chooses executors for the request: in its group, as long as it stays there. Also returns
    /// the search that found them, or that found what stands in the way.
    ///
    /// # Errors
    ///
    /// What stands in the way; unknown where no look may be taken at every executor.
    pub(crate) fn choose(self, may_look: MayLook) -> (Self, Result<Choice<'a>, Blocked>) {
        if let Some(choice) = self.choice() {
            let executor = &choice.first.executor;
            if !self.may_wait || !self.is_behind_prompts(executor) {
                return (self, Ok(choice));
            }
            let soon = Self {
                behind: Behind::Few,
                ..self
            };
            if choice.lead.why.is_worth_waiting() {
                return (soon, Err(Blocked::behind(executor.id())));
            }
            return soon.choose(may_look);
        }
        let anywhere = Self {
            group: None,
            behind: Behind::Any,
            ..self
        };
        if self.group.is_some() && !self.may_wait {
            return anywhere.choose(may_look);
        }
        if may_look == MayLook::No {
            return (self, Err(Blocked::UNKNOWN));
        }
        let looked = self.look();
        let waits = self.settings.group_hint == GroupHint::Keep && looked.blocked.passes();
        if self.group.is_none() || waits || looked.waived.is_some() {
            return (self, looked.waived.ok_or(looked.blocked));
        }
        anywhere.choose(may_look)
    }

    /// The first executors in order that pass the filters, after those ahead of the order.
    fn choice(&self) -> Option<Choice<'a>> {
        let candidates = self.settings.candidates();
        let mut best_first = self.best_first();
        let first = best_first.next()?;
        let mut next = Some(first);
        let lead = self.lead(&first);
        let mut executors = Vec::with_capacity(candidates);
        let leading = lead.places.iter().map(|place| place.executor.id());
        executors.extend(leading.take(candidates));
        while executors.len() < candidates
            && let Some(place) = next.take().or_else(|| best_first.next())
        {
            if !executors.contains(&place.executor.id()) {
                executors.push(place.executor.id());
            }
        }
        Some(Choice {
            first: lead.places.first().copied().unwrap_or(first),
            lead,
            executors,
        })
    }

    /// Executors that the request may be looked for a place on.
    pub(crate) fn scope(&self) -> Scope {
        match self.group {
            Some(group) => self.policy.roster.group(group, self.request()),
            None => Scope::of(self.request()),
        }
    }

    /// The place on an executor, where neither the host nor what is kept free there keeps the request off it.
    #[inline]
    pub(crate) fn place_on(&self, executor: Executor<'a>) -> Result<Place<'a>, Hurdle> {
        let seat = self.case.fit(&executor).map_err(Hurdle::Obstacle)?;
        if self.may_wait && self.drains.keeps_out(executor.id(), self.request().model) {
            return Err(Hurdle::Drained);
        }
        if self.may_wait && self.is_reserved(&executor) {
            return Err(Hurdle::Reserved);
        }
        if self.behind == Behind::Few && self.is_behind_prompts(&executor) {
            return Err(Hurdle::Prefilling);
        }
        if self.may_wait && self.loading == Loading::Underway && self.lacks(&executor) {
            return Err(Hurdle::Loading);
        }
        Ok(self.seated(executor, seat))
    }

    /// The place on an executor that passes all filters.
    #[inline]
    fn place(&self, id: u32) -> Option<Place<'a>> {
        let executor = self.case.fleet.mirror.executor(id)?;
        if self.group.is_some_and(|group| group != executor.info.group) {
            return None;
        }
        self.place_on(executor).ok()
    }

    /// Returns whether what is left on an executor is kept free of the request.
    #[inline]
    fn is_reserved(&self, executor: &Executor<'_>) -> bool {
        let prefill_max = self.settings.share_prefill_max;
        (self.are_slots_kept(executor) || self.awaits_more(executor, prefill_max))
            && self.is_beyond_share()
    }

    /// Returns whether no more slots are left on an executor than tenants beyond their share leave free.
    #[inline]
    fn are_slots_kept(&self, executor: &Executor<'_>) -> bool {
        let total = u64::from(executor.info.slots_total);
        let kept = total * u64::from(self.settings.share_reserve) / 1000;
        kept > 0 && u64::from(self.case.fleet.slots_free(executor)) <= kept
    }

    /// Returns whether the request would wait on an executor for more prompts of others than it may.
    #[inline]
    fn is_behind_prompts(&self, executor: &Executor<'_>) -> bool {
        self.awaits_more(executor, self.settings.prefill_max)
            && !self.policy.waits.are_side_by_side(executor)
    }

    /// Returns whether a prompt that is placed on an executor waits there for more tokens of others than `most`.
    #[inline]
    fn awaits_more(&self, executor: &Executor<'_>, most: u32) -> bool {
        let most = u64::from(most);
        let tokens = credit::pending_tokens(self.case.fleet, executor);
        tokens > most && self.policy.waits.awaited(executor, tokens) > most
    }

    /// Returns whether the request's tenant is beyond its share.
    #[inline]
    pub(crate) fn is_beyond_share(&self) -> bool {
        self.policy.shares.are_exceeded(self.case)
    }

    /// Returns whether the request's model would have to be loaded on an executor.
    #[inline]
    pub(crate) fn lacks(&self, executor: &Executor<'_>) -> bool {
        self.request()
            .model
            .is_some_and(|model| executor.lacks(model))
    }

    fn seated(&self, executor: Executor<'a>, seat: Seat) -> Place<'a> {
        Place {
            fleet: self.case.fleet,
            executor,
            seat,
        }
    }

    /// The places that pass all filters, best first.
    #[inline]
    fn best_first<'s>(&'s self) -> Places<'s, 'a> {
        match self.request().allowed {
            Some(_) => Places::Sorted(self.sorted().into_iter()),
            None => Places::Walked(self, self.walk()),
        }
    }

    /// The same without the index, which a pinned request does not need.
    fn sorted(&self) -> Vec<Place<'a>> {
        let scope = self.scope();
        let executors = scope.executors(self.case.fleet.mirror);
        let places = executors.filter_map(|executor| self.place_on(executor).ok());
        let mut places: Vec<Place<'_>> = places.collect();
        places.sort_by_cached_key(|place| self.key(place));
        places
    }

    /// The index from the best executor on.
    fn walk(&self) -> BestFirst<'a, Rank> {
        let ranking = &self.policy.ranking;
        let walk = ranking.best_first(self.request());
        walk.in_group(self.group).after(self.last())
    }

    /// The executor chosen last for the model, where equals take turns.
    fn last(&self) -> Option<u32> {
        match self.settings.balance {
            Balance::Memory => None,
            Balance::Slots => self.policy.turns.last(self.request().model),
        }
    }

    /// The key of a place in the order; the least is the best.
    #[inline]
    pub(crate) fn key(&self, place: &Place<'_>) -> (Rank, Turn, usize) {
        let executor = &place.executor;
        let rank = Rank::of(self.settings, &self.policy.waits, place);
        let turn = Turn::of(executor.id(), self.last());
        (rank, turn, executor.position)
    }

    /// Returns whether some executor has a better place for the request.
    fn has_better(&self, readiness: Readiness) -> bool {
        let is_better = |place: Place<'_>| place.readiness() < readiness;
        if self.request().allowed.is_some() {
            return self.best_first().any(is_better);
        }
        let walk = self.policy.ranking.best_first(self.request());
        let mut walk = walk.in_group(self.group).better_than(readiness);
        walk.any(|id| self.place(id).is_some_and(is_better))
    }
}

/// Places that pass all filters, best first.
enum Places<'s, 'a> {
    /// Places of a pinned request, which needs no index.
    Sorted(vec::IntoIter<Place<'a>>),
    Walked(&'s Search<'a>, BestFirst<'a, Rank>),
}

impl<'a> Iterator for Places<'_, 'a> {
    type Item = Place<'a>;

    #[inline]
    fn next(&mut self) -> Option<Place<'a>> {
        match self {
            Self::Sorted(places) => places.next(),
            Self::Walked(search, walk) => walk.find_map(|id| search.place(id)),
        }
    }
}

/// Permission for a look at every executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayLook {
    Yes,
    No,
}

// === impl Choice ===

impl<'a> Choice<'a> {
    fn waived(place: Place<'a>) -> Self {
        Self {
            executors: vec![place.executor.id()],
            first: place,
            lead: Lead {
                why: Why::Waiver,
                places: vec![place],
            },
        }
    }

    /// The choice as an answer.
    pub(crate) fn pick(self, balance: Balance) -> Pick {
        let reason = match (self.lead.why, balance) {
            (Why::Session, _) => Reason::Session,
            (Why::Hash, _) => Reason::Hash,
            (Why::Overlap, _) => Reason::Overlap,
            (Why::Loaded, _) => Reason::Loaded,
            (Why::Waiver, _) => Reason::Waiver,
            (Why::Rank, Balance::Memory) => Reason::LeastPressed,
            (Why::Rank, Balance::Slots) => Reason::LeastUsed,
        };
        Pick {
            executors: self.executors,
            seat: self.first.seat,
            reason: reason.index(),
        }
    }
}
