//! The requests that live, as far as metrics and the monitor have to remember them.
//!
//! # Bounds
//! A live request has one entry; its end, which comes exactly once, takes it out.

use std::collections::BTreeMap;

use pointsman_core::rows::RequestClass;
use pointsman_core::{
    Decided, ExecutorId, Fact, Micros, ModelId, RequestId, Round, Stamped, Stay, TenantId,
};

/// The live requests, folded from the facts.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    live: BTreeMap<RequestId, Life>,
}

/// The course of a live request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) tenant: TenantId,
    /// The model that the client asks for; absent: any.
    pub(crate) model: Option<ModelId>,
    pub(crate) class: RequestClass,
    /// The executor that served the request's session last; absent: none is known.
    pub(crate) preferred: Option<ExecutorId>,
    pub(crate) arrived: Micros,
    /// The time since which the request has had no place.
    pub(crate) waiting_since: Micros,
    /// The number of places that the request has had.
    pub(crate) places: u32,
    /// The decision because of which the request waits, with its round; absent: there was none.
    pub(crate) delayed: Option<(Round, Decided)>,
    /// The newest stay that has ended; absent: none has.
    pub(crate) last_stay: Option<LastStay>,
    /// The time of the first place; absent: there was none.
    pub(crate) first_placed: Option<Micros>,
    /// The executor of the newest place; absent: there was none.
    pub(crate) executor: Option<ExecutorId>,
    /// True while it has a place, whose end is a fact to come.
    pub(crate) stays: bool,
    /// The time at which the first token was heard of; absent: it was not.
    pub(crate) first_token: Option<Micros>,
    /// The tokens used so far.
    pub(crate) used: UsedTokens,
}

/// The tokens of a request, its prompt counted once however often it was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsedTokens {
    pub(crate) prompt_tokens: u32,
    /// The part of the prompt that was cached.
    pub(crate) cached_tokens: u32,
    pub(crate) output_tokens: u32,
}

/// A stay that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastStay {
    pub(crate) executor: ExecutorId,
    /// The time from the beginning of the work to its end.
    pub(crate) lasted: Micros,
}

impl UsedTokens {
    /// Adds those of a stay that has ended.
    pub(crate) fn stayed(&mut self, stay: &Stay) {
        if self.output_tokens == 0 {
            self.prompt_tokens = stay.prompt_tokens;
            self.cached_tokens = stay.cached_tokens;
        }
        self.output_tokens = self.output_tokens.saturating_add(stay.output_tokens);
    }
}

impl Lives {
    /// Folds in a fact. Returns the life of the request that it is about, as it was before; absent: it
    /// is about none, or about one that has ended.
    pub(crate) fn fold(&mut self, stamped: &Stamped) -> Option<Life> {
        let now = stamped.now;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "other facts change nothing that is remembered"
        )]
        match &stamped.fact {
            Fact::Arrived {
                request,
                tenant,
                model,
                class,
                preferred,
            } => {
                let life = Life {
                    tenant: *tenant,
                    model: *model,
                    class: *class,
                    preferred: *preferred,
                    arrived: now,
                    waiting_since: now,
                    places: 0,
                    delayed: None,
                    last_stay: None,
                    first_placed: None,
                    executor: None,
                    stays: false,
                    first_token: None,
                    used: UsedTokens::default(),
                };
                self.live.insert(*request, life);
                Some(life)
            }
            Fact::Parked(request, by) | Fact::Held(request, _, by) => {
                let delayed = (stamped.round, *by);
                self.change(*request, |life| life.delayed = Some(delayed))
            }
            Fact::Unparked(request) => self.change(*request, |life| life.delayed = None),
            Fact::Placed {
                request, executor, ..
            } => self.change(*request, |life| {
                life.first_placed.get_or_insert(now);
                life.executor = Some(*executor);
                life.stays = true;
                life.places = life.places.saturating_add(1);
                life.delayed = None;
            }),
            Fact::Requeued(request, _) => self.change(*request, |life| life.waiting_since = now),
            Fact::StayEnded(stay) => self.change(stay.request, |life| life.stay_ended(now, stay)),
            Fact::Ended(request, _) => self.live.remove(request),
            _ => None,
        }
    }

    /// Takes note that tokens of `request` were generated. Returns the time since its arrival if they are
    /// its first.
    pub(crate) fn generated(&mut self, now: Micros, request: RequestId) -> Option<Micros> {
        let life = self.live.get_mut(&request)?;
        if life.first_token.is_some() {
            return None;
        }
        life.first_token = Some(now);
        Some(now.since(life.arrived))
    }

    /// The life of a live request.
    pub(crate) fn of(&self, request: RequestId) -> Option<&Life> {
        self.live.get(&request)
    }

    /// Changes a life. Returns it as it was before.
    fn change(&mut self, request: RequestId, change: impl FnOnce(&mut Life)) -> Option<Life> {
        let life = self.live.get_mut(&request)?;
        let before = *life;
        change(life);
        Some(before)
    }
}

impl Life {
    /// The executor that is expected to take the request, because it served its session last. It is
    /// judged by the first place alone.
    pub(crate) fn expected(&self) -> Option<ExecutorId> {
        self.preferred.filter(|_| self.places == 0)
    }

    fn stay_ended(&mut self, now: Micros, stay: &Stay) {
        self.stays = false;
        self.used.stayed(stay);
        self.last_stay = stay.started.map(|started| LastStay {
            executor: stay.executor,
            lasted: now.since(started),
        });
    }
}

#[cfg(test)]
mod tests {
    use pointsman_core::{Outcome, RequeuedWhy};

    use super::*;

    const REQUEST: RequestId = RequestId(3);

    fn at(now: u64, fact: Fact) -> Stamped {
        Stamped {
            now: Micros(now),
            round: Round(1),
            fact,
        }
    }

    #[test]
    fn a_request_that_has_ended_is_forgotten() {
        let mut lives = Lives::default();
        let born = lives.fold(&at(
            5,
            Fact::Arrived {
                request: REQUEST,
                tenant: TenantId(1),
                model: None,
                class: RequestClass::Throughput,
                preferred: None,
            },
        ));
        assert_eq!(born.map(|life| life.arrived), Some(Micros(5)));
        lives.fold(&at(9, Fact::Requeued(REQUEST, RequeuedWhy::Evicted)));
        let end = at(12, Fact::Ended(REQUEST, Outcome::Cancelled));
        let life = lives.fold(&end).unwrap();
        assert_eq!((life.arrived, life.waiting_since), (Micros(5), Micros(9)));
        assert_eq!(lives.fold(&end), None);
        assert!(lives.live.is_empty());
    }
}
