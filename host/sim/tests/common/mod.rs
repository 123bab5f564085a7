//! The common parts of the behaviour tests: a small host, policies that answer as they are told,
//! and questions about the facts.
#![allow(
    clippy::allow_attributes,
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod fed;
pub mod scripted;

use pointsman_core::rows::{Change, Request, Residency, SequenceState};
use pointsman_core::{
    BlockHash, BlockKind, Clock, Config, DeviceId, DeviceSpec, Effect, EvictHow, Eviction,
    ExecutorId, ExecutorSpec, Fact, Incarnation, Input, KvSpec, Micros, ModelId, NewRequest,
    Policies, PromptBlocks, RefusalCause, RequestId, SequenceRef, StartOrder, TenantId, Victim,
    fixture,
};
use pointsman_sim::EngineProfile;

pub use pointsman_sim::World as AnyWorld;
pub use scripted::Scripted;

pub type World = AnyWorld<Scripted>;

pub const SECOND: u64 = 1_000_000;
/// A time later than any test needs.
pub const END: Micros = Micros(10_000 * SECOND);
/// Tokens of a block on every executor that does not say otherwise.
pub const TOKENS_PER_BLOCK: u32 = 4;

// === Making a host ===

pub fn seconds(n: u64) -> Micros {
    Micros(n * SECOND)
}

/// An empty host with one tenant and two models, [`MODEL_A`] and [`MODEL_B`].
pub fn world_with(config: Config) -> World {
    world_of(config, Scripted::default())
}

/// The same with other policies.
pub fn world_of<P: Policies>(config: Config, policies: P) -> AnyWorld<P> {
    let mut world = AnyWorld::new(config, policies).expect("the bounds are in range");
    use pointsman_core::rows::NameKind::{Model, Tenant};
    for (kind, text) in [(Tenant, "tenant"), (Model, "a"), (Model, "b")] {
        let text = text.to_owned();
        world.input(Input::NameInterned { kind, text });
    }
    world
}

pub const MODEL_A: ModelId = ModelId(0);
pub const MODEL_B: ModelId = ModelId(1);

pub fn world() -> World {
    world_with(Config::default())
}

/// A host with one device of so many blocks and one executor of so many slots on it.
pub fn single(slots: u32, blocks: u32) -> (World, ExecutorId) {
    let mut world = world();
    let device = add_device(&mut world, blocks);
    let executor = add_executor(&mut world, device, slots);
    (world, executor)
}

/// A name that nothing else has.
fn new_name<P: Policies>(world: &AnyWorld<P>) -> String {
    format!("name{}", world.recording().len())
}

pub fn add_device<P: Policies>(world: &mut AnyWorld<P>, blocks: u32) -> DeviceId {
    device_with(world, blocks, None)
}

pub fn device_with<P: Policies>(
    world: &mut AnyWorld<P>,
    blocks: u32,
    tokens_per_step: Option<u32>,
) -> DeviceId {
    let spec = DeviceSpec {
        name: new_name(world),
        kv: KvSpec::Owned {
            block_bytes: 1,
            blocks_total: blocks,
            host_blocks: 0,
        },
        tokens_per_step,
    };
    world.attach_device(spec).expect("its name is new")
}

/// A device to whose host memory so many blocks can be moved.
pub fn device_with_host_memory<P: Policies>(
    world: &mut AnyWorld<P>,
    blocks: u32,
    host_blocks: u32,
) -> DeviceId {
    let spec = DeviceSpec {
        name: new_name(world),
        kv: KvSpec::Owned {
            block_bytes: 1,
            blocks_total: blocks,
            host_blocks,
        },
        tokens_per_step: None,
    };
    world.attach_device(spec).expect("its name is new")
}

pub fn add_executor<P: Policies>(
    world: &mut AnyWorld<P>,
    device: DeviceId,
    slots: u32,
) -> ExecutorId {
    executor_with(world, device, |spec, _| spec.slots_total = slots)
}

/// An executor with one slot, and what `change` makes of it and of its engine.
/// Attaches the device of a server elsewhere.
pub fn device_elsewhere<P: Policies>(world: &mut AnyWorld<P>, kv: KvSpec) -> DeviceId {
    let spec = DeviceSpec {
        name: new_name(world),
        kv,
        tokens_per_step: None,
    };
    world.attach_device(spec).expect("its name is new")
}

pub fn executor_with<P: Policies>(
    world: &mut AnyWorld<P>,
    device: DeviceId,
    change: impl FnOnce(&mut ExecutorSpec, &mut EngineProfile),
) -> ExecutorId {
    let mut spec = executor_spec(world, device);
    let mut profile = EngineProfile::default();
    change(&mut spec, &mut profile);
    world
        .attach_executor(spec, profile)
        .expect("what it says of itself can work")
}

pub fn executor_spec<P: Policies>(world: &AnyWorld<P>, device: DeviceId) -> ExecutorSpec {
    ExecutorSpec {
        slots_total: 1,
        tokens_per_block: Some(TOKENS_PER_BLOCK),
        ..fixture::executor_spec(&new_name(world), device)
    }
}

// === Making requests ===

/// A latency-critical request that generates as many tokens as it may.
pub fn request(prompt_tokens: u32, output_tokens: u32) -> NewRequest {
    NewRequest::new(TenantId(0), prompt_tokens, output_tokens)
}

/// The same of class throughput, which gives way to a latency-critical one.
pub fn background(prompt_tokens: u32, output_tokens: u32) -> NewRequest {
    NewRequest {
        class: pointsman_core::rows::RequestClass::Throughput,
        ..request(prompt_tokens, output_tokens)
    }
}

pub fn of_model(model: ModelId, new: NewRequest) -> NewRequest {
    NewRequest {
        model: Some(model),
        ..new
    }
}

/// A request whose prompt begins with these full blocks.
pub fn with_hashes(hashes: &[u128], new: NewRequest) -> NewRequest {
    NewRequest {
        prompt_blocks: blocks(hashes),
        ..new
    }
}

/// Blocks of the usual size.
pub fn blocks(hashes: &[u128]) -> PromptBlocks {
    PromptBlocks {
        tokens_per_block: TOKENS_PER_BLOCK,
        hashes: hashes.iter().copied().map(BlockHash).collect(),
    }
}

/// The kind of a model's blocks of the usual size.
pub fn blocks_of(model: Option<ModelId>) -> BlockKind {
    BlockKind {
        model,
        adapter: None,
        tokens_per_block: TOKENS_PER_BLOCK,
    }
}

/// Brings a request in, and has the machine decide about it.
pub fn arrive<P: Policies>(world: &mut AnyWorld<P>, new: NewRequest) -> RequestId {
    let id = world.arrive(new, u32::MAX);
    world.settle();
    id
}

pub fn cancel(world: &mut World, request: RequestId) {
    world.input(Input::RequestCancelled(request));
    world.settle();
}

/// An answer of the hook `preemption`.
pub fn evict(executor: ExecutorId, victims: &[RequestId]) -> Eviction {
    let how = EvictHow::Recompute;
    let victims = victims.iter().map(|id| Victim { request: *id, how });
    Eviction {
        executor,
        victims: victims.collect(),
        reason: 0,
    }
}

/// The same by swap.
pub fn swap(executor: ExecutorId, victims: &[RequestId]) -> Eviction {
    let mut eviction = evict(executor, victims);
    for victim in &mut eviction.victims {
        victim.how = EvictHow::Swap;
    }
    eviction
}

pub fn steps(world: &mut World, executor: ExecutorId, n: u32) {
    for _ in 0..n {
        world.step(executor);
    }
}

// === Asking what happened ===

pub fn facts(world: &World) -> impl DoubleEndedIterator<Item = &Fact> {
    world.facts().iter().map(|stamped| &stamped.fact)
}

/// The executors on which a request was placed, in order.
pub fn placements(world: &World, id: RequestId) -> Vec<ExecutorId> {
    let placed = facts(world).filter_map(|fact| {
        let Fact::Placed {
            request, executor, ..
        } = fact
        else {
            return None;
        };
        (*request == id).then_some(*executor)
    });
    placed.collect()
}

/// The evictions in order, each with victim and needy request.
pub fn evictions(world: &World) -> Vec<(RequestId, RequestId)> {
    let evicted = facts(world).filter_map(|fact| {
        let Fact::Evicted { victim, needy, .. } = fact else {
            return None;
        };
        Some((*victim, *needy))
    });
    evicted.collect()
}

/// The causes for which answers were refused, in order.
pub fn refusals(world: &World) -> Vec<RefusalCause> {
    let refused = facts(world).filter_map(|fact| {
        let Fact::Refused(_, _, refusal) = fact else {
            return None;
        };
        Some(refusal.cause)
    });
    refused.collect()
}

pub fn strikes(world: &World) -> Vec<(Clock, RequestId)> {
    let strikes = facts(world).filter_map(|fact| {
        let Fact::Strike(clock, _, request) = fact else {
            return None;
        };
        Some((*clock, *request))
    });
    strikes.collect()
}

pub fn starts(world: &World, id: RequestId) -> Vec<&StartOrder> {
    let starts = world.effects().iter().filter_map(|effect| {
        let Effect::Start(order) = effect else {
            return None;
        };
        (order.sequence.request == id).then_some(order)
    });
    starts.collect()
}

/// The state and executor of a request; absent: not placed.
pub fn placed(world: &World, id: RequestId) -> Option<(ExecutorId, SequenceState)> {
    world.machine.executor_ids().find_map(|executor| {
        let snapshot = world.machine.executor_snapshot(executor)?;
        let mut sequences = snapshot.sequences.into_iter();
        let (_, state) = sequences.find(|(request, _)| *request == id)?;
        Some((executor, state))
    })
}

pub fn is_running(world: &World, id: RequestId) -> bool {
    placed(world, id).is_some_and(|(_, state)| state == SequenceState::Running)
}

pub fn is_queued(world: &World, id: RequestId) -> bool {
    world.machine.queue_snapshot().queued.contains(&id)
}

pub fn slots_used(world: &World, executor: ExecutorId) -> u32 {
    let snapshot = world
        .machine
        .executor_snapshot(executor)
        .expect("it is attached");
    snapshot.slots_used
}

pub fn sequence_of(
    request: RequestId,
    executor: ExecutorId,
    incarnation: Incarnation,
) -> SequenceRef {
    SequenceRef {
        request,
        executor,
        incarnation,
    }
}

/// Every row a policy could be told now, those of a request that is made up for the question
/// left out.
pub fn rows(world: &mut World) -> Vec<Change> {
    world.policies.begin_probe();
    let probe = world.arrive(request(1, 1), 1);
    world.settle();
    let mut rows = world.policies.end_probe();
    rows.retain(|row| !matches!(row, Change::Waiting(request) if request.id == probe));
    rows
}

pub fn waiting_row(world: &mut World, id: RequestId) -> Option<Request> {
    rows(world).into_iter().find_map(|row| {
        let Change::Waiting(request) = row else {
            return None;
        };
        (request.id == id).then(|| Request::clone(&request))
    })
}

pub fn residencies(world: &mut World) -> Vec<Residency> {
    let rows = rows(world).into_iter().filter_map(|row| {
        let Change::Residency(residency) = row else {
            return None;
        };
        Some(residency)
    });
    rows.collect()
}

/// Blocks of a device that are free, and cached.
pub fn blocks_idle(world: &mut World, device: DeviceId) -> (u32, u32) {
    let found = rows(world).into_iter().find_map(|row| {
        let Change::Device(row) = row else {
            return None;
        };
        (row.id == device).then_some((row.blocks_free, row.blocks_cached))
    });
    found.expect("the device has blocks")
}

/// Blocks of a device's host memory that are free.
pub fn host_blocks_free(world: &mut World, device: DeviceId) -> u32 {
    let found = rows(world).into_iter().find_map(|row| {
        let Change::Device(row) = row else {
            return None;
        };
        (row.id == device).then_some(row.host_blocks_free)
    });
    found.expect("the device has blocks")
}

/// Checks that every request has ended, and no slot, block, model or budgeted token is still taken.
pub fn assert_nothing_held(world: &mut World) {
    assert_eq!(world.unended().collect::<Vec<_>>(), []);
    assert_eq!(world.machine.live_requests(), 0);
    let executors: Vec<ExecutorId> = world.machine.executor_ids().collect();
    for executor in executors {
        assert_eq!(slots_used(world, executor), 0, "slots of {executor}");
        let running: Vec<_> = world
            .engine(executor)
            .into_iter()
            .flat_map(pointsman_sim::Engine::sequences)
            .collect();
        assert_eq!(running, [], "engine {executor} still runs");
    }
    for row in rows(world) {
        match row {
            Change::Device(device) => assert_eq!(
                (
                    device.blocks_free + device.blocks_cached,
                    device.host_blocks_free
                ),
                (device.blocks_total, device.host_blocks_total)
            ),
            Change::Load(load) => {
                let queued = load.queued_critical + load.queued_throughput;
                let held = (queued, load.blocks_used, load.prefill_tokens_pending);
                assert_eq!(held, (0, 0, 0), "{load:?}");
            }
            Change::Model(model) => assert_eq!((model.running, model.waiting), (0, 0)),
            // The request that asks is waiting itself.
            Change::Tenant(tenant) => assert_eq!((tenant.running, tenant.waiting), (0, 1)),
            Change::Residency(residency) => assert_eq!(residency.sequences, 0),
            Change::Waiting(_) | Change::Sequence(_) => panic!("still there: {row:?}"),
            Change::Name(_)
            | Change::Executor(_)
            | Change::ExecutorGone(_)
            | Change::ResidencyGone(_)
            | Change::WaitingGone(_)
            | Change::SequenceGone(_)
            | Change::Completed(_) => {}
        }
    }
}
