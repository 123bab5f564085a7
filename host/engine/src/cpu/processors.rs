//! The processors of a device: threads that all its backends share.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::model::backend::DeviceError;

/// Threads that compute. Clones are the same threads.
///
/// Steps that are too small for a thread to be woken are computed on the caller's own.
#[derive(Clone, Debug)]
pub struct Processors {
    /// The threads; absent: the caller's own thread alone.
    pool: Option<Arc<ThreadPool>>,
}

impl Processors {
    /// The thread of whoever computes, and no other.
    #[must_use]
    pub fn of_caller() -> Self {
        Self { pool: None }
    }

    /// Starts so many threads, called `name-0` and so on. Callers wait while these compute.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn start(name: &str, threads: NonZeroUsize) -> Result<Self, DeviceError> {
        let name = name.to_owned();
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.get())
            .thread_name(move |index| format!("{name}-{index}"))
            .build()
            .map_err(|error| DeviceError(format!("threads cannot be started: {error}")))?;
        Ok(Self {
            pool: Some(Arc::new(pool)),
        })
    }

    pub(super) fn pool(&self) -> Option<&ThreadPool> {
        self.pool.as_deref()
    }
}
