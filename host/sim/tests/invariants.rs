//! Random runs against policies that answer at random: every invariant after every step, every
//! request ended within the liveness bounds, and the same again from the recording.
//!
//! A failure prints its seed; `POINTSMAN_SEED=<seed>` runs that one alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use pointsman_core::rows::{ExecutorKind, Health, RequestClass, Role};
use pointsman_core::{
    Availability, BlockHash, BlockKind, Config, DeviceId, DeviceSpec, ExecutorId, ExecutorSpec,
    ExecutorUpdate, Fact, Hook, Input, KvReport, KvSpec, Machine, Micros, ModelId, NewRequest,
    NoPolicies, Outcome, PlacementTerms, Policies, PrefixEvent, PromptBlocks, ReadableBlocks,
    RequestId, RetryClass, TenantId, Tier,
};
use pointsman_sim::{Adversary, EngineProfile, World, replay};

const SECOND: u64 = 1_000_000;

fn config(rng: &mut Rng) -> Config {
    Config {
        queue_max: rng.u32(1..30),
        parking_max: rng.u32(0..10),
        batch_max: rng.u32(1..8),
        overtaken_max: rng.u32(1..10),
        tokenless_steps_max: rng.u32(1..10),
        unplaced_max: Micros(rng.u64(1..4) * SECOND),
        wait_max: Micros(40 * SECOND),
        change_log_max: 64,
        ..Config::default()
    }
}

fn some_terms(rng: &mut Rng) -> PlacementTerms {
    PlacementTerms {
        group: rng.u32(0..3),
        models_max: rng.bool().then(|| rng.u32(1..3)),
        queue_limit: rng.u32(0..4),
        model_unload_delay: Micros(rng.u64(0..3) * SECOND),
        assumes_prompts: rng.bool(),
    }
}

/// A random fleet, and random things that happen to it.
struct Run<P> {
    rng: Rng,
    world: World<P>,
    devices: Vec<DeviceId>,
    tenants: Vec<TenantId>,
    models: Vec<ModelId>,
}

impl<P: Policies> Run<P> {
    fn new(seed: u64, policies: P) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::new(config(&mut rng), policies).unwrap();
        let mut devices = Vec::new();
        for n in 0..rng.u32(1..4) {
            let kv = if rng.u32(0..4) == 0 {
                KvSpec::Remote
            } else {
                KvSpec::Owned {
                    block_bytes: 1,
                    blocks_total: rng.u32(4..40),
                    host_blocks: rng.u32(0..30),
                }
            };
            let spec = DeviceSpec {
                name: format!("device{n}"),
                kv,
                tokens_per_step: rng.bool().then(|| rng.u32(40..200)),
            };
            devices.push(world.attach_device(spec).unwrap());
        }
        let mut tenants = Vec::new();
        let mut models = Vec::new();
        for n in 0..3 {
            for (kind, text) in [
                (pointsman_core::rows::NameKind::Tenant, format!("tenant{n}")),
                (pointsman_core::rows::NameKind::Model, format!("model{n}")),
            ] {
                world.input(Input::NameInterned { kind, text });
            }
            tenants.push(TenantId(n));
            models.push(ModelId(n));
        }
        let mut run = Self {
            rng,
            world,
            devices,
            tenants,
            models,
        };
        for _ in 0..run.rng.u32(1..4) {
            run.attach();
        }
        run
    }

    fn attach(&mut self) {
        let rng = &mut self.rng;
        let n = rng.u32(0..1_000_000);
        let spec = ExecutorSpec {
            name: format!("executor{n}"),
            device: self.devices[rng.usize(0..self.devices.len())],
            kind: ExecutorKind::Simulated,
            role: Role::Both,
            group: rng.u32(0..2),
            share_weight: rng.u32(0..4),
            serves: (rng.u32(0..4) == 0).then(|| vec![self.models[0], self.models[1]]),
            slots_total: rng.u32(1..4),
            models_max: rng.bool().then(|| rng.u32(1..3)),
            queue_limit: if rng.bool() { 0 } else { rng.u32(0..3) },
            tokens_per_block: Some(rng.u32(2..8)),
            preempts: rng.u32(0..4) > 0,
            reads: if rng.bool() {
                ReadableBlocks::Own
            } else {
                ReadableBlocks::Device
            },
            model_unload_delay: Micros(rng.u64(0..3) * SECOND),
        };
        let profile = EngineProfile {
            leave_steps: rng.u32(1..4),
            ..EngineProfile::default()
        };
        // A refused attachment (too few tokens for the slots) is part of the run.
        let _refused = self.world.attach_executor(spec, profile).err();
    }

    fn request(&mut self) -> NewRequest {
        let executors: Vec<ExecutorId> = self.world.machine.executor_ids().collect();
        let rng = &mut self.rng;
        let tenant = self.tenants[rng.usize(0..self.tenants.len())];
        let prompt_tokens = rng.u32(1..40);
        let shared = rng.u32(0..6);
        NewRequest {
            model: (rng.u32(0..5) > 0).then(|| self.models[rng.usize(0..self.models.len())]),
            class: if rng.bool() {
                RequestClass::LatencyCritical
            } else {
                RequestClass::Throughput
            },
            priority: rng.i32(-1..3),
            deadline: (rng.u32(0..6) == 0)
                .then(|| self.world.now().after(Micros(rng.u64(0..10 * SECOND)))),
            may_wait: rng.u32(0..5) > 0,
            allowed: (rng.u32(0..8) == 0 && !executors.is_empty())
                .then(|| vec![executors[rng.usize(0..executors.len())]]),
            prompt_blocks: PromptBlocks {
                tokens_per_block: 4,
                hashes: (0..shared.min(prompt_tokens / 4))
                    .map(|n| BlockHash(n.into()))
                    .collect(),
            },
            ..NewRequest::new(tenant, prompt_tokens, rng.u32(1..60))
        }
    }

    fn some_executor(&mut self) -> Option<ExecutorId> {
        let executors: Vec<ExecutorId> = self.world.machine.executor_ids().collect();
        self.rng.choice(executors)
    }

    fn some_request(&mut self) -> Option<RequestId> {
        let unended: Vec<RequestId> = self.world.unended().collect();
        self.rng.choice(unended)
    }

    fn event(&mut self) {
        match self.rng.u32(0..100) {
            0..40 => {
                let new = self.request();
                let output_tokens = self.rng.u32(1..60);
                self.world.arrive(new, output_tokens);
            }
            40..48 => {
                if let Some(request) = self.some_request() {
                    self.world.input(Input::RequestCancelled(request));
                }
            }
            48..52 => self.fleet_event(),
            52..55 => {
                if let (Some(executor), Some(request)) = (self.some_executor(), self.some_request())
                {
                    let retry = if self.rng.bool() {
                        RetryClass::Elsewhere
                    } else {
                        RetryClass::Never
                    };
                    self.world.fail(executor, request, retry);
                }
            }
            55..58 => {
                let limit = self.rng.bool().then(|| self.rng.u32(1..3));
                let model = self.models[self.rng.usize(0..self.models.len())];
                self.world.input(Input::ModelLimitSet(model, limit));
            }
            58..60 => {
                let device = self.devices[self.rng.usize(0..self.devices.len())];
                let report = KvReport {
                    block_bytes: 1,
                    blocks_total: 50,
                    blocks_free: self.rng.u32(0..50),
                    blocks_cached: 0,
                    blocks_evicted_total: 0,
                };
                self.world.input(Input::KvReported(device, report));
            }
            60..62 => self.prefix_event(),
            62..63 => {
                let hook = Hook::ALL[self.rng.usize(0..Hook::ALL.len())];
                self.world.input(Input::PolicyChanged(hook));
            }
            _ => {
                let pause = Micros(self.rng.u64(0..SECOND));
                let until = self.world.now().after(pause);
                self.world.run_until(until);
            }
        }
    }

    fn prefix_event(&mut self) {
        let device = self.devices[self.rng.usize(0..self.devices.len())];
        let tier = match self.rng.u32(0..4) {
            0 => Tier::Device(device),
            1 => Tier::Host(device),
            2 => Tier::Disk(device),
            _ => Tier::Shared,
        };
        let hashes = (0..self.rng.u128(1..8)).map(BlockHash).collect();
        let kind = BlockKind {
            model: self.rng.choice(&self.models).copied(),
            adapter: None,
            tokens_per_block: 4,
        };
        let event = match self.rng.u32(0..3) {
            0 => PrefixEvent::Removed(kind, hashes),
            1 => PrefixEvent::Cleared,
            _ => PrefixEvent::Stored(kind, hashes),
        };
        self.world.input(Input::PrefixesReported(tier, event));
    }

    fn fleet_event(&mut self) {
        let Some(executor) = self.some_executor() else {
            self.attach();
            return;
        };
        let rng = &mut self.rng;
        if rng.u32(0..9) == 8 {
            let device = self.devices[rng.usize(0..self.devices.len())];
            // Too few for the slots, and refused, now and then.
            let tokens = rng.u32(1..60);
            self.world.input(Input::TokensPerStepSet(device, tokens));
            return;
        }
        let update = match rng.u32(0..10) {
            0 => {
                self.world.lose_keeping(executor, |left| rng.u32(0..=left));
                return;
            }
            1 => ExecutorUpdate::Health(Health::Draining),
            2 if rng.bool() => {
                let models = self.models.iter().copied();
                let loaded = models.filter(|_| rng.bool()).collect();
                ExecutorUpdate::Loaded(rng.u32(0..4).ge(&1).then_some(loaded))
            }
            2 => ExecutorUpdate::Health(Health::Degraded),
            3 => ExecutorUpdate::Health(Health::Up),
            4 => ExecutorUpdate::SlotsTotal(rng.u32(1..5)),
            5 => ExecutorUpdate::ShareWeight(rng.u32(0..5)),
            6 => ExecutorUpdate::Detach,
            7 if rng.bool() => ExecutorUpdate::ModelsMax(rng.bool().then(|| rng.u32(1..3))),
            7 => ExecutorUpdate::Terms(some_terms(rng)),
            8 => {
                let answer = match rng.u32(0..3) {
                    0 => Availability::Busy,
                    1 => Availability::Silent,
                    _ => Availability::Open,
                };
                self.world.update(executor, ExecutorUpdate::Replaced);
                ExecutorUpdate::Availability(answer)
            }
            _ => {
                self.attach();
                return;
            }
        };
        self.world.update(executor, update);
    }

    /// Brings every executor up again, and lets every request end.
    fn drain(&mut self) {
        let executors: Vec<ExecutorId> = self.world.machine.executor_ids().collect();
        for executor in executors {
            for update in [
                ExecutorUpdate::Health(Health::Up),
                ExecutorUpdate::Availability(Availability::Open),
            ] {
                self.world.update(executor, update);
            }
        }
        for model in self.models.clone() {
            self.world.input(Input::ModelLimitSet(model, None));
        }
        let end = self.world.now().after(Micros(600 * SECOND));
        let all = self.world.run_out(end);
        let left: Vec<RequestId> = self.world.unended().collect();
        let executors = self.world.machine.executor_ids();
        let executors: Vec<_> = executors
            .filter_map(|id| self.world.machine.executor_snapshot(id))
            .collect();
        let newest = self.world.facts().iter().rev().take(20).rev();
        assert!(
            all,
            "still there: {left:?}\non {executors:#?}\nengines {:?}\nafter {:#?}",
            self.world
                .machine
                .executor_ids()
                .map(|id| self.world.engine(id))
                .collect::<Vec<_>>(),
            newest.collect::<Vec<_>>()
        );
        self.check_stays();
    }

    /// Checks that each placement is followed by the end of its stay, once and before the next one. One
    /// whose client has left may be on its way out still.
    fn check_stays(&self) {
        let mut open = BTreeMap::new();
        for stamped in self.world.facts() {
            if let Fact::Placed {
                request, executor, ..
            } = &stamped.fact
            {
                assert_eq!(open.insert(*request, *executor), None);
            }
            if let Fact::StayEnded(stay) = &stamped.fact {
                assert_eq!(open.remove(&stay.request), Some(stay.executor), "{stay:?}");
                assert!(stay.cached_tokens <= stay.prompt_tokens, "{stay:?}");
            }
        }
        for request in open.into_keys() {
            let outcome = self.world.outcome(request);
            let served = matches!(outcome, Some(Outcome::Finished { .. }));
            assert!(!served, "{request:?} is {outcome:?}");
        }
    }
}

fn run<P: Policies>(seed: u64, policies: P) -> World<P> {
    run_with(seed, policies, |_| {})
}

/// A run with something done to the world between its events.
fn run_with<P: Policies>(
    seed: u64,
    policies: P,
    mut between: impl FnMut(&mut World<P>),
) -> World<P> {
    let mut run = Run::new(seed, policies);
    for _ in 0..200 {
        run.event();
        between(&mut run.world);
        run.world.settle();
    }
    run.drain();
    run.world
}

/// Runs every seed, and says which one failed.
fn for_seeds(seeds: std::ops::Range<u64>, check: impl Fn(u64)) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one switch of this test, read nowhere else"
    )]
    let only = std::env::var("POINTSMAN_SEED").ok();
    if let Some(seed) = only {
        check(seed.parse().expect("POINTSMAN_SEED is a number"));
        return;
    }
    for seed in seeds {
        let ran = catch_unwind(AssertUnwindSafe(|| check(seed)));
        assert!(
            ran.is_ok(),
            "failed; to see it alone: POINTSMAN_SEED={seed} cargo test -p pointsman-sim"
        );
    }
}

#[test]
fn invariants_hold_whatever_policies_answer() {
    for_seeds(0..400, |seed| {
        let sanity = [0, 50, 90, 100][(seed % 4) as usize];
        run(seed, Adversary::new(seed, sanity));
    });
}

#[test]
fn invariants_hold_under_the_built_in_rules() {
    for_seeds(0..100, |seed| {
        run(seed, NoPolicies);
    });
}

#[test]
fn a_recorded_run_gives_the_same_facts_and_effects_again() {
    for_seeds(0..40, |seed| {
        let world = run(seed, Adversary::new(seed, 80));
        let config = config(&mut Rng::with_seed(seed));
        let mut again = Adversary::new(seed, 80);
        let (facts, effects) = replay(config, &mut again, world.recording()).unwrap();
        let differs = facts.iter().zip(world.facts()).find(|(a, b)| a != b);
        assert_eq!(differs, None, "the first fact that differs");
        assert_eq!(facts.len(), world.facts().len());
        assert_eq!(effects, world.effects());
    });
}

#[test]
fn a_machine_that_was_written_down_and_read_again_goes_on_the_same() {
    for_seeds(0..40, |seed| {
        let plain = run(seed, Adversary::new(seed, 80));
        let mut points = Rng::with_seed(!seed);
        let again = run_with(seed, Adversary::new(seed, 80), |world| {
            if points.u32(0..10) == 0 {
                let written = postcard::to_stdvec(&*world.machine).unwrap();
                world
                    .machine
                    .replace(postcard::from_bytes(&written).unwrap());
            }
        });
        let mut facts = plain.facts().iter().zip(again.facts());
        let differs = facts.find(|(a, b)| a != b);
        assert_eq!(differs, None, "the first fact that differs");
        assert_eq!(plain.facts().len(), again.facts().len());
        assert_eq!(plain.effects(), again.effects());
    });
}

#[test]
fn a_damaged_keyframe_is_refused_or_reads_as_a_machine_that_holds_together() {
    for_seeds(0..20, |seed| {
        let mut written = Vec::new();
        let mut events = 0;
        run_with(seed, Adversary::new(seed, 80), |world| {
            events += 1;
            if events == 100 {
                written = postcard::to_stdvec(&*world.machine).unwrap();
            }
        });
        let mut rng = Rng::with_seed(seed);
        for _ in 0..200 {
            let mut damaged = written.clone();
            let at = rng.usize(0..damaged.len());
            damaged[at] = rng.u8(..);
            damaged.truncate(if rng.bool() {
                damaged.len()
            } else {
                rng.usize(0..damaged.len())
            });
            let read: Result<Machine, _> = postcard::from_bytes(&damaged);
            if let Ok(machine) = read {
                machine.check_invariants().unwrap();
            }
        }
    });
}
