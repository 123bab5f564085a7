//! Sequences that are moved to host memory: what they keep there, for how long, and who is told.

mod common;

use common::{
    END, TOKENS_PER_BLOCK, World, add_executor, arrive, assert_nothing_held, background, cancel,
    device_with_host_memory, evictions, host_blocks_free, is_running, placed, placements, refusals,
    request, rows, starts, steps, swap, with_hashes, world,
};
use pointsman_core::rows::{Change, Health, Overlap, SequenceState};
use pointsman_core::{
    DeviceId, EvictHow, ExecutorId, ExecutorUpdate, NewRequest, Outcome, RequestId,
};

const HOST_BLOCKS: u32 = 20;

/// An executor with one slot, whose device has host memory, and another one on a device of its own that
/// takes nothing new.
struct Cast {
    world: World,
    device: DeviceId,
    executor: ExecutorId,
    other: ExecutorId,
    victim: RequestId,
    needy: RequestId,
}

impl Cast {
    /// A sequence of ten prompt tokens that has made three tokens leaves for a more urgent one.
    fn new() -> Self {
        Self::with(background(10, 20))
    }

    fn with(victim: NewRequest) -> Self {
        let mut world = world();
        let device = device_with_host_memory(&mut world, 64, HOST_BLOCKS);
        let executor = add_executor(&mut world, device, 1);
        let other = device_with_host_memory(&mut world, 64, 0);
        let other = add_executor(&mut world, other, 1);
        world.update(other, ExecutorUpdate::Health(Health::Draining));
        let victim = arrive(&mut world, victim);
        steps(&mut world, executor, 3);
        world
            .policies
            .on_evict(move |_| Some(swap(executor, &[victim])));
        let needy = arrive(&mut world, request(10, 5));
        assert_eq!(evictions(&world), [(victim, needy)]);
        assert_eq!(refusals(&world), []);
        Self {
            world,
            device,
            executor,
            other,
            victim,
            needy,
        }
    }

    /// The victim has left, and the needy one runs.
    fn left() -> Self {
        let mut cast = Self::new();
        cast.step();
        cast
    }

    fn step(&mut self) {
        steps(&mut self.world, self.executor, 1);
    }

    fn host_blocks_used(&mut self) -> u32 {
        HOST_BLOCKS - host_blocks_free(&mut self.world, self.device)
    }

    /// The cached part of the victim's prompt, as routing is asked about it.
    fn overlaps(&self) -> Vec<Overlap> {
        let asked = self.world.policies.asked.route.iter().rev();
        let mut asked = asked.filter(|(_, cached)| cached.request == self.victim);
        asked
            .next()
            .map_or_else(Vec::new, |(_, cached)| cached.overlaps.clone())
    }

    fn run_out(mut self) {
        assert!(self.world.run_out(END));
        for request in [self.victim, self.needy] {
            let ended = self.world.outcome(request);
            assert!(matches!(ended, Some(Outcome::Finished { .. })), "{ended:?}");
        }
        assert_nothing_held(&mut self.world);
    }
}

#[test]
fn a_sequence_takes_host_memory_for_all_that_it_holds_and_keeps_what_it_has_filled() {
    let mut cast = Cast::new();
    // With the token ahead: four blocks of four tokens.
    assert_eq!(cast.host_blocks_used(), 4);
    cast.step();
    // Twelve tokens are there; that of the third one generated was never computed.
    assert_eq!(cast.host_blocks_used(), 3);
    assert!(is_running(&cast.world, cast.needy));
}

#[test]
fn it_goes_on_where_it_was_and_nothing_is_computed_again() {
    let mut cast = Cast::left();
    while !is_running(&cast.world, cast.victim) {
        cast.step();
    }
    let there = Overlap {
        executor: cast.executor,
        device_tokens: 0,
        host_tokens: 12,
        disk_tokens: 0,
    };
    assert_eq!(cast.overlaps(), [there]);
    let order = starts(&cast.world, cast.victim)[1].clone();
    assert_eq!((order.prompt_tokens, order.cached_tokens), (13, 12));
    let copied: Vec<_> = order.copies.iter().map(|copy| copy.block).collect();
    assert_eq!(copied, order.blocks[..3]);
    // Its host memory is its own until it has been read.
    assert_eq!(cast.host_blocks_used(), 3);
    cast.step();
    assert_eq!(cast.host_blocks_used(), 0);
    cast.run_out();
}

#[test]
fn on_another_executor_it_begins_anew_and_its_host_memory_comes_free() {
    let mut cast = Cast::left();
    let up = ExecutorUpdate::Health(Health::Up);
    cast.world.update(cast.other, up);
    cast.world.policies.route_to(&[cast.other]);
    cast.world.settle();
    assert_eq!(
        placements(&cast.world, cast.victim),
        [cast.executor, cast.other]
    );
    assert_eq!(cast.host_blocks_used(), 0);
    let order = &starts(&cast.world, cast.victim)[1];
    assert_eq!((order.cached_tokens, order.copies.len()), (0, 0));
    cast.run_out();
}

#[test]
fn host_memory_comes_free_when_its_request_ends() {
    let mut cast = Cast::left();
    cancel(&mut cast.world, cast.victim);
    assert_eq!(cast.host_blocks_used(), 0);
    // Or while it leaves: when it has left.
    let mut cast = Cast::new();
    cancel(&mut cast.world, cast.victim);
    assert_eq!(cast.host_blocks_used(), 4);
    cast.step();
    assert_eq!(cast.host_blocks_used(), 0);
}

#[test]
fn host_memory_is_lost_with_its_executor() {
    let mut cast = Cast::left();
    cast.world.lose(cast.executor);
    cast.world.settle();
    assert_eq!(cast.host_blocks_used(), 0);
    let up = ExecutorUpdate::Health(Health::Up);
    cast.world.update(cast.executor, up);
    cast.run_out();
}

#[test]
fn host_memory_comes_free_when_its_executor_is_removed() {
    let mut cast = Cast::left();
    cast.world.update(cast.executor, ExecutorUpdate::Detach);
    cancel(&mut cast.world, cast.needy);
    cast.step();
    cast.world.settle();
    assert!(
        cast.world
            .machine
            .executor_snapshot(cast.executor)
            .is_none()
    );
    assert_eq!(cast.host_blocks_used(), 0);
}

#[test]
fn one_that_has_not_begun_again_keeps_what_it_has_there_if_it_is_swapped_again() {
    for (how, kept) in [(EvictHow::Swap, 3), (EvictHow::Recompute, 0)] {
        let mut cast = Cast::left();
        while !is_running(&cast.world, cast.victim) {
            cast.step();
        }
        let mut eviction = swap(cast.executor, &[cast.victim]);
        eviction.victims[0].how = how;
        cast.world
            .policies
            .on_evict(move |_| Some(eviction.clone()));
        let urgent = arrive(&mut cast.world, request(10, 5));
        assert_eq!(
            placed(&cast.world, cast.victim),
            Some((cast.executor, SequenceState::Leaving))
        );
        // Nothing of it is given to others before its engine has let go.
        assert_eq!(cast.host_blocks_used(), 3);
        cast.step();
        assert!(is_running(&cast.world, urgent));
        assert_eq!(cast.host_blocks_used(), kept, "{how:?}");
        cast.run_out();
    }
}

#[test]
fn only_blocks_that_the_device_does_not_hold_are_copied_back() {
    // Its first two blocks are published, and stay cached when it leaves.
    let mut cast = Cast::with(with_hashes(&[1, 2], background(10, 20)));
    while placements(&cast.world, cast.victim).len() < 2 {
        cast.step();
    }
    let order = &starts(&cast.world, cast.victim)[1];
    assert_eq!(order.cached_tokens, 12);
    let copied: Vec<_> = order.copies.iter().map(|copy| copy.block).collect();
    assert_eq!(copied, order.blocks[2..3]);
    let both = Overlap {
        executor: cast.executor,
        device_tokens: 2 * TOKENS_PER_BLOCK,
        host_tokens: 4,
        disk_tokens: 0,
    };
    assert_eq!(cast.overlaps(), [both]);
    cast.run_out();
}

#[test]
fn policies_are_told_who_can_be_swapped_and_how_much_room_there_is() {
    let mut cast = Cast::left();
    let (mut sequences, mut devices) = (Vec::new(), Vec::new());
    for row in rows(&mut cast.world) {
        if let Change::Sequence(row) = row {
            sequences.push((row.request, row.swappable));
        } else if let Change::Device(row) = row {
            devices.push((row.host_blocks_total, row.host_blocks_free));
        }
    }
    assert_eq!(sequences, [(cast.needy, true)]);
    assert_eq!(devices, [(20, 17), (0, 0)]);
    // On a device without host memory nothing can be swapped.
    cast.world.policies.route_to(&[cast.other]);
    let up = ExecutorUpdate::Health(Health::Up);
    cast.world.update(cast.other, up);
    cast.world.settle();
    let victim = rows(&mut cast.world).into_iter().find_map(|row| {
        let Change::Sequence(row) = row else {
            return None;
        };
        (row.request == cast.victim).then_some(row.swappable)
    });
    assert_eq!(victim, Some(false));
}
