//! The output of a shadow for its author: the lines it logs, and a dump of each fault.
//!
//! # Bounds
//! [`LINES_MAX`] lines and [`DUMPS_MAX`] dumps are kept until they are fetched; further ones are
//! counted.

use pointsman_component::LogLine;
use pointsman_core::Micros;

use crate::host::FaultDump;

/// Number of lines kept.
const LINES_MAX: usize = 256;
/// Number of dumps kept.
const DUMPS_MAX: usize = 4;

/// The lines and dumps that were not fetched yet.
#[derive(Debug, Default)]
pub(crate) struct ShadowOutput {
    /// Time of the newest line or dump, in µs of the host's clock.
    pub(crate) at: Micros,
    /// Log lines, oldest first.
    pub(crate) lines: Vec<LogLine>,
    /// Number of lines that were not kept.
    pub(crate) lines_dropped: u64,
    /// Fault dumps, oldest first.
    pub(crate) dumps: Vec<FaultDump>,
    /// Number of faults whose dumps were not kept.
    pub(crate) dumps_dropped: u64,
}

impl ShadowOutput {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lines_dropped == 0 && self.dumps.is_empty()
    }

    /// Adds lines that were logged, and the number of lines that were dropped.
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
