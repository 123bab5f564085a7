//! Devices: the default one, `[cpu]`, and those with tables of their own.

use std::ops::RangeInclusive;

use pointsman_driver::provider::TOKENS_PER_STEP;
use pointsman_local::{Cores, DEFAULT_DEVICE, DeviceConfig, Hardware, LocalSettings};
use pointsman_notation::Size;
use toml::Spanned;

use super::Check;
use crate::error::{ConfigError, Wrong};
use crate::file::{self, CudaNumbers, File};

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
pub(super) fn slots_fit_step(local: &LocalSettings, device: &DeviceConfig) -> Result<(), Wrong> {
    let executors = local.executors_on(device);
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

/// Returns true if one of the devices has this CUDA device: no other would know what is free.
fn is_taken(devices: &[DeviceConfig], ordinal: usize) -> bool {
    devices.iter().any(|device| match &device.hardware {
        Hardware::Cuda { ordinals } => ordinals.contains(&ordinal),
        Hardware::Processors { .. } => false,
    })
}

/// The cores that are one of the devices' already, and that one.
fn taken<'a>(devices: &'a [DeviceConfig], cores: &Cores) -> Option<(Cores, &'a str)> {
    devices.iter().find_map(|device| match &device.hardware {
        Hardware::Processors { cores: its, .. } => {
            Some((cores.shared_with(its.as_ref()?)?, &*device.name))
        }
        Hardware::Cuda { .. } => None,
    })
}

impl Check<'_> {
    pub(super) fn devices(
        self,
        cpu: file::Cpu,
        others: Vec<Spanned<file::DeviceTable>>,
    ) -> Result<Vec<DeviceConfig>, ConfigError> {
        if let Some(one_more) = others.get(DEVICES_MAX - 1) {
            return Err(self.at(one_more, Wrong::TooManyDevices(DEVICES_MAX)));
        }
        let path = |key: &str| format!("cpu.{key}");
        let default = DeviceConfig::with_processors(DEFAULT_DEVICE, self.here.processors);
        let mut devices = vec![self.pool(&path, cpu, default)?];
        for (index, table) in others.into_iter().enumerate() {
            let path = |key: &str| format!("devices[{index}].{key}");
            let table = table.into_inner();
            let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
            let name = self.new_name(&path("name"), table.name.clone(), &names)?;
            let cuda = self.ordinals(&path("cuda"), table.cuda.as_ref(), &devices)?;
            let default = match cuda {
                None => DeviceConfig::with_processors(&name, self.here.processors),
                Some(ordinals) => {
                    self.no_threads(&path, &table)?;
                    DeviceConfig::with_cuda(&name, &ordinals)
                }
            };
            if let Some(given) = &table.cores
                && let Some((cores, device)) = taken(&devices, given.get_ref())
            {
                let (key, device) = (path("cores"), device.to_owned());
                return Err(self.at(given, Wrong::CoresTwice { key, cores, device }));
            }
            let pool = file::Cpu {
                kv_memory: table.kv_memory,
                swap_memory: table.swap_memory,
                tokens_per_step: table.tokens_per_step,
                threads: table.threads,
                cores: table.cores,
            };
            devices.push(self.pool(&path, pool, default)?);
        }
        Ok(devices)
    }

    /// The numbers of the CUDA devices of a table, which are none of the `others`'; absent: it is of processors.
    fn ordinals(
        self,
        key: &str,
        given: Option<&Spanned<CudaNumbers>>,
        others: &[DeviceConfig],
    ) -> Result<Option<Vec<usize>>, ConfigError> {
        let Some(given) = given else { return Ok(None) };
        let numbers = match given.get_ref() {
            CudaNumbers::One(number) => vec![Spanned::new(given.span(), *number)],
            CudaNumbers::Several(numbers) => numbers.clone(),
        };
        if numbers.is_empty() {
            let key = key.to_owned();
            return Err(self.at(given, Wrong::NoCudaDevice { key }));
        }
        let mut ordinals = Vec::new();
        for number in numbers {
            let ordinal = self.number(key, Some(number.clone()), 0..=DEVICES_MAX, 0)?;
            if ordinals.contains(&ordinal) || is_taken(others, ordinal) {
                let (key, name) = (key.to_owned(), ordinal.to_string());
                return Err(self.at(&number, Wrong::Twice { key, name }));
            }
            ordinals.push(ordinal);
        }
        Ok(Some(ordinals))
    }

    /// Refuses what only processors have in the table of a CUDA device.
    fn no_threads(
        self,
        path: &dyn Fn(&str) -> String,
        table: &file::DeviceTable,
    ) -> Result<(), ConfigError> {
        if let Some(threads) = &table.threads {
            let key = path("threads");
            return Err(self.at(threads, Wrong::CudaThreads { key }));
        }
        match &table.cores {
            None => Ok(()),
            Some(cores) => {
                let key = path("cores");
                Err(self.at(cores, Wrong::CudaThreads { key }))
            }
        }
    }

    fn pool(
        self,
        path: &dyn Fn(&str) -> String,
        given: file::Cpu,
        default: DeviceConfig,
    ) -> Result<DeviceConfig, ConfigError> {
        let memory = self.within(&path("kv-memory"), given.kv_memory, KV_MEMORY)?;
        let swap = self.within(&path("swap-memory"), given.swap_memory, KV_MEMORY)?;
        let tokens_per_step = self.number(
            &path("tokens-per-step"),
            given.tokens_per_step,
            TOKENS_PER_STEP,
            default.tokens_per_step,
        )?;
        let hardware = match default.hardware {
            Hardware::Processors { threads, .. } => {
                let cores = given.cores.map(Spanned::into_inner);
                let threads = cores.as_ref().map_or(threads, Cores::count);
                Hardware::Processors {
                    threads: self.number(&path("threads"), given.threads, 1..=1024, threads)?,
                    cores,
                }
            }
            cuda @ Hardware::Cuda { .. } => cuda,
        };
        Ok(DeviceConfig {
            kv_bytes: memory.map(|size| size.0).or(default.kv_bytes),
            swap_bytes: swap.map_or(default.swap_bytes, |size| size.0),
            tokens_per_step,
            hardware,
            name: default.name,
        })
    }
}
