//! Step loops under the real machine, which starts, grants and evicts in a pool far too small for
//! all, while clients leave and devices fail.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use pointsman_core::rows::{Change, SequenceState};
use pointsman_core::{
    Answer, Asked, Config, DeviceSpec, Effect, EvictHow, Eviction, ExecutorId, ExecutorSpec,
    ExecutorUpdate, FailedWhy, Handled, Incarnation, Input, Kept, KvSpec, Machine, Micros,
    NewRequest, NoPolicies, Outcome, Policies, Question, Reply, RequestId, RowKinds, Victim,
    fixture, rows,
};
use pointsman_engine::step_loop::{StepLoop, StepLoopParts};
use pointsman_executor::contract::{Command, Event, Start};
use pointsman_executor::delivery::{self, Closing, Deliveries, Delivery};
use pointsman_executor::job::{Job, JobState, Recovered};
use pointsman_executor::stats::EngineStats;
use pointsman_executor::test_util::{WholeAnswer, random_job};
use pointsman_text::ModelText;

use pointsman_engine::test_util::scripted::{Faults, SHAPE, ScriptedBackend, Shape, StepFault};
use pointsman_engine::test_util::subjects::loop_model;
use pointsman_engine::test_util::{demo_text, solo};

const SLOTS: u32 = 4;
/// A pool with room for two of the longest sequences.
const POOL: Shape = Shape {
    blocks_total: 34,
    host_blocks: 40,
    ..SHAPE
};

struct Request {
    job: Arc<Job>,
    alone: WholeAnswer,
    /// The sequence as it left; absent while it runs, or at its beginning.
    state: Option<Box<JobState>>,
    /// The engine that runs the sequence.
    runs_on: Option<ExecutorId>,
    sink: delivery::TextSink,
    _closing: Closing,
    deliveries: Deliveries,
    outcome: Option<Outcome>,
}

/// A policy that has the newest sequences give way, by swap as often as not, and says nothing else.
struct Swapper(Rng);

impl Policies for Swapper {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Question::Preemption(shortage) = &asked.question else {
            return Answer::unbound();
        };
        let rows = asked.view.rows(RowKinds::ALL).into_iter();
        let sequences = rows.filter_map(|row| {
            if let Change::Sequence(row) = row {
                Some(row)
            } else {
                None
            }
        });
        let needy = |row: &rows::Sequence| row.request == shortage.needy;
        let (needy, mut others): (Vec<_>, Vec<_>) = sequences.partition(needy);
        let executor = needy.first().map(|row| row.executor);
        let Some(executor) = executor.or(shortage.executor) else {
            return Answer::unbound();
        };
        others.retain(|row| row.executor == executor && row.state == SequenceState::Running);
        others.sort_by_key(|row| Reverse(row.request));
        let mut freed = 0;
        let victims = others.iter().map_while(|row| {
            let is_enough = freed >= shortage.blocks;
            freed += row.blocks_exclusive;
            let how = if self.0.bool() {
                EvictHow::Swap
            } else {
                EvictHow::Recompute
            };
            let request = row.request;
            (!is_enough).then_some(Victim { request, how })
        });
        let eviction = Eviction {
            executor,
            victims: victims.collect(),
            reason: 0,
        };
        Answer::by(0, Reply::Preemption(Some(eviction)))
    }
}

/// A machine with two engines, each on a device of its own.
struct Host {
    machine: Machine,
    policies: Box<dyn Policies>,
    engines: BTreeMap<ExecutorId, (Incarnation, StepLoop)>,
    requests: BTreeMap<RequestId, Request>,
    faults: Faults,
    text: Arc<ModelText>,
    now: Micros,
    preemptions: u32,
    /// The preemptions that were by swap.
    swaps: u32,
    /// Half answers that were taken from engines that died.
    recovered: u32,
}

impl Host {
    fn new(faults: Faults) -> Self {
        let mut host = Self {
            machine: Machine::new(Config::default()).unwrap(),
            policies: Box::new(NoPolicies),
            engines: BTreeMap::new(),
            requests: BTreeMap::new(),
            faults,
            text: demo_text(),
            now: Micros(0),
            preemptions: 0,
            swaps: 0,
            recovered: 0,
        };
        for name in ["cpu0", "cpu1"] {
            let executor = host.attach(name);
            let engine = host.engine(executor, Incarnation(0));
            host.engines.insert(executor, (Incarnation(0), engine));
        }
        host
    }

    fn attach(&mut self, name: &str) -> ExecutorId {
        let device = DeviceSpec {
            name: name.to_owned(),
            kv: KvSpec::Owned {
                block_bytes: 1024,
                blocks_total: POOL.blocks_total,
                host_blocks: POOL.host_blocks,
            },
            tokens_per_step: Some(24),
        };
        let device = self
            .machine
            .handle(self.now, Input::DeviceAttached(device))
            .device();
        let spec = ExecutorSpec {
            slots_total: SLOTS,
            queue_limit: 2,
            tokens_per_block: Some(POOL.tokens_per_block),
            ..fixture::executor_spec(name, device.unwrap())
        };
        self.machine
            .handle(self.now, Input::ExecutorAttached(spec))
            .executor()
            .unwrap()
    }

    fn engine(&self, executor: ExecutorId, incarnation: Incarnation) -> StepLoop {
        let backend = Box::new(ScriptedBackend::failing(POOL, self.faults.clone()));
        let parts = StepLoopParts {
            slots: SLOTS,
            models: vec![loop_model(0, backend)],
            stats: Arc::new(EngineStats::default()),
        };
        StepLoop::new(executor, incarnation, parts)
    }

    fn arrive(&mut self, job: Job) {
        let tenant = self.machine.intern(self.now, "default");
        let prompt_tokens = u32::try_from(job.prompt.len()).unwrap();
        let new = NewRequest::new(tenant, prompt_tokens, job.output_tokens_max);
        let id = self.machine.handle(self.now, Input::arrival(new)).request();
        let (sink, closing, deliveries) = delivery::channel(job.output_tokens_max);
        let request = Request {
            alone: solo(&mut ScriptedBackend::new(POOL), &self.text, &job),
            job: Arc::new(job),
            state: None,
            runs_on: None,
            sink,
            _closing: closing,
            deliveries,
            outcome: None,
        };
        self.requests.insert(id, request);
    }

    /// Makes a round, carries out its effects, and makes a step of each engine.
    fn turn(&mut self) {
        self.now = self.now.after(Micros(10_000));
        self.machine.handle(self.now, Input::TimePassed);
        self.decide();
        for executor in self.engines.keys().copied().collect::<Vec<_>>() {
            let (incarnation, engine) = self.engines.get_mut(&executor).unwrap();
            let incarnation = *incarnation;
            if let Err(error) = engine.step() {
                self.lose(executor, incarnation, &error.to_string());
                continue;
            }
            for event in engine.take_events() {
                self.hear(event);
                self.machine.check_invariants().unwrap();
            }
        }
    }

    fn decide(&mut self) {
        self.machine.decide(self.now, &mut *self.policies);
        while let Some(effect) = self.machine.poll_effect() {
            self.carry_out(effect);
        }
        self.machine.check_invariants().unwrap();
    }

    fn lose(&mut self, executor: ExecutorId, incarnation: Incarnation, why: &str) {
        assert_eq!(why, "the device fell off the bus");
        let kept = self.recover(executor);
        let lost = Input::ExecutorLost {
            executor,
            incarnation,
            kept,
        };
        self.machine.handle(self.now, lost);
        let next = Incarnation(incarnation.0 + 1);
        let engine = self.engine(executor, next);
        self.engines.insert(executor, (next, engine));
        let up = ExecutorUpdate::Health(rows::Health::Up);
        let updated = self
            .machine
            .handle(self.now, Input::ExecutorUpdated(executor, up));
        assert_eq!(updated, Handled::Done);
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
            self.recovered += u32::from(generated > 0);
            request.state = Some(state);
            kept.push(Kept {
                request: *id,
                generated,
            });
        }
        kept
    }

    fn carry_out(&mut self, effect: Effect) {
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
                self.preemptions += 1;
                self.swaps += u32::from(!host_blocks.is_empty());
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
            Effect::Finish { request, outcome } => {
                self.requests.get_mut(&request).unwrap().outcome = Some(outcome);
                return;
            }
            Effect::Detached { executor } => panic!("nobody detached {executor}"),
        };
        self.engines.get_mut(&executor).unwrap().1.handle(command);
    }

    fn hear(&mut self, event: Event) {
        let input = match event {
            Event::Started(sequence) => Input::SequenceStarted(sequence),
            Event::Stepped(report) => Input::StepFinished(report),
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
                let request = self.requests.get_mut(&sequence.request).unwrap();
                (request.state, request.runs_on) = (Some(state), None);
                Input::SequenceLeft(sequence, swapped_tokens)
            }
            Event::Failed { sequence, why, .. } => panic!("{sequence:?} failed: {why}"),
            Event::Lost { why } => panic!("an engine without its thread says {why}"),
            Event::Changed(change) => panic!("no server elsewhere: {change:?}"),
        };
        self.machine.handle(self.now, input);
    }

    fn run_out(&mut self) {
        for _ in 0..20_000 {
            if self.machine.live_requests() == 0 && self.engines.values().all(|e| e.1.is_idle()) {
                self.decide();
                return;
            }
            self.turn();
        }
        panic!("{} requests are left", self.machine.live_requests());
    }

    /// Returns the text that the client was sent.
    fn shown(&mut self, id: RequestId) -> String {
        let deliveries = &mut self.requests.get_mut(&id).unwrap().deliveries;
        let sent = std::iter::from_fn(|| deliveries.try_next());
        sent.map(|delivery| match delivery {
            Delivery::Text(piece) => piece.text,
            Delivery::Placed(_) | Delivery::Relayed(_) | Delivery::End(_) => {
                panic!("nobody has sent {delivery:?}")
            }
        })
        .collect()
    }

    /// Checks that finished requests got the answer of the same job alone, and the others its
    /// beginning.
    fn check_answers(&mut self) {
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            let shown = self.shown(id);
            let request = &self.requests[&id];
            let outcome = request.outcome.unwrap();
            if let Outcome::Finished { output_tokens } = outcome {
                assert_eq!(shown, request.alone.text);
                assert_eq!(output_tokens as usize, request.alone.ids.len());
                continue;
            }
            // Both engines died under it.
            let failed = Outcome::Failed(FailedWhy::NowhereLeft);
            let expected = [Outcome::Cancelled, failed];
            assert!(expected.contains(&outcome), "{id} ended as {outcome:?}");
            assert!(request.alone.text.starts_with(&shown));
        }
        for executor in self.engines.keys() {
            let snapshot = self.machine.executor_snapshot(*executor).unwrap();
            // A block without a holder that holds it is a broken invariant, checked every time.
            assert_eq!(snapshot.slots_used, 0);
        }
    }
}

#[test]
fn a_pool_too_small_for_all_serves_all_in_turn() {
    let mut rng = Rng::with_seed(41);
    let mut host = Host::new(Faults::default());
    for _ in 0..60 {
        host.arrive(random_job(&mut rng, 40, 60));
        host.turn();
    }
    host.run_out();
    host.check_answers();
    assert!(host.preemptions > 10, "{} preemptions", host.preemptions);
}

#[test]
fn what_gives_way_to_host_memory_goes_on_as_it_was() {
    let (mut swaps, mut recomputed) = (0, 0);
    for seed in 0..8 {
        let mut rng = Rng::with_seed(seed);
        let mut host = Host::new(Faults::default());
        host.policies = Box::new(Swapper(Rng::with_seed(seed)));
        for _ in 0..60 {
            host.arrive(random_job(&mut rng, 40, 60));
            host.turn();
        }
        host.run_out();
        host.check_answers();
        swaps += host.swaps;
        recomputed += host.preemptions - host.swaps;
    }
    assert!(swaps > 100 && recomputed > 50, "{swaps}, {recomputed}");
}

#[test]
fn clients_that_leave_and_devices_that_fail_disturb_nobody_else() {
    let mut recovered = 0;
    for seed in 0..15 {
        let mut rng = Rng::with_seed(seed);
        let faults: Vec<(u32, StepFault)> =
            (0..6).map(|_| (rng.u32(5..60), StepFault::Error)).collect();
        let mut host = Host::new(Faults::after(&faults));
        host.policies = Box::new(Swapper(Rng::with_seed(seed)));
        for _ in 0..40 {
            host.arrive(random_job(&mut rng, 40, 40));
            host.turn();
            if rng.u8(0..4) == 0 {
                let any = RequestId(rng.u64(0..host.requests.len() as u64));
                host.machine.handle(host.now, Input::RequestCancelled(any));
                host.decide();
            }
        }
        host.run_out();
        host.check_answers();
        recovered += host.recovered;
    }
    assert!(recovered > 10, "{recovered} half answers went on elsewhere");
}
