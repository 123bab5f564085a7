//! Messages to the driver, and their channels.
//!
//! # Bounds
//! A server has as many requests in hand as it has places, of which each [`Ticket`] keeps one. A request takes
//! room for two messages when it is submitted: for the submission, and for the client's departure, which its
//! ticket keeps. So a departure always finds room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_core::Needs;
use pointsman_core::rows::RequestClass;
use pointsman_core::{Micros, PromptBlocks, SessionKey};
use pointsman_executor::delivery::{self, Closing, Deliveries, TextSink};
use pointsman_executor::job::Job;
use pointsman_policy::{Briefing, Commit, CommitError, Committed, PolicyStatus, Snapshot};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::operator::Operator;
use super::quota::QuotaHold;
use super::spans::TraceOrigin;

/// A request as HTTP has understood it. Names are text here; the driver knows their ids.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The name of a model in the catalogue; absent: any.
    pub model: Option<String>,
    /// The name of the client's tenant.
    pub tenant: String,
    pub job: Arc<Job>,
    /// The full blocks of the job's prompt.
    pub prompt_blocks: PromptBlocks,
    /// The client's wishes about the scheduling.
    pub hints: Hints,
    /// The request's part in a trace; absent: nobody is told of spans.
    pub trace: Option<Box<TraceOrigin>>,
}

/// A client's wishes about the scheduling of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hints {
    pub session: Option<SessionKey>,
    /// Keys of the beginnings of the request's conversation, the whole one last, by which it is recognised
    /// where no session is named.
    pub conversation: Vec<SessionKey>,
    /// The key of the answer that the request goes on from ([`NamedAnswer`]); absent: none that it names.
    pub follows: Option<SessionKey>,
    /// The key of an answer of the client's own, whose executor need not be among those allowed; absent: it names none.
    pub follows_own: Option<SessionKey>,
    /// The urgency; larger is more urgent.
    pub priority: i32,
    pub class: RequestClass,
    /// Waiting time granted in advance.
    pub head_start: Micros,
    /// The time from the arrival after which the answer is of no use; absent: the answer is always
    /// of use.
    pub deadline: Option<Micros>,
    /// The likely number of generated tokens; absent: not known.
    pub output_tokens_expected: Option<u32>,
    /// Labels in the form `key=value`, with keys from the operator's list.
    pub labels: Vec<String>,
    /// Names of the executors allowed; absent: all.
    pub allowed: Option<Vec<String>>,
    /// Names of the executors allowed where nobody knows who gave the answer that the request goes on from; absent:
    /// those of `allowed`.
    pub unless_followed: Option<Vec<String>>,
    /// The number of a topology group; absent: the request is in none.
    pub group: Option<u32>,
    /// True if the request may wait outside the queue; otherwise it is refused instead.
    pub may_wait: bool,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            session: None,
            conversation: Vec::new(),
            follows: None,
            follows_own: None,
            priority: 0,
            class: RequestClass::LatencyCritical,
            head_start: Micros(0),
            deadline: None,
            output_tokens_expected: None,
            labels: Vec::new(),
            allowed: None,
            unless_followed: None,
            group: None,
            may_wait: true,
        }
    }
}

/// The id of a request between HTTP and the driver. No id is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TicketId(pub u64);

/// A request on its way to the driver.
#[derive(Debug)]
pub struct Submitted {
    pub ticket: TicketId,
    pub submission: Submission,
    /// The way of the text to the client.
    pub sink: TextSink,
    /// The way of the outcome to the client.
    pub closing: Closing,
    /// The hold on the limits of its tenant; absent: the tenant has none.
    pub quota: Option<QuotaHold>,
}

/// A message about a request.
#[derive(Debug)]
pub enum Message {
    /// A new request.
    Submit(Box<Submitted>),
    /// The departure of a request's client.
    Depart(TicketId),
    /// The name of an answer, by which a later request may go on from it.
    Answered(NamedAnswer),
}

/// An answer that later requests name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAnswer {
    /// The hash of its name.
    pub answer: SessionKey,
    /// The name of the executor that gave it.
    pub executor: String,
}

/// A message of the reconciler or of an operator.
#[derive(Debug)]
pub enum Control {
    /// A snapshot of a policy for its successor.
    Handover(u32, oneshot::Sender<Option<Snapshot>>),
    /// A change of the policies in force, between two rounds.
    Commit(Commit, oneshot::Sender<Result<Committed, CommitError>>),
    /// The status of each policy.
    Policies(oneshot::Sender<Vec<PolicyStatus>>),
    /// The requests that are queued and that run.
    Load(oneshot::Sender<Load>),
    /// The rows that a policy with this feed must be told before it takes over.
    Brief(Needs, oneshot::Sender<Briefing>),
    /// A question or an order of an operator.
    Operator(Operator),
    /// The order to end every request, and then the driver.
    Stop,
}

/// The requests that are queued and that run, and the room they take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests without an outcome.
    pub live: usize,
    /// Requests in the queue.
    pub queued: usize,
    /// The same by class.
    pub queued_by_class: ByClass,
    /// Requests parked outside the queue.
    pub parked: usize,
    /// The same by class.
    pub parked_by_class: ByClass,
    /// Slots in use, all executors.
    pub slots_used: u32,
    /// Slots in use or free, all executors.
    pub slots_total: u32,
    /// KV blocks held by sequences, each once however many share it, all devices that tell.
    pub blocks_used: u64,
    /// KV blocks that no sequence holds and that hold the beginning of a prompt, all devices that tell.
    pub blocks_cached: u64,
    /// KV blocks there are, all devices whose number is known.
    pub blocks_total: u64,
    /// Bytes of the blocks in `blocks_used`, as far as their size is known.
    pub kv_bytes_used: u64,
    /// Bytes of the blocks in `blocks_total`, as far as their size is known; 0: of none.
    pub kv_bytes_total: u64,
    /// Executors that take something new.
    pub executors_up: u32,
}

/// A number of requests, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClass {
    pub latency_critical: usize,
    pub throughput: usize,
}

impl ByClass {
    /// Counts another request of this class.
    pub fn add(&mut self, class: RequestClass) {
        match class {
            RequestClass::LatencyCritical => self.latency_critical += 1,
            RequestClass::Throughput => self.throughput += 1,
        }
    }

    /// The number of requests of both classes.
    #[must_use]
    pub fn total(self) -> usize {
        self.latency_critical.saturating_add(self.throughput)
    }
}

/// The reason why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The server has as many requests in hand as the configuration allows.
    #[error("as many requests are in hand as the server takes")]
    Full,
    /// The driver has ended.
    #[error("the host is shutting down")]
    Closed,
}

/// The way to the driver. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DriverHandle {
    requests: mpsc::Sender<Message>,
    control: mpsc::Sender<Control>,
    /// The places of requests in hand.
    places: Arc<Semaphore>,
    tickets: Arc<AtomicU64>,
}

/// The driver's ends of a [`DriverHandle`].
#[derive(Debug)]
pub struct Inbox {
    pub requests: mpsc::Receiver<Message>,
    /// Messages of the reconciler and of operators.
    pub control: mpsc::Receiver<Control>,
}

/// The most control messages that may wait. Each sender waits for an answer, so few ever do.
const CONTROL_MAX: usize = 64;

/// The messages about a request: it comes, and it departs.
const MESSAGES: usize = 2;

/// Channels to a driver that has at most `requests_max` requests in hand.
#[must_use]
pub fn channels(requests_max: u32) -> (DriverHandle, Inbox) {
    let places = usize::try_from(requests_max.max(1)).unwrap_or(usize::MAX);
    let places = places.min(Semaphore::MAX_PERMITS / MESSAGES);
    let (requests, requests_inbox) = mpsc::channel(places * MESSAGES);
    let (control, control_inbox) = mpsc::channel(CONTROL_MAX);
    let handle = DriverHandle {
        requests,
        control,
        places: Arc::new(Semaphore::new(places)),
        tickets: Arc::new(AtomicU64::new(0)),
    };
    let inbox = Inbox {
        requests: requests_inbox,
        control: control_inbox,
    };
    (handle, inbox)
}

impl DriverHandle {
    /// Waits until a request may find a place, unless another one takes it.
    pub async fn room(&self) {
        drop(self.places.acquire().await);
    }

    /// Submits a request, with its hold on the limits of its tenant. Drop the ticket to leave;
    /// [`Ticket::close`] it once the end has come.
    ///
    /// # Errors
    /// If the server has no room for another request, or is shutting down.
    pub fn submit(
        &self,
        submission: Submission,
        quota: Option<QuotaHold>,
    ) -> Result<(Ticket, Deliveries), SubmitError> {
        let arrival = self.reserve()?;
        let departure = self.reserve()?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.or(Err(SubmitError::Full))?;
        let ticket = TicketId(self.tickets.fetch_add(1, Ordering::Relaxed));
        let (sink, closing, deliveries) = delivery::channel(submission.job.output_tokens_max);
        arrival.send(Message::Submit(Box::new(Submitted {
            ticket,
            submission,
            sink,
            closing,
            quota,
        })));
        let ticket = Ticket {
            id: ticket,
            departure: Some(departure),
            _place: place,
        };
        Ok((ticket, deliveries))
    }

    /// True if the server has room for another request now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.places.available_permits() > 0 && self.requests.capacity() >= MESSAGES
    }

    /// Has the executor of an answer remembered, as that of a session. Where the channel has no room, it is not.
    pub fn answered(&self, answer: NamedAnswer) {
        drop(self.requests.try_send(Message::Answered(answer)));
    }

    fn reserve(&self) -> Result<mpsc::OwnedPermit<Message>, SubmitError> {
        self.requests
            .clone()
            .try_reserve_owned()
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SubmitError::Full,
                mpsc::error::TrySendError::Closed(_) => SubmitError::Closed,
            })
    }

    /// The status of each policy; absent once the driver has ended.
    pub async fn policies(&self) -> Option<Vec<PolicyStatus>> {
        self.ask(Control::Policies).await
    }

    /// The requests that are queued and that run; absent once the driver has ended.
    pub async fn load(&self) -> Option<Load> {
        self.ask(Control::Load).await
    }

    /// The answer to an operator's question or order; absent once the driver has ended.
    pub async fn operate<R>(
        &self,
        question: impl FnOnce(oneshot::Sender<R>) -> Operator,
    ) -> Option<R> {
        self.ask(|answer| Control::Operator(question(answer))).await
    }

    /// Ends every request, and then the driver.
    pub async fn stop(&self) {
        // An error means that the driver has ended already.
        drop(self.control.send(Control::Stop).await);
    }

    async fn ask<R>(&self, question: impl FnOnce(oneshot::Sender<R>) -> Control) -> Option<R> {
        let (answer, answered) = oneshot::channel();
        self.control.send(question(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Sends [`Control::Handover`], and waits on this thread, which must not be one of a runtime;
    /// absent: there is no snapshot, or the driver has ended.
    #[must_use]
    pub fn handover(&self, policy: u32) -> Option<Snapshot> {
        let (answer, answered) = oneshot::channel();
        let sent = self
            .control
            .blocking_send(Control::Handover(policy, answer));
        sent.ok()?;
        answered.blocking_recv().ok().flatten()
    }

    /// Sends [`Control::Brief`], and waits on this thread, which must not be one of a runtime;
    /// absent once the driver has ended.
    #[must_use]
    pub fn brief(&self, needs: Needs) -> Option<Briefing> {
        let (answer, answered) = oneshot::channel();
        let sent = self.control.blocking_send(Control::Brief(needs, answer));
        sent.ok()?;
        answered.blocking_recv().ok()
    }

    /// Sends [`Control::Commit`], and waits on this thread, which must not be one of a runtime;
    /// absent once the driver has ended.
    #[must_use]
    pub fn commit(&self, commit: Commit) -> Option<Result<Committed, CommitError>> {
        let (answer, answered) = oneshot::channel();
        let sent = self.control.blocking_send(Control::Commit(commit, answer));
        sent.ok()?;
        answered.blocking_recv().ok()
    }
}

/// A client's hold on its request. Dropped, the request is cancelled wherever it is.
#[derive(Debug)]
pub struct Ticket {
    id: TicketId,
    departure: Option<mpsc::OwnedPermit<Message>>,
    _place: OwnedSemaphorePermit,
}

impl Ticket {
    /// Ends the hold: the request has ended, and there is nothing to cancel.
    pub fn close(mut self) {
        self.departure = None;
    }

    #[must_use]
    pub fn id(&self) -> TicketId {
        self.id
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(departure) = self.departure.take() {
            departure.send(Message::Depart(self.id));
        }
    }
}
