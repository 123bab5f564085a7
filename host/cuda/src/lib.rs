//! The engine's operations on CUDA devices: models in bf16, with f32 sums, and their projections in FP8 where files have
//! them so.
//!
//! [`probe::devices`] says which devices there are, or why there are none. A [`CudaDevice`] is one of
//! them with its KV pool, which the [`CudaBackend`]s of all its executors share; [`CudaRanks`] are several that compute
//! models together, by NCCL. Neither the driver nor cuBLAS nor NCCL is linked: a host without them starts as any other.
//!
//! The kernels are in `kernels`, and with them their PTX, which `cargo xtask kernels` makes and every
//! driver from 550 on takes. [`module`] checks each launch against the parameters in the PTX.
//!
//! # Invariants
//! 1. A missing or broken driver is an error, never a panic (`tests/devices.rs` of the server).
//! 2. Over the emulation of a device the engine keeps its contract (`tests/contract.rs`), and a row of
//!    logits depends on its own sequence only, bit by bit (`tests/backend.rs`). On a device the second
//!    holds as far as cuBLAS goes, which may sum in another order for another number of rows. With weights in FP8 a row
//!    has other last bits in a step of more than 64 rows, for which weights are rounded to bf16 (`products.rs`), than in
//!    a smaller one.
//! 3. Logits are those of the processors within the precision of bf16 (`tests/backend.rs`).
//! 4. Weights go to a device piece by piece through pinned memory, of which loading has a fixed amount
//!    (`tests/loading.rs`).
//! 5. A model that is split over several devices has the logits of the whole within the precision of bf16, and keeps
//!    the contract as well (`tests/ranks.rs`); a rank that fails keeps no other waiting (`tests/ranks_lost.rs`).
//! 6. Tokens are those that the engine's sampler chooses by the same rows (`tests/choice.rs`).
//! 7. Each operation by itself is its formula within the precision of bf16, at sizes of real models, and no kernel leaves
//!    its memory (`tests/operations`; with FP8 `tests/fp8.rs`).
//!
//! With `POINTSMAN_CUDA_TESTS=device` the tests run on a real device, which has to be there.
//!
//! # Not here
//! The graph, the step loop and the parameters by which tokens are chosen (`pointsman-engine`), and which device
//! serves what (the server).

#![deny(missing_docs)]
#![expect(
    unsafe_code,
    reason = "a driver is called; nothing checks what a device does with its memory"
)]

mod arena;
mod backend;
mod blas;
mod buffer;
#[cfg(feature = "test-util")]
pub mod ceilings;
mod choice;
mod comm;
mod device;
mod devices;
#[cfg(feature = "test-util")]
pub mod emulation;
mod graphs;
mod input;
pub mod module;
mod nccl;
mod ops;
mod pinned;
pub mod probe;
mod products;
mod ranks;
mod step;
mod swaps;
mod upload;
mod weights;

pub use backend::{BLAS_BYTES, CudaBackend, kv_bytes_per_token};
pub use device::CudaDevice;
pub use devices::{ComputedModel, CudaDevices, Room};
#[cfg(feature = "test-util")]
pub use ops::ops_case;
#[cfg(feature = "test-util")]
pub use products::fp8_case;
pub use ranks::{CudaRanks, RanksBackend};
pub use step::StepSize;
pub use weights::weight_bytes;

use std::ffi::CStr;

use cudarc::cublas::result::CublasError;
use cudarc::driver::DriverError;
use pointsman_engine::backend::DeviceError;

/// The driver's error as the engine's. Only for errors of a driver that is loaded: it names them.
fn failed(error: DriverError) -> DeviceError {
    DeviceError(format!("CUDA: {}", in_words(error)))
}

/// The driver's own words for an error, with its name: `out of memory (CUDA_ERROR_OUT_OF_MEMORY)`.
fn in_words(error: DriverError) -> String {
    let text = |said: Result<&CStr, DriverError>| match said {
        Ok(said) => said.to_string_lossy().into_owned(),
        // The driver does not know it: it is of a newer library.
        Err(_) => format!("error {}", error.0 as u32),
    };
    format!(
        "{} ({})",
        text(error.error_string()),
        text(error.error_name())
    )
}

fn blas_failed(error: CublasError) -> DeviceError {
    DeviceError(format!("cuBLAS: status {}", error.0 as u32))
}
