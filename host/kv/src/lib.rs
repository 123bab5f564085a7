//! The books of KV blocks: the sequences that hold each, the prompts whose KV is cached, and what is swapped
//! out to host memory.
//!
//! | | keeps |
//! |---|---|
//! | [`DeviceKv`] | the blocks of one device, wherever they are, by the types below |
//! | [`BlockPool`] | blocks that the machine hands out: leases, and prompts in them that others share |
//! | [`ReportedKv`] | counts of blocks that somebody else hands out |
//! | [`HostArena`], [`SwappedOut`] | blocks of host memory, and the requests whose KV is there |
//! | [`PrefixIndex`] | the devices that hold the leading blocks of a prompt |
//!
//! Everything here is asked about ids and prompts, as [`Prefix`]es, and knows neither requests nor executors:
//! which prompt may share blocks with which, and who gets the blocks that are free, is the ledger's of
//! `pointsman-core`. It keeps these books where nobody else can write them.
//!
//! # Not here
//! The KV itself (executors), and the choice of who gives blocks up (policies, and the interlock).

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(clippy::float_arithmetic)]

mod arena;
mod assumed;
mod device;
#[cfg(test)]
mod fixture;
mod holders;
mod index;
mod overlaps;
mod pool;
mod prefix;
mod reported;
mod table;
mod tiers;

pub use arena::{HostArena, SwappedOut};
pub use device::{DeviceKv, ReportedKv};
pub use index::{PrefixIndex, PrefixLookup};
pub use overlaps::keep_best;
pub use pool::{BlockPool, blocks_for};
pub use prefix::Prefix;
pub use tiers::Hits;

/// A length as the 32-bit count that rows and rules use; everything counted is bounded far below.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
