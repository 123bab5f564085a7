//! The progress of a download, or of weights on their way into memory: on a terminal as it goes, and in the log
//! now and then.

use std::io::{self, IsTerminal as _, Write as _};

use pointsman_core::Micros;
use pointsman_driver::clock::SystemClock;
use pointsman_model::open::LoadProgress;
use tracing::{info, trace};

/// Time between two lines of the log.
const LOGGED_EVERY: Micros = Micros(10_000_000);
/// Time between two changes of the line on a terminal.
const SHOWN_EVERY: Micros = Micros(200_000);

/// The size from which the beginning is told, beside the end.
const TOLD_FROM_BYTES: u64 = 1_000_000;

/// A file or a model under way.
pub(crate) struct Progress {
    name: String,
    bytes_total: u64,
    clock: SystemClock,
    /// The bytes that were there at first; absent: nothing has come yet.
    first: Option<u64>,
    logged: Micros,
    shown: Micros,
    output: Output,
}

/// The part that is there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done {
    /// So many bytes of a file were fetched.
    Fetched(u64),
    /// So much of a model's weights is loaded.
    Loaded(LoadProgress),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Terminal,
    Log,
}

impl Progress {
    /// A file of so many bytes, to be fetched.
    pub(crate) fn of_file(name: &str, bytes_total: u64) -> Self {
        if bytes_total >= TOLD_FROM_BYTES {
            let size = megabytes(bytes_total);
            info!(file = name, size, "fetching");
        }
        Self::of(name, bytes_total)
    }

    /// The weights of a model, to be loaded onto a device.
    pub(crate) fn of_weights(model: &str, device: &str, all: LoadProgress) -> Self {
        if all.bytes_total >= TOLD_FROM_BYTES {
            let (size, tensors) = (megabytes(all.bytes_total), all.tensors_total);
            info!(model, device, size, tensors, "loading weights");
        }
        Self::of(model, all.bytes_total)
    }

    fn of(name: &str, bytes_total: u64) -> Self {
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

    /// Tells that so much is there.
    pub(crate) fn advance(&mut self, done: Done) {
        let now = self.clock.now();
        let bytes = done.bytes();
        trace!(name = %self.name, bytes, "more is there");
        let first = *self.first.get_or_insert(bytes);
        if self.output == Output::Terminal && now.0 >= self.shown.0 + SHOWN_EVERY.0 {
            self.shown = now;
            let new = bytes - first.min(bytes);
            let line = line(&self.name, done, (self.bytes_total, new), now);
            // Nobody is there to look where it cannot be written.
            write!(io::stderr(), "\r\x1b[K{line}").unwrap_or_default();
        }
        if now.0 >= self.logged.0 + LOGGED_EVERY.0 {
            self.logged = now;
            self.wipe();
            done.log(&self.name, self.bytes_total);
        }
    }

    fn wipe(&self) {
        if self.output == Output::Terminal && self.shown.0 > 0 {
            write!(io::stderr(), "\r\x1b[K").unwrap_or_default();
        }
    }
}

impl Done {
    fn bytes(self) -> u64 {
        match self {
            Self::Fetched(bytes) => bytes,
            Self::Loaded(progress) => progress.bytes,
        }
    }

    fn log(self, name: &str, bytes_total: u64) {
        let (done, size) = (megabytes(self.bytes()), megabytes(bytes_total));
        match self {
            Self::Fetched(_) => info!(file = name, done, size, "fetching"),
            Self::Loaded(progress) => {
                let LoadProgress {
                    tensors,
                    tensors_total,
                    ..
                } = progress;
                info!(
                    model = name,
                    done, size, tensors, tensors_total, "loading weights"
                );
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// A line on a terminal: what there is of all, and how fast the new bytes came.
fn line(name: &str, done: Done, (all, new): (u64, u64), time: Micros) -> String {
    let bytes = done.bytes();
    let percent = bytes.saturating_mul(100) / all.max(1);
    let pace = u128::from(new) * 1_000_000 / u128::from(time.0.max(1));
    let pace = u64::try_from(pace).unwrap_or(u64::MAX);
    let tensors = match done {
        Done::Fetched(_) => String::new(),
        Done::Loaded(progress) => {
            format!(
                "{} of {} tensors  ",
                progress.tensors, progress.tensors_total
            )
        }
    };
    format!(
        "{name}  {percent} %  {} of {}  {tensors}{}/s",
        megabytes(bytes),
        megabytes(all),
        megabytes(pace)
    )
}

/// A number of bytes in megabytes, with one decimal.
pub(crate) fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_size_and_pace() {
        let (all, time) = (5_000_000_000, Micros(2_000_000));
        let fetched = Done::Fetched(1_250_000_000);
        assert_eq!(
            line("model.safetensors", fetched, (all, 90_000_000), time),
            "model.safetensors  25 %  1250.0 MB of 5000.0 MB  45.0 MB/s"
        );
        let loaded = Done::Loaded(LoadProgress {
            bytes: all,
            bytes_total: all,
            tensors: 291,
            tensors_total: 291,
        });
        assert_eq!(
            line("llama", loaded, (all, all), time),
            "llama  100 %  5000.0 MB of 5000.0 MB  291 of 291 tensors  2500.0 MB/s"
        );
        assert_eq!(megabytes(99_999), "0.0 MB");
    }
}
