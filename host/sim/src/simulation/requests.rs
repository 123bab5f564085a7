//! Requests as their clients see them: what they will get, and what they have.

use std::collections::BTreeMap;
use std::fmt;

use pointsman_core::{
    BlockHash, Micros, ModelId, NewRequest, Outcome, Progress, RequestId, SessionKey,
};

use super::Ids;
use crate::executor::{Contents, FirstToken};
use crate::measure::{RequestRecord, jain_of};
use crate::numbers::{float, whole};
use crate::workload::{Arrival, ClientBounds, PromptText, Roll};

/// Bounds and hints that clients give with their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPlan {
    /// Most tokens that a client asks for, unless its answer has more.
    pub output_tokens_max: u32,
    /// Knowledge of the length of an answer.
    pub lengths: AnswerLengths,
    /// True if requests may wait outside the queue.
    pub may_wait: bool,
}

/// Knowledge that clients give of the length of an answer before they have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerLengths {
    /// Nothing but a bound that is the same for all.
    Unknown,
    /// The length, as a hint.
    Hinted,
    /// The length, as the bound: what an oracle would say.
    Known,
}

impl Default for RequestPlan {
    fn default() -> Self {
        Self {
            output_tokens_max: 4096,
            lengths: AnswerLengths::Unknown,
            may_wait: true,
        }
    }
}

/// The requests of a simulation.
pub(super) struct SimulatedRequests {
    plan: RequestPlan,
    /// The size of the blocks whose hashes the machine is told with a prompt.
    tokens_per_block: u32,
    records: Vec<RequestRecord>,
    /// Data that is only of use until the end, by the request's number.
    open: Vec<Option<Box<Open>>>,
    live: u64,
    placed: u64,
    /// Tokens served to each tenant that has asked.
    served: BTreeMap<u32, u64>,
}

/// A request that has not ended.
#[derive(Debug)]
struct Open {
    prompt: PromptText,
    session: Option<SessionKey>,
    model: Option<ModelId>,
    output_tokens: u32,
    /// Tokens that the machine was told of, over all placements.
    generated: u32,
    last_token_at: Option<Micros>,
    ticket: Option<u64>,
    is_placed: bool,
    /// Executors that have taken it up so far.
    attempts: u32,
}

/// A request of a session that runs.
#[derive(Debug)]
pub(super) struct OfSession {
    pub(super) session: SessionKey,
    pub(super) model: Option<ModelId>,
    /// The place of its executor.
    pub(super) station: usize,
}

/// Order to an executor to take up a request.
#[derive(Debug)]
pub(super) struct ToStart {
    pub(super) prompt: Vec<Contents>,
    pub(super) output_tokens: u32,
    pub(super) last_token_at: Option<Micros>,
    /// Times that the request was taken up before.
    pub(super) attempt: u32,
}

impl fmt::Debug for SimulatedRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedRequests")
            .field("records", &self.records.len())
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

impl SimulatedRequests {
    pub(super) fn new(plan: RequestPlan, tokens_per_block: u32) -> Self {
        Self {
            plan,
            tokens_per_block,
            records: Vec::new(),
            open: Vec::new(),
            live: 0,
            placed: 0,
            served: BTreeMap::new(),
        }
    }

    /// Requests that have not ended.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Requests that have a place.
    pub(super) fn placed(&self) -> u64 {
        self.placed
    }

    /// Requests that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.records.len() as u64 - self.live
    }

    pub(super) fn records(&self) -> &[RequestRecord] {
        &self.records
    }

    pub(super) fn take_records(&mut self) -> Vec<RequestRecord> {
        std::mem::take(&mut self.records)
    }

    /// The greatest share that one tenant has of the tokens served so far, in permille.
    pub(super) fn largest_share(&self) -> u64 {
        let total: u64 = self.served.values().sum();
        let most = self.served.values().max().copied().unwrap_or(0);
        whole(float(most) * 1000.0 / float(total.max(1)))
    }

    /// Jain's index of the tokens served so far to tenants that have asked, in permille.
    pub(super) fn jain_permille(&self, roll: &Roll) -> u64 {
        let share = |(tenant, tokens): (&u32, &u64)| {
            let entry = roll.tenants.get(*tenant as usize);
            entry.map(|entry| (*tokens, entry.weight))
        };
        whole(jain_of(self.served.iter().filter_map(share)) * 1000.0)
    }

    /// A request as the machine is told it, but for the executors that it is allowed and the one that it
    /// prefers.
    pub(super) fn new_request(&self, arrival: &Arrival, ids: &Ids, now: Micros) -> NewRequest {
        let tenant = ids.tenants[arrival.tenant as usize];
        let asked = arrival.asked.unwrap_or(ClientBounds {
            output_tokens_max: self.plan.output_tokens_max,
            output_tokens_expected: None,
            may_wait: self.plan.may_wait,
            head_start: Micros(0),
        });
        let most = asked.output_tokens_max.max(arrival.output_tokens);
        let lengths = self.plan.lengths;
        let bound = if lengths == AnswerLengths::Known {
            arrival.output_tokens
        } else {
            most
        };
        let expected = match lengths {
            AnswerLengths::Unknown => asked.output_tokens_expected,
            AnswerLengths::Hinted | AnswerLengths::Known => Some(arrival.output_tokens),
        };
        let labels = arrival.labels.iter().map(|at| ids.labels[*at as usize]);
        NewRequest {
            model: arrival.model.map(|at| ids.models[at as usize]),
            session: arrival.session.map(SessionKey),
            class: arrival.class,
            priority: arrival.priority,
            labels: labels.collect(),
            deadline: arrival.patience.map(|patience| now.after(patience)),
            may_wait: asked.may_wait,
            head_start: asked.head_start,
            group: arrival.group,
            prompt_blocks: arrival.prompt.blocks(self.tokens_per_block),
            output_tokens_expected: expected,
            ..NewRequest::new(tenant, arrival.prompt.tokens, bound)
        }
    }

    /// Takes in a request that the machine has given this number.
    pub(super) fn arrive(&mut self, id: RequestId, arrival: Arrival, ids: &Ids, now: Micros) {
        assert_eq!(
            place(id),
            self.records.len(),
            "requests are numbered as they arrive"
        );
        self.live += 1;
        self.served.entry(arrival.tenant).or_default();
        self.records.push(RequestRecord {
            tenant: arrival.tenant,
            class: arrival.class,
            arrived: now,
            started: None,
            first_token: None,
            ended: None,
            executor: None,
            prompt_tokens: arrival.prompt.tokens,
            cached_tokens: 0,
            output_tokens: 0,
            outcome: None,
        });
        self.open.push(Some(Box::new(Open {
            prompt: arrival.prompt,
            session: arrival.session.map(SessionKey),
            model: arrival.model.map(|at| ids.models[at as usize]),
            output_tokens: arrival.output_tokens,
            generated: 0,
            last_token_at: None,
            ticket: arrival.ticket,
            is_placed: false,
            attempts: 0,
        })));
    }

    /// Notes that a request is taken up, and returns what its executor has to know, with the prompt in blocks
    /// of that executor's size; absent: it has ended.
    pub(super) fn start(
        &mut self,
        id: RequestId,
        executor: u32,
        tokens_per_block: u32,
        now: Micros,
    ) -> Option<ToStart> {
        let record = self.records.get_mut(place(id))?;
        record.started.get_or_insert(now);
        record.executor = Some(executor);
        let open = self.open.get_mut(place(id))?.as_deref_mut()?;
        self.placed += u64::from(!std::mem::replace(&mut open.is_placed, true));
        let attempt = open.attempts;
        open.attempts += 1;
        let blocks = open.prompt.blocks(tokens_per_block);
        let contents = |hash: BlockHash| Contents {
            model: open.model,
            hash,
        };
        Some(ToStart {
            prompt: blocks.hashes.into_iter().map(contents).collect(),
            output_tokens: open.output_tokens.saturating_sub(open.generated).max(1),
            last_token_at: open.last_token_at,
            attempt,
        })
    }

    /// Notes that a request has no place any more.
    pub(super) fn displace(&mut self, id: RequestId) {
        if let Some(Some(open)) = self.open.get_mut(place(id)) {
            self.placed -= u64::from(std::mem::take(&mut open.is_placed));
        }
    }

    /// Notes tokens that were generated.
    pub(super) fn progress(&mut self, made: Progress, now: Micros) {
        let Some(Some(open)) = self.open.get_mut(place(made.request)) else {
            return;
        };
        let record = &mut self.records[place(made.request)];
        open.generated += made.generated;
        record.output_tokens = open.generated;
        if made.generated > 0 {
            open.last_token_at = Some(now);
        }
        let tokens = u64::from(made.prefilled) + u64::from(made.generated);
        *self.served.entry(record.tenant).or_default() += tokens;
    }

    /// Notes the first token of a placement. Returns the time to it, if it is the first of all.
    pub(super) fn first_token(&mut self, first: FirstToken, now: Micros) -> Option<Micros> {
        let record = self.records.get_mut(place(first.request))?;
        if record.first_token.is_some() {
            return None;
        }
        record.first_token = Some(now);
        record.cached_tokens = first.cached_tokens.min(record.prompt_tokens);
        record.ttft()
    }

    /// Tokens of a request's prompt.
    pub(super) fn prompt_tokens(&self, id: RequestId) -> u32 {
        self.records
            .get(place(id))
            .map_or(0, |record| record.prompt_tokens)
    }

    /// Notes the tokens of an answer that its executor has generated and not told of, and returns all that
    /// the host has: the answer goes on from there.
    pub(super) fn keep(&mut self, id: RequestId, untold: u32, now: Micros) -> u32 {
        let made = Progress {
            request: id,
            prefilled: 0,
            generated: untold,
        };
        self.progress(made, now);
        let open = self.open.get(place(id)).and_then(Option::as_ref);
        open.map_or(0, |open| open.generated)
    }

    /// A request that has not ended, if it is of a session and was taken up.
    pub(super) fn served_of_session(&self, id: RequestId) -> Option<OfSession> {
        let open = self.open.get(place(id))?.as_ref()?;
        let executor = self.records.get(place(id))?.executor?;
        Some(OfSession {
            session: open.session?,
            model: open.model,
            station: executor as usize,
        })
    }

    /// Notes the end of a request. Returns the ticket of its arrival, if the workload wants to know.
    pub(super) fn end(&mut self, id: RequestId, outcome: Outcome, now: Micros) -> Option<u64> {
        self.displace(id);
        let open = self.open.get_mut(place(id))?.take()?;
        let record = self.records.get_mut(place(id))?;
        record.ended = Some(now);
        record.outcome = Some(outcome);
        self.live -= 1;
        open.ticket
    }
}

/// The place of a request in lists: its number, as requests are numbered from zero.
fn place(id: RequestId) -> usize {
    usize::try_from(id.0).unwrap_or(usize::MAX)
}
