//! What is said to the driver, and how.
//!
//! # Bounds
//! A request takes two places in the channel when it is submitted: one for itself, one that its
//! [`Ticket`] keeps for the client's leaving. So leaving can always be said, and the channel's
//! capacity bounds the requests a server has in hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_core::rows::{FeedKinds, RequestClass};
use pointsman_core::{HookSet, Micros, SessionKey};
use pointsman_executor::delivery::{self, Closing, Deliveries, TextSink};
use pointsman_executor::job::Job;
use pointsman_policy::{
    BindError, Briefing, Digest, FaultDump, OnFailure, Percent, PolicyStatus, Probation,
    Quarantined, Retired, Runner, Snapshot,
};
use tokio::sync::{mpsc, oneshot};

use super::operator::Operator;

/// A request as HTTP has understood it. Names are still text: the driver knows the ids.
#[derive(Clone, Debug)]
pub struct Submission {
    /// A model of the catalogue.
    pub model: String,
    /// A tenant of the catalogue.
    pub tenant: String,
    /// What to generate.
    pub job: Arc<Job>,
    /// What the client said about how to schedule it.
    pub hints: Hints,
}

/// What a client may say about how to schedule its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hints {
    /// Its session.
    pub session: Option<SessionKey>,
    /// Larger is more urgent.
    pub priority: i32,
    /// What it waits for.
    pub class: RequestClass,
    /// Waiting time granted in advance.
    pub head_start: Micros,
    /// How long from its arrival the answer is of use.
    pub deadline: Option<Micros>,
    /// Likely number of generated tokens.
    pub output_tokens_expected: Option<u32>,
    /// `key=value`, keys from the operator's list.
    pub labels: Vec<String>,
    /// Names of the only executors allowed.
    pub allowed: Option<Vec<String>>,
    /// Topology group.
    pub group: Option<u32>,
    /// False: would rather be refused than wait outside the queue.
    pub may_wait: bool,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            session: None,
            priority: 0,
            class: RequestClass::LatencyCritical,
            head_start: Micros(0),
            deadline: None,
            output_tokens_expected: None,
            labels: Vec::new(),
            allowed: None,
            group: None,
            may_wait: true,
        }
    }
}

/// Names a request between HTTP and the driver. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TicketId(pub u64);

/// A request on its way to the driver.
#[derive(Debug)]
pub struct Submitted {
    /// Its ticket.
    pub ticket: TicketId,
    /// What is asked for.
    pub submission: Submission,
    /// Where its text goes.
    pub sink: TextSink,
    /// Where its end goes.
    pub closing: Closing,
}

/// A message about a request.
#[derive(Debug)]
pub enum Message {
    /// A client asks for something.
    Submit(Box<Submitted>),
    /// A client has left.
    Depart(TicketId),
}

/// A message of the policy keeper or of an operator.
#[derive(Debug)]
pub enum Control {
    /// A snapshot of a policy for its successor.
    Handover(u32, oneshot::Sender<Option<Snapshot>>),
    /// Put policies in force, between two rounds.
    Commit(Commit, oneshot::Sender<Result<Committed, CommitError>>),
    /// How each policy stands.
    Policies(oneshot::Sender<Vec<PolicyStatus>>),
    /// What is queued and what runs.
    Load(oneshot::Sender<Load>),
    /// What a policy that wants these kinds must be told to take over.
    Brief(FeedKinds, oneshot::Sender<Briefing>),
    /// Something an operator asks or orders.
    Operator(Operator),
    /// End every request, and then the driver.
    Stop,
}

/// What is queued and what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests without an outcome.
    pub live: usize,
    /// Requests in the queue.
    pub queued: usize,
    /// Requests parked outside it.
    pub parked: usize,
    /// Slots in use, all executors.
    pub slots_used: u32,
    /// Slots there are.
    pub slots_total: u32,
    /// KV blocks held by sequences, all devices.
    pub blocks_used: u64,
    /// Executors that take something new.
    pub executors_up: u32,
}

/// Which policy shall hold what, from one round to the next.
#[derive(Debug, Default)]
pub struct Commit {
    /// Policies that are not to be taken in, as an earlier life of the server knew.
    pub quarantine: Vec<Quarantined>,
    /// Fingerprints of policies that may be taken in again.
    pub release: Vec<Digest>,
    /// Policies that go as if they had failed their probation, and why.
    pub roll_back: Vec<(u32, String)>,
    /// Policies to take in.
    pub install: Vec<Install>,
    /// Policies that are there already, and hooks they shall hold as well.
    pub bind: Vec<(u32, HookSet)>,
    /// Policies that go. What they held and nobody got stays with the built-in rule.
    pub remove: Vec<u32>,
    /// Hooks that only their embedded default shall hold, or nobody.
    pub eject: HookSet,
    /// What happens to arrivals that nobody answers for; absent: what does now.
    pub on_failure: Option<OnFailure>,
    /// Hooks that nobody answers for before another policy is bound, if they are closed.
    pub shut: HookSet,
}

/// A policy to take in.
#[derive(Debug)]
pub struct Install {
    /// Ready to be asked.
    pub policy: Runner,
    /// As what.
    pub stand: Stand,
    /// Hooks whose embedded default it is.
    pub default_of: HookSet,
    /// Terms on which it is on probation, where its answers count; absent: it is not.
    pub probation: Option<Probation>,
}

/// How a policy stands to hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It holds them.
    Enforce(HookSet),
    /// It answers for a share of the tenants, beside who holds them.
    Canary(HookSet, Percent),
    /// It is asked what their holder is asked, and only compared.
    Shadow(HookSet),
}

/// What a commit came to.
#[derive(Debug, Default)]
pub struct Committed {
    /// The numbers of the installed policies, in order.
    pub installed: Vec<u32>,
    /// Every policy that is left, with the hooks it holds.
    pub held: Vec<(u32, HookSet)>,
    /// Hooks that nobody answers for before another policy is bound.
    pub shut: HookSet,
    /// Those that have not proven themselves yet.
    pub on_probation: Vec<u32>,
    /// Policies that are not taken in, oldest first.
    pub quarantine: Vec<Quarantined>,
    /// What faults have left behind since the last commit.
    pub dumps: Vec<FaultDump>,
    /// For how long the driver was held up, in microseconds.
    pub pause_micros: u64,
    /// Policies that have lost their last hook, to be dropped by the receiver.
    pub retired: Retired,
}

/// Why a commit was not made; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The policy host refused one that was to be taken in.
    #[error("{error}")]
    Install {
        /// Which, counted from 0.
        at: usize,
        /// Why.
        error: BindError,
    },
    /// The policy host refused what was wanted of one that is there.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The host is shutting down.
    #[error("the host is shutting down")]
    Closed,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests in hand as the configuration allows.
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
    tickets: Arc<AtomicU64>,
}

/// The driver's ends of a [`DriverHandle`].
#[derive(Debug)]
pub struct Inbox {
    /// About requests.
    pub requests: mpsc::Receiver<Message>,
    /// From the keeper and operators.
    pub control: mpsc::Receiver<Control>,
}

/// Control messages that may wait; each sender waits for its answer, so few ever do.
const CONTROL_MAX: usize = 64;

/// Channels to a driver that has at most `requests_max` requests in hand.
#[must_use]
pub fn channels(requests_max: u32) -> (DriverHandle, Inbox) {
    let places = usize::try_from(requests_max).unwrap_or(usize::MAX);
    let (requests, requests_inbox) = mpsc::channel(places.saturating_mul(2).max(2));
    let (control, control_inbox) = mpsc::channel(CONTROL_MAX);
    let handle = DriverHandle {
        requests,
        control,
        tickets: Arc::new(AtomicU64::new(0)),
    };
    let inbox = Inbox {
        requests: requests_inbox,
        control: control_inbox,
    };
    (handle, inbox)
}

impl DriverHandle {
    /// Submits a request. Drop the ticket to leave; [`Ticket::close`] it once the end has come.
    ///
    /// # Errors
    /// If the server has its hands full or is shutting down.
    pub fn submit(&self, submission: Submission) -> Result<(Ticket, Deliveries), SubmitError> {
        let place = self.reserve()?;
        let departure = self.reserve()?;
        let ticket = TicketId(self.tickets.fetch_add(1, Ordering::Relaxed));
        let (sink, closing, deliveries) = delivery::channel(submission.job.output_tokens_max);
        place.send(Message::Submit(Box::new(Submitted {
            ticket,
            submission,
            sink,
            closing,
        })));
        let ticket = Ticket {
            id: ticket,
            departure: Some(departure),
        };
        Ok((ticket, deliveries))
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

    /// How each policy stands; absent once the driver has ended.
    pub async fn policies(&self) -> Option<Vec<PolicyStatus>> {
        self.ask(Control::Policies).await
    }

    /// What is queued and what runs; absent once the driver has ended.
    pub async fn load(&self) -> Option<Load> {
        self.ask(Control::Load).await
    }

    /// What an operator asks or orders; absent once the driver has ended.
    pub async fn operate<R>(
        &self,
        question: impl FnOnce(oneshot::Sender<R>) -> Operator,
    ) -> Option<R> {
        self.ask(|answer| Control::Operator(question(answer))).await
    }

    /// Ends every request, and then the driver.
    pub async fn stop(&self) {
        // A driver that has ended already is what is asked for.
        drop(self.control.send(Control::Stop).await);
    }

    async fn ask<R>(&self, question: impl FnOnce(oneshot::Sender<R>) -> Control) -> Option<R> {
        let (answer, answered) = oneshot::channel();
        self.control.send(question(answer)).await.ok()?;
        answered.await.ok()
    }

    /// [`Control::Handover`], waiting on this thread, which must not be one of a runtime.
    #[must_use]
    pub fn handover(&self, policy: u32) -> Option<Snapshot> {
        let (answer, answered) = oneshot::channel();
        let sent = self
            .control
            .blocking_send(Control::Handover(policy, answer));
        sent.ok()?;
        answered.blocking_recv().ok().flatten()
    }

    /// [`Control::Brief`], waiting on this thread, which must not be one of a runtime; absent once
    /// the driver has ended.
    #[must_use]
    pub fn brief(&self, kinds: FeedKinds) -> Option<Briefing> {
        let (answer, answered) = oneshot::channel();
        let sent = self.control.blocking_send(Control::Brief(kinds, answer));
        sent.ok()?;
        answered.blocking_recv().ok()
    }

    /// [`Control::Commit`], waiting on this thread, which must not be one of a runtime.
    ///
    /// # Errors
    /// If the policy host refuses, or the driver has ended. Nothing has changed then.
    pub fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.control.blocking_send(Control::Commit(commit, answer));
        if sent.is_err() {
            return Err(CommitError::Closed);
        }
        answered.blocking_recv().unwrap_or(Err(CommitError::Closed))
    }
}

/// A client's hold on its request. Dropped, the request is cancelled wherever it is.
#[derive(Debug)]
pub struct Ticket {
    id: TicketId,
    departure: Option<mpsc::OwnedPermit<Message>>,
}

impl Ticket {
    /// Its end has come: there is nothing to cancel.
    pub fn close(mut self) {
        self.departure = None;
    }

    /// Its id.
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
