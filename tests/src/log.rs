//! The log of the servers in this process, kept for a test to read.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use pointsman_config::{LogConfig, LogFormat};
use pointsman_server::logging;

use crate::PATIENCE;

/// Everything that was logged.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

impl Log {
    /// Begins to keep what passes `filter`, for as long as the process runs.
    ///
    /// # Errors
    /// If a log was begun before.
    pub fn begin(filter: &str) -> Result<Self> {
        let (log, config) = (
            Self::default(),
            LogConfig {
                format: LogFormat::Human,
                filter: filter.to_owned(),
                access: true,
            },
        );
        let kept = log.clone();
        logging::begin_in(&config, move || kept.clone())?;
        Ok(log)
    }

    /// Everything that was logged so far.
    #[must_use]
    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until `wanted` was logged.
    ///
    /// # Errors
    /// If it is not.
    pub async fn until(&self, wanted: &str) -> Result<()> {
        let looked = tokio::time::timeout(PATIENCE, async {
            while !self.text().contains(wanted) {
                tokio::time::sleep(LOOK).await;
            }
        });
        match looked.await {
            Ok(()) => Ok(()),
            Err(_) => bail!("`{wanted}` is not logged: {}", self.text()),
        }
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
