//! Routing by KV pressure, cached prefixes, load, sessions, topology groups and warm models.
//!
//! Executors are kept in order of how good a place they are, and a request goes to the first that
//! can take it at all; its session's executor, and those that hold much of its prompt, are
//! compared with that one. Earlier placements of the same batch count as made. What cannot be
//! placed is held, until a warm hold ends if that is all that stands in its way.
//!
//! # Not here
//! The order requests come in, and who gives way when nothing fits: those are other hooks.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod choose;
mod cold;
mod credit;
mod explain;
mod index;
mod known;
mod rank;
mod reason;
mod roster;
mod settings;

use pointsman_sdk::rendezvous::Turns;
use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Change, Request};
use pointsman_sdk::{Explanation, Mirror, Moment, Need, Policy, Routing, Tentative, export};

use choose::{Blocked, Case, Found, Lack, Ordered, Why};
use cold::Drains;
use credit::{Booking, Weights};
use index::Index;
use known::Known;
use rank::Scale;
use reason::Reason;
use roster::{Roster, Scope};
pub use settings::{Balance, ColdModels, GroupHint, Rendezvous, Settings};

/// Where requests go.
#[derive(Debug)]
pub struct MemoryAware {
    settings: Settings,
    candidates: usize,
    weights: Weights,
    turns: Turns,
    index: Index,
    roster: Roster,
    /// As of the last `observe`.
    drains: Drains,
    /// Placed since the last `observe`.
    booked: Vec<Booking>,
    /// Found since then to have no place.
    known: Known,
}

impl Policy for MemoryAware {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "memory-aware".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The least pressed, least loaded executor, or one that holds the prompt; \
                      sessions and groups stay together, warm models are waited for."
                .into(),
            feed: Feed::WAITING,
            reasons: Reason::texts(),
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings,
            candidates: settings.candidates()?,
            weights: settings.weights()?,
            turns: Turns::default(),
            index: Index::new(settings.balance),
            roster: Roster::default(),
            drains: Drains::default(),
            booked: Vec::new(),
            known: Known::default(),
        })
    }

    fn cleared(&mut self) {
        self.index.clear();
        self.roster = Roster::default();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.roster.note(mirror, change);
        self.index.note(mirror, change);
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.booked.clear();
        self.known.clear();
        self.index.observed();
        self.index.refresh(mirror, &Tentative::default());
        let drains = self.settings.cold_models == ColdModels::Drain && self.roster.limits_models();
        self.drains = if drains {
            self.find_drains(mirror)
        } else {
            Drains::default()
        };
    }

    fn snapshot(&self) -> Vec<u8> {
        self.turns.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.turns = Turns::restore(state)?;
        Ok(())
    }
}

impl Routing for MemoryAware {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        self.known.begin();
        let verdict = |asked: &Cached| match mirror.request(asked.request) {
            Some(request) => {
                let need = Need::new(mirror, placed, request, at.now);
                self.route_one(mirror, placed, &need, asked)
            }
            None => hold(None, Reason::Unknown),
        };
        requests.iter().map(verdict).collect()
    }
}

impl Explanation for MemoryAware {
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<Candidate> {
        let placed = Tentative::default();
        let need = Need::new(mirror, &placed, request, at.now);
        let case = Case {
            mirror,
            placed: &placed,
            need: &need,
            asked: cached,
            view: self.view(request),
        };
        let (found, scope) = self.search(&case);
        explain::candidates(&case, &found, &scope)
    }
}

impl MemoryAware {
    fn route_one(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        need: &Need<'_>,
        asked: &Cached,
    ) -> Verdict {
        self.index.refresh(mirror, placed);
        let case = Case {
            mirror,
            placed,
            need,
            asked,
            view: self.view(need.request),
        };
        if let Some(blocked) = self.known.blocked(&case) {
            return held(blocked);
        }
        let ordered = match self.ordered(&case) {
            Ok(ordered) => ordered,
            Err(blocked) => {
                let entry = Known::entry(&case, blocked);
                self.known.note(entry);
                return held(blocked);
            }
        };
        let Ordered {
            executors,
            first,
            why,
        } = ordered;
        if let Some(executor) = mirror.executor_at(first.position) {
            self.known.placed();
            placed.place(mirror, need, &executor, first.seat);
            self.index.placed(&executor);
            let booking = self.weights.booking(need, asked, &executor);
            self.booked.push(booking);
        }
        self.turns.took(need.request.model, first.executor);
        let reason = match (why, self.settings.balance) {
            (Why::Session, _) => Reason::Session,
            (Why::Hash, _) => Reason::Hash,
            (Why::Overlap, _) => Reason::Overlap,
            (Why::Waiver, _) => Reason::Waiver,
            (Why::Rank, Balance::Memory) => Reason::LeastPressed,
            (Why::Rank, Balance::Slots) => Reason::LeastUsed,
        };
        Verdict {
            choice: Choice::Place(executors),
            reason: reason.index(),
        }
    }

    /// By the index, where it serves: a request that is pinned is better looked up where it may go,
    /// and a hash is compared with that of every executor.
    fn ordered(&self, case: &Case<'_>) -> Result<Ordered, Blocked> {
        if case.need.request.allowed.is_some() || case.view.session.is_some() {
            let (found, _) = self.search(case);
            return found.ordered(case).ok_or(found.blocked);
        }
        if let Some(ordered) = choose::find_indexed(case, &self.index) {
            return Ok(ordered);
        }
        if self.known.is_spent() {
            return Err(Blocked::UNKNOWN);
        }
        let anywhere = match case.view.group {
            None => *case,
            Some(group) => {
                let (found, stays) = self.search_group(case, group);
                if stays {
                    return found.ordered(case).ok_or(found.blocked);
                }
                let view = View {
                    group: None,
                    ..case.view
                };
                Case { view, ..*case }
            }
        };
        if case.view.group.is_some()
            && let Some(ordered) = choose::find_indexed(&anywhere, &self.index)
        {
            return Ok(ordered);
        }
        let found = choose::find(&anywhere, case.mirror.executors());
        found.ordered(&anywhere).ok_or(found.blocked)
    }

    /// Looks at every executor the request may go to: those of its group, and where none of these
    /// will ever do, or the hint is only a preference, all.
    fn search(&self, case: &Case<'_>) -> (Found, Scope) {
        let request = case.need.request;
        if let Some(group) = case.view.group {
            let (found, stays) = self.search_group(case, group);
            if stays {
                return (found, self.roster.group(group, request));
            }
        }
        let scope = Scope::of(request);
        (choose::find(case, scope.executors(case.mirror)), scope)
    }

    /// Looks at every executor of the group, and whether the request stays there: it has a place, or
    /// waits for one.
    fn search_group(&self, case: &Case<'_>, group: u32) -> (Found, bool) {
        let scope = self.roster.group(group, case.need.request);
        let found = choose::find(case, scope.executors(case.mirror));
        let waits = self.settings.group_hint == GroupHint::Keep && found.blocked.passes();
        let stays = waits || found.ordered(case).is_some();
        (found, stays)
    }

    /// The group that counts.
    fn group_of(&self, request: &Request) -> Option<u32> {
        let counts = self.settings.group_hint != GroupHint::Ignore;
        request.group.filter(|_| counts)
    }

    fn view(&self, request: &Request) -> View<'_> {
        let hashes = match self.settings.rendezvous {
            Rendezvous::Never => false,
            Rendezvous::Groups => self.group_of(request).is_some(),
            Rendezvous::Always => true,
        };
        View {
            scale: Scale {
                balance: self.settings.balance,
                last: self.turns.last(request.model),
            },
            preferred: request
                .preferred
                .filter(|_| self.settings.session_preference),
            session: request.session.filter(|_| hashes),
            group: self.group_of(request),
            waives_holds: self.settings.cold_models != ColdModels::Wait,
            drains: &self.drains,
            weights: &self.weights,
            booked: &self.booked,
            candidates: self.candidates,
        }
    }
}

/// How one request is looked at.
#[derive(Clone, Copy, Debug)]
struct View<'a> {
    scale: Scale,
    /// The session's executor, where that counts.
    preferred: Option<u32>,
    /// The session, where it is hashed to an executor.
    session: Option<u64>,
    /// The group that counts.
    group: Option<u32>,
    /// Whether a warm hold does not bind a request whose model is warm nowhere.
    waives_holds: bool,
    drains: &'a Drains,
    weights: &'a Weights,
    booked: &'a [Booking],
    candidates: usize,
}

/// A warm hold is waited for where it is all that stands in the way; whatever else is lacking
/// passes at a time nobody knows.
fn held(blocked: Blocked) -> Verdict {
    if let Some(until) = blocked.warm_until {
        return hold(Some(until), Reason::WarmHold);
    }
    let reason = match blocked.lack {
        Some(Lack::ModelLimit) => Reason::ModelLimit,
        Some(Lack::Drain) => Reason::Drain,
        Some(Lack::Slot) => Reason::NoSlot,
        Some(Lack::Blocks) => Reason::NoBlocks,
        Some(Lack::Model) => Reason::ModelsMax,
        None => Reason::Nowhere,
    };
    hold(None, reason)
}

fn hold(until: Option<u64>, reason: Reason) -> Verdict {
    Verdict {
        choice: Choice::Hold(until),
        reason: reason.index(),
    }
}

export!(MemoryAware: routing, explanation);

#[cfg(test)]
mod tests;
