//! A machine, policies, scripted engines and a logical clock: one whole host without I/O.
//!
//! [`World`] is the runtime of tests and simulations. It gives the machine its inputs, lets it
//! decide, carries out its effects, and checks it and the engines against each other after every
//! step. Time passes only when the caller says so, or from event to event in
//! [`World::run_until`].

use std::collections::BTreeMap;

use pointsman_core::rows::Health;
use pointsman_core::{
    AttachError, BlockId, Config, DeviceId, DeviceSpec, Effect, ExecutorId, ExecutorSpec,
    ExecutorUpdate, Fact, Handled, HostBlockId, Input, InternedId, InvalidConfig, Kept, Machine,
    Micros, NewRequest, Outcome, Policies, RecordedMachine, Recorder, RequestId, RetryClass, Round,
    SequenceRef, Stamped, StartOrder, StepReport,
};

use crate::engine::{Engine, EngineProfile, Said, Step};

/// One thing that was done to the machine. A list of them is enough to do a run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The machine was given an input.
    Input(Micros, Input),
    /// The machine was called for a round.
    Decide(Micros),
}

/// The record that a world keeps of its run, beside that of another recorder.
#[derive(Debug, Default)]
pub struct Tape {
    recorded: Vec<Recorded>,
    other: Option<Box<dyn Recorder>>,
}

impl Recorder for Tape {
    fn input(&mut self, now: Micros, input: &Input) {
        self.recorded.push(Recorded::Input(now, input.clone()));
        if let Some(other) = &mut self.other {
            other.input(now, input);
        }
    }

    fn round(&mut self, now: Micros, round: Round) {
        self.recorded.push(Recorded::Decide(now));
        if let Some(other) = &mut self.other {
            other.round(now, round);
        }
    }

    fn fact(&mut self, stamped: &Stamped) {
        if let Some(other) = &mut self.other {
            other.fact(stamped);
        }
    }
}

/// The part of a request that the machine does not know.
#[derive(Debug)]
struct Script {
    /// Tokens that the request will generate over all its placements.
    output_tokens: u32,
    /// Tokens generated so far.
    generated: u32,
    outcome: Option<Outcome>,
}

/// A whole host without I/O.
#[derive(Debug)]
pub struct World<P> {
    /// The machine, to read from.
    pub machine: RecordedMachine<Tape>,
    /// The policies that answer the machine.
    pub policies: P,
    engines: BTreeMap<ExecutorId, Engine>,
    scripts: BTreeMap<RequestId, Script>,
    /// The last writer of each block, while that request runs.
    writers: BTreeMap<(DeviceId, BlockId), RequestId>,
    /// The contents of each host block: a request's block, by its place in the table.
    arenas: BTreeMap<(DeviceId, HostBlockId), (RequestId, usize)>,
    now: Micros,
    facts: Vec<Stamped>,
    effects: Vec<Effect>,
}

impl<P: Policies> World<P> {
    /// An empty world at time zero.
    ///
    /// # Errors
    /// If the machine refuses its configuration.
    pub fn new(config: Config, policies: P) -> Result<Self, InvalidConfig> {
        let mut machine = RecordedMachine::new(Machine::new(config)?);
        machine.record(Some(Box::default()));
        Ok(Self {
            machine,
            policies,
            engines: BTreeMap::new(),
            scripts: BTreeMap::new(),
            writers: BTreeMap::new(),
            arenas: BTreeMap::new(),
            now: Micros(0),
            facts: Vec::new(),
            effects: Vec::new(),
        })
    }

    /// Has another recorder told of the run from now on.
    pub fn record_with(&mut self, recorder: Box<dyn Recorder>) {
        if let Some(tape) = self.machine.recorder_mut() {
            tape.other = Some(recorder);
        }
    }

    // === Reading ===

    /// The logical time.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Every fact so far, in order.
    pub fn facts(&self) -> &[Stamped] {
        &self.facts
    }

    /// Every effect that the machine ordered so far, in order.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Everything that was done to the machine, for [`replay`].
    pub fn recording(&self) -> &[Recorded] {
        let tape = self.machine.recorder();
        tape.map_or(&[], |tape| &tape.recorded)
    }

    /// The outcome of a request that has ended.
    pub fn outcome(&self, request: RequestId) -> Option<Outcome> {
        self.scripts.get(&request)?.outcome
    }

    /// An engine, to see its sequences.
    pub fn engine(&self, executor: ExecutorId) -> Option<&Engine> {
        self.engines.get(&executor)
    }

    /// Requests without an outcome.
    pub fn unended(&self) -> impl Iterator<Item = RequestId> + '_ {
        let unended = self.scripts.iter().filter(|(_, s)| s.outcome.is_none());
        unended.map(|(id, _)| *id)
    }

    // === Inputs ===

    /// Attaches a device.
    ///
    /// # Errors
    /// If the machine refuses it.
    pub fn attach_device(&mut self, spec: DeviceSpec) -> Result<DeviceId, AttachError> {
        self.input(Input::DeviceAttached(spec)).device()
    }

    /// Attaches an executor and the scripted engine behind it.
    ///
    /// # Errors
    /// If the machine refuses it.
    pub fn attach_executor(
        &mut self,
        spec: ExecutorSpec,
        profile: EngineProfile,
    ) -> Result<ExecutorId, AttachError> {
        let (device, tokens_per_block) = (spec.device, spec.tokens_per_block);
        let id = self.input(Input::ExecutorAttached(spec)).executor()?;
        let owned = self.machine.owns_kv(device);
        let tokens_per_block = tokens_per_block.filter(|_| owned);
        let engine = Engine::new(id, device, tokens_per_block, profile);
        self.engines.insert(id, engine);
        Ok(id)
    }

    /// Brings in a request that will generate `output_tokens`, or as many as allowed.
    pub fn arrive(&mut self, new: NewRequest, output_tokens: u32) -> RequestId {
        let id = self.input(Input::arrival(new)).request();
        let script = Script {
            output_tokens,
            generated: 0,
            outcome: None,
        };
        self.scripts.insert(id, script);
        id
    }

    /// Gives the machine any input. Executors, their losses and requests have methods of their own,
    /// since an engine or a script belongs to each.
    pub fn input(&mut self, input: Input) -> Handled {
        self.machine.handle(self.now, input)
    }

    /// The id of a name, made at its first use.
    pub fn intern<I: InternedId>(&mut self, text: &str) -> I {
        self.machine.intern(self.now, text)
    }

    /// Changes something about an executor.
    pub fn update(&mut self, executor: ExecutorId, update: ExecutorUpdate) {
        if update == ExecutorUpdate::Health(Health::Down) {
            self.lose(executor);
        } else {
            self.input(Input::ExecutorUpdated(executor, update));
        }
    }

    /// Makes an executor die, and with it all its sequences. All that they had generated is left.
    pub fn lose(&mut self, executor: ExecutorId) {
        self.lose_keeping(executor, |generated| generated);
    }

    /// Makes an executor die, and with it all its sequences. `left` says how many of the tokens that
    /// a sequence had generated there are left.
    pub fn lose_keeping(&mut self, executor: ExecutorId, mut left: impl FnMut(u32) -> u32) {
        let Some(engine) = self.engines.get_mut(&executor) else {
            return;
        };
        let mut kept = Vec::new();
        for (request, generated) in engine.generated() {
            let script = self.scripts.get_mut(&request);
            let script = script.expect("an engine runs requests of its world");
            script.generated -= generated;
            script.generated += left(generated);
            kept.push(Kept {
                request,
                generated: script.generated,
            });
        }
        let incarnation = engine.incarnation;
        engine.die();
        self.forget_writers();
        self.input(Input::ExecutorLost {
            executor,
            incarnation,
            kept,
        });
    }

    /// Makes an engine fail one of its sequences.
    pub fn fail(&mut self, executor: ExecutorId, request: RequestId, retry: RetryClass) {
        if let Some(engine) = self.engines.get_mut(&executor)
            && engine.fail(request)
        {
            let sequence = SequenceRef {
                request,
                executor,
                incarnation: engine.incarnation,
            };
            let script = self.scripts.get(&request);
            let kept = script.map_or(0, |script| script.generated);
            self.forget_writers();
            self.input(Input::SequenceFailed {
                sequence,
                retry,
                kept,
            });
        }
    }

    // === Running ===

    /// Lets the machine decide until nothing is due, and carries out what it orders.
    ///
    /// # Panics
    /// If an invariant breaks, or rounds follow each other without end.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.machine.decide(self.now, |_| &mut self.policies);
            self.check();
            self.carry_out();
            if !self.machine.is_due() {
                self.machine
                    .check_liveness()
                    .unwrap_or_else(|broken| panic!("at {}: {broken}", self.now));
                return;
            }
        }
        panic!("the machine is always due");
    }

    /// Makes one step of one engine, as if its time had come.
    pub fn step(&mut self, executor: ExecutorId) {
        if let Some(engine) = self.engines.get_mut(&executor) {
            let step = engine.step();
            self.report(executor, step);
            self.settle();
        }
    }

    /// Lets time pass, from event to event, up to `until`.
    pub fn run_until(&mut self, until: Micros) {
        self.settle();
        loop {
            self.arm_engines();
            let steps = self.engines.values().filter_map(|engine| engine.next_step);
            let next = steps.chain(self.machine.next_timeout()).min();
            let Some(next) = next.filter(|at| *at <= until) else {
                break;
            };
            self.now = self.now.max(next);
            self.step_due();
            self.settle();
        }
        self.now = self.now.max(until);
        self.settle();
    }

    /// Runs until every request has its outcome, at most until `until`. True if all have.
    pub fn run_out(&mut self, until: Micros) -> bool {
        self.settle();
        while self.unended().next().is_some() && self.now < until {
            let next = self.now.after(Micros(100_000)).min(until);
            self.run_until(next);
        }
        self.unended().next().is_none()
    }

    /// Lets time pass in which nothing happens: no engine makes a step, and no round is held.
    pub fn skip(&mut self, until: Micros) {
        self.now = self.now.max(until);
    }

    fn arm_engines(&mut self) {
        let now = self.now;
        for engine in self.engines.values_mut() {
            if engine.is_idle() {
                engine.next_step = None;
            } else if engine.next_step.is_none() {
                engine.next_step = Some(now.after(engine.profile.step));
            }
        }
    }

    fn step_due(&mut self) {
        let now = self.now;
        let due: Vec<ExecutorId> = self
            .engines
            .values()
            .filter(|engine| engine.next_step.is_some_and(|at| at <= now))
            .map(|engine| engine.id)
            .collect();
        for executor in due {
            let Some(engine) = self.engines.get_mut(&executor) else {
                continue;
            };
            let step = engine.step();
            engine.next_step = Some(now.after(step.took));
            self.report(executor, step);
        }
    }

    /// Tells the machine the results of a step.
    fn report(&mut self, executor: ExecutorId, step: Step) {
        let Some(engine) = self.engines.get(&executor) else {
            return;
        };
        let (device, incarnation) = (engine.device, engine.incarnation);
        let of = |request| SequenceRef {
            request,
            executor,
            incarnation,
        };
        for (block, request) in &step.written {
            self.check_writer(device, *block, *request);
        }
        for (host, block) in &step.swapped {
            self.arenas.insert((device, *host), *block);
        }
        for said in &step.said {
            if let Said::Started(request) = said {
                self.input(Input::SequenceStarted(of(*request)));
            }
        }
        for made in &step.progress {
            if let Some(script) = self.scripts.get_mut(&made.request) {
                script.generated += made.generated;
            }
        }
        self.input(Input::StepFinished(StepReport {
            executor,
            incarnation,
            progress: step.progress,
        }));
        for said in step.said {
            let ended = match said {
                Said::Started(_) => continue,
                Said::Finished(request) => Input::SequenceFinished(of(request)),
                Said::Left {
                    request,
                    swapped_tokens,
                } => Input::SequenceLeft(of(request), swapped_tokens),
            };
            self.input(ended);
        }
        self.forget_writers();
        self.check();
    }

    /// Checks that no two sequences write the same block.
    fn check_writer(&mut self, device: DeviceId, block: BlockId, request: RequestId) {
        let writer = self.writers.insert((device, block), request);
        assert!(
            writer.is_none_or(|writer| writer == request),
            "{request} and {writer:?} both write block {block} of device {device}"
        );
    }

    /// Checks that a sequence finds its own blocks in host memory.
    fn check_copies(&self, order: &StartOrder) {
        let request = order.sequence.request;
        for copy in &order.copies {
            let place = order.blocks.iter().position(|block| *block == copy.block);
            let found = self.arenas.get(&(order.device, copy.host));
            assert_eq!(
                found.copied(),
                place.map(|place| (request, place)),
                "host block {} of device {}",
                copy.host,
                order.device
            );
        }
    }

    fn forget_writers(&mut self) {
        let engines = &self.engines;
        self.writers.retain(|(device, _), request| {
            let mut engines = engines.values().filter(|engine| engine.device == *device);
            engines.any(|engine| engine.sequences().any(|running| running == *request))
        });
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            self.carry_out_one(&effect);
            self.effects.push(effect);
        }
        while let Some(fact) = self.machine.poll_fact() {
            if let Fact::Ended(request, outcome) = &fact.fact
                && let Some(script) = self.scripts.get_mut(request)
            {
                let earlier = script.outcome.replace(*outcome);
                assert_eq!(earlier, None, "{request} has two outcomes");
            }
            self.facts.push(fact);
        }
    }

    fn carry_out_one(&mut self, effect: &Effect) {
        match effect {
            Effect::Start(order) => {
                self.check_copies(order);
                let script = self.scripts.get(&order.sequence.request);
                let left = script.map_or(0, |script| {
                    script.output_tokens.saturating_sub(script.generated)
                });
                if let Some(engine) = self.engine_of(order.sequence) {
                    engine.start(order, left);
                }
            }
            Effect::Grant { sequence, blocks } => {
                if let Some(engine) = self.engine_of(*sequence) {
                    engine.grant(sequence.request, blocks);
                }
            }
            Effect::Evict {
                sequence,
                host_blocks,
            } => {
                if let Some(engine) = self.engine_of(*sequence) {
                    engine.stop(sequence.request, host_blocks);
                }
            }
            Effect::Cancel(sequence) => {
                if let Some(engine) = self.engine_of(*sequence) {
                    engine.stop(sequence.request, &[]);
                }
            }
            Effect::SetBudget {
                executor,
                tokens_max,
            } => {
                if let Some(engine) = self.engines.get_mut(executor) {
                    engine.set_budget(*tokens_max);
                }
            }
            Effect::Arrange {
                executor,
                arrangement,
            } => {
                if let Some(engine) = self.engines.get_mut(executor) {
                    engine.arrange(arrangement.clone());
                }
            }
            Effect::Detached { executor } => {
                self.engines.remove(executor);
            }
            Effect::Finish { .. } => {}
        }
    }

    /// The engine of a sequence's executor, if it is still in the same life.
    fn engine_of(&mut self, sequence: SequenceRef) -> Option<&mut Engine> {
        let engine = self.engines.get_mut(&sequence.executor);
        engine.filter(|engine| engine.incarnation == sequence.incarnation)
    }

    fn check(&self) {
        self.machine
            .check_invariants()
            .unwrap_or_else(|broken| panic!("at {}: {broken}", self.now));
    }
}

/// Does to a fresh machine what was done to another, with `policies` answering, and returns the
/// facts and effects that came of it.
///
/// # Errors
/// If the machine refuses its configuration.
pub fn replay(
    config: Config,
    policies: &mut dyn Policies,
    recording: &[Recorded],
) -> Result<(Vec<Stamped>, Vec<Effect>), InvalidConfig> {
    let mut machine = Machine::new(config)?;
    for recorded in recording {
        match recorded {
            Recorded::Input(now, input) => drop(machine.handle(*now, input.clone())),
            Recorded::Decide(now) => machine.decide(*now, policies),
        }
    }
    let facts = std::iter::from_fn(|| machine.poll_fact()).collect();
    let effects = std::iter::from_fn(|| machine.poll_effect()).collect();
    Ok((facts, effects))
}
