//! A machine with a fleet whose rows change, for benchmarks: requests arrive, are decided, and end at once.
//!
//! # Not here
//! The course of a real run: `pointsman-sim`. Clocks: the benchmarks have them.

use pointsman_core::rows::ExecutorKind;
use pointsman_core::{
    BlockHash, BlockKind, Config, DeviceId, DeviceSpec, Effect, ExecutorId, ExecutorSpec,
    Incarnation, Input, KvReport, KvSpec, Machine, Micros, NewRequest, NoPolicies, Policies,
    PrefixEvent, RequestId, StepReport, TenantId, Tier, fixture,
};

/// Slots of an executor: room for whatever a benchmark places there.
const SLOTS: u32 = 100_000;
const BLOCKS: u32 = 1_000_000;

/// A machine with a fleet. Each executor is on a device that reports its KV blocks.
#[derive(Debug)]
pub struct StandingFleet {
    machine: Machine,
    executors: Vec<(ExecutorId, DeviceId)>,
    tenant: TenantId,
    now: Micros,
    step: u64,
}

impl StandingFleet {
    /// Makes a fleet of so many executors, alike but for the blocks that are free.
    ///
    /// # Panics
    /// If the machine refuses the fleet: its names and numbers are these.
    #[must_use]
    pub fn new(executors: u32) -> Self {
        Self::with(executors, |_| {})
    }

    /// Makes a fleet of servers elsewhere, which keep their prompt blocks themselves.
    ///
    /// # Panics
    /// If the machine refuses the fleet: its names and numbers are these.
    #[must_use]
    pub fn of_servers(executors: u32) -> Self {
        Self::with(executors, |spec| spec.kind = ExecutorKind::Remote)
    }

    fn with(executors: u32, change: fn(&mut ExecutorSpec)) -> Self {
        let config = Config {
            // Room for all changes of one round, or else the feed would start over.
            change_log_max: 1 << 20,
            ..Config::default()
        };
        let mut machine = Machine::new(config).expect("a valid configuration");
        let tenant = machine.intern(Micros(0), "default");
        let mut fleet = Self {
            machine,
            executors: Vec::new(),
            tenant,
            now: Micros(0),
            step: 0,
        };
        for n in 0..executors {
            fleet.attach(n, change);
        }
        fleet.change(executors);
        fleet
    }

    fn attach(&mut self, n: u32, change: fn(&mut ExecutorSpec)) {
        let device = DeviceSpec {
            name: format!("device{n}"),
            kv: KvSpec::Remote,
            tokens_per_step: None,
        };
        let device = self.machine.handle(self.now, Input::DeviceAttached(device));
        let device = device.device().expect("a new device");
        let mut spec = ExecutorSpec {
            slots_total: SLOTS,
            ..fixture::executor_spec(&format!("executor{n}"), device)
        };
        change(&mut spec);
        let executor = self.machine.handle(self.now, Input::ExecutorAttached(spec));
        let executor = executor.executor().expect("a new executor");
        self.executors.push((executor, device));
    }

    /// The executors, in attach order.
    pub fn executors(&self) -> impl Iterator<Item = ExecutorId> {
        self.executors.iter().map(|(executor, _)| *executor)
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Lets a millisecond pass.
    pub fn pass(&mut self) {
        self.now = self.now.after(Micros(1000));
    }

    /// Changes the load and device rows of the next `n` executors.
    pub fn change(&mut self, n: u32) {
        for _ in 0..n {
            self.step += 1;
            let idx = usize::try_from(self.step).unwrap_or(0) % self.executors.len();
            let (executor, device) = self.executors[idx];
            let free = 100_000 + u32::try_from(self.step * 37 % 900).unwrap_or(0) * 1000;
            let report = KvReport {
                block_bytes: 1 << 20,
                blocks_total: BLOCKS,
                blocks_free: free,
                blocks_cached: 0,
                blocks_evicted_total: 0,
            };
            self.machine
                .handle(self.now, Input::KvReported(device, report));
            let report = StepReport {
                executor,
                incarnation: Incarnation(0),
                progress: Vec::new(),
            };
            self.machine.handle(self.now, Input::StepFinished(report));
        }
    }

    /// A request of so many prompt and at most so many output tokens, with the priority of its turn.
    #[must_use]
    pub fn request(&self, prompt_tokens: u32, output_tokens_max: u32) -> NewRequest {
        NewRequest {
            priority: i32::try_from(self.step % 3).unwrap_or(0),
            ..NewRequest::new(self.tenant, prompt_tokens, output_tokens_max)
        }
    }

    /// Lets a request arrive.
    pub fn arrive(&mut self, new: NewRequest) {
        self.machine.handle(self.now, Input::arrival(new));
    }

    /// Has so many requests run on an executor from now on.
    pub fn occupy(&mut self, executor: ExecutorId, requests: u32, prompt_tokens: u32) {
        for _ in 0..requests {
            let mut new = NewRequest::new(self.tenant, prompt_tokens, 64);
            new.allowed = Some(vec![executor]);
            self.arrive(new);
        }
        self.machine.decide(self.now, &mut NoPolicies);
        while self.machine.poll_effect().is_some() {}
        while self.machine.poll_fact().is_some() {}
    }

    /// Has an executor of the fleet, by its place, report that it holds these prompt blocks.
    pub fn store(&mut self, at: usize, tokens_per_block: u32, hashes: Vec<BlockHash>) {
        let kind = BlockKind {
            model: None,
            adapter: None,
            tokens_per_block,
        };
        let tier = Tier::Device(self.executors[at].1);
        let stored = PrefixEvent::Stored(kind, hashes);
        self.machine
            .handle(self.now, Input::PrefixesReported(tier, stored));
    }

    /// Lets the machine decide.
    pub fn decide(&mut self, policies: &mut dyn Policies) {
        self.machine.decide(self.now, policies);
    }

    /// Ends the requests that were placed, and returns where.
    pub fn finish(&mut self) -> Vec<(RequestId, ExecutorId)> {
        let mut placed = Vec::new();
        let mut started = Vec::new();
        while let Some(effect) = self.machine.poll_effect() {
            if let Effect::Start(order) = effect {
                placed.push((order.sequence.request, order.sequence.executor));
                started.push(order.sequence);
            }
        }
        for sequence in started {
            self.machine
                .handle(self.now, Input::SequenceFinished(sequence));
        }
        while self.machine.poll_effect().is_some() {}
        while self.machine.poll_fact().is_some() {}
        placed
    }
}
