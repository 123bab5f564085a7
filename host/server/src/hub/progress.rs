//! The progress of a download: on a terminal as it goes, and in the log now and then.

use std::io::{self, IsTerminal as _, Write as _};

use pointsman_core::Micros;
use pointsman_driver::clock::SystemClock;
use tracing::info;

/// Time between two lines of the log.
const LOGGED_EVERY: Micros = Micros(10_000_000);
/// Time between two changes of the line on a terminal.
const SHOWN_EVERY: Micros = Micros(200_000);

/// The size from which the beginning of a download is told, beside its end.
const TOLD_FROM_BYTES: u64 = 1_000_000;

/// A file under way.
pub(super) struct Progress {
    name: String,
    bytes_total: u64,
    clock: SystemClock,
    /// The bytes that were there at first; absent: nothing has come yet.
    first: Option<u64>,
    logged: Micros,
    shown: Micros,
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Terminal,
    Log,
}

impl Progress {
    pub(super) fn begin(name: &str, bytes_total: u64) -> Self {
        if bytes_total >= TOLD_FROM_BYTES {
            let size = megabytes(bytes_total);
            info!(file = name, size, "fetching");
        }
        Self {
            name: name.to_owned(),
            bytes_total,
            clock: SystemClock::start(),
            first: None,
            logged: Micros(0),
            shown: Micros(0),
            output: match io::stderr().is_terminal() {
                true => Output::Terminal,
                false => Output::Log,
            },
        }
    }

    /// Tells that so many bytes are there.
    pub(super) fn advance(&mut self, bytes: u64) {
        let now = self.clock.now();
        let first = *self.first.get_or_insert(bytes);
        if self.output == Output::Terminal && now.0 >= self.shown.0 + SHOWN_EVERY.0 {
            self.shown = now;
            let line = line(
                &self.name,
                (bytes, self.bytes_total),
                (bytes - first.min(bytes), now),
            );
            // Nobody is there to look where it cannot be written.
            write!(io::stderr(), "\r\x1b[K{line}").unwrap_or_default();
        }
        if now.0 >= self.logged.0 + LOGGED_EVERY.0 {
            self.logged = now;
            self.wipe();
            let (done, size) = (megabytes(bytes), megabytes(self.bytes_total));
            info!(file = self.name, done, size, "fetching");
        }
    }

    fn wipe(&self) {
        if self.output == Output::Terminal && self.shown.0 > 0 {
            write!(io::stderr(), "\r\x1b[K").unwrap_or_default();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// A line on a terminal: what there is of all, and how fast the new bytes came.
fn line(name: &str, (bytes, all): (u64, u64), (new, time): (u64, Micros)) -> String {
    let percent = bytes.saturating_mul(100) / all.max(1);
    let pace = u128::from(new) * 1_000_000 / u128::from(time.0.max(1));
    let pace = u64::try_from(pace).unwrap_or(u64::MAX);
    format!(
        "{name}  {percent} %  {} of {}  {}/s",
        megabytes(bytes),
        megabytes(all),
        megabytes(pace)
    )
}

/// A number of bytes in megabytes, with one decimal.
fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_size_and_pace() {
        let line = line(
            "model.safetensors",
            (1_250_000_000, 5_000_000_000),
            (90_000_000, Micros(2_000_000)),
        );
        assert_eq!(
            line,
            "model.safetensors  25 %  1250.0 MB of 5000.0 MB  45.0 MB/s"
        );
        assert_eq!(megabytes(99_999), "0.0 MB");
    }
}
