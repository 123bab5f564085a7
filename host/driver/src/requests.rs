//! The requests in hand: the ticket, the job and the channels to the client of each.
//!
//! The machine has the state of each request; this module has the parts that the machine does not
//! need.

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_core::{Outcome, RequestId};
use pointsman_executor::delivery::{Authorship, Closing, End, Placement, StopReason, TextSink};
use pointsman_executor::job::{Job, JobState};

use super::message::TicketId;

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
    job: Arc<Job>,
    sink: TextSink,
    closing: Closing,
    // Owned state.
    /// The progress of the request while no executor has it; absent: none was given back.
    state: Option<JobState>,
    placement: Option<Arc<Placement>>,
    stop: Option<StopReason>,
    refused_by: Option<Authorship>,
}

impl Record {
    pub(super) fn new(ticket: TicketId, job: Arc<Job>, sink: TextSink, closing: Closing) -> Self {
        Self {
            ticket,
            job,
            sink,
            closing,
            state: None,
            placement: None,
            stop: None,
            refused_by: None,
        }
    }

    /// Takes the sequence for an executor: as the last executor left it, or from the beginning.
    fn take_sequence(&mut self) -> JobState {
        self.state
            .take()
            .unwrap_or_else(|| JobState::new(Arc::clone(&self.job), self.sink.clone()))
    }
}

impl Requests {
    pub(super) fn insert(&mut self, request: RequestId, record: Record) {
        self.tickets.insert(record.ticket, request);
        self.records.insert(request, record);
    }

    pub(super) fn of(&self, ticket: TicketId) -> Option<RequestId> {
        self.tickets.get(&ticket).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.records.keys().copied()
    }

    /// Notes the placement of `request` from now on.
    pub(super) fn placed(&mut self, request: RequestId, placement: Placement) {
        if let Some(record) = self.records.get_mut(&request) {
            record.placement = Some(Arc::new(placement));
        }
    }

    /// Notes the decision by which `request` is not served. The outcome follows from the machine.
    pub(super) fn turned_away(&mut self, request: RequestId, by: Authorship) {
        if let Some(record) = self.records.get_mut(&request) {
            record.refused_by = Some(by);
        }
    }

    /// Takes the sequence of `request` to start it, and tells the client the placement; absent: the
    /// client has left.
    pub(super) fn start(&mut self, request: RequestId) -> Option<JobState> {
        let record = self.records.get_mut(&request)?;
        if let Some(placement) = &record.placement {
            record.sink.placed(Arc::clone(placement));
        }
        Some(record.take_sequence())
    }

    /// Keeps the progress of `request` that an executor has given back.
    pub(super) fn give_back(&mut self, request: RequestId, state: JobState) {
        if let Some(record) = self.records.get_mut(&request) {
            record.state = Some(state);
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
