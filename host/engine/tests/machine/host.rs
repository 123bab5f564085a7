//! A host without I/O: step loops under the real machine, with what their clients ordered.
//!
//! # Invariants
//! 1. The machine's whole state is checked after each event (`Machine::check_invariants`).
//! 2. A request ends once: a second outcome panics.
//! 3. What an answer shows is that of the same job alone, or its beginning: its text, and the probabilities of its
//!    tokens, bit by bit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pointsman_core::{
    BlockId, Config, DeviceId, DeviceSpec, Effect, ExecutorId, ExecutorSpec, ExecutorUpdate,
    Handled, Incarnation, Input, Kept, Machine, Micros, NewRequest, NoPolicies, Outcome, Policies,
    RequestId, rows,
};
use pointsman_engine::backend::{Backend, Chunk, Logits};
use pointsman_engine::sample::Logprobs;
use pointsman_engine::step_loop::{LoopModel, StepLoop, StepLoopParts};
use pointsman_engine::test_util::{demo_text, solo};
use pointsman_executor::contract::{Command, Event, Start};
use pointsman_executor::delivery::{
    self, Closing, Deliveries, Delivery, LikelyToken, TokenLogprob,
};
use pointsman_executor::job::{Job, JobState, Recovered};
use pointsman_executor::stats::EngineStats;
use pointsman_executor::test_util::WholeAnswer;
use pointsman_executor::text::Detokenizer as _;

/// The words of a device that a test has fail.
pub(crate) const LOST: &str = "the device fell off the bus";

/// A maker of an engine's models, at the beginning of each of its lives.
pub(crate) type MakeModels = Box<dyn Fn() -> Vec<LoopModel>>;

/// The answer to a job that is alone.
pub(crate) struct Alone {
    answer: WholeAnswer,
    /// The probabilities of its tokens, where the job asks for them.
    logprobs: Vec<TokenLogprob>,
}

/// The content of an answer as its client was sent it.
#[derive(Default)]
struct Shown {
    text: String,
    logprobs: Vec<TokenLogprob>,
    embedding: Option<Vec<f32>>,
}

struct Request {
    job: Arc<Job>,
    alone: Arc<Alone>,
    /// The sequence as it left; absent while it runs, or at its beginning.
    state: Option<Box<JobState>>,
    /// The engine that runs the sequence.
    runs_on: Option<ExecutorId>,
    sink: delivery::TextSink,
    _closing: Closing,
    deliveries: Deliveries,
    outcome: Option<Outcome>,
}

struct Engine {
    incarnation: Incarnation,
    slots: u32,
    steps: StepLoop,
    make: MakeModels,
}

/// Counts of what happened.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) steps: u64,
    pub(crate) preemptions: u32,
    /// The preemptions that were by swap.
    pub(crate) swaps: u32,
    /// Tokens that sequences had generated when they gave way, to be computed again.
    pub(crate) recomputed_at: BTreeSet<u32>,
    /// The same by swap.
    pub(crate) swapped_at: BTreeSet<u32>,
    /// Lives of engines that ended.
    pub(crate) losses: u32,
    /// Half answers that were taken from engines that died.
    pub(crate) recovered: u32,
    /// The outcomes, by the first word of each.
    pub(crate) outcomes: BTreeMap<String, u32>,
}

/// A machine with engines, and the requests in their hands.
pub(crate) struct Host {
    pub(crate) machine: Machine,
    pub(crate) policies: Box<dyn Policies>,
    pub(crate) now: Micros,
    pub(crate) numbers: Numbers,
    /// The counters of all engines.
    pub(crate) stats: Arc<EngineStats>,
    engines: BTreeMap<ExecutorId, Engine>,
    requests: BTreeMap<RequestId, Request>,
}

// === impl Alone ===

impl Alone {
    /// Computes the answer to `job` in the first blocks of `backend`'s pool.
    pub(crate) fn new(backend: &mut dyn Backend, job: &Job) -> Self {
        let answer = solo(backend, &demo_text(), job);
        let logprobs = job.logprobs.map(|top| logprobs(backend, job, &answer, top));
        Self {
            answer,
            logprobs: logprobs.unwrap_or_default(),
        }
    }
}

/// Computes the probabilities of the tokens of an answer, each with those of the `top` likeliest in its place.
fn logprobs(
    backend: &mut dyn Backend,
    job: &Job,
    answer: &WholeAnswer,
    top: u32,
) -> Vec<TokenLogprob> {
    let text = demo_text();
    let blocks: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
    let (mut start, mut tokens) = (0, &job.prompt[..]);
    let mut logits = Vec::new();
    let is_shown = |id: &&u32| job.ignore_eos || !text.eos().contains(*id);
    let shown = answer.ids.iter().take_while(is_shown);
    let told = shown.map(|id| {
        let chunk = Chunk {
            tokens,
            start,
            blocks: &blocks,
            logits: Logits::Last,
        };
        backend.forward(&[chunk], &mut logits).unwrap();
        start += u32::try_from(tokens.len()).unwrap();
        tokens = std::slice::from_ref(id);
        let logprobs = Logprobs::new(&logits[..text.vocab_size().min(logits.len())]);
        let likely = |token| LikelyToken {
            bytes: text.token_bytes(token),
            logprob: logprobs.of(token),
        };
        TokenLogprob {
            chosen: likely(*id),
            top: logprobs.top(top).into_iter().map(likely).collect(),
        }
    });
    told.collect()
}

// === impl Engine ===

impl Engine {
    fn new(
        id: ExecutorId,
        incarnation: Incarnation,
        slots: u32,
        make: MakeModels,
        stats: &Arc<EngineStats>,
    ) -> Self {
        let parts = StepLoopParts {
            slots,
            models: make(),
            stats: Arc::clone(stats),
        };
        Self {
            incarnation,
            slots,
            steps: StepLoop::new(id, incarnation, parts),
            make,
        }
    }
}

// === impl Host: what comes and goes ===

impl Host {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            machine: Machine::new(config).unwrap(),
            policies: Box::new(NoPolicies),
            now: Micros(0),
            numbers: Numbers::default(),
            stats: Arc::default(),
            engines: BTreeMap::new(),
            requests: BTreeMap::new(),
        }
    }

    pub(crate) fn attach_device(&mut self, spec: DeviceSpec) -> DeviceId {
        let attached = self.machine.handle(self.now, Input::DeviceAttached(spec));
        attached.device().unwrap()
    }

    pub(crate) fn attach(&mut self, spec: ExecutorSpec, make: MakeModels) -> ExecutorId {
        let slots = spec.slots_total;
        let attached = self.machine.handle(self.now, Input::ExecutorAttached(spec));
        let id = attached.executor().unwrap();
        let engine = Engine::new(id, Incarnation(0), slots, make, &self.stats);
        self.engines.insert(id, engine);
        id
    }

    /// Has a job arrive, whose answer is `alone`, with what `describe` adds to it for the machine.
    pub(crate) fn arrive(
        &mut self,
        job: Arc<Job>,
        alone: Arc<Alone>,
        describe: impl FnOnce(&mut NewRequest),
    ) -> RequestId {
        let tenant = self.machine.intern(self.now, "default");
        let prompt_tokens = u32::try_from(job.prompt.len()).unwrap();
        let mut new = NewRequest::new(tenant, prompt_tokens, job.output_tokens_max);
        describe(&mut new);
        let id = self.machine.handle(self.now, Input::arrival(new)).request();
        let (sink, closing, deliveries) = delivery::channel(job.output_tokens_max);
        let request = Request {
            alone,
            job,
            state: None,
            runs_on: None,
            sink,
            _closing: closing,
            deliveries,
            outcome: None,
        };
        self.requests.insert(id, request);
        id
    }

    pub(crate) fn cancel(&mut self, request: RequestId) {
        self.machine
            .handle(self.now, Input::RequestCancelled(request));
        self.decide();
    }
}

// === impl Host: its work ===

impl Host {
    /// Makes a round after so much time, carries out its effects, and makes a step of each engine.
    pub(crate) fn turn(&mut self, after: Micros) {
        self.now = self.now.after(after);
        self.machine.handle(self.now, Input::TimePassed);
        self.decide();
        self.step();
    }

    /// Makes a step of each engine, of which the machine hears.
    pub(crate) fn step(&mut self) {
        for executor in self.engines.keys().copied().collect::<Vec<_>>() {
            let engine = self.engines.get_mut(&executor).unwrap();
            if let Err(error) = engine.steps.step() {
                assert_eq!(error.to_string(), LOST);
                self.lose(executor);
                continue;
            }
            for event in engine.steps.take_events() {
                self.hear(event);
                self.machine.check_invariants().unwrap();
            }
        }
    }

    pub(crate) fn decide(&mut self) {
        for effect in self.round() {
            self.carry_out(effect);
        }
    }

    /// Makes a round, and returns its effects, which are to be carried out in their order.
    pub(crate) fn round(&mut self) -> Vec<Effect> {
        self.machine.decide(self.now, &mut *self.policies);
        let effects = std::iter::from_fn(|| self.machine.poll_effect()).collect();
        while self.machine.poll_fact().is_some() {}
        self.machine.check_invariants().unwrap();
        effects
    }

    /// Has the machine know that an engine died, which begins anew unless it was to go.
    fn lose(&mut self, executor: ExecutorId) {
        self.numbers.losses += 1;
        let kept = self.recover(executor);
        let died = self.engines.remove(&executor).unwrap();
        let Engine {
            incarnation,
            slots,
            make,
            steps,
        } = died;
        drop(steps);
        let lost = Input::ExecutorLost {
            executor,
            incarnation,
            kept,
        };
        self.machine.handle(self.now, lost);
        let next = Incarnation(incarnation.0 + 1);
        let next = Engine::new(executor, next, slots, make, &self.stats);
        self.engines.insert(executor, next);
        if self.machine.executor_snapshot(executor).is_some() {
            let up = ExecutorUpdate::Health(rows::Health::Up);
            let updated = Input::ExecutorUpdated(executor, up);
            assert_eq!(self.machine.handle(self.now, updated), Handled::Done);
        }
    }

    /// Takes the sequences from an engine that has died, as far as their text was handed in.
    fn recover(&mut self, executor: ExecutorId) -> Vec<Kept> {
        let mut kept = Vec::new();
        for (id, request) in &mut self.requests {
            if request.runs_on != Some(executor) {
                continue;
            }
            request.runs_on = None;
            let Recovered::GoesOn(state) = JobState::recover(&request.job, &request.sink) else {
                panic!("{id} had ended, and nobody was told");
            };
            let generated = u32::try_from(state.generated().len()).unwrap();
            self.numbers.recovered += u32::from(generated > 0);
            request.state = Some(state);
            kept.push(Kept {
                request: *id,
                generated,
            });
        }
        kept
    }

    pub(crate) fn carry_out(&mut self, effect: Effect) {
        let (executor, command) = match effect {
            Effect::Start(order) => {
                let request = self.requests.get_mut(&order.sequence.request).unwrap();
                let fresh = || JobState::new(Arc::clone(&request.job), request.sink.clone());
                let mut sequence = request.state.take().map_or_else(fresh, |state| *state);
                sequence.begin_stay();
                request.runs_on = Some(order.sequence.executor);
                (
                    order.sequence.executor,
                    Command::Start(Box::new(Start {
                        order,
                        sequence,
                        trace: None,
                    })),
                )
            }
            Effect::Grant { sequence, blocks } => {
                (sequence.executor, Command::Grant { sequence, blocks })
            }
            Effect::Evict {
                sequence,
                host_blocks,
            } => {
                self.numbers.preemptions += 1;
                self.numbers.swaps += u32::from(!host_blocks.is_empty());
                (
                    sequence.executor,
                    Command::Evict {
                        sequence,
                        host_blocks,
                    },
                )
            }
            Effect::Cancel(sequence) => (sequence.executor, Command::Cancel(sequence)),
            Effect::SetBudget {
                executor,
                tokens_max,
            } => (executor, Command::SetBudget { tokens_max }),
            Effect::Arrange {
                executor,
                arrangement,
            } => (executor, Command::Arrange(arrangement)),
            Effect::Finish { request, outcome } => return self.finish(request, outcome),
            Effect::Detached { executor } => {
                self.engines.remove(&executor);
                return;
            }
        };
        let engine = self.engines.get_mut(&executor).unwrap();
        engine.steps.handle(command);
    }

    fn finish(&mut self, id: RequestId, outcome: Outcome) {
        let request = self.requests.get_mut(&id);
        let request = request.unwrap_or_else(|| panic!("{id} ends again, as {outcome:?}"));
        let before = request.outcome.replace(outcome);
        assert_eq!(before, None, "{id} ends again, as {outcome:?}");
        let text = format!("{outcome:?}");
        let word = text.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        *self.numbers.outcomes.entry(word.to_owned()).or_default() += 1;
    }

    fn hear(&mut self, event: Event) {
        let input = match event {
            Event::Started(sequence) => Input::SequenceStarted(sequence),
            Event::Stepped(report) => {
                self.numbers.steps += 1;
                Input::StepFinished(report)
            }
            Event::PromptCounted(sequence, count) => Input::PromptCounted(sequence, count),
            Event::Finished { sequence, .. } => {
                self.requests.get_mut(&sequence.request).unwrap().runs_on = None;
                Input::SequenceFinished(sequence)
            }
            Event::Left {
                sequence,
                state,
                swapped_tokens,
            } => {
                let gave_way_at = match swapped_tokens {
                    0 => &mut self.numbers.recomputed_at,
                    1.. => &mut self.numbers.swapped_at,
                };
                gave_way_at.insert(u32::try_from(state.generated().len()).unwrap());
                let request = self.requests.get_mut(&sequence.request).unwrap();
                (request.state, request.runs_on) = (Some(state), None);
                Input::SequenceLeft(sequence, swapped_tokens)
            }
            Event::Failed { sequence, why, .. } => panic!("{sequence:?} failed: {why}"),
            Event::Lost { why } => panic!("an engine without its thread says {why}"),
            Event::Answered(_, answer) => panic!("no server elsewhere: {answer:?}"),
            Event::Changed(change) => panic!("no server elsewhere: {change:?}"),
        };
        self.machine.handle(self.now, input);
    }
}

// === impl Host: its end ===

impl Host {
    /// Goes on until nothing is left to do.
    pub(crate) fn run_out(&mut self, each_turn: Micros) {
        for _ in 0..20_000 {
            let mut engines = self.engines.values();
            if self.machine.live_requests() == 0 && engines.all(|e| e.steps.is_idle()) {
                self.decide();
                return;
            }
            self.turn(each_turn);
        }
        panic!("{} requests are left", self.machine.live_requests());
    }

    /// Checks the answers of the requests that have ended, and forgets the requests: those that were served
    /// have the answer of the same job alone, the others its beginning.
    pub(crate) fn settle(&mut self) {
        let is_over =
            |request: &mut Request| request.outcome.is_some() && request.runs_on.is_none();
        let over = self.requests.extract_if(.., |_, request| is_over(request));
        for (_, mut request) in over {
            let shown = Shown::read(&mut request.deliveries);
            let Alone { answer, logprobs } = &*request.alone;
            if let Some(Outcome::Finished { output_tokens }) = request.outcome {
                assert_eq!(shown.text, answer.text, "{:?}", request.job);
                assert_eq!(shown.logprobs, *logprobs, "{:?}", request.job);
                assert_eq!(output_tokens as usize, answer.ids.len());
                assert_eq!(shown.embedding, answer.embedding);
            } else {
                assert!(answer.text.starts_with(&shown.text));
                assert!(logprobs.starts_with(&shown.logprobs));
            }
        }
    }

    /// Checks that nothing is anybody's any more: no slot, no block of a pool or of host memory, no request.
    pub(crate) fn check_empty(&mut self) {
        self.settle();
        assert_eq!(self.requests.len(), 0, "requests without an outcome");
        for executor in self.engines.keys() {
            let snapshot = self.machine.executor_snapshot(*executor).unwrap();
            assert_eq!(snapshot.slots_used, 0);
        }
        for device in self.machine.devices() {
            let free = device.blocks_free + device.blocks_cached;
            assert_eq!(free, device.blocks_total, "{device:?}");
            assert_eq!(device.host_blocks_free, device.host_blocks_total);
        }
    }
}

// === impl Shown ===

impl Shown {
    /// Takes all that the client was sent.
    fn read(deliveries: &mut Deliveries) -> Self {
        let mut shown = Self::default();
        while let Some(delivery) = deliveries.try_next() {
            match delivery {
                Delivery::Text(mut piece) => {
                    shown.text.push_str(&piece.text);
                    shown.logprobs.append(&mut piece.logprobs);
                }
                Delivery::Embedding(numbers) => {
                    let before = shown.embedding.replace(numbers.0);
                    assert_eq!(before, None, "a prompt is embedded once");
                }
                Delivery::Placed(_) | Delivery::Relayed(_) | Delivery::End(_) => {
                    panic!("nobody has sent {delivery:?}")
                }
            }
        }
        shown
    }
}
