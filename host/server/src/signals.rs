//! The signals that the server obeys. SIGINT and SIGTERM stop it; a second one does not wait for
//! anything. SIGHUP has the configuration read again, SIGUSR2 puts every hook back on the embedded
//! policies. SIGUSR1, which would end a process that does not catch it, does nothing.

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

/// The signals that the server obeys.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOrder {
    /// Stops the server.
    Stop,
    /// Reads the configuration again.
    Reload,
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
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancellation
    /// No signal is lost when the future is dropped.
    pub async fn next(&mut self) -> SignalOrder {
        loop {
            // Biased towards the end.
            tokio::select! {
                biased;
                _ = self.interrupt.recv() => {
                    info!("interrupted");
                    return SignalOrder::Stop;
                }
                _ = self.terminate.recv() => {
                    info!("asked to terminate");
                    return SignalOrder::Stop;
                }
                _ = self.hangup.recv() => {
                    info!("asked to read the configuration again");
                    return SignalOrder::Reload;
                }
                _ = self.user2.recv() => {
                    info!("asked to eject policies");
                    return SignalOrder::Eject;
                }
                _ = self.user1.recv() => info!(
                    "SIGUSR1 does nothing; SIGHUP reads the configuration again, SIGUSR2 ejects policies"
                ),
            }
        }
    }

    /// Waits for the next signal that asks to stop. Others are kept for [`Self::next`].
    ///
    /// # Cancellation
    /// The same as for [`Self::next`].
    pub async fn stop(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => info!("interrupted"),
            _ = self.terminate.recv() => info!("asked to terminate"),
        }
    }
}

/// The exit code that a shell expects of a program that a signal ended.
#[must_use]
pub fn cut_short() -> ExitCode {
    ExitCode::from(130)
}
