//! Devices: the default one, `[cpu]`, and those with tables of their own.

use std::ops::RangeInclusive;

use pointsman_driver::provider::TOKENS_PER_STEP;
use pointsman_notation::Size;
use toml::Spanned;

use super::super::error::{ConfigError, Wrong};
use super::super::file::{self, File};
use super::super::{Config, DEFAULT_DEVICE, DeviceConfig};
use super::{Check, Here};

const KV_MEMORY: RangeInclusive<Size> = Size(1 << 20)..=Size(1 << 40);
/// The most devices.
const DEVICES_MAX: usize = 64;

/// The places of the devices' tokens per step, the default device's first; absent: not given.
pub(super) fn steps(file: &File) -> Vec<Option<usize>> {
    let others = file
        .devices
        .0
        .iter()
        .map(|table| &table.get_ref().tokens_per_step);
    let all = [&file.cpu.tokens_per_step].into_iter().chain(others);
    all.map(|given| given.as_ref().map(|given| given.span().start))
        .collect()
}

/// Checks that each running sequence on a device can have a token in each step.
pub(super) fn slots_fit_step(config: &Config, device: &DeviceConfig) -> Result<(), Wrong> {
    let executors = config.executors_on(device);
    let slots = executors.map(|it| u64::from(it.terms.slots)).sum();
    if slots <= u64::from(device.tokens_per_step) {
        return Ok(());
    }
    Err(Wrong::SlotsExceedStep {
        device: device.name.clone(),
        slots,
        tokens_per_step: device.tokens_per_step,
    })
}

impl Check<'_> {
    pub(super) fn devices(
        self,
        cpu: file::Cpu,
        others: Vec<Spanned<file::Device>>,
        here: &Here,
    ) -> Result<Vec<DeviceConfig>, ConfigError> {
        if let Some(one_more) = others.get(DEVICES_MAX - 1) {
            return Err(self.at(one_more, Wrong::TooManyDevices(DEVICES_MAX)));
        }
        let default = DeviceConfig::with_processors(DEFAULT_DEVICE, here.processors);
        let mut devices = vec![self.pool(&|key| format!("cpu.{key}"), cpu, default)?];
        for (index, table) in others.into_iter().enumerate() {
            let path = |key: &str| format!("devices[{index}].{key}");
            let table = table.into_inner();
            let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
            let name = self.new_name(&path("name"), table.name, &names)?;
            let default = DeviceConfig::with_processors(&name, here.processors);
            let pool = file::Cpu {
                kv_memory: table.kv_memory,
                tokens_per_step: table.tokens_per_step,
                threads: table.threads,
            };
            devices.push(self.pool(&path, pool, default)?);
        }
        Ok(devices)
    }

    fn pool(
        self,
        path: &dyn Fn(&str) -> String,
        given: file::Cpu,
        default: DeviceConfig,
    ) -> Result<DeviceConfig, ConfigError> {
        let (memory, tokens) = (given.kv_memory, given.tokens_per_step);
        let (bytes, per_step) = (default.kv_bytes, default.tokens_per_step);
        let threads = path("threads");
        Ok(DeviceConfig {
            kv_bytes: self.size(&path("kv-memory"), memory, KV_MEMORY, bytes)?,
            tokens_per_step: self.number(
                &path("tokens-per-step"),
                tokens,
                TOKENS_PER_STEP,
                per_step,
            )?,
            threads: self.number(&threads, given.threads, 1..=1024, default.threads)?,
            name: default.name,
        })
    }
}
