//! The signals that the server obeys. SIGINT and SIGTERM stop the server; a second one does not
//! wait for anything. SIGUSR2 puts every hook back on the embedded policies.

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

/// The signals that the server obeys.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    user: Signal,
}

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOrder {
    /// Stops the server.
    Stop,
    /// Puts every hook back on the embedded policies.
    Eject,
}

impl Signals {
    /// Catches the signals from now on. Call it on a runtime.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            user: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancellation
    /// No signal is lost when the future is dropped.
    pub async fn next(&mut self) -> SignalOrder {
        // Biased towards the end.
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => info!("interrupted"),
            _ = self.terminate.recv() => info!("asked to terminate"),
            _ = self.user.recv() => {
                info!("asked to eject policies");
                return SignalOrder::Eject;
            }
        }
        SignalOrder::Stop
    }

    /// Waits for the next signal that asks to stop.
    ///
    /// # Cancellation
    /// The same as for [`Self::next`].
    pub async fn stop(&mut self) {
        while self.next().await != SignalOrder::Stop {}
    }
}

/// The exit code that a shell expects of a program that a signal ended.
#[must_use]
pub fn cut_short() -> ExitCode {
    ExitCode::from(130)
}
