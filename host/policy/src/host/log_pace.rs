//! The pace of a policy's log: the lines of it that are told, and the number of those that are not.
//!
//! A policy may log with every question, and the owner of the host writes each line that it is told
//! of on the thread that asks.
//!
//! # Determinism
//! Time is that of the questions, so that a run tells the same lines each time.
//!
//! # Bounds
//! [`BURST`] lines at once and [`LINES_PER_SECOND`] from then on; the number of all others, once in
//! [`TELL_EVERY`] (`host::tests::log_pace`).

use pointsman_component::LogLine;
use pointsman_core::Micros;

/// Number of lines that a policy can log at once after it was silent.
const BURST: u64 = 256;
/// Number of lines a second for which there is room again.
const LINES_PER_SECOND: u64 = 10;
/// A line in the unit of which [`LINES_PER_SECOND`] come in each microsecond.
const LINE: u64 = 1_000_000;
/// Shortest time between two numbers of lines that were dropped.
const TELL_EVERY: Micros = Micros(1_000_000);

/// The pace of one policy's log.
#[derive(Debug)]
pub(super) struct LogPace {
    /// Room for lines, in parts of a [`LINE`].
    room: u64,
    /// Time up to which room has come.
    at: Micros,
    /// Number of dropped lines that was not told.
    untold: u64,
    /// Time before which it is not told.
    tell_at: Micros,
}

impl Default for LogPace {
    fn default() -> Self {
        Self {
            room: BURST * LINE,
            at: Micros(0),
            untold: 0,
            tell_at: Micros(0),
        }
    }
}

impl LogPace {
    /// Drops those of `lines` for which there is no room. Returns the number of dropped lines that is
    /// told now, with the `dropped` ones of the policy's instance: 0 if it is too early.
    pub(super) fn pass(&mut self, now: Micros, lines: &mut Vec<LogLine>, dropped: u64) -> u64 {
        let come = now.since(self.at).0.saturating_mul(LINES_PER_SECOND);
        self.room = self.room.saturating_add(come).min(BURST * LINE);
        self.at = self.at.max(now);
        let logged = count(lines);
        lines.truncate(usize::try_from(self.room / LINE).unwrap_or(usize::MAX));
        let told = count(lines);
        self.room -= told * LINE;
        self.untold = self.untold.saturating_add(dropped);
        self.untold = self.untold.saturating_add(logged - told);
        if self.untold == 0 || now < self.tell_at {
            return 0;
        }
        self.tell_at = now.after(TELL_EVERY);
        self.take_untold()
    }

    /// Takes the number of dropped lines that was not told yet.
    pub(super) fn take_untold(&mut self) -> u64 {
        std::mem::take(&mut self.untold)
    }
}

fn count(lines: &[LogLine]) -> u64 {
    u64::try_from(lines.len()).unwrap_or(u64::MAX)
}
