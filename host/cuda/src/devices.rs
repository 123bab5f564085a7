//! The hardware of a device of the configuration: one CUDA device, or several that compute models together.

use std::sync::Arc;

use pointsman_engine::backend::{Backend, DeviceError, KvBlocks, KvShape};
use pointsman_model::open::{LoadProgress, OpenModel};
use pointsman_model::split::Rank;

use crate::backend::CudaBackend;
use crate::device::CudaDevice;
use crate::probe::{self, NoDevice};
use crate::ranks::{CudaRanks, RanksBackend};
use crate::step::StepSize;
use crate::weights::weight_bytes;

/// One CUDA device or several, with a KV pool.
#[derive(Debug)]
pub enum CudaDevices {
    /// A device that has models whole.
    One(CudaDevice),
    /// Devices each of which has a part of every model.
    Ranks(CudaRanks),
}

/// The memory of that device which has least of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The device's number.
    pub ordinal: usize,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes of these that models take.
    pub models: u64,
    /// Bytes that the largest steps of executors take, and the memory of cuBLAS.
    pub steps: u64,
}

/// A model that devices are to compute.
#[derive(Clone, Debug)]
pub struct ComputedModel<'a> {
    /// The model.
    pub model: &'a OpenModel,
    /// The largest step of each executor that serves it.
    pub executors: Vec<StepSize>,
}

impl CudaDevices {
    /// Looks whether devices can be used, together if there are several.
    ///
    /// # Errors
    /// If they cannot.
    pub fn probe(ordinals: &[usize]) -> Result<(), NoDevice> {
        match ordinals {
            [ordinal] => probe::device(*ordinal).map(drop),
            _ => CudaRanks::probe(ordinals).map(drop),
        }
    }

    /// Devices with so many KV blocks, for which memory is taken when the first backend is made.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn new(ordinals: &[usize], blocks: KvBlocks) -> Result<Self, NoDevice> {
        match ordinals {
            [ordinal] => Ok(Self::One(CudaDevice::new(*ordinal, blocks)?)),
            _ => Ok(Self::Ranks(CudaRanks::new(ordinals, blocks)?)),
        }
    }

    /// The memory of the device that has least left for KV blocks beside its part of `models`, and of their steps.
    ///
    /// # Errors
    /// If a device cannot be used, or a model cannot be split over them.
    pub fn room(ordinals: &[usize], models: &[ComputedModel<'_>]) -> Result<Room, DeviceError> {
        let ranks = ordinals.iter().zip(Rank::all(ordinals.len()));
        let rooms = ranks.map(|(ordinal, rank)| {
            let mut room = Room {
                ordinal: *ordinal,
                free: CudaDevice::free_bytes(*ordinal)?,
                models: 0,
                steps: 0,
            };
            for ComputedModel { model, executors } in models {
                let part = model.part(rank);
                let part = part.map_err(|error| DeviceError(error.to_string()))?;
                let steps = executors.iter().map(|largest| largest.bytes(&part, rank));
                room.models += weight_bytes(&part);
                room.steps += steps.sum::<u64>();
            }
            Ok(room)
        });
        let rooms: Vec<Room> = rooms.collect::<Result<_, DeviceError>>()?;
        let least = rooms.into_iter().min_by_key(|room| room.left());
        least.ok_or_else(|| DeviceError("no CUDA device is named".to_owned()))
    }

    /// Checks that the devices and their kernels can compute a model.
    ///
    /// # Errors
    /// If they cannot; the error says why.
    pub fn check(&self, model: &OpenModel) -> Result<(), DeviceError> {
        match self {
            Self::One(device) => CudaBackend::check(device, model),
            Self::Ranks(ranks) => RanksBackend::check(ranks, model),
        }
    }

    /// Checks that no device is lost and kept by backends nevertheless: until all have let go of it, none computes
    /// anything there.
    ///
    /// # Errors
    /// If one is.
    pub fn check_lives(&self) -> Result<(), DeviceError> {
        match self {
            Self::One(device) => device.check_life(),
            Self::Ranks(ranks) => ranks.check_lives(),
        }
    }

    /// Loads a model, as [`CudaBackend::load`] and [`RanksBackend::load`] do.
    ///
    /// # Errors
    /// As there.
    pub fn load(
        &self,
        model: Arc<OpenModel>,
        shape: KvShape,
        tell: &mut dyn FnMut(LoadProgress),
    ) -> Result<Box<dyn Backend>, DeviceError> {
        Ok(match self {
            Self::One(device) => Box::new(CudaBackend::load(device, model, shape, tell)?),
            Self::Ranks(ranks) => Box::new(RanksBackend::load(ranks, model, shape, tell)?),
        })
    }
}

impl Room {
    /// Bytes that are left for KV blocks.
    #[must_use]
    pub fn left(self) -> u64 {
        self.free.saturating_sub(self.models + self.steps)
    }
}
