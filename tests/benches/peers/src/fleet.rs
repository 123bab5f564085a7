//! The fleet that every contender has, and the requests that each of them routes, as numbers.

/// Tokens of a block.
pub(crate) const TOKENS_PER_BLOCK: u32 = 16;
/// Tokens of a prompt.
pub(crate) const PROMPT_TOKENS: u32 = 2048;
/// Blocks of a prompt.
pub(crate) const BLOCKS: u64 = (PROMPT_TOKENS / TOKENS_PER_BLOCK) as u64;
/// Leading blocks of a prompt that other prompts of its group have too.
pub(crate) const SHARED_BLOCKS: u64 = 64;
/// Groups of prompts.
pub(crate) const GROUPS: u64 = 32;
/// Workers that hold the blocks of a group, at most.
pub(crate) const HOLDERS: u64 = 8;

/// The requests that run on a worker.
pub(crate) fn running(worker: u64) -> u32 {
    (worker * 7 % 4) as u32
}

/// The workers of a fleet that hold the shared blocks of a group: every so many, from one on.
pub(crate) fn holders(group: u64, workers: u64) -> impl Iterator<Item = u64> {
    // Odd, so that they differ in what runs there.
    let apart = (workers / HOLDERS) | 1;
    let first = group % apart;
    let holders = (first..workers).step_by(apart as usize);
    holders.take(HOLDERS.min(workers / 2).max(1) as usize)
}

/// The chained hashes of a prompt's blocks: those of its group, and then its own.
pub(crate) fn hashes(request: u64) -> impl Iterator<Item = u64> {
    let group = request % GROUPS;
    let own = (SHARED_BLOCKS..BLOCKS).map(move |at| mix(request + 1_000_000, at));
    shared(group).chain(own)
}

/// The chained hashes of the blocks that the prompts of a group share.
pub(crate) fn shared(group: u64) -> impl Iterator<Item = u64> {
    (0..SHARED_BLOCKS).map(move |at| mix(group, at))
}

/// The tokens of a prompt, for those that hash by themselves.
pub(crate) fn tokens(request: u64) -> Vec<u32> {
    let of_block = |hash: u64| (0..TOKENS_PER_BLOCK).map(move |at| (hash >> 33) as u32 ^ at);
    hashes(request).flat_map(of_block).collect()
}

/// The tokens of the blocks that a group shares.
pub(crate) fn shared_tokens(group: u64) -> Vec<u32> {
    let mut tokens = tokens(group);
    tokens.truncate((SHARED_BLOCKS * u64::from(TOKENS_PER_BLOCK)) as usize);
    tokens
}

/// A number that looks random, from two.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b.wrapping_mul(0xd1b5_4a32_d192_ed03))
        ^ 0x5851_f42d_4c95_7f2d;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
