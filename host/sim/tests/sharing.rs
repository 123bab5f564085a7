//! Blocks that several sequences share: counted once, hit by their own kind only, and not asked for
//! again where room is made.

mod common;

use common::{
    END, TOKENS_PER_BLOCK, World, add_device, add_executor, arrive, assert_nothing_held,
    background, evictions, executor_with, facts, is_running, of_model, placed, request, single,
    starts, steps, with_hashes, world,
};
use common::{MODEL_A, MODEL_B, blocks};
use pointsman_core::rows::SequenceState;
use pointsman_core::{
    AdapterId, ExecutorId, Fact, NewRequest, PromptBlocks, RequestId, ShortageCause,
};

/// The hashes of a prompt's first two blocks.
const PREFIX: [u128; 2] = [10, 11];

fn blocks_used(world: &World, executor: ExecutorId) -> u64 {
    let load = world.machine.executor_load(executor);
    load.expect("it is attached").blocks_used
}

fn cached_tokens(world: &World, id: RequestId) -> u32 {
    let starts = starts(world, id);
    starts.last().expect("it was started").cached_tokens
}

// === Used once ===

#[test]
fn a_block_that_running_sequences_share_is_used_once() {
    let (mut world, executor) = single(8, 8);
    let prompt = || with_hashes(&PREFIX, request(10, 2));
    let first = arrive(&mut world, prompt());
    world.step(executor);
    assert_eq!(blocks_used(&world, executor), 3);
    let others: Vec<_> = (0..5).map(|_| arrive(&mut world, prompt())).collect();
    assert!(others.iter().all(|id| is_running(&world, *id)));
    let used = blocks_used(&world, executor);
    assert_eq!(used, 2 + 6, "the shared ones, and one of each");
    assert_eq!(world.machine.block_table(first).len(), 3);
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn what_a_request_would_share_counts_once_in_the_load_it_would_make() {
    let (mut world, executor) = single(8, 8);
    arrive(&mut world, with_hashes(&PREFIX, request(10, 2)));
    world.step(executor);
    let now = world.now();
    for (hashes, load) in [(&PREFIX[..], (4, 2)), (&[], (6, 10))] {
        let probe = world
            .machine
            .probe(now, with_hashes(hashes, request(10, 2)));
        let probed = probe.executors[0].load;
        assert_eq!((probed.blocks_used, probed.prefill_tokens_pending), load);
    }
}

#[test]
fn each_executor_of_a_device_uses_what_its_own_sequences_hold() {
    let mut world = world();
    let device = add_device(&mut world, 16);
    let executors = [(); 2].map(|()| add_executor(&mut world, device, 2));
    let prompt = || of_model(MODEL_A, with_hashes(&PREFIX, request(10, 8)));
    world.policies.route_to(&executors[..1]);
    arrive(&mut world, prompt());
    world.step(executors[0]);
    world.policies.route_to(&executors[1..]);
    let there = arrive(&mut world, prompt());
    assert_eq!(cached_tokens(&world, there), 8);
    assert_eq!(executors.map(|id| blocks_used(&world, id)), [3, 3]);
    let device = world.machine.devices().next().unwrap();
    assert_eq!(device.blocks_free, 16 - 4, "four in all");
}

// === Of its own kind ===

/// Serves a prompt, and asks what another one with the same hashes finds cached.
fn finds_cached(change: impl FnOnce(&mut NewRequest)) -> u32 {
    let mut world = world();
    let device = add_device(&mut world, 32);
    executor_with(&mut world, device, |spec, _| spec.slots_total = 2);
    executor_with(&mut world, device, |spec, _| {
        spec.tokens_per_block = Some(2 * TOKENS_PER_BLOCK);
    });
    let prompt = || of_model(MODEL_A, with_hashes(&PREFIX, request(20, 1)));
    world.policies.route_to(&[ExecutorId(0)]);
    arrive(&mut world, prompt());
    assert!(world.run_out(END));
    let mut other = prompt();
    change(&mut other);
    let other = arrive(&mut world, other);
    cached_tokens(&world, other)
}

#[test]
fn hashes_of_another_model_adapter_or_block_size_are_no_hits() {
    assert_eq!(finds_cached(|_| {}), 8);
    assert_eq!(finds_cached(|new| new.model = Some(MODEL_B)), 0);
    assert_eq!(finds_cached(|new| new.adapter = Some(AdapterId(3))), 0);
    let twice = PromptBlocks {
        tokens_per_block: 2 * TOKENS_PER_BLOCK,
        ..blocks(&PREFIX)
    };
    assert_eq!(finds_cached(|new| new.prompt_blocks = twice), 0);
}

#[test]
fn blocks_of_a_size_are_not_taken_for_those_of_another_size() {
    let mut world = world();
    let device = add_device(&mut world, 32);
    let wide = executor_with(&mut world, device, |spec, _| {
        spec.tokens_per_block = Some(2 * TOKENS_PER_BLOCK);
    });
    // The hash of 4 tokens must not stand for the 8 that a block here holds.
    let prompt = |second| of_model(MODEL_A, with_hashes(&[10, second], request(20, 1)));
    arrive(&mut world, prompt(11));
    assert!(world.run_out(END));
    let other = arrive(&mut world, prompt(12));
    assert_eq!(starts(&world, other)[0].sequence.executor, wide);
    assert_eq!(cached_tokens(&world, other), 0);
}

#[test]
fn a_request_without_a_model_shares_with_its_executor_only() {
    let mut world = world();
    let device = add_device(&mut world, 32);
    let executors = [(); 2].map(|()| add_executor(&mut world, device, 1));
    let cached = [0, 0, 1].map(|idx: usize| {
        world.policies.route_to(&[executors[idx]]);
        let id = arrive(&mut world, with_hashes(&PREFIX, request(10, 1)));
        assert!(world.run_out(END));
        cached_tokens(&world, id)
    });
    assert_eq!(cached, [0, 8, 0]);
}

// === Room that is made ===

/// An executor whose urgent sequence, the first, holds the prefix, and two of the background. One
/// block is free.
fn crowded() -> (World, ExecutorId, [RequestId; 2]) {
    let mut world = world();
    let device = add_device(&mut world, 12);
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.slots_total = 8;
        // No step that a test does not make itself.
        profile.step = common::seconds(100);
    });
    let urgent = NewRequest {
        priority: 1,
        ..with_hashes(&PREFIX, request(10, 8))
    };
    arrive(&mut world, urgent);
    world.step(executor);
    let small = arrive(&mut world, background(11, 1));
    let large = arrive(&mut world, background(19, 1));
    let device = world.machine.devices().next();
    let free = device.map_or(0, |device| device.blocks_free);
    assert_eq!(free, 12 - 3 - 3 - 5);
    (world, executor, [small, large])
}

#[test]
fn room_that_is_kept_counts_what_is_cached_of_the_prompt() {
    for (hashes, blocks) in [(&PREFIX[..], 4), (&[], 6)] {
        let (mut world, executor, [small, large]) = crowded();
        world.policies.on_evict(|_| None);
        let needy = arrive(&mut world, with_hashes(hashes, request(20, 1)));
        let (_, shortage) = world.policies.asked.evict.last().unwrap();
        assert_eq!(shortage.cause, ShortageCause::Blocks);
        assert_eq!((shortage.needy, shortage.blocks), (needy, blocks));
        // One block is free: three more are enough with the prefix, five without.
        let enough = if hashes.is_empty() { large } else { small };
        world
            .policies
            .on_evict(move |_| Some(common::evict(executor, &[enough])));
        world.run_until(world.now().after(common::seconds(1)));
        assert_eq!(evictions(&world), [(enough, needy)]);
        world.step(executor);
        let cached = cached_tokens(&world, needy);
        assert_eq!(cached, 4 * u32::try_from(hashes.len()).unwrap());
        assert!(world.run_out(END));
        assert_nothing_held(&mut world);
    }
}

#[test]
fn the_built_in_rule_evicts_less_where_a_part_of_the_prompt_is_cached() {
    let victims = [&PREFIX[..], &[]].map(|hashes| {
        let (mut world, executor, all) = crowded();
        let needy = arrive(&mut world, with_hashes(hashes, request(27, 8)));
        let mut evicted = evictions(&world);
        evicted.retain(|(_, other)| *other == needy);
        steps(&mut world, executor, 2);
        assert!(placed(&world, needy).is_some_and(|(_, s)| s == SequenceState::Running));
        assert!(evicted.iter().all(|(victim, _)| all.contains(victim)));
        evicted.len()
    });
    assert_eq!(victims, [1, 2]);
}

#[test]
fn a_prefix_that_a_victim_alone_holds_is_asked_for() {
    let (mut world, executor) = single(8, 8);
    let victim = arrive(&mut world, with_hashes(&PREFIX, background(19, 8)));
    world.step(executor);
    let large = arrive(&mut world, with_hashes(&PREFIX, request(27, 1)));
    let (_, shortage) = world.policies.asked.evict.last().unwrap();
    // The two would come back with the other blocks of the victim, and are not counted twice.
    assert_eq!(shortage.blocks, 7);
    assert_eq!(evictions(&world), [(victim, large)]);
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn an_eviction_tells_how_many_blocks_it_frees() {
    let (mut world, executor) = single(2, 64);
    let prompt = || with_hashes(&PREFIX, background(10, 20));
    arrive(&mut world, prompt());
    world.step(executor);
    let other = arrive(&mut world, prompt());
    let [first, second] = [(); 2].map(|()| arrive(&mut world, request(10, 5)));
    let blocks = facts(&world).filter_map(|fact| {
        let Fact::Evicted { needy, blocks, .. } = fact else {
            return None;
        };
        Some((*needy, *blocks))
    });
    // The prefix is the last one's to give back.
    assert_eq!(blocks.collect::<Vec<_>>(), [(first, 1), (second, 3)]);
    assert!(evictions(&world).contains(&(other, first)));
}
