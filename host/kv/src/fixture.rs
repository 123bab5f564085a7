//! Prompts and events for tests.

use pointsman_events::{BlockHash, PrefixEvent};

use crate::prefix::Prefix;

pub(crate) const HASHES: [BlockHash; 7] = [
    BlockHash(1),
    BlockHash(2),
    BlockHash(3),
    BlockHash(4),
    BlockHash(5),
    BlockHash(6),
    BlockHash(7),
];

pub(crate) fn prompt(model: u32, hashes: &'static [BlockHash]) -> Prefix<'static> {
    Prefix::of_model(model, hashes)
}

fn hashes(numbers: &[u128]) -> Vec<BlockHash> {
    numbers.iter().copied().map(BlockHash).collect()
}

pub(crate) fn stored(numbers: &[u128]) -> PrefixEvent {
    PrefixEvent::Stored(prompt(0, &[]).kind, hashes(numbers))
}

pub(crate) fn removed(numbers: &[u128]) -> PrefixEvent {
    PrefixEvent::Removed(prompt(0, &[]).kind, hashes(numbers))
}
