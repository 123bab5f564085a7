//! Random fleets, with random events.
//!
//! Of four seeds that follow each other one makes *weather*: executors fail, drain, come and go,
//! limits change, clients leave. One makes a *rush*: for a while more requests arrive than a small
//! fleet can serve. All are equally urgent, so a request that is left behind is left behind by the
//! policy. One makes a fleet for *patience*: few models at a time, kept warm for long, groups,
//! sessions, and answers that take many seconds. It keeps moving, but what a policy waits for on
//! purpose comes later than the first liveness clock runs out. One makes a *crowd*: long work of little
//! urgency fills a small fleet, and urgent requests come, for which some of it has to give way.

use fastrand::Rng;
use pointsman_core::rows::{ExecutorKind, Health, NameKind, RequestClass, Role};
use pointsman_core::{
    Author, BlockHash, Config, DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, ExecutorUpdate,
    Fact, Hook, Input, KvSpec, Micros, ModelId, NewRequest, PromptBlocks, ReadableBlocks,
    RequestId, RetryClass, SessionKey, Stamped, TenantId,
};
use pointsman_policy::{PolicyHost, StartError};
use pointsman_sim::{EngineProfile, World};

use super::copies::WithCopies;
use super::{Broken, Plan, Property, Subject};

const SECOND: u64 = 1_000_000;
/// Tokens of a block on every device.
const BLOCK: u32 = 8;
/// Number of tenants, of models and of conversations.
const KINDS: u32 = 3;
/// Number of facts shown before the wrong one.
const FACTS_MAX: usize = 12;

/// The results of a run.
pub(super) struct Ran {
    pub(super) broken: Broken,
    pub(super) compared: u64,
    pub(super) explained: u64,
    pub(super) evictions: u64,
}

/// A kind of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Weather,
    Rush,
    Patience,
    Crowd,
}

struct Run {
    rng: Rng,
    world: World<WithCopies>,
    devices: Vec<DeviceId>,
    attached: u32,
}

/// Makes one run. The host panics if it breaks an invariant of its own.
pub(super) fn run(subject: &Subject, plan: &Plan, seed: u64) -> Result<Ran, StartError> {
    let kind = Kind::of(seed);
    let mut run = Run::new(WithCopies::new(subject, plan, seed)?, seed);
    for _ in 0..plan.events {
        match kind {
            Kind::Weather => run.weather(),
            Kind::Rush => run.rush(plan.rush),
            Kind::Patience => run.patience(),
            Kind::Crowd => run.crowd(),
        }
    }
    run.drain();
    run.judge();
    let WithCopies {
        broken,
        compared,
        explained,
        evictions,
        ..
    } = run.world.policies;
    Ok(Ran {
        broken,
        compared,
        explained,
        evictions,
    })
}

// === impl Kind ===

impl Kind {
    fn of(seed: u64) -> Self {
        match seed % 4 {
            0 => Self::Patience,
            1 => Self::Weather,
            2 => Self::Rush,
            _ => Self::Crowd,
        }
    }
}

// === impl Run ===

impl Run {
    fn new(policies: WithCopies, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // The parking list keeps its size, because no policy is told how much room it has.
        let config = Config {
            queue_max: rng.u32(4..200),
            batch_max: rng.u32(1..16),
            change_log_max: 64,
            ..Config::default()
        };
        let mut world = World::new(config, policies).expect("these bounds are in their ranges");
        for n in 0..KINDS {
            for kind in [NameKind::Tenant, NameKind::Model] {
                let text = format!("{kind:?}-{n}");
                world.input(Input::NameInterned { kind, text });
            }
            let limit = rng.bool().then(|| rng.u64(1..10_000));
            let weight = rng.u32(1..5);
            world.input(Input::TenantSet(TenantId(n), weight, limit));
        }
        let devices = (0..rng.u32(1..4)).map(|n| {
            let owned = KvSpec::Owned {
                block_bytes: 1,
                blocks_total: rng.u32(8..80),
                host_blocks: rng.u32(0..40),
            };
            let spec = DeviceSpec {
                name: format!("device-{n}"),
                kv: if rng.u32(0..4) == 0 {
                    KvSpec::Remote
                } else {
                    owned
                },
                tokens_per_step: rng.bool().then(|| rng.u32(40..200)),
            };
            world.attach_device(spec).expect("there are few devices")
        });
        let devices = devices.collect();
        let mut run = Self {
            rng,
            world,
            devices,
            attached: 0,
        };
        match Kind::of(seed) {
            Kind::Weather | Kind::Rush | Kind::Crowd => {
                for _ in 0..run.rng.u32(1..5) {
                    run.attach();
                }
            }
            Kind::Patience => {
                for _ in 0..run.rng.u32(2..5) {
                    run.attach_patient();
                }
            }
        }
        run
    }

    /// Attaches a slow executor of a group that runs one model at a time, and keeps it warm.
    fn attach_patient(&mut self) {
        let spec = DeviceSpec {
            name: format!("remote-{}", self.attached),
            kv: KvSpec::Remote,
            tokens_per_step: None,
        };
        let device = self.world.attach_device(spec);
        let rng = &mut self.rng;
        self.attached += 1;
        let spec = ExecutorSpec {
            name: format!("executor-{}", self.attached),
            device: device.expect("there are few devices"),
            kind: ExecutorKind::Simulated,
            role: Role::Both,
            group: self.attached % 2,
            share_weight: 1,
            serves: None,
            slots_total: rng.u32(1..4),
            models_max: Some(1),
            queue_limit: 0,
            tokens_per_block: None,
            preempts: true,
            reads: ReadableBlocks::Device,
            model_unload_delay: Micros(rng.u64(0..40) * SECOND),
        };
        let slow = EngineProfile {
            step: Micros(SECOND / 2),
            ..EngineProfile::default()
        };
        let attached = self.world.attach_executor(spec, slow);
        attached.expect("a remote device has room for any executor");
    }

    fn attach(&mut self) {
        let rng = &mut self.rng;
        self.attached += 1;
        let spec = ExecutorSpec {
            name: format!("executor-{}", self.attached),
            device: self.devices[rng.usize(0..self.devices.len())],
            kind: ExecutorKind::Simulated,
            role: Role::Both,
            group: rng.u32(0..2),
            share_weight: rng.u32(0..4),
            serves: (rng.u32(0..4) == 0).then(|| vec![ModelId(0), ModelId(1)]),
            slots_total: rng.u32(1..5),
            models_max: (rng.u32(0..4) == 0).then(|| rng.u32(1..3)),
            queue_limit: if rng.bool() { 0 } else { rng.u32(0..3) },
            tokens_per_block: Some(BLOCK),
            preempts: rng.u32(0..4) > 0,
            reads: ReadableBlocks::Device,
            model_unload_delay: Micros(rng.u64(0..3) * SECOND),
        };
        // A refusal (a device too small for one more engine) is part of the run.
        let _refused = self
            .world
            .attach_executor(spec, EngineProfile::default())
            .err();
    }

    /// Makes a request that fits on every executor: one that fits nowhere says nothing about a
    /// policy.
    fn request(&mut self) -> NewRequest {
        let now = self.world.now();
        let preferred = self.some_executor();
        let rng = &mut self.rng;
        let prompt = rng.u32(1..40);
        let conversation = u128::from(rng.u32(0..KINDS)) << 64;
        NewRequest {
            model: (rng.u32(0..5) > 0).then(|| ModelId(rng.u32(0..KINDS))),
            deadline: (rng.u32(0..8) == 0).then(|| now.after(Micros(rng.u64(0..10 * SECOND)))),
            output_tokens_expected: rng.bool().then(|| rng.u32(1..40)),
            group: (rng.u32(0..8) == 0).then(|| rng.u32(0..2)),
            preferred: preferred.filter(|_| rng.u32(0..3) == 0),
            prompt_blocks: PromptBlocks {
                tokens_per_block: BLOCK,
                hashes: (0..prompt / BLOCK)
                    .map(|n| BlockHash(conversation + u128::from(n)))
                    .collect(),
            },
            ..NewRequest::new(TenantId(rng.u32(0..KINDS)), prompt, rng.u32(1..24))
        }
    }

    fn arrive(&mut self, new: NewRequest) {
        let output = self.rng.u32(1..24);
        self.world.arrive(new, output);
    }

    fn advance(&mut self, at_most: u64) {
        let pause = Micros(self.rng.u64(0..at_most));
        let until = self.world.now().after(pause);
        self.world.run_until(until);
    }

    fn some_executor(&mut self) -> Option<ExecutorId> {
        let executors: Vec<ExecutorId> = self.world.machine.executor_ids().collect();
        self.rng.choice(executors)
    }

    fn some_request(&mut self) -> Option<RequestId> {
        let unended: Vec<RequestId> = self.world.unended().collect();
        self.rng.choice(unended)
    }

    fn rush(&mut self, at_once: u32) {
        for _ in 0..self.rng.u32(0..at_once.max(1)) {
            let new = NewRequest {
                deadline: None,
                ..self.request()
            };
            self.arrive(new);
        }
        self.advance(SECOND / 4);
    }

    /// Brings a request that some rule of a policy may make wait, of an answer of up to 20 s.
    fn patience(&mut self) {
        let rng = &mut self.rng;
        let output = rng.u32(2..40);
        let new = NewRequest {
            model: Some(ModelId(rng.u32(0..KINDS))),
            group: (rng.u32(0..3) == 0).then(|| rng.u32(0..2)),
            session: rng.bool().then(|| SessionKey(rng.u64(0..6))),
            ..NewRequest::new(TenantId(rng.u32(0..KINDS)), rng.u32(1..40), output)
        };
        self.world.arrive(new, output);
        self.advance(8 * SECOND);
    }

    fn crowd(&mut self) {
        let is_urgent = self.rng.u32(0..4) == 0;
        let new = self.request();
        let rng = &mut self.rng;
        let (class, priority, output) = if is_urgent {
            (RequestClass::LatencyCritical, rng.i32(0..3), rng.u32(1..8))
        } else {
            (RequestClass::Throughput, rng.i32(-2..1), rng.u32(20..60))
        };
        let new = NewRequest {
            class,
            priority,
            deadline: None,
            output_tokens_max: output,
            ..new
        };
        self.world.arrive(new, output);
        self.advance(SECOND / 4);
    }

    fn weather(&mut self) {
        match self.rng.u32(0..100) {
            0..45 => {
                let new = self.request();
                let rng = &mut self.rng;
                let new = NewRequest {
                    class: if rng.bool() {
                        RequestClass::LatencyCritical
                    } else {
                        RequestClass::Throughput
                    },
                    priority: rng.i32(-1..3),
                    may_wait: rng.u32(0..5) > 0,
                    ..new
                };
                self.arrive(new);
            }
            45..50 => {
                if let Some(request) = self.some_request() {
                    self.world.input(Input::RequestCancelled(request));
                }
            }
            50..54 => self.fleet_weather(),
            54..58 => {
                let limit = self.rng.bool().then(|| self.rng.u32(1..3));
                let model = ModelId(self.rng.u32(0..KINDS));
                self.world.input(Input::ModelLimitSet(model, limit));
            }
            58..60 => {
                if let (Some(on), Some(request)) = (self.some_executor(), self.some_request()) {
                    self.world.fail(on, request, RetryClass::Elsewhere);
                }
            }
            _ => self.advance(SECOND),
        }
        self.world.settle();
    }

    fn fleet_weather(&mut self) {
        let Some(executor) = self.some_executor() else {
            self.attach();
            return;
        };
        let rng = &mut self.rng;
        let update = match rng.u32(0..8) {
            0 => ExecutorUpdate::Health(Health::Down),
            1 => ExecutorUpdate::Health(Health::Draining),
            2 => ExecutorUpdate::Health(Health::Degraded),
            3 => ExecutorUpdate::Health(Health::Up),
            4 => ExecutorUpdate::SlotsTotal(rng.u32(1..5)),
            5 => ExecutorUpdate::ShareWeight(rng.u32(0..5)),
            6 => ExecutorUpdate::Detach,
            _ => {
                self.attach();
                return;
            }
        };
        self.world.update(executor, update);
    }

    /// Brings every executor up again and lets every request end.
    fn drain(&mut self) {
        let executors: Vec<ExecutorId> = self.world.machine.executor_ids().collect();
        for executor in executors {
            self.world
                .update(executor, ExecutorUpdate::Health(Health::Up));
        }
        for model in 0..KINDS {
            self.world.input(Input::ModelLimitSet(ModelId(model), None));
        }
        let end = self.world.now().after(Micros(600 * SECOND));
        if !self.world.run_out(end) {
            let left: Vec<RequestId> = self.world.unended().collect();
            let summary = "requests are left without an outcome";
            let policies = &mut self.world.policies;
            policies.note(Property::StarvesNobody, summary, format!("{left:?}"));
        }
    }

    /// Notes the facts that show a broken property.
    fn judge(&mut self) {
        let mut notes = Vec::new();
        for (at, stamped) in self.world.facts().iter().enumerate() {
            if let Some((property, summary)) = against(&stamped.fact, &self.world.policies.host) {
                let first = at.saturating_sub(FACTS_MAX);
                let facts = self.world.facts()[first..=at].iter().map(line);
                notes.push((property, summary, facts.collect::<Vec<_>>().join("\n")));
            }
        }
        for (property, summary, detail) in notes {
            self.world.policies.note(property, &summary, detail);
        }
    }
}

fn against(fact: &Fact, host: &PolicyHost) -> Option<(Property, String)> {
    if let Fact::Refused(Author::Policy(_), hook, refusal) = fact {
        let summary = format!("the interlock refuses {}: {}", hook.as_str(), refusal.cause);
        return Some((Property::NeverRefused, summary));
    }
    if let Fact::Fault(hook, fault) = fact {
        let summary = format!("it fails at {}: {:?}", hook.as_str(), fault.kind);
        return Some((Property::NeverRefused, summary));
    }
    if let Fact::Strike(clock, hook, request) = fact
        && is_to_blame(host, *hook)
    {
        let summary = format!("{}: request {request} was {clock:?}", hook.as_str());
        return Some((Property::StarvesNobody, summary));
    }
    None
}

/// True if the policy had a part in the decision at which a liveness clock ran out. A request
/// without a place is counted under routing, but the order may have left it behind.
fn is_to_blame(host: &PolicyHost, hook: Hook) -> bool {
    let holds = |hook| host.holder(hook).is_some();
    holds(hook) || (hook == Hook::Routing && holds(Hook::Priority))
}

fn line(stamped: &Stamped) -> String {
    format!("{} {:?}", stamped.now, stamped.fact)
}
