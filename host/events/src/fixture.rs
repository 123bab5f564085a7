//! Rows and specs for tests: the plainest of each kind, to be changed where it matters.
//!
//! The SDK has the same rows in a guest's types.
//!
//! ```
//! use pointsman_events::{ExecutorSpec, fixture};
//!
//! # let device = pointsman_events::DeviceId(0);
//! let wide = ExecutorSpec { slots_total: 64, ..fixture::executor_spec("cpu0/llama", device) };
//! assert_eq!(wide.tokens_per_block, Some(16));
//! ```

pub use pointsman_interface::fixture::{
    asked, cached, device, executor, load, request, sequence, tenant,
};

use pointsman_interface::{DeviceId, Micros};

use crate::{DeviceSpec, ExecutorSpec, KvSpec, ReadableBlocks};

/// A device with 64 blocks of a mebibyte and 256 tokens per step.
#[must_use]
pub fn device_spec(name: &str) -> DeviceSpec {
    DeviceSpec {
        name: name.to_owned(),
        kv: KvSpec::Owned {
            block_bytes: 1 << 20,
            blocks_total: 64,
            host_blocks: 0,
        },
        tokens_per_step: Some(256),
    }
}

/// The executor of the row [`executor`].
#[must_use]
pub fn executor_spec(name: &str, device: DeviceId) -> ExecutorSpec {
    let row = executor(0);
    ExecutorSpec {
        name: name.to_owned(),
        device,
        kind: row.kind,
        role: row.role,
        group: row.group,
        share_weight: row.share_weight,
        serves: row.serves,
        slots_total: row.slots_total,
        models_max: row.models_max,
        queue_limit: row.queue_limit,
        tokens_per_block: row.tokens_per_block,
        preempts: row.preempts,
        reads: ReadableBlocks::Device,
        model_unload_delay: Micros(0),
    }
}
