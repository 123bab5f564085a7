//! What a shadow leaves for its author: the lines it logs, and a dump of each fault.
//!
//! # Bounds
//! [`LINES_MAX`] lines and [`DUMPS_MAX`] dumps are kept until they are fetched; further ones are
//! counted.

use pointsman_core::Micros;

use crate::host::FaultDump;
use crate::instance::LogLine;

/// Lines kept.
const LINES_MAX: usize = 256;
/// Dumps kept.
const DUMPS_MAX: usize = 4;

/// What has not been fetched.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// When the newest of it was left.
    pub(crate) at: Micros,
    /// Oldest first.
    pub(crate) lines: Vec<LogLine>,
    /// Lines that were not kept.
    pub(crate) lines_dropped: u64,
    /// Oldest first.
    pub(crate) dumps: Vec<FaultDump>,
    /// Faults of which no dump was kept.
    pub(crate) dumps_dropped: u64,
}

impl Left {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lines_dropped == 0 && self.dumps.is_empty()
    }

    /// Adds lines that were logged, and a count of lines that were dropped.
    pub(super) fn add_log(&mut self, now: Micros, mut lines: Vec<LogLine>, dropped: u64) {
        self.at = now;
        let over = (self.lines.len() + lines.len()).saturating_sub(LINES_MAX);
        lines.truncate(lines.len() - over);
        self.lines_dropped += dropped + u64::try_from(over).unwrap_or(u64::MAX);
        self.lines.append(&mut lines);
    }

    pub(super) fn keep(&mut self, dump: FaultDump) {
        self.at = dump.at;
        if self.dumps.len() < DUMPS_MAX {
            self.dumps.push(dump);
        } else {
            self.dumps_dropped += 1;
        }
    }
}
