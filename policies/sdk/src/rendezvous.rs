//! Rendezvous hashing, which spreads keys over executors whatever their load.
//!
//! In *rendezvous hashing* (highest random weight, Thaler and Ravishankar 1998) every executor has
//! a weight for every key, and the key belongs to the executor with the greatest. When an executor
//! leaves, only its keys move. When one comes, it takes over an equal part of the keys of each.
//!
//! The weight is a fixed function of the key and the executor's name. After a restart a key belongs
//! to the same executor, though ids have changed:
//!
//! - [`node`]: 64-bit FNV-1a of the name (Fowler, Noll and Vo);
//! - [`weight`]: the first output of SplitMix64 (Steele, Lea and Flood 2014) seeded with
//!   `key XOR node`.
//!
//! ```
//! use pointsman_sdk::rendezvous::{node, weight};
//!
//! let owner = |session: u64, executors: &[&'static str]| {
//!     let names = executors.iter().copied();
//!     names.max_by_key(|name| weight(session, node(name))).unwrap()
//! };
//! let before = owner(7, &["a", "b", "c"]);
//! let after = owner(7, &["a", "b", "c", "d"]);
//! assert!(after == before || after == "d");
//! ```

/// The 64-bit FNV-1a hash of an executor's name.
#[must_use]
pub fn node(name: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    name.bytes().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

/// The weight of an executor for a key, which belongs to the executor with the greatest.
#[must_use]
#[inline]
pub fn weight(key: u64, node: u64) -> u64 {
    split_mix(key ^ node)
}

/// The first output of SplitMix64 with this seed: a number in which every bit depends on every bit
/// of the seed. A policy that needs chance has it here, reproducibly, from what it was told.
#[must_use]
#[inline]
pub fn split_mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::{node, split_mix, weight};

    #[test]
    fn hashes_are_the_published_ones() {
        // FNV-1a 64: the test vectors of its authors.
        assert_eq!(node(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(node("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(node("foobar"), 0x8594_4171_f739_67e8);
        // SplitMix64: first outputs of its generator for the seeds 0 and 1234567.
        assert_eq!(split_mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(split_mix(1_234_567), 6_457_827_717_110_365_317);
    }

    /// Owners of the keys 0 to 9,999 among executors `gpu-0` to `gpu-(n-1)`.
    fn owners(executors: usize) -> Vec<usize> {
        let nodes: Vec<u64> = (0..executors)
            .map(|at| node(&format!("gpu-{at}")))
            .collect();
        let owner = |key| (0..executors).max_by_key(|&at| weight(key, nodes[at]));
        (0..10_000).filter_map(owner).collect()
    }

    #[test]
    fn one_more_executor_takes_an_equal_part_and_nothing_else_moves() {
        let (before, after) = (owners(9), owners(10));
        let moved: Vec<usize> = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| before != after)
            .map(|(_, &after)| after)
            .collect();
        assert!(moved.iter().all(|&owner| owner == 9));
        // A tenth of 10,000, within four standard deviations of 30.
        assert!((880..=1120).contains(&moved.len()), "{}", moved.len());
        for at in 0..10 {
            let keys = after.iter().filter(|&&owner| owner == at).count();
            assert!((880..=1120).contains(&keys), "{keys} keys on {at}");
        }
    }
}
