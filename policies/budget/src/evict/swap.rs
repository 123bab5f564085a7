//! The way in which victims leave: for host memory, or to be computed again.

use std::cmp::Reverse;

use pointsman_sdk::Mirror;
use pointsman_sdk::wire::preemption::{How, Victim};
use pointsman_sdk::wire::types::Sequence;

/// These victims, in the same order, each with its way. Host memory of `room` blocks goes to those that
/// hold most, since they would have most to compute again; a victim that holds less than `from` tokens for
/// itself is computed again in less time than it is worth the room.
pub(super) fn ways(mirror: &Mirror, victims: &[&Sequence], room: u32, from: u32) -> Vec<Victim> {
    let mut room = room;
    let mut longest: Vec<usize> = (0..victims.len()).collect();
    longest.sort_by_key(|idx| Reverse(victims[*idx].blocks));
    let mut ways = vec![How::Recompute; victims.len()];
    for idx in longest {
        let victim = victims[idx];
        let is_worth_it = victim.swappable && tokens_of_its_own(mirror, victim) >= u64::from(from);
        if is_worth_it && victim.blocks <= room {
            room -= victim.blocks;
            ways[idx] = How::Swap;
        }
    }
    let ways = victims.iter().zip(ways).map(|(victim, how)| Victim {
        request: victim.request,
        how,
    });
    ways.collect()
}

/// The tokens for which a sequence has blocks that it shares with nobody: what is shared will likely be
/// cached still when it comes back.
fn tokens_of_its_own(mirror: &Mirror, sequence: &Sequence) -> u64 {
    let executor = mirror.executor(sequence.executor);
    let per_block = executor.and_then(|executor| executor.info.tokens_per_block);
    u64::from(sequence.blocks_exclusive) * u64::from(per_block.unwrap_or(0))
}
