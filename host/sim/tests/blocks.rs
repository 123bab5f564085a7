//! KV blocks: reserved, granted ahead, given back, shared by prefix and kept as cache.

mod common;

use common::{
    END, SECOND, World, add_device, add_executor, arrive, assert_nothing_held, blocks, blocks_idle,
    blocks_of, cancel, device_elsewhere, executor_with, is_queued, is_running, request, single,
    starts, steps, with_hashes, world, world_with,
};
use pointsman_core::rows::{ExecutorKind, Health, Overlap};
use pointsman_core::{
    Availability, BlockHash, BlockId, Config, DeviceId, Effect, ExecutorId, ExecutorUpdate, Input,
    KvReport, KvSpec, Micros, Outcome, PlacementTerms, PrefixEvent, RequestId, RetryClass, Tier,
};

const DEVICE: DeviceId = DeviceId(0);
/// The hashes of a prompt's first two blocks of four tokens.
const PREFIX: [u128; 2] = [10, 11];

fn granted(world: &World, id: RequestId) -> Vec<BlockId> {
    let grants = world.effects().iter().filter_map(|effect| {
        let Effect::Grant { sequence, blocks } = effect else {
            return None;
        };
        (sequence.request == id).then_some(blocks.clone())
    });
    grants.flatten().collect()
}

/// Tokens that were in the cache when a request was started last.
fn cached_tokens(world: &World, id: RequestId) -> u32 {
    let starts = starts(world, id);
    starts.last().expect("it was started").cached_tokens
}

/// Runs a request with that prompt to its end, so that its prefix stays as cache.
fn serve(world: &mut World, hashes: &[u128], prompt_tokens: u32) -> RequestId {
    let id = arrive(world, with_hashes(hashes, request(prompt_tokens, 1)));
    assert!(world.run_out(END));
    id
}

#[test]
fn a_placement_reserves_the_blocks_of_the_prompt_and_the_first_token() {
    let (mut world, _) = single(2, 16);
    let within = arrive(&mut world, request(7, 8));
    let over = arrive(&mut world, request(8, 8));
    for (id, blocks) in [(within, 2), (over, 3)] {
        assert_eq!(world.machine.block_table(id).len(), blocks);
        assert_eq!(starts(&world, id)[0].blocks, world.machine.block_table(id));
    }
    assert_eq!(blocks_idle(&mut world, DEVICE), (11, 0));
}

#[test]
fn blocks_are_granted_ahead_so_that_a_growing_sequence_never_stalls() {
    let (mut world, executor) = single(1, 7);
    let id = arrive(&mut world, request(8, 20));
    for step in 1..=19 {
        world.step(executor);
        let generated = world.engine(executor).unwrap().tokens_total() - 7;
        assert_eq!(generated, step, "one token in each step");
        let held = world.machine.block_table(id).len();
        assert!(held * 4 > 8 + usize::try_from(step).unwrap() - 1);
    }
    let table = world.machine.block_table(id).to_vec();
    let told = [starts(&world, id)[0].blocks.clone(), granted(&world, id)].concat();
    assert_eq!((table.len(), &table), (7, &told));
    world.step(executor);
    assert_eq!(
        world.outcome(id),
        Some(Outcome::Finished { output_tokens: 20 })
    );
    assert_eq!(blocks_idle(&mut world, DEVICE), (7, 0));
    assert_nothing_held(&mut world);
}

#[test]
fn no_block_is_granted_past_the_output_bound() {
    let (mut world, executor) = single(1, 16);
    let id = arrive(&mut world, request(8, 4));
    steps(&mut world, executor, 3);
    assert_eq!(world.machine.block_table(id).len(), 3);
    assert_eq!(granted(&world, id), []);
}

#[test]
fn an_executor_that_cannot_preempt_reserves_all_a_request_may_need() {
    let mut world = world();
    let device = add_device(&mut world, 10);
    executor_with(&mut world, device, |spec, _| {
        spec.slots_total = 2;
        spec.preempts = false;
    });
    let first = arrive(&mut world, request(8, 20));
    assert_eq!(world.machine.block_table(first).len(), 7);
    let second = arrive(&mut world, request(8, 8));
    assert!(is_queued(&world, second), "3 are left and it may need 4");
    assert!(world.run_out(END));
    assert_eq!(granted(&world, first), []);
    assert_nothing_held(&mut world);
}

// === Prefixes ===

#[test]
fn a_request_with_a_prefix_that_is_there_shares_its_blocks_and_skips_its_prefill() {
    let (mut world, executor) = single(2, 16);
    let first = arrive(&mut world, with_hashes(&PREFIX, request(10, 8)));
    world.step(executor);
    let second = arrive(&mut world, with_hashes(&PREFIX, request(11, 8)));
    assert_eq!(cached_tokens(&world, first), 0);
    assert_eq!(cached_tokens(&world, second), 8);
    let tables = [first, second].map(|id| world.machine.block_table(id).to_vec());
    assert_eq!(tables[0][..2], tables[1][..2]);
    assert_ne!(tables[0][2], tables[1][2]);
    assert_eq!(blocks_idle(&mut world, DEVICE), (12, 0));

    let before = world.engine(executor).unwrap().tokens_total();
    world.step(executor);
    let made = world.engine(executor).unwrap().tokens_total() - before;
    assert_eq!(
        made,
        1 + 3,
        "a token of the first, what is left of the second prompt"
    );
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_prefix_is_shared_only_once_its_contents_are_there() {
    let (mut world, _) = single(2, 16);
    let ids = [(); 2].map(|()| arrive(&mut world, with_hashes(&PREFIX, request(10, 8))));
    assert_eq!(ids.map(|id| cached_tokens(&world, id)), [0, 0]);
    assert!(world.run_out(END));
}

#[test]
fn a_prompt_that_is_cached_to_its_last_token_still_writes_only_to_blocks_of_its_own() {
    let (mut world, executor) = single(2, 16);
    let first = arrive(&mut world, with_hashes(&PREFIX, request(8, 8)));
    world.step(executor);
    let second = arrive(&mut world, with_hashes(&PREFIX, request(8, 8)));
    let tables = [first, second].map(|id| world.machine.block_table(id).to_vec());
    assert_eq!(tables[0][0], tables[1][0]);
    assert_ne!(
        tables[0][1], tables[1][1],
        "its last token is computed again"
    );
    assert_eq!(cached_tokens(&world, second), 4);
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_policy_is_told_which_executor_holds_how_much_of_a_prompt() {
    let (mut world, first) = single(1, 16);
    let device = add_device(&mut world, 16);
    let second = add_executor(&mut world, device, 1);
    world.policies.route_to(&[first]);
    serve(&mut world, &PREFIX[..1], 6);
    world.policies.route_to(&[second]);
    serve(&mut world, &PREFIX, 10);
    let id = arrive(&mut world, with_hashes(&PREFIX, request(10, 1)));
    let asked = world.policies.asked.route.last().unwrap();
    let overlap = |executor, device_tokens| Overlap {
        executor,
        device_tokens,
        host_tokens: 0,
        disk_tokens: 0,
    };
    assert_eq!(asked.1.request, id);
    assert_eq!(asked.1.overlaps, [overlap(second, 8), overlap(first, 4)]);
}

fn stored(world: &mut World, tier: Tier, hashes: &[u128]) {
    let event = PrefixEvent::Stored(blocks_of(None), blocks(hashes).hashes);
    world.input(Input::PrefixesReported(tier, event));
}

/// A server elsewhere with two slots, which reports eight blocks, of which so many are free.
fn elsewhere(world: &mut World, blocks_free: u32) -> DeviceId {
    let device = device_elsewhere(world, KvSpec::Remote);
    executor_with(world, device, |spec, _| {
        spec.kind = ExecutorKind::Remote;
        spec.preempts = false;
        spec.slots_total = 2;
    });
    let report = KvReport {
        block_bytes: 1,
        blocks_total: 8,
        blocks_free,
        blocks_cached: 0,
        blocks_evicted_total: 0,
    };
    world.input(Input::KvReported(device, report));
    device
}

/// Tests that requests that end between two reports leave room: an idle server may report the same for ever.
#[test]
fn blocks_of_what_has_ended_at_a_server_elsewhere_are_free_before_its_next_report() {
    let mut world = world();
    elsewhere(&mut world, 4);
    let first = arrive(&mut world, request(10, 8));
    let second = arrive(&mut world, request(10, 8));
    assert!(is_running(&world, first));
    assert!(is_queued(&world, second), "each takes three of four");
    assert!(world.run_out(END));
    for id in [first, second] {
        let finished = Outcome::Finished { output_tokens: 8 };
        assert_eq!(world.outcome(id), Some(finished));
    }
}

#[test]
fn what_a_server_elsewhere_has_of_a_prompt_takes_no_blocks_there() {
    let mut world = world();
    let device = elsewhere(&mut world, 2);
    let new = || with_hashes(&PREFIX, request(10, 8));
    let unknown = arrive(&mut world, new());
    assert!(is_queued(&world, unknown), "it takes three of two");
    stored(&mut world, Tier::Device(device), &PREFIX);
    let known = arrive(&mut world, new());
    assert!(is_running(&world, unknown) && is_running(&world, known));
    let third = arrive(&mut world, request(2, 8));
    assert!(is_queued(&world, third));
    assert!(world.run_out(END));
}

/// The cached part of a prompt, as the policy was told last: executor and tokens on device, in host
/// memory, on disk; the floor; the shared cache.
fn told(world: &World) -> (Vec<(ExecutorId, [u32; 3])>, u32, u32) {
    let (_, cached) = world.policies.asked.route.last().expect("it was asked");
    let overlaps = cached.overlaps.iter();
    let overlaps = overlaps.map(|it| {
        (
            it.executor,
            [it.device_tokens, it.host_tokens, it.disk_tokens],
        )
    });
    (
        overlaps.collect(),
        cached.floor_tokens,
        cached.shared_tokens,
    )
}

#[test]
fn a_policy_is_told_what_engines_and_caches_report_to_hold_beside_the_pool() {
    let (mut world, first) = single(1, 16);
    let device = add_device(&mut world, 16);
    let second = add_executor(&mut world, device, 1);
    world.policies.route_to(&[first]);
    serve(&mut world, &PREFIX[..1], 6);
    // The pool knows what is on its device, whatever is said.
    stored(&mut world, Tier::Device(DEVICE), &[10, 11, 12]);
    stored(&mut world, Tier::Host(DEVICE), &[10, 11]);
    stored(&mut world, Tier::Disk(device), &[10, 11, 12, 14]);
    let shared = Tier::Shared;
    stored(&mut world, shared, &[10, 11]);
    arrive(&mut world, with_hashes(&[10, 11, 12, 13], request(17, 1)));
    let expected = vec![(first, [4, 4, 0]), (second, [0, 0, 12])];
    assert_eq!(told(&world), (expected, 0, 8));
    assert!(world.run_out(END));

    let removed = PrefixEvent::Removed(blocks_of(None), vec![BlockHash(11)]);
    world.input(Input::PrefixesReported(Tier::Disk(device), removed));
    world.input(Input::PrefixesReported(shared, PrefixEvent::Cleared));
    world.lose(first);
    world.update(first, ExecutorUpdate::Health(Health::Up));
    arrive(&mut world, with_hashes(&[10, 11, 12, 13], request(17, 1)));
    assert_eq!(told(&world), (vec![(second, [0, 0, 4])], 0, 0));
}

/// Blocks of prompts have four tokens, those of the server two.
#[test]
fn a_server_that_tells_nothing_is_assumed_to_have_what_it_was_sent_last() {
    let mut world = world();
    let device = device_elsewhere(&mut world, KvSpec::Assumed);
    let server = executor_with(&mut world, device, |spec, _| {
        spec.kind = ExecutorKind::Remote;
        spec.preempts = false;
        spec.tokens_per_block = Some(2);
    });
    world.policies.route_to(&[server]);
    let held = |world: &mut World, hashes: &[u128]| {
        serve(world, hashes, 13);
        let (overlaps, _, _) = told(world);
        overlaps.first().map_or(0, |(_, [device, ..])| *device)
    };
    assert_eq!(held(&mut world, &[10, 11, 12]), 0);
    assert_eq!(held(&mut world, &[10, 11, 13]), 8);
    // Room for fourteen tokens is room for three blocks: those of the last prompt.
    let held = |world: &mut World, hashes: &[u128]| {
        let report = KvReport {
            block_bytes: 1,
            blocks_total: 7,
            blocks_free: 7,
            blocks_cached: 0,
            blocks_evicted_total: 0,
        };
        world.input(Input::KvReported(device, report));
        held(world, hashes)
    };
    assert_eq!(held(&mut world, &[10, 11, 13]), 12);
    assert_eq!(held(&mut world, &[10, 11, 12]), 8);
    assert_eq!(held(&mut world, &[10, 11, 13]), 8, "12 came in its place");
    assert_eq!(held(&mut world, &[20, 21]), 0);
    assert_eq!(held(&mut world, &[10, 11, 13]), 4);
    // It was away, and may have begun anew.
    for availability in [Availability::Silent, Availability::Open] {
        world.update(server, ExecutorUpdate::Availability(availability));
    }
    assert_eq!(held(&mut world, &[10, 11, 13]), 0);
    assert_eq!(held(&mut world, &[10, 11, 13]), 12);
    world.lose(server);
    world.update(server, ExecutorUpdate::Health(Health::Up));
    assert_eq!(held(&mut world, &[10, 11, 13]), 0);
}

/// A server with two slots and a queue that tells nothing of what it has cached, and has read nothing yet.
fn untold() -> (World, ExecutorId) {
    let mut world = world();
    let device = device_elsewhere(&mut world, KvSpec::Assumed);
    let server = executor_with(&mut world, device, |spec, _| {
        spec.kind = ExecutorKind::Remote;
        spec.preempts = false;
        spec.slots_total = 2;
        spec.queue_limit = 1;
    });
    world.policies.route_to(&[server]);
    (world, server)
}

/// The tokens that the policy was told last to be cached on the first executor.
fn told_first(world: &World) -> u32 {
    let (overlaps, _, _) = told(world);
    overlaps.first().map_or(0, |(_, [device, ..])| *device)
}

#[test]
fn a_server_is_not_assumed_to_have_what_it_turned_back() {
    let (mut world, server) = untold();
    // It is asked about anew each time.
    let turn_back = |world: &mut World, id: RequestId| {
        world.fail(server, id, RetryClass::Anywhere);
        world.settle();
        told_first(world)
    };
    let first = arrive(&mut world, with_hashes(&PREFIX, request(13, 2)));
    assert_eq!(turn_back(&mut world, first), 0);
    assert_eq!(turn_back(&mut world, first), 0);
    assert_eq!(cached_tokens(&world, first), 0);
    assert!(world.run_out(END));
    // Of a longer prompt it still has what it had before.
    let longer = arrive(&mut world, with_hashes(&[10, 20, 21], request(13, 2)));
    assert_eq!((told_first(&world), cached_tokens(&world, longer)), (4, 4));
    assert_eq!(turn_back(&mut world, longer), 4);
    // Once it was read, it is there, whatever comes of the answer.
    world.step(server);
    assert_eq!(turn_back(&mut world, longer), 12);
    assert!(world.run_out(END));
    arrive(&mut world, with_hashes(&PREFIX, request(13, 2)));
    assert_eq!(told_first(&world), 8);
}

#[test]
fn a_prompt_that_is_turned_back_takes_nothing_from_one_that_was_there_before_it() {
    let (mut world, server) = untold();
    let new = || with_hashes(&PREFIX, request(13, 2));
    arrive(&mut world, new());
    let second = arrive(&mut world, new());
    assert_eq!(cached_tokens(&world, second), 8);
    world.fail(server, second, RetryClass::Anywhere);
    world.settle();
    assert_eq!(told_first(&world), 8);
    assert!(world.run_out(END));
}

#[test]
fn a_server_is_not_assumed_to_have_what_never_left_its_queue() {
    let (mut world, _) = untold();
    for _ in 0..2 {
        arrive(&mut world, request(13, 2));
    }
    let waits = arrive(&mut world, with_hashes(&PREFIX, request(13, 2)));
    assert!(!is_queued(&world, waits) && !is_running(&world, waits));
    cancel(&mut world, waits);
    arrive(&mut world, with_hashes(&PREFIX, request(13, 2)));
    assert_eq!(told_first(&world), 0);
    assert!(world.run_out(END));
}

#[test]
fn other_terms_of_a_server_are_no_reason_to_forget_what_it_is_assumed_to_have() {
    let mut world = world();
    let device = device_elsewhere(&mut world, KvSpec::Assumed);
    let server = executor_with(&mut world, device, |spec, _| {
        spec.kind = ExecutorKind::Remote;
        spec.preempts = false;
    });
    let held = |world: &mut World| {
        serve(world, &PREFIX, 13);
        let (overlaps, _, _) = told(world);
        overlaps.first().map_or(0, |(_, [device, ..])| *device)
    };
    let set = |world: &mut World, assumes_prompts| {
        let terms = PlacementTerms {
            group: 7,
            models_max: None,
            queue_limit: 3,
            model_unload_delay: Micros(0),
            assumes_prompts,
        };
        world.update(server, ExecutorUpdate::Terms(terms));
    };
    assert_eq!(held(&mut world), 0);
    set(&mut world, true);
    assert_eq!(held(&mut world), 8);
    // Who tells by itself what it has is not assumed to have anything, and not any more later.
    set(&mut world, false);
    assert_eq!(held(&mut world), 0);
    set(&mut world, true);
    assert_eq!(held(&mut world), 0);
}

#[test]
fn what_executors_beyond_those_listed_hold_at_least_is_the_floor() {
    let mut world = world_with(Config {
        overlaps_max: 1,
        ..Config::default()
    });
    let devices = [(); 3].map(|()| add_device(&mut world, 16));
    let executors = devices.map(|device| add_executor(&mut world, device, 1));
    for (executor, hashes) in executors.into_iter().zip([1, 2, 2]) {
        world.policies.route_to(&[executor]);
        serve(&mut world, &PREFIX[..hashes], 10);
    }
    arrive(&mut world, with_hashes(&PREFIX, request(10, 1)));
    assert_eq!(told(&world), (vec![(executors[1], [8, 0, 0])], 4, 0));
    let fourth = add_device(&mut world, 16);
    add_executor(&mut world, fourth, 1);
    assert!(world.run_out(END));
    arrive(&mut world, with_hashes(&PREFIX, request(10, 1)));
    let (_, floor, _) = told(&world);
    assert_eq!(floor, 0, "the last one holds nothing");
}

#[test]
fn admission_and_order_are_asked_for_with_the_longest_prefix_that_one_place_holds() {
    let mut world = world();
    let executors = [(); 2].map(|()| {
        let device = add_device(&mut world, 16);
        add_executor(&mut world, device, 1)
    });
    for (executor, hashes) in executors.into_iter().zip([1, 2]) {
        world.policies.route_to(&[executor]);
        serve(&mut world, &PREFIX[..hashes], 10);
    }
    stored(&mut world, Tier::Shared, &[20]);
    for hashes in [&PREFIX[..], &PREFIX[..1], &[], &[20], &[99]] {
        world.arrive(with_hashes(hashes, request(10, 1)), 1);
    }
    world.settle();
    let told = &world.policies.asked.prefixes;
    assert!(told.contains(&vec![8, 4, 0, 4, 0]), "{told:?}");
    let arrived: Vec<u32> = world.policies.asked.arrivals.concat();
    assert_eq!(
        arrived,
        [0, 4, 8, 4, 0, 4, 0],
        "after the two that are served"
    );
}

#[test]
fn prefixes_of_a_long_queue_are_looked_up_in_turn() {
    let mut world = world_with(Config {
        batch_max: 2,
        ..Config::default()
    });
    let device = add_device(&mut world, 16);
    add_executor(&mut world, device, 1);
    world
        .policies
        .on_route(|_, _| pointsman_core::routing::Choice::Hold(None));
    let come = |world: &mut World, n: u32| {
        for _ in 0..n {
            world.arrive(with_hashes(&[20], request(10, 1)), 1);
        }
        world.settle();
        world.policies.asked.prefixes.last().cloned()
    };
    assert_eq!(come(&mut world, 4), Some(vec![0; 4]));
    stored(&mut world, Tier::Shared, &[20]);
    let two_and_the_new = Some(vec![4, 4, 0, 0, 4]);
    assert_eq!(come(&mut world, 1), two_and_the_new);
    assert_eq!(come(&mut world, 1), Some(vec![4; 6]), "and the other two");
}

#[test]
fn a_served_prompt_stays_as_cache_until_the_room_is_needed() {
    let (mut world, _) = single(1, 8);
    serve(&mut world, &PREFIX, 10);
    assert_eq!(blocks_idle(&mut world, DEVICE), (6, 2));
    serve(&mut world, &[20, 21], 10);
    assert_eq!(blocks_idle(&mut world, DEVICE), (4, 4));
    // The first prompt is used again, so the second is the older one.
    let again = serve(&mut world, &PREFIX, 10);
    assert_eq!(cached_tokens(&world, again), 8);
    serve(&mut world, &[], 22);
    assert_eq!(blocks_idle(&mut world, DEVICE), (6, 2));
    let kept = serve(&mut world, &PREFIX, 10);
    assert_eq!(cached_tokens(&world, kept), 8);
    let dropped = serve(&mut world, &[20, 21], 10);
    assert_eq!(cached_tokens(&world, dropped), 0);
    assert_nothing_held(&mut world);
}

#[test]
fn the_contents_of_a_lost_executor_are_forgotten() {
    let (mut world, executor) = single(1, 16);
    serve(&mut world, &PREFIX, 10);
    world.lose(executor);
    world.update(executor, ExecutorUpdate::Health(Health::Up));
    assert_eq!(blocks_idle(&mut world, DEVICE), (16, 0));
    let again = serve(&mut world, &PREFIX, 10);
    assert_eq!(cached_tokens(&world, again), 0);
}

#[test]
fn a_request_waits_until_its_blocks_are_there() {
    let (mut world, executor) = single(2, 6);
    let first = arrive(&mut world, request(12, 4));
    let second = arrive(&mut world, request(8, 4));
    assert!(is_running(&world, first) && is_queued(&world, second));
    steps(&mut world, executor, 4);
    assert!(is_running(&world, second));
    world.run_until(Micros(10 * SECOND));
    assert_nothing_held(&mut world);
}

#[test]
fn engines_of_one_device_draw_from_one_pool_whatever_their_blocks_hold() {
    let mut world = world();
    let device = add_device(&mut world, 8);
    let executors: Vec<ExecutorId> = [2, 8]
        .map(|tokens| {
            executor_with(&mut world, device, |spec, _| {
                spec.tokens_per_block = Some(tokens);
            })
        })
        .to_vec();
    let ids = [(); 2].map(|()| arrive(&mut world, request(7, 2)));
    assert_eq!(starts(&world, ids[0])[0].sequence.executor, executors[0]);
    assert_eq!(starts(&world, ids[1])[0].sequence.executor, executors[1]);
    let held = ids.map(|id| world.machine.block_table(id).len());
    assert_eq!(held, [4, 1]);
    assert_eq!(blocks_idle(&mut world, device), (3, 0));
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}
