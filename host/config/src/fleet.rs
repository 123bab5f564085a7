//! `--fleet`: several executors of the demo model on this machine, so that a policy for routing has a choice.
//!
//! Each executor has a device of its own, and half of the one before: threads, tokens of a step, memory for KV, slots.

use std::ops::RangeInclusive;

use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms};
use pointsman_local::{DEFAULT_DEVICE, DeviceConfig, Hardware};

/// The numbers of executors that there may be: the last of them has a slot and some memory yet.
pub(crate) const SIZES: RangeInclusive<i64> = 2..=8;

/// The memory for KV of the first device, in bytes.
const KV_BYTES: u64 = 64 << 20;
/// The least memory for KV of a device, in bytes.
const KV_BYTES_MIN: u64 = 8 << 20;
/// The fewest tokens of a step.
const TOKENS_PER_STEP_MIN: u32 = 16;

/// So many devices on a machine with these processors, each half of the one before.
pub(crate) fn devices(size: u32, processors: usize) -> Vec<DeviceConfig> {
    let default = DeviceConfig::with_processors(DEFAULT_DEVICE, processors);
    let threads = processors.saturating_sub(1);
    let device = |index: u32| DeviceConfig {
        name: format!("cpu{index}"),
        kv_bytes: Some((KV_BYTES >> index).max(KV_BYTES_MIN)),
        tokens_per_step: (default.tokens_per_step >> index).max(TOKENS_PER_STEP_MIN),
        hardware: Hardware::Processors {
            // One half of them is the first one's, and all together have no more than there are.
            threads: (threads >> (index + 1)).max(1),
            cores: None,
        },
        ..default.clone()
    };
    (0..size).map(device).collect()
}

/// An executor of `model` on each of the devices.
pub(crate) fn executors(devices: &[DeviceConfig], model: &str) -> Vec<ExecutorConfig> {
    let default = ExecutorTerms::default();
    let executor = |(index, device): (usize, &DeviceConfig)| ExecutorConfig {
        device: Some(device.name.clone()),
        terms: ExecutorTerms {
            slots: (default.slots >> index).max(1),
            ..default
        },
        ..ExecutorConfig::new(model)
    };
    devices.iter().enumerate().map(executor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_executor_has_half_of_the_one_before() {
        let devices = devices(4, 17);
        let shown = devices.iter().zip(executors(&devices, "demo"));
        let shown = shown.map(|(device, executor)| {
            let Hardware::Processors { threads, .. } = device.hardware else {
                panic!("{device:?}");
            };
            let (steps, mib) = (device.tokens_per_step, device.kv_bytes.unwrap() >> 20);
            let name = executor.device.unwrap();
            (name, threads, steps, mib, executor.terms.slots)
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                ("cpu0".to_owned(), 8, 256, 64, 8),
                ("cpu1".to_owned(), 4, 128, 32, 4),
                ("cpu2".to_owned(), 2, 64, 16, 2),
                ("cpu3".to_owned(), 1, 32, 8, 1),
            ]
        );
    }

    #[test]
    fn the_largest_fleet_can_be_attached_on_the_smallest_machine() {
        let size = u32::try_from(*SIZES.end()).unwrap();
        let devices = devices(size, 1);
        for (device, executor) in devices.iter().zip(executors(&devices, "demo")) {
            let (threads, cores) = (1, None);
            assert_eq!(device.hardware, Hardware::Processors { threads, cores });
            assert!(executor.terms.slots <= device.tokens_per_step, "{device:?}");
            assert!(device.kv_bytes >= Some(KV_BYTES_MIN), "{device:?}");
        }
    }
}
