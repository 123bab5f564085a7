//! A little host: gives an executor its commands, keeps the books of slots and blocks as the
//! machine does, and checks every event against the contract and every answer against the one
//! that the same job gets alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_core::{BlockId, DeviceId, Progress, RequestId, RetryClass, SequenceRef, StartOrder};
use pointsman_executor::contract::{Command, Event, Events, Start};
use pointsman_executor::delivery::{self, Closing, Deliveries, Delivery, StopReason};
use pointsman_executor::job::{Job, Sequence};
use pointsman_executor::model::backend::Backend;
use pointsman_executor::text::ModelText;

use super::solo::{Answer, solo};
use super::{EXECUTOR, FIRST_LIFE};

/// An executor under test. It is [`EXECUTOR`] in its [`FIRST_LIFE`].
pub trait Subject {
    /// Sends a command.
    fn send(&mut self, command: Command);

    /// What it says next. Called when it must have something to say.
    fn events(&mut self) -> Events;

    /// Whether it works only while it is asked for events.
    fn is_stepped(&self) -> bool;

    /// What computes as it does, with a pool of its own, and its text side.
    fn alone(&self) -> (Box<dyn Backend>, Arc<ModelText>);
}

/// Sequences that subjects run at once.
pub const SLOTS: u32 = 4;

pub struct Host<S> {
    pub subject: S,
    pub requests: BTreeMap<RequestId, Record>,
    /// The last one given back is given out first, so that blocks change hands often.
    pub free: Vec<BlockId>,
    tokens_per_block: u32,
    budget: u32,
    /// The largest that may still be in force.
    budget_bound: u32,
}

pub struct Record {
    pub job: Arc<Job>,
    pub alone: Answer,
    pub phase: Phase,
    /// Absent once the client has left.
    deliveries: Option<Deliveries>,
    client: Client,
    _closing: Closing,
    pub shown: String,
    shown_tokens: u32,
}

/// What a client does with what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Reads,
    /// It reads when all is over.
    Lags,
}

pub enum Phase {
    Waiting(Box<Sequence>),
    Running(Stay),
    Finished(StopReason),
    Cancelled,
    Failed(RetryClass, String),
}

/// A sequence's stay with the executor.
#[derive(Default)]
pub struct Stay {
    pub blocks: Vec<BlockId>,
    prompt_tokens: u32,
    pub prefilled: u32,
    /// Tokens generated before this stay, and in it.
    before: u32,
    pub generated: u32,
    started: bool,
    stop: Option<Stop>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Evicted,
    Cancelled,
}

impl Stay {
    /// Tokens whose KV is in its blocks.
    fn in_kv(&self) -> u32 {
        self.prefilled + self.generated.saturating_sub(1)
    }

    fn blocks_for_next(&self, tokens_per_block: u32) -> usize {
        let tokens = self.prompt_tokens + self.generated;
        tokens.div_ceil(tokens_per_block) as usize
    }
}

pub fn reference(request: RequestId) -> SequenceRef {
    SequenceRef {
        request,
        executor: EXECUTOR,
        incarnation: FIRST_LIFE,
    }
}

// === What the host does ===

impl<S: Subject> Host<S> {
    pub fn new(subject: S) -> Self {
        let (backend, _) = subject.alone();
        Self {
            free: (0..backend.blocks_total()).map(BlockId).collect(),
            tokens_per_block: backend.tokens_per_block(),
            subject,
            requests: BTreeMap::new(),
            budget: u32::MAX,
            budget_bound: u32::MAX,
        }
    }

    /// A request for `job`, which waits.
    pub fn arrive(&mut self, job: Job) -> RequestId {
        let request = RequestId(self.requests.len() as u64);
        let (mut backend, text) = self.subject.alone();
        let alone = solo(&mut *backend, &text, &job);
        let job = Arc::new(job);
        let (sink, closing, deliveries) = delivery::channel(job.output_tokens_max);
        let sequence = Sequence::new(Arc::clone(&job), sink);
        let record = Record {
            job,
            alone,
            phase: Phase::Waiting(Box::new(sequence)),
            deliveries: Some(deliveries),
            client: Client::Reads,
            _closing: closing,
            shown: String::new(),
            shown_tokens: 0,
        };
        self.requests.insert(request, record);
        request
    }

    /// Starts a waiting request if there is a slot and there are blocks for its prompt.
    pub fn try_start(&mut self, request: RequestId) -> bool {
        let running = self.running().len();
        let record = self.requests.get_mut(&request).unwrap();
        let Phase::Waiting(sequence) = &record.phase else {
            return false;
        };
        let prompt_tokens = u32::try_from(sequence.tokens.len()).unwrap();
        let needed = prompt_tokens.div_ceil(self.tokens_per_block) as usize;
        if running == SLOTS as usize || needed > self.free.len() {
            return false;
        }
        let blocks = self.free.split_off(self.free.len() - needed);
        let before = u32::try_from(sequence.generated().len()).unwrap();
        let stay = Stay {
            blocks: blocks.clone(),
            prompt_tokens,
            before,
            ..Stay::default()
        };
        let order = StartOrder {
            sequence: reference(request),
            device: DeviceId(0),
            model: None,
            prompt_tokens,
            cached_tokens: 0,
            output_tokens_max: record.job.output_tokens_max - before,
            blocks,
        };
        let waiting = std::mem::replace(&mut record.phase, Phase::Running(stay));
        let Phase::Waiting(sequence) = waiting else {
            unreachable!("looked at above")
        };
        let sequence = *sequence;
        self.subject
            .send(Command::Start(Box::new(Start { order, sequence })));
        true
    }

    pub fn start(&mut self, job: Job) -> RequestId {
        let request = self.arrive(job);
        assert!(self.try_start(request), "there is no room");
        request
    }

    /// Grants a running sequence the blocks for its next token, if it lacks one and there are.
    pub fn try_grant(&mut self, request: RequestId) {
        let tokens_per_block = self.tokens_per_block;
        let Some(stay) = stay(&mut self.requests, request) else {
            return;
        };
        let lacking = stay.blocks_for_next(tokens_per_block) - stay.blocks.len();
        if lacking == 0 || lacking > self.free.len() {
            return;
        }
        let blocks = self.free.split_off(self.free.len() - lacking);
        stay.blocks.extend(&blocks);
        self.subject.send(Command::Grant {
            sequence: reference(request),
            blocks,
        });
    }

    pub fn evict(&mut self, request: RequestId) {
        self.stop(request, Stop::Evicted, Command::Evict(reference(request)));
    }

    pub fn cancel(&mut self, request: RequestId) {
        self.stop(
            request,
            Stop::Cancelled,
            Command::Cancel(reference(request)),
        );
    }

    fn stop(&mut self, request: RequestId, stop: Stop, command: Command) {
        if let Some(stay) = stay(&mut self.requests, request)
            && stay.stop.is_none()
        {
            stay.stop = Some(stop);
            self.subject.send(command);
        }
    }

    pub fn set_budget(&mut self, tokens_max: u32) {
        let is_in_force = self.subject.is_stepped() || self.running().is_empty();
        let earlier = if is_in_force { 0 } else { self.budget_bound };
        self.budget = tokens_max;
        self.budget_bound = tokens_max.max(earlier);
        self.subject.send(Command::SetBudget { tokens_max });
    }

    /// The client of `request` leaves without a word to the executor.
    pub fn hang_up(&mut self, request: RequestId) {
        self.requests.get_mut(&request).unwrap().deliveries = None;
    }

    /// The client of `request` reads nothing before all is over.
    pub fn lag(&mut self, request: RequestId) {
        self.requests.get_mut(&request).unwrap().client = Client::Lags;
    }
}

fn stay(requests: &mut BTreeMap<RequestId, Record>, request: RequestId) -> Option<&mut Stay> {
    match &mut requests.get_mut(&request)?.phase {
        Phase::Running(stay) => Some(stay),
        Phase::Waiting(_) | Phase::Finished(_) | Phase::Cancelled | Phase::Failed(..) => None,
    }
}

// === What the host hears ===

impl<S: Subject> Host<S> {
    /// Whether the executor must have something to say, now or soon.
    pub fn owes_something(&self) -> bool {
        self.running().into_iter().any(|request| {
            let Phase::Running(stay) = &self.requests[&request].phase else {
                return false;
            };
            let room = stay.blocks.len() >= stay.blocks_for_next(self.tokens_per_block);
            !stay.started || stay.stop.is_some() || (room && self.budget > 0)
        })
    }

    pub fn running(&self) -> Vec<RequestId> {
        let running = self.requests.iter();
        running
            .filter(|(_, record)| matches!(record.phase, Phase::Running(_)))
            .map(|(request, _)| *request)
            .collect()
    }

    /// Hears the executor out once, and checks what it says.
    pub fn turn(&mut self) {
        let events = self.subject.events();
        assert_eq!(events.executor, EXECUTOR);
        assert_eq!(events.incarnation, FIRST_LIFE);
        assert!(!events.list.is_empty(), "said nothing");
        for event in events.list {
            self.hear(event);
        }
        for request in self.running() {
            if self.requests[&request].client == Client::Reads {
                self.read(request);
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Started(sequence) => {
                let stay = self.stay(sequence);
                assert!(!stay.started, "{} started twice", sequence.request);
                stay.started = true;
            }
            Event::Stepped(report) => {
                assert_eq!(report.executor, EXECUTOR);
                assert_eq!(report.incarnation, FIRST_LIFE);
                self.check_step(&report.progress);
            }
            Event::Finished { sequence, stop } => {
                self.end_stay(sequence);
                self.check_answer(sequence.request, stop);
                self.set_phase(sequence.request, Phase::Finished(stop));
            }
            Event::Left { sequence, state } => {
                let stay = self.end_stay(sequence);
                let record = &self.requests[&sequence.request];
                let generated = (stay.before + stay.generated) as usize;
                assert_eq!(state.generated(), &record.alone.ids[..generated]);
                let phase = match stay.stop.expect("nobody told it to leave") {
                    Stop::Evicted => Phase::Waiting(state),
                    Stop::Cancelled => Phase::Cancelled,
                };
                self.set_phase(sequence.request, phase);
            }
            Event::Failed {
                sequence,
                retry,
                why,
                state: _,
            } => {
                self.end_stay(sequence);
                self.set_phase(sequence.request, Phase::Failed(retry, why));
            }
            Event::Lost { why } => panic!("lost: {why}"),
        }
    }

    fn check_step(&mut self, progress: &[Progress]) {
        let mut tokens = 0;
        for (idx, made) in progress.iter().enumerate() {
            let earlier = progress[..idx].iter();
            let again = earlier.filter(|p| p.request == made.request).count();
            assert_eq!(again, 0, "{} is twice in a step", made.request);
            let tokens_per_block = self.tokens_per_block;
            let stay = self.stay(reference(made.request));
            assert!(stay.started, "{} was not started", made.request);
            stay.prefilled += made.prefilled;
            stay.generated += made.generated;
            assert!(stay.prefilled <= stay.prompt_tokens);
            assert!(made.generated == 0 || stay.prefilled == stay.prompt_tokens);
            let room = stay.blocks.len() * tokens_per_block as usize;
            assert!(stay.in_kv() as usize <= room, "wrote beyond its blocks");
            tokens += made.prefilled.max(made.generated);
        }
        assert!(tokens > 0, "a step without progress");
        assert!(tokens <= self.budget_bound, "{tokens} tokens in a step");
    }

    fn stay(&mut self, sequence: SequenceRef) -> &mut Stay {
        assert_eq!(sequence, reference(sequence.request));
        let stay = stay(&mut self.requests, sequence.request);
        stay.unwrap_or_else(|| panic!("{} does not run", sequence.request))
    }

    /// Its blocks are nobody's from now on.
    fn end_stay(&mut self, sequence: SequenceRef) -> Stay {
        let stay = std::mem::take(self.stay(sequence));
        assert!(stay.started, "{} ended before it started", sequence.request);
        self.free.extend(&stay.blocks);
        stay
    }

    fn set_phase(&mut self, request: RequestId, phase: Phase) {
        self.requests.get_mut(&request).unwrap().phase = phase;
    }

    /// Reads what its client has been sent.
    fn read(&mut self, request: RequestId) {
        let record = self.requests.get_mut(&request).unwrap();
        let Some(deliveries) = &mut record.deliveries else {
            return;
        };
        while let Some(delivery) = deliveries.try_next() {
            let Delivery::Text(piece) = delivery else {
                panic!("nobody has sent {delivery:?}");
            };
            record.shown.push_str(&piece.text);
            record.shown_tokens += piece.tokens;
        }
        assert!(
            record.alone.text.starts_with(&record.shown),
            "{:?} is not how {:?} begins",
            record.shown,
            record.alone.text
        );
    }

    fn check_answer(&mut self, request: RequestId, stop: StopReason) {
        self.read(request);
        let record = &self.requests[&request];
        assert_eq!(stop, record.alone.stop);
        if record.deliveries.is_some() {
            assert_eq!(record.shown, record.alone.text);
            assert_eq!(record.shown_tokens as usize, record.alone.ids.len());
        }
    }

    /// Starts, grants and hears until nothing is left to do; evicts the newest where all lack a
    /// block.
    pub fn run_out(&mut self) {
        loop {
            let requests: Vec<RequestId> = self.requests.keys().copied().collect();
            for request in self.running() {
                self.try_grant(request);
            }
            for request in requests {
                self.try_start(request);
            }
            if self.owes_something() {
                self.turn();
            } else if let Some(newest) = self.running().pop() {
                self.evict(newest);
            } else {
                break;
            }
        }
        let (backend, _) = self.subject.alone();
        let all = backend.blocks_total() as usize;
        assert_eq!(self.free.len(), all, "blocks are held by nobody");
    }
}
