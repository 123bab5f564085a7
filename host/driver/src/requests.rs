//! The requests in hand: the ticket, the job and the channels to the client of each.
//!
//! The machine has the state of each request; this module has the parts that the machine does not
//! need.

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_core::{ExecutorId, Micros, Outcome, RequestId, SessionKey, StartOrder, Stay};
use pointsman_executor::delivery::{Authorship, Closing, End, Placement, StopReason, TextSink};
use pointsman_executor::job::{Job, JobState, Recovered};
use pointsman_executor::trace::TraceId;

use super::message::TicketId;
use super::quota::QuotaHold;

/// The requests that have no outcome yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    records: BTreeMap<RequestId, Record>,
    tickets: BTreeMap<TicketId, RequestId>,
}

/// A request in hand.
#[derive(Debug)]
pub(super) struct Record {
    // Immutable.
    ticket: TicketId,
    /// The trace that the client named; absent: none.
    trace: Option<TraceId>,
    job: Arc<Job>,
    /// The client's session, or the key by which its conversation is recognised; absent: neither.
    session: Option<SessionKey>,
    sink: TextSink,
    closing: Closing,
    // Owned state.
    /// The progress of the request while no executor has it; absent: it has not begun.
    state: Option<Box<JobState>>,
    /// The executor that has the sequence; absent: none.
    executor: Option<ExecutorId>,
    /// The decision behind the newest placement; absent: there was none.
    placed_by: Option<Authorship>,
    stop: Option<StopReason>,
    refused_by: Option<Authorship>,
    /// The hold on the limits of the tenant, given back with the record; absent: it has none.
    quota: Option<QuotaHold>,
}

impl Record {
    pub(super) fn new(
        (ticket, trace): (TicketId, Option<TraceId>),
        (job, session): (Arc<Job>, Option<SessionKey>),
        sink: TextSink,
        (closing, quota): (Closing, Option<QuotaHold>),
    ) -> Self {
        Self {
            ticket,
            trace,
            job,
            session,
            sink,
            closing,
            state: None,
            executor: None,
            placed_by: None,
            stop: None,
            refused_by: None,
            quota,
        }
    }

    /// Takes the sequence for an executor: as the last executor left it, or from the beginning.
    fn take_sequence(&mut self, executor: ExecutorId) -> JobState {
        self.executor = Some(executor);
        let begun = self.state.take();
        let fresh = || JobState::new(Arc::clone(&self.job), self.sink.clone());
        let mut state = begun.map_or_else(fresh, |state| *state);
        state.begin_stay();
        state
    }

    /// Keeps the sequence that an executor has handed back.
    fn give_back(&mut self, state: Box<JobState>) {
        self.executor = None;
        self.state = Some(state);
    }

    /// Takes the sequence from an executor that cannot hand it back.
    fn recover(&mut self) -> Remains {
        self.executor = None;
        match JobState::recover(&self.job, &self.sink) {
            Recovered::GoesOn(state) => {
                self.state = Some(state);
                self.remains()
            }
            Recovered::Finished(stop) => {
                self.stop = Some(stop);
                Remains::Whole
            }
            Recovered::Broken => Remains::Broken,
        }
    }

    /// The tokens of the answer that are here.
    fn remains(&self) -> Remains {
        let state = self.state.as_ref();
        Remains::Part(state.map_or(0, |state| state.tokens_kept()))
    }
}

/// A request in the words of the log.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) ticket: TicketId,
    pub(super) trace: Option<TraceId>,
    /// The decision that placed it last, or that turned it away.
    pub(super) by: Option<Authorship>,
}

/// The part of an answer that is left when its executor can do no more for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    /// All of it has been handed in.
    Whole,
    /// Another executor can go on after so many tokens.
    Part(u32),
    /// Nobody can go on with it: a part of another server's response has been handed in.
    Broken,
}

impl Requests {
    pub(super) fn insert(&mut self, request: RequestId, record: Record) {
        self.tickets.insert(record.ticket, request);
        self.records.insert(request, record);
    }

    pub(super) fn of(&self, ticket: TicketId) -> Option<RequestId> {
        self.tickets.get(&ticket).copied()
    }

    /// The ticket of `request`; absent: there is none of that id.
    pub(super) fn ticket(&self, request: RequestId) -> Option<TicketId> {
        Some(self.records.get(&request)?.ticket)
    }

    /// Takes the hold of `request` on the limits of its tenant, which lasts longer than the record.
    pub(super) fn take_quota(&mut self, request: RequestId) -> Option<QuotaHold> {
        self.records.get_mut(&request)?.quota.take()
    }

    /// The words of the log about `request`, beside its life; absent: it is not in hand.
    pub(super) fn about(&self, request: RequestId) -> Option<About> {
        let record = self.records.get(&request)?;
        let by = record.refused_by.as_ref().or(record.placed_by.as_ref());
        Some(About {
            ticket: record.ticket,
            trace: record.trace,
            by: by.cloned(),
        })
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.records.keys().copied()
    }

    /// The session of `request`, or the key of its conversation; absent: it is in none.
    pub(super) fn session(&self, request: RequestId) -> Option<SessionKey> {
        self.records.get(&request)?.session
    }

    /// Notes the decision to place `request` where it will be started.
    pub(super) fn placed(&mut self, request: RequestId, by: Authorship) {
        if let Some(record) = self.records.get_mut(&request) {
            record.placed_by = Some(by);
        }
    }

    /// Notes the decision by which `request` is not served. The outcome follows from the machine.
    pub(super) fn turned_away(&mut self, request: RequestId, by: Authorship) {
        if let Some(record) = self.records.get_mut(&request) {
            record.refused_by = Some(by);
        }
    }

    /// Takes the sequence that is to be started, and tells the client the placement, with the names of
    /// the executor and the model; absent: the client has left.
    pub(super) fn start(
        &mut self,
        order: &StartOrder,
        (executor, model): (String, String),
    ) -> Option<JobState> {
        let record = self.records.get_mut(&order.sequence.request)?;
        if let Some(by) = record.placed_by.clone() {
            record.sink.placed(Arc::new(Placement {
                executor,
                model,
                by,
                cached_tokens: order.cached_tokens,
            }));
        }
        Some(record.take_sequence(order.sequence.executor))
    }

    /// Keeps the progress of `request` that an executor has given back.
    pub(super) fn give_back(&mut self, request: RequestId, state: Box<JobState>) {
        if let Some(record) = self.records.get_mut(&request) {
            record.give_back(state);
        }
    }

    /// Keeps the progress of `request`, which an executor has failed and may have given back.
    /// Nothing is left of a request whose client has gone.
    pub(super) fn failed(&mut self, request: RequestId, state: Option<Box<JobState>>) -> Remains {
        let Some(record) = self.records.get_mut(&request) else {
            return Remains::Part(0);
        };
        let Some(state) = state else {
            return record.recover();
        };
        record.give_back(state);
        record.remains()
    }

    /// Takes the sequences from an executor that is lost.
    pub(super) fn take_from(&mut self, executor: ExecutorId) -> Vec<(RequestId, Remains)> {
        let records = self.records.iter_mut();
        let lost = records.filter(|(_, record)| record.executor == Some(executor));
        let taken = lost.map(|(request, record)| (*request, record.recover()));
        taken.collect()
    }

    /// Notes what `stay`, which has ended, used of the limits of its tenant.
    pub(super) fn stayed(&mut self, now: Micros, stay: &Stay) {
        let record = self.records.get_mut(&stay.request);
        if let Some(quota) = record.and_then(|record| record.quota.as_mut()) {
            quota.stayed(now, stay);
        }
    }

    /// Notes the reason why generation ended. The outcome follows from the machine.
    pub(super) fn stopped(&mut self, request: RequestId, stop: StopReason) {
        if let Some(record) = self.records.get_mut(&request) {
            record.stop = Some(stop);
        }
    }

    /// Tells the client the outcome of `request`, and forgets the request.
    pub(super) fn end(&mut self, request: RequestId, outcome: Outcome) {
        if let Some(record) = self.forget(request) {
            record.closing.end(End {
                outcome,
                stop: record.stop,
                refused_by: record.refused_by,
            });
        }
    }

    /// Forgets `request` without a word to the client.
    pub(super) fn forget(&mut self, request: RequestId) -> Option<Record> {
        let record = self.records.remove(&request)?;
        self.tickets.remove(&record.ticket);
        Some(record)
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}
