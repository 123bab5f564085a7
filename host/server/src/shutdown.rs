//! When to stop: SIGINT or SIGTERM. A second one does not wait for anything.

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

/// The signals that end the server.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Catches them from now on. Call it on a runtime.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    ///
    /// # Cancellation
    /// No signal is lost when the future is dropped.
    pub async fn next(&mut self) {
        // Biased: both mean the same.
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => info!("interrupted"),
            _ = self.terminate.recv() => info!("asked to terminate"),
        }
    }
}

/// What a shell expects of a program that a signal ended.
#[must_use]
pub fn cut_short() -> ExitCode {
    ExitCode::from(130)
}
