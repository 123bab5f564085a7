//! A run that happened, as its inputs and facts tell it, and what a simulation of it needs.
//!
//! A [`History`] begins with the machine as it was, and is told what a journal has. [`History::told`]
//! says who asked for what, which executors there were and how fast they were, and what came of it, in
//! the report that simulations have.
//!
//! | module | owns |
//! |---|---|
//! | `names` | tenants, models, labels, and the executors as they were attached |
//! | `worked` | the work of an executor, and the time it took: `steps` of an engine, `streams` of a server |
//! | `told` | what comes of it: workload, fleet, speeds, report |
//!
//! # Invariants
//! 1. A simulated run that is told comes out again: the same requests with the same lengths, the same
//!    speeds within a few percent, the same report (`tests/tests/operating/past.rs`).
//! 2. The bounds of requests, tenants and models are told, or counted in [`Lacks`]
//!    (`bounds_of_requests_tenants_and_models_are_told_and_simulated`).
//! 3. Executors that did not serve all the time are counted there
//!    (`executors_that_came_left_or_were_drained_are_counted`).
//!
//! # Not here
//! The journal's entries (`pointsman-journal`); who reads them (`pointsman-policy-cli`).

mod names;
mod steps;
mod streams;
mod told;
mod worked;

use std::collections::{BTreeMap, VecDeque};

use pointsman_core::rows::Health;
use pointsman_core::{
    ExecutorId, ExecutorUpdate, Fact, Input, Machine, Micros, NewRequest, Outcome, PlacedIn,
    Progress, RequestId, SequenceRef, Sessions, Stamped,
};

use crate::measure::{Measures, RequestRecord, Sample, jain_of};
use crate::numbers::whole;
use crate::simulation::no_sessions;
use names::Names;
use steps::Steps;
use streams::Streams;
use worked::Worked;

pub use told::{Basis, HistoryError, Lacks, Speed, SpeedFrom};

/// A run that happened.
#[derive(Debug)]
pub struct History {
    names: Names,
    config: pointsman_core::Config,
    /// Arrivals whose number is not known yet.
    arriving: VecDeque<(Micros, Box<NewRequest>)>,
    requests: BTreeMap<RequestId, Past>,
    /// The sessions, as a simulation of the run remembers them.
    sessions: Sessions,
    /// Requests that live, and those of them that have a place.
    live: u64,
    placed: u64,
    /// Tokens served to each tenant that has asked.
    served: BTreeMap<u32, u64>,
    executors: BTreeMap<ExecutorId, Worked>,
    measures: Measures,
    /// The time of the first arrival.
    begins: Option<Micros>,
    lacks: Lacks,
}

/// A request that arrived.
#[derive(Debug)]
struct Past {
    new: Box<NewRequest>,
    record: RequestRecord,
    /// Prompt tokens that its executor said were cached.
    counted: Option<u32>,
    last_token_at: Option<Micros>,
    is_placed: bool,
}

impl History {
    /// Begins with a machine as it was.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        let mut history = Self {
            names: Names::default(),
            config: machine.config().clone(),
            arriving: VecDeque::new(),
            requests: BTreeMap::new(),
            sessions: no_sessions(),
            live: 0,
            placed: 0,
            served: BTreeMap::new(),
            executors: BTreeMap::new(),
            measures: Measures::default(),
            begins: None,
            lacks: Lacks {
                under_way: machine.live_requests() as u64,
                ..Lacks::default()
            },
        };
        history.names.meet(machine);
        let is_draining = |id| {
            let executor = machine.executor_snapshot(id);
            executor.is_some_and(|executor| executor.health == Health::Draining)
        };
        let executors = history.names.executors();
        let draining = executors.filter(|(id, ..)| is_draining(*id)).count();
        history.lacks.drained = draining as u64;
        history
    }

    /// Goes on with a machine as it was after entries that are missing.
    pub fn go_on(&mut self, machine: &Machine) {
        self.names.meet(machine);
        self.arriving.clear();
        self.executors.values_mut().for_each(Worked::interrupted);
        self.lacks.gaps += 1;
    }

    /// Requests that arrived.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Hears an input.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only some of the inputs are of use here"
    )]
    pub fn input(&mut self, now: Micros, input: &Input) {
        self.sample(now);
        match input {
            Input::RequestArrived(new) => {
                self.lacks.returns += u64::from(self.returns_unseen(now, new));
                self.arriving.push_back((now, new.clone()));
            }
            Input::SequenceStarted(sequence) => {
                // A request that has just arrived is not known yet: its fact comes later.
                let past = self.requests.get(&sequence.request);
                let carried = past.map_or(0, |past| past.record.output_tokens);
                self.worked(sequence.executor)
                    .started(now, sequence.request, carried);
            }
            Input::StepFinished(report) => {
                self.worked(report.executor).stepped(now, &report.progress);
                for made in &report.progress {
                    self.progress(now, *made);
                }
            }
            Input::SequenceFinished(sequence) => {
                self.remember_session(now, *sequence);
                self.worked(sequence.executor).left(sequence.request);
            }
            Input::SequenceLeft(sequence, _) | Input::SequenceFailed { sequence, .. } => {
                self.worked(sequence.executor).left(sequence.request);
            }
            Input::KeptTo(sequence, executors) => self.keep_to(sequence.request, executors),
            Input::PromptCounted(sequence, count) => {
                if let Some(past) = self.requests.get_mut(&sequence.request) {
                    past.counted = Some(count.cached);
                }
            }
            Input::ExecutorLost { executor, .. } => {
                self.worked(*executor).interrupted();
                self.lacks.losses += 1;
            }
            Input::ExecutorUpdated(_, ExecutorUpdate::Detach) => self.lacks.detached += 1,
            Input::ExecutorUpdated(_, ExecutorUpdate::Health(Health::Draining)) => {
                self.lacks.drained += 1;
            }
            other => self.names.hear(other),
        }
    }

    /// Hears a fact.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only some of the facts are of use here"
    )]
    pub fn fact(&mut self, stamped: &Stamped) {
        self.measures.host.count(stamped);
        let now = stamped.now;
        match &stamped.fact {
            Fact::DeviceAttached(device) => self.names.device_attached(*device),
            Fact::ExecutorAttached(executor, device) => {
                self.names.executor_attached(*executor, *device);
                self.lacks.joined += u64::from(self.begins.is_some());
            }
            Fact::Arrived { request, .. } => self.arrived(*request),
            Fact::Placed {
                request,
                executor,
                into,
                ..
            } => {
                self.place(*request);
                if *into == PlacedIn::Slot {
                    self.worked(*executor).ordered(now);
                }
            }
            Fact::Requeued(request, _) => self.displace(*request),
            Fact::Started(request, executor) => {
                let place = self.names.place_of(*executor);
                if let Some(past) = self.requests.get_mut(request) {
                    past.record.started.get_or_insert(now);
                    past.record.executor = place;
                }
            }
            Fact::StayEnded(stay) => {
                if let Some(past) = self.requests.get_mut(&stay.request)
                    && past.record.first_token.is_some()
                    && past.counted.is_none()
                {
                    past.counted = Some(stay.cached_tokens);
                }
            }
            Fact::Ended(request, outcome) => self.ended(now, *request, *outcome),
            _ => {}
        }
    }

    /// Returns whether a request prefers an executor of which a simulation does not know: its sessions are
    /// those that are named, from the beginning of the record on.
    fn returns_unseen(&self, now: Micros, new: &NewRequest) -> bool {
        let session = new.session;
        let known = session.and_then(|session| self.sessions.executor(now, session));
        new.preferred.is_some() && known.is_none()
    }

    /// Notes the executor that served a session, at the end of an answer.
    fn remember_session(&mut self, now: Micros, sequence: SequenceRef) {
        if let Some(past) = self.requests.get(&sequence.request)
            && let Some(session) = past.new.session
        {
            let by = (sequence.executor, past.new.model);
            self.sessions.served(now, session, by);
        }
    }

    /// Keeps a request that had no token yet to these executors from its arrival on: the one that it was sent
    /// to has found it too long. An answer that broke off is an accident, which a simulation does not repeat.
    fn keep_to(&mut self, request: RequestId, executors: &[ExecutorId]) {
        let Some(past) = self.requests.get_mut(&request) else {
            return;
        };
        if past.record.first_token.is_some() {
            self.lacks.broken_off += 1;
            return;
        }
        self.lacks.too_long += 1;
        let allowed = &mut past.new.allowed;
        match allowed {
            Some(allowed) => allowed.retain(|executor| executors.contains(executor)),
            None => *allowed = Some(executors.to_vec()),
        }
    }

    fn arrived(&mut self, request: RequestId) {
        let Some((at, new)) = self.arriving.pop_front() else {
            return;
        };
        let begins = *self.begins.get_or_insert(at);
        let record = RequestRecord {
            tenant: new.tenant.0,
            class: new.class,
            arrived: at,
            started: None,
            first_token: None,
            ended: None,
            executor: None,
            prompt_tokens: new.prompt_tokens,
            cached_tokens: 0,
            output_tokens: 0,
            outcome: None,
        };
        self.measures.series.arrived(at.since(begins));
        self.served.entry(new.tenant.0).or_default();
        self.live += 1;
        self.requests.insert(
            request,
            Past {
                new,
                record,
                counted: None,
                last_token_at: None,
                is_placed: false,
            },
        );
    }

    fn place(&mut self, request: RequestId) {
        if let Some(past) = self.requests.get_mut(&request) {
            self.placed += u64::from(!std::mem::replace(&mut past.is_placed, true));
        }
    }

    fn displace(&mut self, request: RequestId) {
        if let Some(past) = self.requests.get_mut(&request) {
            self.placed -= u64::from(std::mem::take(&mut past.is_placed));
        }
    }

    fn ended(&mut self, now: Micros, request: RequestId, outcome: Outcome) {
        self.displace(request);
        if let Some(past) = self.requests.get_mut(&request)
            && past.record.outcome.is_none()
        {
            past.record.ended = Some(now);
            past.record.outcome = Some(outcome);
            self.live -= 1;
        }
    }

    fn progress(&mut self, now: Micros, made: Progress) {
        let begins = self.begins.unwrap_or(now);
        let Some(past) = self.requests.get_mut(&made.request) else {
            return;
        };
        let tokens = u64::from(made.prefilled) + u64::from(made.generated);
        *self.served.entry(past.record.tenant).or_default() += tokens;
        if made.generated == 0 {
            return;
        }
        past.record.output_tokens += made.generated;
        let series = &mut self.measures.series;
        let at = now.since(begins);
        if past.record.first_token.is_none() {
            past.record.first_token = Some(now);
            series.first_token(at, now.since(past.record.arrived));
        }
        if let Some(before) = past.last_token_at.replace(now) {
            // Tokens that are told together came one after the other.
            let gap = Micros(now.since(before).0 / u64::from(made.generated));
            for _ in 0..made.generated {
                self.measures.gaps.add(gap);
                series.gaps(at, &[gap]);
            }
        }
    }

    /// Notes the state of the host as it was until now, once in each part of the course.
    fn sample(&mut self, now: Micros) {
        let Some(begins) = self.begins else {
            return;
        };
        let at = now.since(begins);
        if at < self.measures.series.next_sample() {
            return;
        }
        let served = self.served.iter();
        let served = served.map(|(tenant, tokens)| (*tokens, self.names.weight(*tenant)));
        let sample = Sample {
            queued: self.live - self.placed,
            running: self.placed,
            jain_permille: whole(jain_of(served) * 1000.0),
            ..Sample::default()
        };
        let until = at.after(Micros(1));
        self.measures.series.sample_until(until, sample);
    }

    fn worked(&mut self, executor: ExecutorId) -> &mut Worked {
        let is_hosted = self.names.is_hosted(executor);
        self.executors.entry(executor).or_insert_with(|| {
            if is_hosted {
                Worked::Engine(Steps::default())
            } else {
                Worked::Server(Streams::default())
            }
        })
    }
}

#[cfg(test)]
mod tests;
