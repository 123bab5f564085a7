//! Routing by KV pressure, load and warm models.
//!
//! Executors are kept in order of how good a place they are, and a request goes to the first that
//! can take it at all. Earlier placements of the same batch count as made. What cannot be placed
//! is held, until a warm hold ends if that is all that stands in its way.
//!
//! # Not here
//! The order requests come in, and who gives way when nothing fits: those are other hooks.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod choose;
mod explain;
mod index;
mod rank;
mod reason;
mod rotation;
mod settings;

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Change, Request};
use pointsman_sdk::{Explanation, Mirror, Moment, Need, Policy, Routing, Tentative, export};

use choose::{Blocked, Lack, Ordered};
use index::Index;
use rank::Scale;
use reason::Reason;
use rotation::Rotation;
pub use settings::{Balance, Settings};

/// Where requests go.
#[derive(Debug)]
pub struct MemoryAware {
    settings: Settings,
    candidates: usize,
    rotation: Rotation,
    index: Index,
}

impl Policy for MemoryAware {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "memory-aware".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The least pressed, least loaded executor; sessions stay, warm models are \
                      waited for."
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
            rotation: Rotation::default(),
            index: Index::default(),
        })
    }

    fn cleared(&mut self) {
        self.index.clear();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        if self.settings.balance == Balance::Memory {
            self.index.note(mirror, change);
        }
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.index.begin();
        self.index.refresh(mirror, &Tentative::default());
    }

    fn snapshot(&self) -> Vec<u8> {
        self.rotation.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.rotation = Rotation::restore(state)?;
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
        let verdict = |asked: &Cached| match mirror.request(asked.request) {
            Some(request) => self.route_one(mirror, placed, at, request),
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
        _cached: &Cached,
    ) -> Vec<Candidate> {
        explain::candidates(mirror, request, at.now, self.view(request))
    }
}

impl MemoryAware {
    fn route_one(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        request: &Request,
    ) -> Verdict {
        let need = Need::new(mirror, placed, request, at.now);
        let view = self.view(request);
        let indexed = self.find_indexed(mirror, placed, &need, &view);
        let ordered = match indexed {
            Some(ordered) => ordered,
            None => {
                let found = choose::find(mirror, placed, &need, &view);
                match found.ordered() {
                    Some(ordered) => ordered,
                    None => return held(found.blocked),
                }
            }
        };
        let Ordered {
            executors,
            first,
            by_session,
        } = ordered;
        if let Some(executor) = mirror.executor_at(first.position) {
            placed.place(mirror, &need, &executor, first.seat);
            self.index.placed(executor.info.device);
        }
        self.rotation.chosen(request.model, first.executor);
        let reason = match (by_session, self.settings.balance) {
            (true, _) => Reason::Session,
            (false, Balance::Memory) => Reason::LeastPressed,
            (false, Balance::Slots) => Reason::LeastUsed,
        };
        Verdict {
            choice: Choice::Place(executors),
            reason: reason.index(),
        }
    }

    /// By the index, where there is one that serves: slots are balanced by turns, which differ by
    /// model, and a pinned request is better looked up where it may go.
    fn find_indexed(
        &mut self,
        mirror: &Mirror,
        placed: &Tentative,
        need: &Need<'_>,
        view: &View,
    ) -> Option<Ordered> {
        if self.settings.balance != Balance::Memory || need.request.allowed.is_some() {
            return None;
        }
        self.index.refresh(mirror, placed);
        choose::find_indexed(mirror, placed, need, view, &self.index)
    }

    fn view(&self, request: &Request) -> View {
        View {
            scale: Scale {
                balance: self.settings.balance,
                last: self.rotation.last(request.model),
            },
            preferred: request
                .preferred
                .filter(|_| self.settings.session_preference),
            candidates: self.candidates,
        }
    }
}

/// How one request is looked at.
#[derive(Clone, Copy, Debug)]
struct View {
    scale: Scale,
    /// The session's executor, where that counts.
    preferred: Option<u32>,
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
