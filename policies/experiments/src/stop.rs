//! Ctrl-C: the end of a search or of work on a policy, and then of the whole command.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

/// A wish to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    is_asked: Arc<AtomicBool>,
}

impl Stop {
    /// Stops on Ctrl-C.
    ///
    /// # Errors
    /// If the signal cannot be listened to.
    pub fn on_ctrl_c() -> Result<Self> {
        let stop = Self::default();
        let is_asked = Arc::clone(&stop.is_asked);
        let runtime = runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("no listener for Ctrl-C")?;
        let mut presses = {
            let _within = runtime.enter();
            signal(SignalKind::interrupt()).context("no listener for Ctrl-C")?
        };
        // Ends with the process.
        thread::spawn(move || {
            runtime.block_on(async {
                while presses.recv().await.is_some() {
                    is_asked.store(true, Ordering::Relaxed);
                }
            });
        });
        Ok(stop)
    }

    /// True if somebody asked to stop.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Forgets what was asked: another wish is one about what is done next.
    pub fn forget(&self) {
        self.is_asked.store(false, Ordering::Relaxed);
    }

    /// Breaks off where somebody asked to stop.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_asked() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
