//! The settings of this crate: the models of this machine, and the devices that compute them.

use pointsman_driver::provider::{ExecutorConfig, ModelConfig};
use pointsman_engine::cpu::Cores;

use crate::hub::HubSettings;

/// The name of the device on which an executor is that names none.
pub const DEFAULT_DEVICE: &str = "cpu0";

/// The models of this machine, its devices, and the executors there.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// Models served on this machine's devices.
    pub models: Vec<ModelConfig>,
    /// The hub of models that are named by their makers.
    pub hub: HubSettings,
    /// The executors that serve them.
    pub executors: Vec<ExecutorConfig>,
    /// The devices. The first is [`DEFAULT_DEVICE`], of processors.
    pub devices: Vec<DeviceConfig>,
}

/// A device for models of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The device's name.
    pub name: String,
    /// Bytes of KV cache, all executors together. Absent on processors: one whole sequence of the model that takes most, at
    /// least 64 MiB, and no more than a quarter of the memory that is available once the configured models are there.
    /// Absent on a CUDA device: nine tenths of the memory that is free once they are there, and room for the largest step
    /// of each configured executor.
    pub kv_bytes: Option<u64>,
    /// Bytes of host memory to which what evicted sequences hold can be moved. Default 0: they are
    /// computed again.
    pub swap_bytes: u64,
    /// Tokens in a step, all executors together. Default 256 on processors, 2,048 on a CUDA device.
    pub tokens_per_step: u32,
    /// The hardware that computes.
    pub hardware: Hardware,
}

/// The hardware of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// A part of this machine's processors.
    Processors {
        /// Compute threads, which all executors share. Default: one for each of `cores`, or
        /// processors less one, at least one.
        threads: usize,
        /// The cores on which the threads run, no other device's. Default: wherever the system
        /// puts them.
        cores: Option<Cores>,
    },
    /// A CUDA device, or several that compute models together.
    Cuda {
        /// The numbers that the driver gives them, from 0: at least one, and none twice.
        ordinals: Vec<usize>,
    },
}

impl LocalSettings {
    /// The executors on a device.
    pub fn executors_on(&self, device: &DeviceConfig) -> impl Iterator<Item = &ExecutorConfig> {
        self.executors.iter().filter(|executor| {
            let name = executor.device.as_deref().unwrap_or(DEFAULT_DEVICE);
            name == device.name
        })
    }

    /// The executors of models on devices of processors.
    pub(crate) fn executors_on_processors(&self) -> impl Iterator<Item = &ExecutorConfig> {
        let devices = self.devices.iter();
        let of_processors = devices.filter(|device| device.is_processors());
        of_processors.flat_map(|device| self.executors_on(device))
    }
}

impl DeviceConfig {
    /// True if processors compute.
    #[must_use]
    pub fn is_processors(&self) -> bool {
        match self.hardware {
            Hardware::Processors { .. } => true,
            Hardware::Cuda { .. } => false,
        }
    }

    /// The device `name` with defaults, on a machine with that many processors. One is left to the
    /// driver and HTTP.
    #[must_use]
    pub fn with_processors(name: &str, processors: usize) -> Self {
        Self {
            name: name.to_owned(),
            kv_bytes: None,
            swap_bytes: 0,
            tokens_per_step: 256,
            hardware: Hardware::Processors {
                threads: processors.saturating_sub(1).max(1),
                cores: None,
            },
        }
    }

    /// The device `name` with defaults, on a CUDA device or several together.
    #[must_use]
    pub fn with_cuda(name: &str, ordinals: &[usize]) -> Self {
        Self {
            name: name.to_owned(),
            kv_bytes: None,
            swap_bytes: 0,
            tokens_per_step: 2048,
            hardware: Hardware::Cuda {
                ordinals: ordinals.to_vec(),
            },
        }
    }
}
