//! The hardware of a device of the configuration: one CUDA device, or several that compute models together.

use std::sync::Arc;

use pointsman_engine::backend::{Backend, DeviceError, KvBlocks, KvShape};
use pointsman_model::open::{LoadProgress, OpenModel};
use pointsman_model::split::Rank;

use crate::backend::{BLAS_BYTES, CudaBackend};
use crate::device::CudaDevice;
use crate::probe::{self, NoDevice};
use crate::ranks::{CudaRanks, RanksBackend};
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
    /// Bytes of these that models take, and the memory that they are computed in.
    pub taken: u64,
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

    /// The memory of the device that has least left for KV blocks beside its part of `models`.
    ///
    /// # Errors
    /// If a device cannot be used, or a model cannot be split over them.
    pub fn room(ordinals: &[usize], models: &[&OpenModel]) -> Result<Room, DeviceError> {
        let ranks = ordinals.iter().zip(Rank::all(ordinals.len()));
        let rooms = ranks.map(|(ordinal, rank)| {
            let parts = models.iter().map(|model| model.part(rank));
            let taken = parts.map(|part| {
                let part = part.map_err(|error| DeviceError(error.to_string()))?;
                Ok(weight_bytes(&part) + BLAS_BYTES as u64)
            });
            Ok(Room {
                ordinal: *ordinal,
                free: CudaDevice::free_bytes(*ordinal)?,
                taken: taken.sum::<Result<_, DeviceError>>()?,
            })
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
        self.free.saturating_sub(self.taken)
    }
}
