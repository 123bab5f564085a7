//! The CUDA devices of this machine.
//!
//! cudarc panics where a library is missing or broken. So every library is looked for before it is
//! touched, and the first touch is watched.

use std::fmt;
use std::panic;

use cudarc::cublas::sys as blas;
use cudarc::driver::{CudaContext, DriverError, result, sys};

/// The oldest compute capability whose devices take the kernels: bf16 came with it.
const CAPABILITY_MIN: (i32, i32) = (8, 0);

/// A CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number that the driver gives it, from 0.
    pub ordinal: usize,
    /// The product's name.
    pub name: String,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// The compute capability: major and minor.
    pub capability: (i32, i32),
}

/// The reason why there is no CUDA device, or not this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDevice {
    /// The driver's library is not there.
    #[error("libcuda.so is not found: NVIDIA's driver is not installed")]
    NoDriver,
    /// cuBLAS is not there.
    #[error(
        "libcublas.so is not found; install the CUDA toolkit's cuBLAS (package nvidia-cublas-cu12 \
         of PyPI, or libcublas-12 of NVIDIA's repository) and name its folder in LD_LIBRARY_PATH"
    )]
    NoBlas,
    /// The driver says no, or cannot be used.
    #[error("NVIDIA's driver: {0}")]
    Driver(String),
    /// There are fewer devices.
    #[error("there is no CUDA device {ordinal}: the driver has {devices}")]
    NotThere {
        /// The number asked for.
        ordinal: usize,
        /// The number of devices.
        devices: usize,
    },
    /// NCCL is not there.
    #[error(
        "libnccl.so.2 is not found, by which several CUDA devices compute a model together; install NCCL (package \
         nvidia-nccl-cu12 of PyPI, or libnccl2 of NVIDIA's repository) and name its folder in LD_LIBRARY_PATH"
    )]
    NoNccl,
    /// NCCL lacks a function.
    #[error("libnccl.so.2 has no {missing}: it is older than 2.14; install a newer NCCL")]
    OldNccl {
        /// The name of the function.
        missing: &'static str,
    },
    /// Devices that are to compute a model together are of different kinds.
    #[error(
        "CUDA device {one} has compute capability {}.{}, and device {other} {}.{}; devices that compute a model \
         together are to be of one kind",
        capabilities[0].0, capabilities[0].1, capabilities[1].0, capabilities[1].1
    )]
    Unlike {
        /// The number of the first device.
        one: usize,
        /// The number of another.
        other: usize,
        /// The compute capabilities of both.
        capabilities: [(i32, i32); 2],
    },
    /// The device is too old.
    #[error(
        "CUDA device {ordinal} ({name}) has compute capability {}.{}, and the kernels want 8.0 or newer",
        capability.0, capability.1
    )]
    TooOld {
        /// The device's number.
        ordinal: usize,
        /// The product's name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        let (major, minor) = self.capability;
        write!(
            f,
            "{}: {}, {gib:.1} GiB, compute capability {major}.{minor}",
            self.ordinal, self.name
        )
    }
}

/// Lists the devices, those that are too old among them.
///
/// # Errors
/// If there is no driver, no cuBLAS or no device.
pub fn devices() -> Result<Vec<DeviceInfo>, NoDevice> {
    watched(|| {
        libraries()?;
        let count = CudaContext::device_count().map_err(refused)?;
        (0..count).map(info).collect()
    })
}

/// Looks at one device.
///
/// # Errors
/// If it cannot be used.
pub fn device(ordinal: usize) -> Result<DeviceInfo, NoDevice> {
    let devices = devices()?;
    let found = devices.get(ordinal).ok_or(NoDevice::NotThere {
        ordinal,
        devices: devices.len(),
    })?;
    if found.capability < CAPABILITY_MIN {
        return Err(NoDevice::TooOld {
            ordinal,
            name: found.name.clone(),
            capability: found.capability,
        });
    }
    Ok(found.clone())
}

/// Runs what may touch a library for the first time: a broken one makes cudarc panic.
fn watched<T>(
    touch: impl FnOnce() -> Result<T, NoDevice> + panic::UnwindSafe,
) -> Result<T, NoDevice> {
    let broken = |_| NoDevice::Driver("its library is broken or too old".to_owned());
    panic::catch_unwind(touch).map_err(broken)?
}

fn libraries() -> Result<(), NoDevice> {
    // SAFETY: loads a library and closes it again; what runs when it is loaded is NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoDevice::NoDriver);
    }
    // SAFETY: as above.
    if !unsafe { blas::is_culib_present() } {
        return Err(NoDevice::NoBlas);
    }
    result::init().map_err(refused)
}

fn info(ordinal: i32) -> Result<DeviceInfo, NoDevice> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(ordinal).map_err(refused)?;
    let attribute = |attribute| {
        // SAFETY: the device is one that the driver has just given.
        unsafe { result::device::get_attribute(device, attribute) }.map_err(refused)
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // SAFETY: as above.
    let memory_bytes = unsafe { result::device::total_mem(device) }.map_err(refused)?;
    Ok(DeviceInfo {
        ordinal: usize::try_from(ordinal).unwrap_or_default(),
        name: result::device::get_name(device).map_err(refused)?,
        memory_bytes,
        capability: (major, minor),
    })
}

/// The driver's error. Its library is loaded, which names it.
fn refused(error: DriverError) -> NoDevice {
    NoDevice::Driver(crate::in_words(error))
}
