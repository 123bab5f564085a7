//! The processors of a device: threads that all its backends share.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::cores::Cores;
use crate::backend::DeviceError;

/// Threads that compute. Clones are the same threads.
///
/// Steps that are too small for a thread to be woken are computed on the caller's own.
#[derive(Clone, Debug)]
pub struct Processors {
    /// The threads; absent: the caller's own thread alone.
    pool: Option<Arc<ThreadPool>>,
    /// The cores that compute; absent: any.
    cores: Option<Arc<Cores>>,
}

impl Processors {
    /// The thread of whoever computes, and no other.
    #[must_use]
    pub fn of_caller() -> Self {
        Self {
            pool: None,
            cores: None,
        }
    }

    /// Starts so many threads, called `name-0` and so on. Callers wait while these compute.
    ///
    /// With `cores`, threads and callers run on those cores only.
    ///
    /// # Errors
    /// If the threads cannot be started, or the process may not run on the cores.
    pub fn start(
        name: &str,
        threads: NonZeroUsize,
        cores: Option<Cores>,
    ) -> Result<Self, DeviceError> {
        if let Some(cores) = &cores {
            cores.check()?;
        }
        let name = name.to_owned();
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.get())
            .thread_name(move |index| format!("{name}-{index}"))
            .build()
            .map_err(|error| DeviceError(format!("threads cannot be started: {error}")))?;
        if let Some(cores) = &cores {
            let held = pool.broadcast(|_thread| cores.hold_caller());
            held.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(Self {
            pool: Some(Arc::new(pool)),
            cores: cores.map(Arc::new),
        })
    }

    /// Keeps the thread that calls to the cores that compute, if they are given.
    pub(super) fn hold_caller(&self) -> Result<(), DeviceError> {
        let cores = self.cores.as_deref();
        cores.map_or(Ok(()), Cores::hold_caller)
    }

    pub(super) fn pool(&self) -> Option<&ThreadPool> {
        self.pool.as_deref()
    }
}
