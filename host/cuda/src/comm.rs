//! A rank's way to the others: sums over all of them, and the alarm by which no rank waits for one that has failed.
//!
//! A sum is a part of the rank's stream, and the stream stays there until all ranks have come to it. So nobody waits for
//! such a stream in the driver: a rank looks whether it has come to its end, and whether another has raised the
//! [`Alarm`] meanwhile. Then it ends its own communicator, which ends the sums that wait, and fails as well.
//!
//! # Invariants
//! 1. A rank that fails ends the step of all (`tests/ranks_lost.rs`).
//! 2. A communicator is used and ended by the thread of its rank alone.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;

use cudarc::driver::CudaStream;
use pointsman_engine::backend::DeviceError;
use pointsman_model::split::Rank;

use crate::failed;
use crate::nccl::{Bf16At, CommState, Handle, Nccl, UniqueId};

/// Sums after which a rank waits for its stream, where a step is launched one operation after the other: the driver takes
/// about a thousand launches, and would have the rank wait for room, without a look at the alarm.
const SUMS_AHEAD: usize = 32;

/// The first failure of any rank, which all of them look for.
#[derive(Debug, Default)]
pub(crate) struct Alarm(OnceLock<DeviceError>);

/// A rank's communicator.
pub(crate) struct Comm {
    nccl: &'static Nccl,
    handle: Handle,
    rank: Rank,
    alarm: Arc<Alarm>,
    /// Sums since the stream was last waited for.
    ahead: usize,
}

/// The way in which a sum comes into a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launching {
    Now,
    /// It is recorded.
    Recorded,
}

// SAFETY: a communicator belongs to no thread; its owner alone uses it.
unsafe impl Send for Comm {}

impl Alarm {
    /// Has all ranks fail, for this reason unless there is one already; returns the reason.
    pub(crate) fn raise(&self, cause: DeviceError) -> DeviceError {
        self.0.get_or_init(|| cause).clone()
    }

    /// Fails if a rank has.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.0.get().map_or(Ok(()), |cause| Err(cause.clone()))
    }
}

impl Comm {
    /// Makes the communicator of a rank, once all ranks do so. The thread's context is that of the rank's device.
    pub(crate) fn join(
        (nccl, id): (&'static Nccl, UniqueId),
        rank: Rank,
        alarm: &Arc<Alarm>,
    ) -> Result<Self, DeviceError> {
        let comm = Self {
            handle: nccl.begin(id, rank)?,
            nccl,
            rank,
            alarm: Arc::clone(alarm),
            ahead: 0,
        };
        comm.settle()?;
        Ok(comm)
    }

    /// The rank.
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// Has a stream add numbers up over all ranks, in their place. They live until the stream has come to its end.
    pub(crate) fn sum(
        &mut self,
        stream: &CudaStream,
        numbers: Bf16At,
        launching: Launching,
    ) -> Result<(), DeviceError> {
        if numbers.count == 0 {
            return Ok(());
        }
        match launching {
            Launching::Recorded => self.alarm.check()?,
            Launching::Now if self.ahead < SUMS_AHEAD => self.alarm.check()?,
            Launching::Now => self.wait(stream)?,
        }
        self.ahead += 1;
        // SAFETY: it is there; the stream is of its device, which is the thread's; the numbers live long enough, as
        // the caller promises.
        let begun = unsafe {
            self.nccl
                .sum(self.handle, numbers, stream.cu_stream().cast())
        }?;
        match begun {
            CommState::Done => Ok(()),
            CommState::UnderWay => self.settle(),
        }
    }

    /// Waits until a stream has come to its end.
    pub(crate) fn wait(&mut self, stream: &CudaStream) -> Result<(), DeviceError> {
        let end = stream.record_event(None).map_err(failed)?;
        self.ahead = 0;
        self.look(|| match self.state()? {
            // Connections that are made anew may delay it.
            CommState::Done | CommState::UnderWay => end.try_is_complete().map_err(failed),
        })
    }

    /// Waits until all that was asked for is in its stream.
    fn settle(&self) -> Result<(), DeviceError> {
        self.look(|| Ok(self.state()? == CommState::Done))
    }

    /// Looks again and again whether something is done, unless a rank fails.
    fn look(&self, is_done: impl Fn() -> Result<bool, DeviceError>) -> Result<(), DeviceError> {
        loop {
            self.alarm.check()?;
            if is_done()? {
                return Ok(());
            }
            thread::yield_now();
        }
    }

    fn state(&self) -> Result<CommState, DeviceError> {
        // SAFETY: it was begun, and is ended by `drop`.
        unsafe { self.nccl.state(self.handle) }
    }
}

/// Ends the communicator. No recorded step may be left that has it: NCCL waits for these to be gone.
impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: it was begun, and nobody uses it afterwards; its owner has forgotten what it recorded.
        unsafe { self.nccl.abort(self.handle) };
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comm")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}
