//! A little host: it gives an executor its commands, keeps the books of slots and blocks as the
//! machine does, and checks every event against the contract and every answer against the one that
//! the same job gets alone.

mod arena;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use pointsman_events::{Arrangement, BlockId, HostBlockId, Progress, RequestId, SequenceRef};

use super::{EXECUTOR, ExecutorUnderTest, FIRST_LIFE, SLOTS, WholeAnswer, reference, start};
use crate::contract::{Command, Event};
use crate::delivery::{self, Closing, Deliveries, Delivery, StopReason};
use crate::job::{Job, JobState};
use crate::relay::{RelayFrame, RelayedResponse};
use arena::{FreeHostBlocks, Swapped};

/// A host with one executor. Its methods panic where the executor breaks the contract.
#[derive(Debug)]
pub struct TestHost<E> {
    /// The executor under test.
    pub executor: E,
    requests: BTreeMap<RequestId, Record>,
    /// Free blocks. The last one given back is given out first, so that blocks change hands often.
    free: Vec<BlockId>,
    arena: FreeHostBlocks,
    budget: u32,
    /// The largest budget that may still be in force.
    budget_bound: u32,
}

#[derive(Debug)]
struct Record {
    alone: WholeAnswer,
    phase: Phase,
    /// Its KV in host memory, until it has started from there.
    swapped: Swapped,
    /// The client's end of the text; absent: the client has left.
    deliveries: Option<Deliveries>,
    /// The response of a server elsewhere, until its last frame is read.
    relayed: Option<RelayedResponse>,
    client: Client,
    _closing: Closing,
    shown: String,
    shown_tokens: u32,
    embedding: Option<Vec<f32>>,
}

/// A client's way with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Reads,
    /// The client reads when all is over.
    Lags,
}

#[derive(Debug)]
enum Phase {
    Waiting(Box<JobState>),
    Running(Stay),
    Finished(StopReason),
    Cancelled,
}

/// A sequence's stay with the executor.
#[derive(Debug, Default)]
struct Stay {
    blocks: Vec<BlockId>,
    prompt_tokens: u32,
    prefilled: u32,
    /// Tokens generated before this stay.
    before: u32,
    /// Tokens generated in this stay.
    generated: u32,
    started: bool,
    stop: Option<Stop>,
    /// Host blocks to which its KV is to be copied.
    host_blocks: Vec<HostBlockId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Evicted, to be computed again.
    Evicted,
    /// Evicted, to go on from host memory.
    Swapped,
    Cancelled,
}

impl Stay {
    /// Tokens whose KV is in the sequence's blocks.
    fn in_kv(&self) -> u32 {
        self.prefilled + self.generated.saturating_sub(1)
    }

    fn blocks_for_next(&self, tokens_per_block: u32) -> usize {
        let tokens = self.prompt_tokens + self.generated;
        tokens.div_ceil(tokens_per_block) as usize
    }
}

impl Record {
    /// Reads the frames that have come of a relayed response.
    fn read_relayed(&mut self) {
        while let Some(response) = &mut self.relayed
            && let Ok(frame) = response.frames.try_recv()
        {
            let bytes = match frame {
                RelayFrame::More(bytes) => bytes,
                RelayFrame::Last(bytes) => {
                    self.relayed = None;
                    bytes
                }
                RelayFrame::Broken(why) => panic!("a response broke off: {why}"),
            };
            self.shown.push_str(str::from_utf8(&bytes).unwrap());
        }
    }
}

// === impl TestHost: what a test asks ===

impl<E> TestHost<E> {
    /// Requests that run, in order of arrival.
    pub fn running(&self) -> Vec<RequestId> {
        let running = self.requests.iter();
        running
            .filter(|(_, record)| matches!(record.phase, Phase::Running(_)))
            .map(|(request, _)| *request)
            .collect()
    }

    /// Tokens that a request has generated since it was last started; 0 if it does not run.
    pub fn generated(&self, request: RequestId) -> u32 {
        match &self.requests[&request].phase {
            Phase::Running(stay) => stay.generated,
            Phase::Waiting(_) | Phase::Finished(_) | Phase::Cancelled => 0,
        }
    }

    /// The reason why a request has ended; absent if it has not finished.
    pub fn stop_reason(&self, request: RequestId) -> Option<StopReason> {
        match self.requests[&request].phase {
            Phase::Finished(stop) => Some(stop),
            Phase::Waiting(_) | Phase::Running(_) | Phase::Cancelled => None,
        }
    }

    /// Returns true once a request has finished.
    pub fn is_finished(&self, request: RequestId) -> bool {
        self.stop_reason(request).is_some()
    }

    /// Returns true once a request has left because it was cancelled.
    pub fn is_cancelled(&self, request: RequestId) -> bool {
        matches!(self.requests[&request].phase, Phase::Cancelled)
    }

    /// The answer that a request must get.
    pub fn alone(&self, request: RequestId) -> &WholeAnswer {
        &self.requests[&request].alone
    }

    /// The text that a request's client has read.
    pub fn shown(&self, request: RequestId) -> &str {
        &self.requests[&request].shown
    }

    /// Every request, in order of arrival.
    pub(super) fn requests(&self) -> Vec<RequestId> {
        self.requests.keys().copied().collect()
    }

    /// A block that nobody holds.
    pub(super) fn free_block(&self) -> BlockId {
        self.free[0]
    }
}

// === impl TestHost: what a test orders ===

impl<E: ExecutorUnderTest> TestHost<E> {
    /// A host without requests, whose blocks are all free.
    pub fn new(executor: E) -> Self {
        Self {
            free: (0..executor.blocks_total()).map(BlockId).collect(),
            arena: FreeHostBlocks::new(executor.host_blocks()),
            executor,
            requests: BTreeMap::new(),
            budget: u32::MAX,
            budget_bound: u32::MAX,
        }
    }

    /// Takes in a request for `job`, which then waits.
    pub fn arrive(&mut self, job: Job) -> RequestId {
        let request = RequestId(self.requests.len() as u64);
        let alone = self.executor.alone(&job);
        let (sink, closing, deliveries) = delivery::channel(job.output_tokens_max);
        let sequence = JobState::new(Arc::new(job), sink);
        let record = Record {
            alone,
            phase: Phase::Waiting(Box::new(sequence)),
            swapped: Swapped::default(),
            deliveries: Some(deliveries),
            relayed: None,
            client: Client::Reads,
            _closing: closing,
            shown: String::new(),
            shown_tokens: 0,
            embedding: None,
        };
        self.requests.insert(request, record);
        request
    }

    /// Starts a waiting request if there is a slot and there are blocks for its prompt. Returns
    /// true if it did.
    pub fn try_start(&mut self, request: RequestId) -> bool {
        let running = self.running().len();
        let record = self.requests.get_mut(&request).unwrap();
        let Phase::Waiting(sequence) = &record.phase else {
            return false;
        };
        let prompt_tokens = u32::try_from(sequence.tokens.len()).unwrap();
        let needed = prompt_tokens.div_ceil(self.executor.tokens_per_block()) as usize;
        if running == SLOTS as usize || needed > self.free.len() {
            return false;
        }
        let blocks = self.free.split_off(self.free.len() - needed);
        let before = u32::try_from(sequence.generated().len()).unwrap();
        let stay = Stay {
            blocks: blocks.clone(),
            prompt_tokens,
            prefilled: record.swapped.tokens,
            before,
            ..Stay::default()
        };
        let (cached_tokens, copies) = (record.swapped.tokens, record.swapped.copies_to(&blocks));
        let waiting = std::mem::replace(&mut record.phase, Phase::Running(stay));
        let Phase::Waiting(sequence) = waiting else {
            unreachable!("looked at above")
        };
        let model = self.executor.model(&sequence.job);
        let mut start = start(reference(request), *sequence, blocks);
        start.order.model = model;
        start.order.cached_tokens = cached_tokens;
        start.order.copies = copies;
        self.executor.send(Command::Start(Box::new(start)));
        true
    }

    /// Takes in a request for `job` and starts it, for which there must be room.
    pub fn start(&mut self, job: Job) -> RequestId {
        let request = self.arrive(job);
        assert!(self.try_start(request), "there is no room");
        request
    }

    /// Grants a running sequence the blocks for its next token, if it lacks one and there are some.
    pub fn try_grant(&mut self, request: RequestId) {
        let tokens_per_block = self.executor.tokens_per_block();
        let Some(stay) = stay(&mut self.requests, request) else {
            return;
        };
        let lacking = stay.blocks_for_next(tokens_per_block) - stay.blocks.len();
        if lacking == 0 || lacking > self.free.len() {
            return;
        }
        let blocks = self.free.split_off(self.free.len() - lacking);
        stay.blocks.extend(&blocks);
        self.executor.send(Command::Grant {
            sequence: reference(request),
            blocks,
        });
    }

    /// Evicts a request, if it runs.
    pub fn evict(&mut self, request: RequestId) {
        if self.stop(request, Stop::Evicted) {
            self.send_evict(request, Vec::new());
        }
    }

    /// Evicts a request by swap, if it runs and host memory has room for all that it holds.
    pub fn swap(&mut self, request: RequestId) {
        let is_there = !self.requests[&request].swapped.is_empty();
        let Some(stay) = stay(&mut self.requests, request) else {
            return;
        };
        // What was not copied back yet is in host memory still.
        let needed = if is_there { 0 } else { stay.blocks.len() };
        let Some(host_blocks) = self.arena.take(needed) else {
            return;
        };
        if stay.stop.is_some() {
            self.arena.give_back(host_blocks);
            return;
        }
        stay.host_blocks.clone_from(&host_blocks);
        self.stop(request, Stop::Swapped);
        self.send_evict(request, host_blocks);
    }

    fn send_evict(&mut self, request: RequestId, host_blocks: Vec<HostBlockId>) {
        self.executor.send(Command::Evict {
            sequence: reference(request),
            host_blocks,
        });
    }

    /// Cancels a request, if it runs.
    pub fn cancel(&mut self, request: RequestId) {
        if self.stop(request, Stop::Cancelled) {
            self.executor.send(Command::Cancel(reference(request)));
        }
    }

    /// Notes that a request is to leave. True if it runs, and was not told so before.
    fn stop(&mut self, request: RequestId, stop: Stop) -> bool {
        let stay = stay(&mut self.requests, request).filter(|stay| stay.stop.is_none());
        stay.map(|stay| stay.stop = Some(stop)).is_some()
    }

    /// Sets the budget of tokens per step.
    pub fn set_budget(&mut self, tokens_max: u32) {
        let is_in_force = self.executor.is_stepped() || self.running().is_empty();
        let earlier = if is_in_force { 0 } else { self.budget_bound };
        self.budget = tokens_max;
        self.budget_bound = tokens_max.max(earlier);
        self.executor.send(Command::SetBudget { tokens_max });
    }

    /// Sets the way in which steps are dealt out.
    pub fn arrange(&mut self, arrangement: Arrangement) {
        self.executor.send(Command::Arrange(arrangement));
    }

    /// Makes the client of `request` leave without a word to the executor.
    pub fn hang_up(&mut self, request: RequestId) {
        let record = self.requests.get_mut(&request).unwrap();
        record.deliveries = None;
        record.relayed = None;
    }

    /// Makes the client of `request` read nothing before all is over.
    pub fn lag(&mut self, request: RequestId) {
        self.requests.get_mut(&request).unwrap().client = Client::Lags;
    }
}

fn stay(requests: &mut BTreeMap<RequestId, Record>, request: RequestId) -> Option<&mut Stay> {
    match &mut requests.get_mut(&request)?.phase {
        Phase::Running(stay) => Some(stay),
        Phase::Waiting(_) | Phase::Finished(_) | Phase::Cancelled => None,
    }
}

// === impl TestHost: what the executor reports ===

impl<E: ExecutorUnderTest> TestHost<E> {
    /// Returns true if the executor must report something, now or soon.
    pub fn owes_events(&self) -> bool {
        self.running().into_iter().any(|request| {
            let Phase::Running(stay) = &self.requests[&request].phase else {
                return false;
            };
            let room = stay.blocks.len() >= stay.blocks_for_next(self.executor.tokens_per_block());
            let goes_on = room && self.budget > 0 && !self.is_abandoned(request);
            !stay.started || stay.stop.is_some() || goes_on
        })
    }

    /// True for a request at a server elsewhere whose client has left: the executor says nothing more of it before the
    /// host does.
    fn is_abandoned(&self, request: RequestId) -> bool {
        self.executor.is_elsewhere() && self.requests[&request].deliveries.is_none()
    }

    /// Takes the executor's next events and checks them.
    pub fn turn(&mut self) {
        let events = self.executor.events();
        assert_eq!(events.executor, EXECUTOR);
        assert_eq!(events.incarnation, FIRST_LIFE);
        assert!(!events.list.is_empty(), "reported nothing");
        for event in events.list {
            self.check(event);
        }
        for request in self.running() {
            if self.requests[&request].client == Client::Reads {
                self.read(request);
            }
        }
    }

    fn check(&mut self, event: Event) {
        match event {
            Event::Started(sequence) => {
                let stay = self.stay(sequence);
                assert!(!stay.started, "{} started twice", sequence.request);
                stay.started = true;
                if stay.stop.is_none() {
                    self.drop_swapped(sequence.request);
                }
            }
            Event::Stepped(report) => {
                assert_eq!(report.executor, EXECUTOR);
                assert_eq!(report.incarnation, FIRST_LIFE);
                self.check_step(&report.progress);
            }
            Event::Finished { sequence, stop } => {
                let stay = self.end_stay(sequence);
                let generated = stay.before + stay.generated;
                self.arena.give_back(stay.host_blocks);
                self.drop_swapped(sequence.request);
                self.check_answer(sequence.request, stop, generated);
                self.set_phase(sequence.request, Phase::Finished(stop));
            }
            Event::Left {
                sequence,
                state,
                swapped_tokens,
            } => {
                let stay = self.end_stay(sequence);
                let record = &self.requests[&sequence.request];
                let kept = if self.executor.is_elsewhere() {
                    0
                } else {
                    stay.before + stay.generated
                };
                assert_eq!(state.generated(), &record.alone.ids[..kept as usize]);
                let stop = stay.stop.expect("nobody told it to leave");
                self.settle_swapped(sequence.request, stay, swapped_tokens);
                let phase = match stop {
                    Stop::Evicted | Stop::Swapped => Phase::Waiting(state),
                    Stop::Cancelled => Phase::Cancelled,
                };
                self.set_phase(sequence.request, phase);
            }
            Event::Failed { sequence, why, .. } => panic!("{} failed: {why}", sequence.request),
            Event::Lost { why } => panic!("lost: {why}"),
            Event::PromptCounted(sequence, count) => {
                assert!(self.executor.is_elsewhere(), "no server: {count:?}");
                assert_eq!(count.tokens, self.stay(sequence).prompt_tokens);
            }
            Event::Answered(_, answer) => panic!("nobody traces it: {answer:?}"),
            Event::Changed(change) => panic!("nothing changes: {change:?}"),
        }
    }

    /// Books the host memory of a request whose sequence has left with `swapped_tokens` there.
    fn settle_swapped(&mut self, request: RequestId, stay: Stay, swapped_tokens: u32) {
        if stay.host_blocks.is_empty() {
            assert_eq!(swapped_tokens, 0, "{request} was to be swapped nowhere");
            if stay.stop != Some(Stop::Swapped) {
                self.drop_swapped(request);
            }
            return;
        }
        assert_eq!(swapped_tokens, stay.in_kv(), "all of {request} is swapped");
        let tokens_per_block = self.executor.tokens_per_block();
        let swapped = self
            .arena
            .keep(stay.host_blocks, swapped_tokens, tokens_per_block);
        self.requests.get_mut(&request).unwrap().swapped = swapped;
    }

    fn drop_swapped(&mut self, request: RequestId) {
        let record = self.requests.get_mut(&request).unwrap();
        self.arena.drop_swapped(&mut record.swapped);
    }

    fn check_step(&mut self, progress: &[Progress]) {
        let mut tokens = 0;
        for (idx, made) in progress.iter().enumerate() {
            let earlier = progress[..idx].iter();
            let again = earlier.filter(|p| p.request == made.request).count();
            assert_eq!(again, 0, "{} is twice in a step", made.request);
            let tokens_per_block = self.executor.tokens_per_block();
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
        let is_free = self.executor.is_elsewhere();
        let is_within = is_free || tokens <= self.budget_bound;
        assert!(is_within, "{tokens} tokens in a step");
    }

    fn stay(&mut self, sequence: SequenceRef) -> &mut Stay {
        assert_eq!(sequence, reference(sequence.request));
        let stay = stay(&mut self.requests, sequence.request);
        stay.unwrap_or_else(|| panic!("{} does not run", sequence.request))
    }

    /// Ends a stay. The sequence's blocks are nobody's from now on.
    fn end_stay(&mut self, sequence: SequenceRef) -> Stay {
        let stay = std::mem::take(self.stay(sequence));
        assert!(stay.started, "{} ended before it started", sequence.request);
        self.free.extend(&stay.blocks);
        stay
    }

    fn set_phase(&mut self, request: RequestId, phase: Phase) {
        self.requests.get_mut(&request).unwrap().phase = phase;
    }

    /// Reads what the client of `request` has been sent.
    fn read(&mut self, request: RequestId) {
        let is_elsewhere = self.executor.is_elsewhere();
        let record = self.requests.get_mut(&request).unwrap();
        let Some(deliveries) = &mut record.deliveries else {
            return;
        };
        while let Some(delivery) = deliveries.try_next() {
            match delivery {
                Delivery::Text(piece) => {
                    record.shown.push_str(&piece.text);
                    record.shown_tokens += piece.tokens;
                }
                Delivery::Embedding(embedding) => {
                    let before = record.embedding.replace(embedding.0);
                    assert_eq!(before, None, "{request} is embedded once");
                }
                Delivery::Relayed(response) if is_elsewhere => {
                    assert_eq!(response.status, StatusCode::OK);
                    // After an eviction the answer begins anew.
                    record.shown.clear();
                    record.relayed = Some(response);
                }
                Delivery::Placed(_) | Delivery::Relayed(_) | Delivery::End(_) => {
                    panic!("nobody has sent {delivery:?}")
                }
            }
        }
        record.read_relayed();
        assert!(
            record.alone.text.starts_with(&record.shown),
            "{:?} is not how {:?} begins",
            record.shown,
            record.alone.text
        );
    }

    fn check_answer(&mut self, request: RequestId, stop: StopReason, generated: u32) {
        self.read(request);
        let is_elsewhere = self.executor.is_elsewhere();
        let record = &self.requests[&request];
        assert_eq!(stop, record.alone.stop);
        assert_eq!(generated as usize, record.alone.ids.len());
        if record.deliveries.is_some() {
            assert_eq!(record.shown, record.alone.text);
            assert!(record.relayed.is_none(), "{request} has no last frame");
            if !is_elsewhere {
                assert_eq!(record.shown_tokens as usize, record.alone.ids.len());
            }
            assert_eq!(record.embedding, record.alone.embedding);
        }
    }

    /// Starts, grants and takes events until nothing is left to do; evicts the newest request where
    /// all lack a block, and cancels requests at a server elsewhere whose clients have left.
    pub fn run_out(&mut self) {
        loop {
            let requests = self.requests();
            for request in self.running() {
                self.try_grant(request);
            }
            for request in requests {
                self.try_start(request);
            }
            if self.owes_events() {
                self.turn();
            } else if let Some(newest) = self.running().pop() {
                if self.is_abandoned(newest) {
                    self.cancel(newest);
                } else {
                    self.evict(newest);
                }
            } else {
                break;
            }
        }
        let all = self.executor.blocks_total() as usize;
        assert_eq!(self.free.len(), all, "blocks are held by nobody");
        let all = self.executor.host_blocks() as usize;
        assert_eq!(self.arena.len(), all, "host blocks are held by nobody");
    }
}
