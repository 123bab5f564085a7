//! NCCL, NVIDIA's library for sums over several devices: the functions that are used of it.
//!
//! It is loaded when devices are first to work together, and never linked. cudarc's bindings are not used: they do not
//! look for `libnccl.so.2`, which is the only name that NVIDIA's packages give it, and panic where it is not there.
//!
//! # Invariants
//! 1. No function waits for another rank: communicators are told not to block, and whoever waits looks again and again
//!    ([`super::comm`]).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

use libloading::Library;
use pointsman_engine::backend::DeviceError;
use pointsman_model::split::Rank;

use crate::probe::NoDevice;

/// The names of the library, that of NVIDIA's packages first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
const BF16: c_int = 9;
const SUM: c_int = 0;

/// The name of a communicator, by which its ranks find each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId([c_char; 128]);

/// A communicator of one rank.
pub(crate) type Handle = *mut c_void;

/// The beginning of `ncclConfig_t`, as NCCL 2.14 has it and later ones take it.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// `send`, `receive`, `count`, `type`, `operation`, `communicator`, `stream`.
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    Handle,
    *mut c_void,
) -> c_int;
type InitRank = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *const Config) -> c_int;

/// The library.
pub(crate) struct Nccl {
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: InitRank,
    state: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    all_reduce: AllReduce,
    abort: unsafe extern "C" fn(Handle) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    /// The home of the functions.
    _library: Library,
}

/// The state of what a communicator was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommState {
    Done,
    UnderWay,
}

/// Numbers in bf16 on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bf16At {
    pub(crate) at: u64,
    pub(crate) count: usize,
}

impl Nccl {
    /// The library of this process, loaded unless it is.
    ///
    /// # Errors
    /// If it is not there, or too old.
    pub(crate) fn get() -> Result<&'static Self, NoDevice> {
        static LOADED: OnceLock<Result<Nccl, NoDevice>> = OnceLock::new();
        LOADED
            .get_or_init(Self::load)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load() -> Result<Self, NoDevice> {
        let open = |name: &&str| {
            // SAFETY: what runs when it is loaded is NVIDIA's.
            unsafe { Library::new(*name) }.ok()
        };
        let library = NAMES.iter().find_map(open).ok_or(NoDevice::NoNccl)?;
        Ok(Self {
            unique_id: symbol(&library, "ncclGetUniqueId")?,
            init_rank: symbol(&library, "ncclCommInitRankConfig")?,
            state: symbol(&library, "ncclCommGetAsyncError")?,
            all_reduce: symbol(&library, "ncclAllReduce")?,
            abort: symbol(&library, "ncclCommAbort")?,
            error: symbol(&library, "ncclGetErrorString")?,
            _library: library,
        })
    }

    /// Makes a name for a communicator.
    pub(crate) fn unique_id(&self) -> Result<UniqueId, DeviceError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: writes a name to where it is told.
        let status = unsafe { (self.unique_id)(&raw mut id) };
        self.checked(status)?;
        Ok(id)
    }

    /// Begins a rank's communicator on the device of the thread's context. It may be used once its [`Self::state`] is
    /// that it is done; it is ended by [`Self::abort`].
    pub(crate) fn begin(&self, id: UniqueId, rank: Rank) -> Result<Handle, DeviceError> {
        let config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_400,
            blocking: 0,
        };
        let (count, index) = (as_c_int(rank.count), as_c_int(rank.index));
        let mut handle = std::ptr::null_mut();
        // SAFETY: the configuration is what NCCL 2.14 has, and is read before the call returns.
        let status =
            unsafe { (self.init_rank)(&raw mut handle, count, id, index, &raw const config) };
        self.checked(status)?;
        Ok(handle)
    }

    /// Looks at what a communicator was asked for.
    ///
    /// # Safety
    /// The communicator was begun, and is not ended.
    pub(crate) unsafe fn state(&self, handle: Handle) -> Result<CommState, DeviceError> {
        let mut status = SUCCESS;
        // SAFETY: the communicator is there, as the caller promises.
        let asked = unsafe { (self.state)(handle, &raw mut status) };
        self.checked(asked)?;
        self.checked(status)
    }

    /// Has a stream add numbers up over all ranks, in their place.
    ///
    /// # Safety
    /// The communicator is not ended, the thread's context is its device's, as is the stream, and the numbers live until
    /// the stream has come to its end.
    pub(crate) unsafe fn sum(
        &self,
        handle: Handle,
        numbers: Bf16At,
        stream: *mut c_void,
    ) -> Result<CommState, DeviceError> {
        let Bf16At { at, count } = numbers;
        let place = at as *mut c_void;
        // SAFETY: as the caller promises.
        let status = unsafe { (self.all_reduce)(place, place, count, BF16, SUM, handle, stream) };
        self.checked(status)
    }

    /// Ends a communicator, and what it has on its way.
    ///
    /// # Safety
    /// The communicator was begun, and is not used afterwards; no recorded step that has it is left.
    pub(crate) unsafe fn abort(&self, handle: Handle) {
        // SAFETY: as the caller promises. What fails then was told before.
        let _told = unsafe { (self.abort)(handle) };
    }

    fn checked(&self, status: c_int) -> Result<CommState, DeviceError> {
        match status {
            SUCCESS => Ok(CommState::Done),
            IN_PROGRESS => Ok(CommState::UnderWay),
            _ => Err(DeviceError(format!(
                "NCCL: {} ({status})",
                self.words(status)
            ))),
        }
    }

    /// The library's own words for an error.
    fn words(&self, status: c_int) -> String {
        // SAFETY: takes any number.
        let said = unsafe { (self.error)(status) };
        if said.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: it is a text of the library's that stays.
        let said = unsafe { CStr::from_ptr(said) };
        said.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").finish_non_exhaustive()
    }
}

/// A function of the library, whose type is the one that NVIDIA documents.
fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F, NoDevice> {
    // SAFETY: each caller has the type that NCCL has there.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    match found {
        Ok(found) => Ok(*found),
        Err(_) => Err(NoDevice::OldNccl { missing: name }),
    }
}

fn as_c_int(value: usize) -> c_int {
    c_int::try_from(value).expect("there are few ranks")
}
