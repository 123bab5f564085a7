//! The choice for one request: the best executors that can take it, or what stands in the way.
//!
//! There is one order of executors, by [`Rank`], and what may go before it: the executor of the
//! session, the one its session is hashed to, those that hold enough of its prompt to be cheaper
//! than the first of all others, and, where nothing fits, one whose warm hold is waived.

mod best;
mod blocked;

use std::cmp::Reverse;

use pointsman_sdk::rendezvous;
use pointsman_sdk::wire::types::{Cached, NameKind};
use pointsman_sdk::{Executor, Mirror, Need, Obstacle, Seat, Standing, Tentative, fit};

use crate::View;
use crate::cold::{has_slot, is_cold};
use crate::index::Index;
use crate::rank::{Grade, Rank};
use best::Best;
pub(crate) use blocked::{Blocked, Lack};

/// One request and what it is looked at with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) mirror: &'a Mirror,
    pub(crate) placed: &'a Tentative,
    pub(crate) need: &'a Need<'a>,
    pub(crate) asked: &'a Cached,
    pub(crate) view: View<'a>,
}

/// An executor that can take the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) rank: Rank,
    pub(crate) seated: Seated,
}

/// A place for the request on one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seated {
    pub(crate) executor: u32,
    pub(crate) position: usize,
    pub(crate) seat: Seat,
}

/// What keeps a request off an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurdle {
    Obstacle(Obstacle),
    /// It could go there, but the executor is kept free for another model.
    Drained,
}

/// What was found for one request.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    best: Best,
    /// The session's executor, if it can take the request.
    preferred: Option<Choice>,
    /// The one the session is hashed to, of those that can take it.
    hashed: Option<(Standing, Reverse<u64>, Choice)>,
    /// Those that hold more of the prompt than others.
    holders: Vec<Choice>,
    /// The best of all others.
    other: Option<Choice>,
    /// The best standing among all that can take it.
    standing: Option<Standing>,
    /// The best of those where only a warm hold stands in the way of a slot.
    held_warm: Option<Choice>,
    pub(crate) blocked: Blocked,
}

/// Executors that go before the order of ranks, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lead {
    pub(crate) why: Why,
    pub(crate) seated: Vec<Seated>,
}

/// What the first executor is first for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Why {
    #[default]
    Rank,
    /// It served the session last.
    Session,
    /// The session is hashed to it.
    Hash,
    /// Of what it holds of the prompt.
    Overlap,
    /// A warm hold is waived.
    Waiver,
}

/// Executors in the order they should be tried, at least one.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) executors: Vec<u32>,
    /// Where the first of them takes the request.
    pub(crate) first: Seated,
    pub(crate) why: Why,
}

/// The best executors as the index has them, without looking at the others. Absent where none of
/// those can take the request.
pub(crate) fn find_indexed(case: &Case<'_>, index: &Index) -> Option<Ordered> {
    let lead = case.lead_indexed(index);
    let mut first = lead.seated.first().copied();
    let mut executors = lead.executors(case.view.candidates);
    for executor in index.best_first(case) {
        if executors.len() == case.view.candidates {
            break;
        }
        if executors.contains(&executor.id()) {
            continue;
        }
        if let Ok(seat) = case.seat(&executor) {
            executors.push(executor.id());
            first.get_or_insert(Seated::on(&executor, seat));
        }
    }
    Some(Ordered {
        executors,
        first: first?,
        why: lead.why,
    })
}

/// Looks at every one of `executors`, which come in attach order.
pub(crate) fn find<'a>(case: &Case<'_>, executors: impl Iterator<Item = Executor<'a>>) -> Found {
    let mut found = Found::new(case.view.candidates);
    for executor in executors {
        match case.seat(&executor) {
            Ok(seat) => found.take(case, &executor, seat),
            Err(Hurdle::Obstacle(obstacle)) => {
                if matches!(obstacle, Obstacle::WarmHold { .. }) && has_slot(case.placed, &executor)
                {
                    let choice = case.choice(&executor, Seat::Slot);
                    better(&mut found.held_warm, choice);
                }
                found.blocked.note(obstacle);
            }
            Err(Hurdle::Drained) => found.blocked.lacks(Lack::Drain),
        }
    }
    found
}

/// Keeps the choice of the smaller rank.
fn better(kept: &mut Option<Choice>, choice: Choice) {
    if kept.is_none_or(|kept| choice.rank < kept.rank) {
        *kept = Some(choice);
    }
}

// === impl Case ===

impl Case<'_> {
    /// The place an executor has for the request.
    #[inline]
    pub(crate) fn seat(&self, executor: &Executor<'_>) -> Result<Seat, Hurdle> {
        let seat = fit(self.mirror, self.placed, self.need, executor).map_err(Hurdle::Obstacle)?;
        let model = self.need.request.model;
        if self.view.drains.keeps_out(executor.id(), model) {
            return Err(Hurdle::Drained);
        }
        Ok(seat)
    }

    /// Whether the request may go there as far as the group says that it is kept to.
    pub(crate) fn is_in_group(&self, executor: &Executor<'_>) -> bool {
        let group = self.view.group;
        group.is_none_or(|group| group == executor.info.group)
    }

    #[inline]
    pub(crate) fn choice(&self, executor: &Executor<'_>, seat: Seat) -> Choice {
        Choice {
            rank: Rank::new(self.mirror, self.placed, executor, seat, self.view.scale),
            seated: Seated::on(executor, seat),
        }
    }

    fn is_holder(&self, executor: &Executor<'_>) -> bool {
        self.asked.overlaps.is_some() && self.view.weights.favours(self.asked, executor)
    }

    /// What goes before the order of the index.
    fn lead_indexed(&self, index: &Index) -> Lead {
        let seated = |id| {
            let executor = self.mirror.executor(id);
            let executor = executor.filter(|executor| self.is_in_group(executor))?;
            let seat = self.seat(&executor).ok()?;
            Some((executor, seat))
        };
        if let Some((preferred, seat)) = self.view.preferred.and_then(seated) {
            let standing = Standing::new(&preferred, seat);
            if standing.is_best() || !index.has_above(self, standing) {
                return Lead::one(Why::Session, Seated::on(&preferred, seat));
            }
        }
        let listed = self.asked.overlaps.iter().flatten();
        let holders = listed.filter_map(|overlap| {
            let (executor, seat) = seated(overlap.executor)?;
            self.is_holder(&executor)
                .then(|| self.choice(&executor, seat))
        });
        let holders: Vec<Choice> = holders.collect();
        if holders.is_empty() {
            return Lead::default();
        }
        let other = index.best_first(self).find_map(|executor| {
            let seat = self.seat(&executor).ok()?;
            (!self.is_holder(&executor)).then(|| self.choice(&executor, seat))
        });
        self.lead_by_overlap(holders, other)
    }

    /// The holders that are better than the best of all others, and that one: by grade, then by
    /// cost.
    fn lead_by_overlap(&self, holders: Vec<Choice>, other: Option<Choice>) -> Lead {
        let priced = |choice: Choice| -> Option<(Grade, u64, Rank, Seated)> {
            let executor = self.mirror.executor_at(choice.seated.position)?;
            let View {
                weights, booked, ..
            } = self.view;
            let cost = weights.cost(self.need, self.asked, &executor, booked);
            Some((choice.rank.grade(), cost, choice.rank, choice.seated))
        };
        let other = other.and_then(priced);
        let mut leading: Vec<_> = holders.into_iter().filter_map(priced).collect();
        leading.retain(|holder| {
            other.is_none_or(|other| (holder.0, holder.1, holder.2) < (other.0, other.1, other.2))
        });
        if leading.is_empty() {
            return Lead::default();
        }
        leading.sort_unstable_by_key(|&(grade, cost, rank, _)| (grade, cost, rank));
        leading.dedup_by_key(|priced| priced.3.executor);
        leading.extend(other);
        Lead {
            why: Why::Overlap,
            seated: leading.into_iter().map(|priced| priced.3).collect(),
        }
    }

    /// The claim of an executor to the session, the greatest of which has it.
    fn claim(&self, session: u64, executor: u32) -> u64 {
        // An executor's name outlives its id.
        let name = self.mirror.name(NameKind::Executor, executor);
        let node = name.map_or(u64::from(executor), rendezvous::node);
        rendezvous::weight(session, node)
    }
}

// === impl Found ===

impl Found {
    fn new(candidates: usize) -> Self {
        Self {
            best: Best::new(candidates),
            preferred: None,
            hashed: None,
            holders: Vec::new(),
            other: None,
            standing: None,
            held_warm: None,
            blocked: Blocked::default(),
        }
    }

    #[inline]
    fn take(&mut self, case: &Case<'_>, executor: &Executor<'_>, seat: Seat) {
        let choice = case.choice(executor, seat);
        let standing = choice.rank.standing();
        self.standing = Some(self.standing.unwrap_or(standing).min(standing));
        self.best.offer(choice);
        if case.view.preferred == Some(executor.id()) {
            self.preferred = Some(choice);
        }
        if case.is_holder(executor) {
            self.holders.push(choice);
        } else {
            better(&mut self.other, choice);
        }
        if let Some(session) = case.view.session {
            let claim = (standing, Reverse(case.claim(session, executor.id())));
            if self.hashed.is_none_or(|(best, by, _)| claim < (best, by)) {
                self.hashed = Some((claim.0, claim.1, choice));
            }
        }
    }

    /// What goes before the order of ranks: the session's executor, unless it is degraded and
    /// another is up, or would make the request queue where another has a free slot; then the one
    /// it is hashed to; then those that are cheaper for what they hold. Where nothing fits, one
    /// whose warm hold does not bind a request whose model is warm nowhere.
    pub(crate) fn lead(&self, case: &Case<'_>) -> Lead {
        let preferred = self
            .preferred
            .filter(|preferred| Some(preferred.rank.standing()) == self.standing);
        if let Some(preferred) = preferred {
            return Lead::one(Why::Session, preferred.seated);
        }
        if let Some((_, _, hashed)) = self.hashed {
            return Lead::one(Why::Hash, hashed.seated);
        }
        if !self.holders.is_empty() {
            return case.lead_by_overlap(self.holders.clone(), self.other);
        }
        match (self.standing, self.held_warm) {
            (None, Some(held)) if case.waives_holds() => Lead::one(Why::Waiver, held.seated),
            (_, _) => Lead::default(),
        }
    }

    /// Absent where nothing can take the request.
    pub(crate) fn ordered(&self, case: &Case<'_>) -> Option<Ordered> {
        let lead = self.lead(case);
        let best = self.best.iter().map(|choice| choice.seated);
        let first = lead
            .seated
            .first()
            .copied()
            .or_else(|| best.clone().next())?;
        let mut executors = lead.executors(case.view.candidates);
        for seated in best {
            if executors.len() < case.view.candidates && !executors.contains(&seated.executor) {
                executors.push(seated.executor);
            }
        }
        Some(Ordered {
            executors,
            first,
            why: lead.why,
        })
    }
}

impl Case<'_> {
    /// Whether another model's warm hold does not bind the request.
    fn waives_holds(&self) -> bool {
        self.view.waives_holds
            && self
                .need
                .request
                .model
                .is_some_and(|model| is_cold(self.mirror, self.placed, model, self.need.now))
    }
}

// === impl Lead ===

impl Lead {
    fn one(why: Why, seated: Seated) -> Self {
        Self {
            why,
            seated: vec![seated],
        }
    }

    /// The place on one of them.
    pub(crate) fn seat_of(&self, executor: u32) -> Option<Seat> {
        let mut leading = self.seated.iter();
        let seated = leading.find(|seated| seated.executor == executor)?;
        Some(seated.seat)
    }

    /// Those of them that an answer names.
    fn executors(&self, candidates: usize) -> Vec<u32> {
        let mut executors = Vec::with_capacity(candidates);
        let leading = self.seated.iter().map(|seated| seated.executor);
        executors.extend(leading.take(candidates));
        executors
    }
}

// === impl Seated ===

impl Seated {
    #[inline]
    fn on(executor: &Executor<'_>, seat: Seat) -> Self {
        Self {
            executor: executor.id(),
            position: executor.position,
            seat,
        }
    }
}
