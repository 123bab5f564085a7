//! The driver: the one owner of the machine, the policies in force and the requests in hand.
//!
//! [`Driver`] is their state, without a clock, a thread or a channel of its own; [`thread`] runs
//! it. In a turn the driver takes in the messages that have arrived, then [`Driver::settle`] lets
//! the machine decide once for all of them, and carries out the machine's orders. [`finished`] tells of each
//! request that has ended.
//!
//! Others talk to the driver through a [`DriverHandle`](message::DriverHandle). [`operator`] has
//! the questions and orders of operators, [`decisions`] the log of decisions about requests, and
//! [`metrics`] the counters. A [`Fleet`](fleet::Fleet) adds and removes executors, which a
//! [`Provider`](provider::Provider) makes. [`quota`] has the limits of tenants. [`DriverPort`](port::DriverPort) is the driver as the
//! reconciler sees it.
//!
//! # Invariants
//! 1. A request's client is told its end exactly once, or the driver stops without a word
//!    (`tests`).
//! 2. Nothing here waits: commands that find no room stay in an outbox (`executors`).
//!
//! # Not here
//! Decisions (`pointsman-core` and the policies); tokens (`pointsman-executor` and
//! `pointsman-engine`); the choice of the policies in force (`pointsman-lifecycle`); connections
//! (`pointsman-http`) and JSON (`pointsman-openai`, `pointsman-admin`); configuration and assembly (`pointsman-server`).

#![forbid(unsafe_code)]

pub mod activity;
pub mod catalog;
pub mod clock;
pub mod decisions;
mod events;
mod executors;
pub mod finished;
pub mod fleet;
mod forecast;
mod lives;
pub mod message;
pub mod metrics;
mod monitor;
mod operate;
pub mod operator;
mod overview;
pub mod port;
pub mod provider;
pub mod quota;
mod record;
mod requests;
pub mod spans;
#[cfg(test)]
mod tests;
pub mod thread;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use pointsman_core::rows::NameKind;
use pointsman_core::{
    Answer, Asked, Author, Decided, Effect, ExecutorId, Fact, Input, LabelId, Machine, Micros,
    NewRequest, Policies, RecordedMachine, Reply, Round, Sessions, Sink, Stamped, StartOrder, Tap,
};
use pointsman_executor::contract::{Command, Start};
use pointsman_executor::delivery::{Authorship, BUILT_IN};
use pointsman_policy::{Briefing, Commit, CommitError, Committed, PolicyHost, PolicyRecorder};
use tokio::sync::mpsc;

use crate::activity::Activity;
use crate::metrics::{Metrics, Texts};
use decisions::{ArrivedRequest, DecisionLog};
use executors::Executors;
use finished::{AccessLines, Finished};
use forecast::Referents;
use lives::{Life, Lives};
use message::{NamedAnswer, Submission, Submitted, TicketId};
use operator::RequestSize;
use requests::{Record, Requests};
use spans::Spans;

/// The machine, its policies, and the requests in hand.
#[derive(Debug)]
pub struct Driver {
    // Owned state.
    machine: RecordedMachine<dyn PolicyRecorder>,
    policies: PolicyHost,
    requests: Requests,
    sessions: Sessions,
    executors: Executors,
    /// Executors by name, for hints.
    names: BTreeMap<String, ExecutorId>,
    labels: Labels,
    // Told of everything that happens.
    lives: Lives,
    activity: Activity,
    metrics: Arc<Metrics>,
    decisions: DecisionLog,
    finished: Finished,
    /// Absent: nobody is told of spans.
    spans: Option<Spans>,
    /// Wakes the reconciler when a policy was taken out, has proven itself, or has left a dump.
    reconciler: Waker,
}

/// The bounds of a driver's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The number of distinct labels.
    pub labels_max: u32,
    /// The number of requests whose decisions are remembered.
    pub decisions_max: u32,
    /// The number of sessions.
    pub sessions_max: u32,
    /// The time in µs for which an idle session is remembered.
    pub session_idle_max: Micros,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            labels_max: 1024,
            decisions_max: 1024,
            sessions_max: 65_536,
            session_idle_max: Micros(300_000_000),
        }
    }
}

/// The words of the log once no more labels are taken.
const LABELS_FULL: &str =
    "as many labels are known as `hints.labels-max` says; others are ignored until the next start";
/// The most rounds of one turn. Messages that arrive meanwhile wait for the next turn.
const ROUNDS_MAX: u32 = 16;

/// The time to settle again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The next turn is due at once.
    MoreDue,
    /// The next turn is due when something happens, and at this time at the latest; absent: there
    /// is no latest time.
    Until(Option<Micros>),
}

/// A sink that has questions asked by the recorder, if there is one, and answers counted.
struct Recording<'a> {
    recorder: Option<&'a mut (dyn PolicyRecorder + 'static)>,
    metrics: &'a Metrics,
}

impl Sink<&mut PolicyHost> for Recording<'_> {
    fn ask(&mut self, host: &mut &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = match &mut self.recorder {
            Some(recorder) => recorder.ask(host, asked),
            None => host.ask(asked),
        };
        if let Some(cost) = host.last_asked().cost {
            let policy = host.name(cost.policy).unwrap_or_default();
            let hook = asked.question.hook();
            self.metrics.policy_answered(policy, hook, cost);
        }
        answer
    }
}

/// The labels that clients have used so far.
#[derive(Debug)]
struct Labels {
    known: BTreeMap<String, LabelId>,
    max: usize,
}

impl Driver {
    /// A driver of `machine`, to which `policies` answer.
    #[must_use]
    pub fn new(
        machine: Machine,
        policies: PolicyHost,
        metrics: Arc<Metrics>,
        memory: Memory,
    ) -> Self {
        Self {
            machine: RecordedMachine::new(machine),
            policies,
            requests: Requests::default(),
            sessions: Sessions::new(memory.sessions_max, memory.session_idle_max),
            executors: Executors::default(),
            names: BTreeMap::new(),
            labels: Labels {
                known: BTreeMap::new(),
                max: usize::try_from(memory.labels_max).unwrap_or(usize::MAX),
            },
            lives: Lives::default(),
            activity: Activity::default(),
            metrics,
            decisions: DecisionLog::new(memory.decisions_max),
            finished: Finished::default(),
            spans: None,
            reconciler: Waker::noop().clone(),
        }
    }

    /// The same driver, whose requests are told as spans; absent: they are not.
    #[must_use]
    pub fn with_spans(self, spans: Option<Spans>) -> Self {
        Self { spans, ..self }
    }

    /// The lines of the access log from now on.
    pub fn log_access(&mut self) -> AccessLines {
        self.finished.log()
    }

    /// Has `reconciler` woken from now on by each event of a policy that concerns the reconciler.
    pub fn wakes(&mut self, reconciler: Waker) {
        self.reconciler = reconciler;
    }

    /// Attaches the channel for the commands of an executor that the machine knows already.
    pub fn attach(&mut self, executor: ExecutorId, commands: mpsc::Sender<Command>) {
        let snapshot = self.machine.executor_snapshot(executor);
        if let Some(snapshot) = snapshot {
            self.names.insert(snapshot.name, executor);
            self.executors.attach(executor, commands);
        }
    }

    /// Has `recorder` record the run from now on. Everything up to now is in the keyframe that the
    /// record begins with, and nowhere else.
    pub fn record(&mut self, now: Micros, recorder: Box<dyn PolicyRecorder>) {
        self.carry_out(now);
        self.machine.record(Some(recorder));
        if let (machine, Some(recorder)) = self.machine.parts() {
            recorder.turn(now, machine, &mut self.policies);
        }
    }

    /// The policies, to be read only.
    #[must_use]
    pub fn policies(&self) -> &PolicyHost {
        &self.policies
    }

    /// The number of requests whose clients wait for their end.
    #[must_use]
    pub fn in_hand(&self) -> usize {
        self.requests.len()
    }

    // === Clients ===

    /// Takes in a client's request.
    pub fn submit(&mut self, now: Micros, submitted: Submitted) {
        let Submitted {
            ticket,
            submission,
            sink,
            closing,
            quota,
        } = submitted;
        let (job, hints) = (Arc::clone(&submission.job), &submission.hints);
        let session = hints.session.or(hints.conversation.last().copied());
        let trace = submission.trace.as_ref();
        let trace = trace.and_then(|trace| trace.parent.as_ref());
        let trace = trace.map(|headers| headers.parent.trace);
        let record = Record::new((ticket, trace), (job, session), sink, (closing, quota));
        let (tenant, model) = (submission.tenant.clone(), submission.model.clone());
        let spans = self.spans.as_ref();
        let span = spans.and_then(|spans| spans.begin(now, ticket, &submission));
        let new = self.new_request(now, submission);
        let request = self.machine.handle(now, Input::arrival(new)).request();
        self.requests.insert(request, record);
        if let Some((spans, span)) = self.spans.as_mut().zip(span) {
            spans.arrived(request, span);
        }
        self.decisions.arrived(ArrivedRequest {
            ticket,
            request,
            tenant: &tenant,
            model: model.as_deref(),
            row: self.machine.waiting_request(request),
        });
    }

    /// Cancels the request of `ticket`, whose client has left.
    pub fn depart(&mut self, now: Micros, ticket: TicketId) {
        if let Some(request) = self.requests.of(ticket) {
            self.input(now, Input::RequestCancelled(request));
        }
    }

    /// Remembers the executor of an answer that later requests name.
    pub fn answered(&mut self, now: Micros, named: &NamedAnswer) {
        if let Some(executor) = self.names.get(&named.executor) {
            self.sessions.served(now, named.answer, (*executor, None));
        }
    }

    fn input(&mut self, now: Micros, input: Input) {
        self.machine.handle(now, input);
    }

    fn new_request(&mut self, now: Micros, submission: Submission) -> NewRequest {
        let Submission {
            model,
            tenant,
            job,
            prompt_blocks,
            hints,
            trace: _,
        } = submission;
        let tenant = self.machine.intern(now, &tenant);
        let model = model.map(|model| self.machine.intern(now, &model));
        let referents = Referents {
            tenant,
            model,
            labels: self.intern_labels(now, &hints.labels),
        };
        let size = RequestSize {
            prompt_tokens: job.prompt_tokens(),
            prompt_blocks,
            output_tokens_max: job.output_tokens_max,
        };
        self.described(now, hints, referents, size)
    }

    /// The ids of the labels `texts`. New labels beyond the bound are ignored and counted.
    fn intern_labels(&mut self, now: Micros, texts: &[String]) -> Vec<LabelId> {
        let mut ids = Vec::new();
        for text in texts {
            if let Some(known) = self.labels.known.get(text) {
                ids.push(*known);
            } else if self.labels.known.len() < self.labels.max {
                let id = self.machine.intern(now, text);
                self.labels.known.insert(text.clone(), id);
                ids.push(id);
                if self.labels.known.len() == self.labels.max {
                    tracing::warn!(max = self.labels.max, "{LABELS_FULL}");
                }
            } else {
                self.metrics.label_ignored();
            }
        }
        ids
    }

    // === Policies ===

    /// A snapshot of `policy` for its successor.
    pub fn handover(&mut self, now: Micros, policy: u32) -> Option<pointsman_policy::Snapshot> {
        let snapshot = self.policies.handover(now, policy);
        self.note_policies(now);
        snapshot
    }

    /// Tells the recorder that the policies may have changed between two rounds.
    fn note_policies(&mut self, now: Micros) {
        if let Some(recorder) = self.machine.recorder_mut() {
            recorder.policies_changed(now, &self.policies);
        }
    }

    /// Tells the machine of hooks that other policies answer for since, so that what stands by an answer
    /// of those before is asked for anew.
    fn note_rebound(&mut self, now: Micros) {
        for hook in self.policies.take_rebound(now).iter() {
            self.input(now, Input::PolicyChanged(hook));
        }
    }

    /// The rows that a policy with these needs must be told before it takes over.
    #[must_use]
    pub fn brief(&mut self, now: Micros, needs: pointsman_core::Needs) -> Briefing {
        let briefing = Briefing::new(&self.machine.view(), now, needs);
        if let Some(recorder) = self.machine.recorder_mut() {
            recorder.briefed(now, &briefing);
        }
        briefing
    }

    /// Puts policies in force, all or none.
    ///
    /// # Errors
    /// If the policy host refuses one.
    pub fn commit(&mut self, now: Micros, commit: Commit) -> Result<Committed, CommitError> {
        let committed = self.policies.commit(now, commit);
        self.note_policies(now);
        committed
    }

    // === Turning ===

    /// Lets the machine decide, several times where one round makes another due, and carries out
    /// the machine's orders.
    pub fn settle(&mut self, now: Micros) -> Settled {
        let mut rounds = 0;
        // Operators and the reconciler may have changed the policies since.
        self.note_policies(now);
        self.note_rebound(now);
        loop {
            self.decide(now);
            self.carry_out(now);
            // A round may have ended with a rollback or a quarantine.
            self.note_rebound(now);
            rounds += 1;
            if !self.machine.is_due() || rounds == ROUNDS_MAX {
                break;
            }
        }
        self.note_policy_events(now);
        self.activity.turned(now, self.machine.queued_requests());
        let until = self.machine.next_timeout().into_iter();
        let mut until = until.chain(self.policies.rest_end(now)).min();
        if let (machine, Some(recorder)) = self.machine.parts() {
            recorder.turn(now, machine, &mut self.policies);
            until = until.into_iter().chain(recorder.flush_at()).min();
        }
        if self.machine.is_due() {
            Settled::MoreDue
        } else {
            Settled::Until(until)
        }
    }

    /// Notes the time that a turn took.
    pub fn settled_in(&self, took: Duration) {
        self.metrics.decided(took);
    }

    fn decide(&mut self, now: Micros) {
        let (policies, sink) = (&mut self.policies, self.decisions.sink());
        let metrics = &self.metrics;
        self.machine.decide(now, |recorder| {
            let inner = Tap {
                inner: policies,
                sink: Recording { recorder, metrics },
            };
            Tap { inner, sink }
        });
    }

    fn note_policy_events(&mut self, now: Micros) {
        let (mut happened, mut concerns_reconciler) = (false, false);
        while let Some(event) = self.policies.poll_event() {
            record::policy_event(&self.policies, &event);
            happened = true;
            concerns_reconciler |= record::concerns_reconciler(&event.kind);
            if let Some(recorder) = self.machine.recorder_mut() {
                recorder.policy_event(&event);
            }
        }
        if happened {
            self.note_policies(now);
        }
        if concerns_reconciler {
            self.reconciler.wake_by_ref();
        }
    }

    fn carry_out(&mut self, now: Micros) {
        self.take_notes();
        self.decisions.rest(&self.policies);
        while let Some(effect) = self.machine.poll_effect() {
            self.carry_out_one(effect);
        }
        for (executor, incarnation) in self.executors.flush() {
            record::closed(executor);
            self.lose(now, executor, incarnation);
        }
    }

    fn take_notes(&mut self) {
        while let Some(stamped) = self.machine.poll_fact() {
            self.take_note(&stamped);
        }
    }

    fn take_note(&mut self, stamped: &Stamped) {
        if let Fact::Placed { request, by, .. } = &stamped.fact {
            let by = self.authorship(stamped.round, *by);
            self.requests.placed(*request, by);
        }
        if let Fact::TurnedAway(request, by) = &stamped.fact {
            let by = self.authorship(stamped.round, *by);
            self.requests.turned_away(*request, by);
        }
        if let Fact::StayEnded(stay) = &stamped.fact {
            self.note_stayed(stamped.now, stay);
        }
        record::fact(&self.machine, &self.policies, stamped);
        let life = self.lives.fold(stamped);
        if let (Fact::Ended(request, outcome), Some(life)) = (&stamped.fact, &life) {
            self.note_finished(stamped, (*request, *outcome), life);
        }
        self.activity.fact(stamped, life);
        self.metrics
            .fact(stamped, life, (&self.machine, &self.policies));
        self.decisions.fact(stamped, &self.policies);
        if let Some(spans) = &mut self.spans {
            let texts = Texts {
                machine: &self.machine,
                policies: &self.policies,
            };
            spans.fact(stamped, life, texts);
        }
    }

    /// The name of the model that is to be started: the first that its executor serves, if the client
    /// left it open.
    fn model_of(&self, order: &StartOrder) -> String {
        let model = order.model.or_else(|| {
            let executor = self.machine.executor_info(order.sequence.executor);
            executor?.serves?.first().copied()
        });
        model.map_or_else(String::new, |model| self.name_of(NameKind::Model, model.0))
    }

    fn authorship(&self, round: Round, by: Decided) -> Authorship {
        let (policy, reason) = match by.author {
            Author::BuiltIn => (BUILT_IN, BUILT_IN),
            Author::Policy(number) => {
                let reason = self.policies.reason(number, by.reason);
                let name = self.policies.name(number);
                (name.unwrap_or(""), reason.unwrap_or(""))
            }
        };
        Authorship {
            policy: policy.to_owned(),
            decision: round.to_string(),
            reason: reason.to_owned(),
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Start(order) => {
                let executor = order.sequence.executor;
                let incarnation = order.sequence.incarnation;
                // Ordered before it was heard that this life has ended.
                if !self.executors.is_current(executor, incarnation) {
                    return;
                }
                let executor_name = self.name_of(NameKind::Executor, executor.0);
                let names = (executor_name, self.model_of(&order));
                let spans = self.spans.as_mut();
                let trace = spans.and_then(|spans| spans.starts(order.sequence.request, &names.1));
                if let Some(sequence) = self.requests.start(&order, names) {
                    let start = Start {
                        order,
                        sequence,
                        trace,
                    };
                    self.executors
                        .send(executor, Command::Start(Box::new(start)));
                }
            }
            Effect::Grant { sequence, blocks } => self
                .executors
                .send(sequence.executor, Command::Grant { sequence, blocks }),
            Effect::Evict {
                sequence,
                host_blocks,
            } => self.executors.send(
                sequence.executor,
                Command::Evict {
                    sequence,
                    host_blocks,
                },
            ),
            Effect::Cancel(sequence) => self
                .executors
                .send(sequence.executor, Command::Cancel(sequence)),
            Effect::SetBudget {
                executor,
                tokens_max,
            } => self
                .executors
                .send(executor, Command::SetBudget { tokens_max }),
            Effect::Arrange {
                executor,
                arrangement,
            } => self.executors.send(executor, Command::Arrange(arrangement)),
            Effect::Finish { request, outcome } => self.requests.end(request, outcome),
            Effect::Detached { executor } => {
                self.executors.detach(executor);
                self.sessions.detached(executor);
                self.names.retain(|_, named| *named != executor);
            }
        }
    }
}
