//! The prompt blocks that a server is assumed to hold which says nothing of them: those of the prompts that
//! it was sent last, but for what it did not read of them.
//!
//! # Bounds
//! As many blocks as the server's memory has tokens for, or [`TOKENS_UNTOLD`] where it does not say that
//! either. Past it the ones that no prompt had for the longest time are forgotten, and of one prompt its last
//! ones first, which are of no use without those before them.

use std::collections::{BTreeMap, VecDeque};

use pointsman_events::{BlockHash, BlockKind, PrefixEvent};

use crate::prefix::Prefix;
use crate::table::{Entry, Table};

/// Tokens that a server's memory is taken to have room for where it does not tell: a few long prompts.
pub(crate) const TOKENS_UNTOLD: u64 = 65_536;

/// The contents of a block.
type Block = (BlockKind, BlockHash);

/// The blocks of a server, by the time at which a prompt had them last.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct AssumedBlocks {
    /// The turn of each block, which counts up.
    turns: Table<Block, u64>,
    /// The blocks by turn. Turns that were not the last of their block are in it too: half of it, at most.
    order: VecDeque<(u64, Block)>,
    turns_total: u64,
}

// === impl AssumedBlocks ===

impl AssumedBlocks {
    /// Takes the blocks of a prompt to be there, and no more than `max` in all. Returns what that changes.
    pub(crate) fn use_prompt(&mut self, prefix: Prefix<'_>, max: usize) -> Vec<PrefixEvent> {
        let kind = prefix.kind;
        let kept = &prefix.hashes[..prefix.hashes.len().min(max)];
        let mut new = Vec::new();
        for hash in kept.iter().rev() {
            if self.touch((kind, *hash)) {
                new.push(*hash);
            }
        }
        let mut events = self.forget_beyond(max);
        self.drop_old_turns();
        if !new.is_empty() {
            events.push(PrefixEvent::Stored(kind, new));
        }
        events
    }

    /// Gives a block the newest turn. Returns whether it is new.
    fn touch(&mut self, block: Block) -> bool {
        self.turns_total += 1;
        self.order.push_back((self.turns_total, block));
        self.turns.insert(block, self.turns_total).is_none()
    }

    /// Forgets these blocks, of a prompt that was not read. Returns what that changes; absent: nothing.
    pub(crate) fn forget_unread(&mut self, unread: Prefix<'_>) -> Option<PrefixEvent> {
        let kind = unread.kind;
        let mut removed = unread.hashes.to_vec();
        removed.retain(|hash| self.turns.remove(&(kind, *hash)).is_some());
        self.drop_old_turns();
        (!removed.is_empty()).then_some(PrefixEvent::Removed(kind, removed))
    }

    /// Drops the turns that were not the last of their block, where they are more than half.
    fn drop_old_turns(&mut self) {
        if self.order.len() / 2 > self.turns.len() {
            self.order.retain(|turn| is_last(&self.turns, turn));
        }
    }

    /// Forgets the oldest blocks until there are no more than `max`.
    fn forget_beyond(&mut self, max: usize) -> Vec<PrefixEvent> {
        let mut removed: BTreeMap<BlockKind, Vec<BlockHash>> = BTreeMap::new();
        while self.turns.len() > max
            && let Some((turn, block)) = self.order.pop_front()
        {
            if let Entry::Occupied(last) = self.turns.entry(block)
                && *last.get() == turn
            {
                last.swap_remove();
                let (kind, hash) = block;
                removed.entry(kind).or_default().push(hash);
            }
        }
        let removed = removed.into_iter();
        removed
            .map(|(kind, hashes)| PrefixEvent::Removed(kind, hashes))
            .collect()
    }

    /// Forgets all blocks. Returns what that changes.
    pub(crate) fn clear(&mut self) -> Vec<PrefixEvent> {
        self.forget_beyond(0)
    }
}

/// True if a block had no turn after this one.
fn is_last(turns: &Table<Block, u64>, (turn, block): &(u64, Block)) -> bool {
    turns.get(block) == Some(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASHES: [BlockHash; 6] = [
        BlockHash(1),
        BlockHash(2),
        BlockHash(3),
        BlockHash(4),
        BlockHash(5),
        BlockHash(6),
    ];

    fn prompt(hashes: &[BlockHash]) -> Prefix<'_> {
        Prefix::of_model(0, hashes)
    }

    fn kind() -> BlockKind {
        prompt(&[]).kind
    }

    fn stored(hashes: &[u128]) -> PrefixEvent {
        PrefixEvent::Stored(kind(), hashes.iter().copied().map(BlockHash).collect())
    }

    fn removed(hashes: &[u128]) -> PrefixEvent {
        PrefixEvent::Removed(kind(), hashes.iter().copied().map(BlockHash).collect())
    }

    #[test]
    fn what_no_prompt_had_for_the_longest_time_goes_and_of_one_prompt_its_end() {
        let mut blocks = AssumedBlocks::default();
        assert_eq!(
            blocks.use_prompt(prompt(&HASHES[..3]), 4),
            [stored(&[3, 2, 1])]
        );
        // The first two again, and two more: 3 is the oldest.
        let other = [HASHES[0], HASHES[1], HASHES[3], HASHES[4]];
        assert_eq!(
            blocks.use_prompt(prompt(&other), 4),
            [removed(&[3]), stored(&[5, 4])]
        );
        assert_eq!(blocks.use_prompt(prompt(&other[..1]), 4), []);
        assert_eq!(
            blocks.use_prompt(prompt(&HASHES[5..]), 4),
            [removed(&[5]), stored(&[6])]
        );
        // There is less room now.
        assert_eq!(
            blocks.use_prompt(prompt(&other[..1]), 2),
            [removed(&[4, 2])]
        );
    }

    #[test]
    fn no_more_is_kept_of_a_prompt_that_comes_again_and_again() {
        let mut blocks = AssumedBlocks::default();
        for _ in 0..100 {
            blocks.use_prompt(prompt(&HASHES), 6);
        }
        assert_eq!(blocks.turns.len(), 6);
        assert!(blocks.order.len() <= 13, "{}", blocks.order.len());
        assert_eq!(
            blocks.use_prompt(prompt(&HASHES[..1]), 2),
            [removed(&[6, 5, 4, 3])]
        );
    }

    #[test]
    fn blocks_that_were_not_read_are_forgotten_and_come_again_as_new_ones() {
        let mut blocks = AssumedBlocks::default();
        blocks.use_prompt(prompt(&HASHES[..4]), 4);
        // The last two were never there.
        let unread = prompt(&HASHES).after(2);
        assert_eq!(blocks.forget_unread(unread), Some(removed(&[3, 4])));
        assert_eq!(blocks.forget_unread(unread), None);
        assert_eq!(
            blocks.use_prompt(prompt(&HASHES[..4]), 4),
            [stored(&[4, 3])]
        );
        assert_eq!(
            blocks.use_prompt(prompt(&HASHES[4..]), 4),
            [removed(&[4, 3]), stored(&[6, 5])]
        );
        for _ in 0..100 {
            blocks.use_prompt(prompt(&HASHES[4..]), 4);
            blocks.forget_unread(prompt(&HASHES[4..]));
        }
        assert_eq!(blocks.turns.len(), 2);
        assert!(blocks.order.len() <= 5, "{}", blocks.order.len());
    }

    #[test]
    fn a_prompt_that_is_longer_than_the_memory_has_its_beginning_there() {
        let mut blocks = AssumedBlocks::default();
        assert_eq!(blocks.use_prompt(prompt(&HASHES), 2), [stored(&[2, 1])]);
        assert_eq!(blocks.use_prompt(prompt(&HASHES), 0), [removed(&[2, 1])]);
        assert_eq!(blocks.use_prompt(prompt(&HASHES), 2), [stored(&[2, 1])]);
        assert_eq!(blocks.clear(), [removed(&[2, 1])]);
        assert_eq!(blocks.use_prompt(prompt(&HASHES), 2), [stored(&[2, 1])]);
    }
}
