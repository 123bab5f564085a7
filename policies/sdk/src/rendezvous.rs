//! Spreading requests over executors whatever their load: by rendezvous hash, or in turn.
//!
//! *Rendezvous hashing* (highest random weight, Thaler and Ravishankar 1998): every executor has
//! a weight for every key, and the key belongs to the executor with the greatest. When an executor
//! leaves, only its keys move; when one comes, it takes over an equal part of everybody's.
//!
//! The weight is a fixed function of the key and the executor's name, so that a key belongs to the
//! same executor after a restart too, when ids are others:
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

use std::collections::BTreeMap;

/// The number an executor's name is hashed to: 64-bit FNV-1a.
#[must_use]
pub fn node(name: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    name.bytes().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

/// How much of a claim the executor has to the key; the greatest has it.
#[must_use]
#[inline]
pub fn weight(key: u64, node: u64) -> u64 {
    split_mix(key ^ node)
}

/// The first output of SplitMix64 with this seed: a number in which every bit depends on every bit
/// of the seed. Where a policy needs chance, this of what it was told is a reproducible one.
#[must_use]
#[inline]
pub fn split_mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Whose turn it is, per model: after the executor chosen last comes the next in attach order.
///
/// Models take turns of their own: with one turn for all, those served in different places would
/// push each other's on. Requests that name no model are like one more model.
///
/// ```
/// use pointsman_sdk::rendezvous::Turns;
///
/// let mut turns = Turns::default();
/// let mut next = || {
///     let place = turns.places(None);
///     let chosen = [3, 5, 8].into_iter().min_by_key(|&id| place(id)).unwrap();
///     turns.took(None, chosen);
///     chosen
/// };
/// assert_eq!([next(), next(), next(), next()], [3, 5, 8, 3]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The executor chosen last.
    last: BTreeMap<Option<u32>, u32>,
}

// === impl Turns ===

impl Turns {
    /// Bytes of one entry of a snapshot: whether there is a model, the model, the executor.
    const ENTRY_BYTES: usize = 9;

    /// The executor that took the model's last request.
    #[must_use]
    pub fn last(&self, model: Option<u32>) -> Option<u32> {
        self.last.get(&model).copied()
    }

    /// The places of executors in the present turn of a model; the least is next.
    pub fn places(&self, model: Option<u32>) -> impl Fn(u32) -> (bool, u32) + use<> {
        let last = self.last(model);
        move |executor| (last.is_some_and(|last| executor <= last), executor)
    }

    /// The executor took a request of the model.
    pub fn took(&mut self, model: Option<u32>, executor: u32) {
        self.last.insert(model, executor);
    }

    /// For [`Policy::snapshot`](crate::Policy::snapshot).
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.last.len() * Self::ENTRY_BYTES);
        for (model, executor) in &self.last {
            bytes.push(u8::from(model.is_some()));
            bytes.extend(model.unwrap_or(0).to_le_bytes());
            bytes.extend(executor.to_le_bytes());
        }
        bytes
    }

    /// For [`Policy::restore`](crate::Policy::restore).
    ///
    /// # Errors
    ///
    /// If [`Self::snapshot`] did not make it.
    pub fn restore(bytes: &[u8]) -> Result<Self, String> {
        let (entries, rest) = bytes.as_chunks::<{ Self::ENTRY_BYTES }>();
        if !rest.is_empty() {
            return Err(format!(
                "a snapshot of {} bytes is no multiple of {}",
                bytes.len(),
                Self::ENTRY_BYTES
            ));
        }
        let entry = |&[named, m0, m1, m2, m3, e0, e1, e2, e3]: &[u8; Self::ENTRY_BYTES]| {
            let model = match named {
                0 => None,
                1 => Some(u32::from_le_bytes([m0, m1, m2, m3])),
                other => return Err(format!("a snapshot entry begins with {other}")),
            };
            Ok((model, u32::from_le_bytes([e0, e1, e2, e3])))
        };
        let last = entries.iter().map(entry).collect::<Result<_, String>>()?;
        Ok(Self { last })
    }
}

#[cfg(test)]
mod tests {
    use super::{Turns, node, split_mix, weight};

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

    #[test]
    fn the_turn_goes_on_where_the_last_executor_left() {
        let mut turns = Turns::default();
        turns.took(Some(1), 5);
        let next = |turns: &Turns, model| {
            let place = turns.places(model);
            [3, 4, 8].into_iter().min_by_key(|&id| place(id))
        };
        assert_eq!(next(&turns, Some(1)), Some(8));
        assert_eq!(next(&turns, Some(2)), Some(3));
        assert_eq!(next(&turns, None), Some(3));
    }

    #[test]
    fn a_snapshot_restores_every_turn() {
        let mut turns = Turns::default();
        turns.took(None, 3);
        turns.took(Some(0), 1);
        turns.took(Some(70_000), u32::MAX);
        assert_eq!(Turns::restore(&turns.snapshot()), Ok(turns));
    }

    #[test]
    fn a_snapshot_it_did_not_make_is_refused() {
        assert_eq!(
            Turns::restore(&[1, 2, 3]),
            Err("a snapshot of 3 bytes is no multiple of 9".to_owned())
        );
        assert_eq!(
            Turns::restore(&[7, 0, 0, 0, 0, 0, 0, 0, 0]),
            Err("a snapshot entry begins with 7".to_owned())
        );
    }
}
