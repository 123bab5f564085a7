//! Notes about compilations that have begun and did not end well.
//!
//! A note is a file of a line for each compilation that began, and a last one with the reason why
//! the compiler was stopped. It is removed when a compilation ends in any other way, and stays as it
//! is where the compiler was killed, which may or may not be for the file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use crate::compiler::CompileStop;
use crate::component::LoadError;

/// Ending of a note's name.
pub(super) const NOTE_SUFFIX: &str = ".tried";

/// Number of compilations of a file with which the process around them, or the compiler, may be ended.
const BEGUN_MAX: usize = 3;

/// Largest size of a note, in bytes.
const NOTE_BYTES: u64 = 4096;

const BEGUN: &str = "begun";
const STOPPED: &str = "stopped: ";

/// The compilations of one file.
pub(super) struct Attempts {
    note: PathBuf,
}

impl Attempts {
    pub(super) fn at(note: PathBuf) -> Self {
        Self { note }
    }

    /// Takes note of a compilation that begins. A note that cannot be read or written is as good as
    /// none.
    ///
    /// # Errors
    /// If the file was given up before.
    pub(super) fn begin(&self) -> Result<(), LoadError> {
        let text = self.read().unwrap_or_default();
        let begun = text.lines().filter(|line| *line == BEGUN).count();
        let stopped = text.lines().find_map(|line| line.strip_prefix(STOPPED));
        let why = match stopped {
            Some(why) => format!("given up before: {why}"),
            None if begun >= BEGUN_MAX => {
                format!(
                    "given up: the host or the compiler was ended {begun} times while this file was \
                     compiled"
                )
            }
            None => {
                self.append(BEGUN).unwrap_or_default();
                return Ok(());
            }
        };
        let note = self.note.clone();
        Err(LoadError::GivenUp { why, note })
    }

    /// Takes note of the end of a compilation, by its error if it failed.
    pub(super) fn end(&self, error: Option<&LoadError>) {
        let noted = match error {
            // The line of its beginning counts it.
            Some(LoadError::Stopped(CompileStop::Killed)) => Ok(()),
            Some(LoadError::Stopped(why)) => self.append(&format!("{STOPPED}{why}")),
            Some(_) | None => fs::remove_file(&self.note),
        };
        noted.unwrap_or_default();
    }

    fn read(&self) -> io::Result<String> {
        pointsman_files::read_text(&self.note, NOTE_BYTES)
    }

    /// Appends `line`, and waits until it is on the disk: the next moment may be the last.
    fn append(&self, line: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.note)?;
        writeln!(file, "{line}")?;
        file.sync_all()
    }
}
