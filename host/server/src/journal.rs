//! The journal of a server: the place, and the recorder that writes there.
//!
//! # Invariants
//! 1. The driver waits for no disk: an entry without room is dropped, counted, and stands in the
//!    journal as a gap (`pointsman-journal`).
//!
//! # Not here
//! The format and the files (`pointsman-journal`); the content of the record, and replays
//! (`pointsman-replay`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pointsman_driver::clock;
use pointsman_journal::{Folder, FolderError, JournalSettings, JournalWriter, RunInfo};
use pointsman_replay::JournalRecorder;
use tracing::{info, warn};

use pointsman_config::{Config, JournalConfig, JournalPlace, StateNeed};

/// Name of the journal's folder in a state folder.
const FOLDER: &str = "journal";

const FOLDER_UNUSABLE: &str = "[journal] folder";
const NO_JOURNAL: &str = "state = \"required\": no journal can be written";

/// Starts the journal that `config` asks for; absent: none. A folder that the operator named must
/// be usable; without a usable state folder the server does without a journal, unless state is required.
///
/// # Errors
/// If a folder cannot be used that has to be.
pub fn start(config: &Config) -> Result<Option<JournalRecorder>> {
    let JournalConfig { place, settings } = &config.journal;
    match place {
        JournalPlace::Off => Ok(None),
        JournalPlace::Folder(path) => {
            let folder = Folder::open(path).context(FOLDER_UNUSABLE)?;
            Ok(Some(begin(folder, path, *settings)?))
        }
        JournalPlace::StateFolder => {
            let Some(path) = in_state_folder(config) else {
                return Ok(None);
            };
            match (Folder::open(&path), config.state) {
                (Ok(folder), _) => Ok(Some(begin(folder, &path, *settings)?)),
                (Err(error), StateNeed::Optional) => {
                    tell(&error);
                    Ok(None)
                }
                (Err(error), StateNeed::Required) => Err(error).context(NO_JOURNAL),
            }
        }
    }
}

/// Checks that [`start`] could begin the journal that `config` asks for, but for whether another server writes one
/// there. Makes nothing.
///
/// # Errors
/// If a folder cannot be used that has to be.
pub(crate) fn check(config: &Config) -> Result<()> {
    match (&config.journal.place, config.state) {
        (JournalPlace::Folder(path), _) => Folder::check(path).context(FOLDER_UNUSABLE),
        (JournalPlace::StateFolder, StateNeed::Required) => match in_state_folder(config) {
            Some(path) => Folder::check(&path).context(NO_JOURNAL),
            None => Ok(()),
        },
        (JournalPlace::StateFolder, StateNeed::Optional) | (JournalPlace::Off, _) => Ok(()),
    }
}

/// The journal's folder in the state folder; absent: there is none.
fn in_state_folder(config: &Config) -> Option<PathBuf> {
    Some(config.state_folder.as_ref()?.join(FOLDER))
}

fn tell(error: &FolderError) {
    warn!(
        %error,
        "no journal is written; name another folder with [journal] folder, or set it to \"off\""
    );
}

fn begin(folder: Folder, path: &Path, settings: JournalSettings) -> Result<JournalRecorder> {
    let writer = JournalWriter::start(folder, run_info(), settings)?;
    info!(folder = %path.display(), "journal begun; to replay it: pointsman replay FOLDER");
    Ok(JournalRecorder::new(writer))
}

/// Facts about this run, for the headers of the journal.
#[must_use]
pub fn run_info() -> RunInfo {
    RunInfo {
        pointsman: env!("CARGO_PKG_VERSION").to_owned(),
        wasmtime: pointsman_component::WASMTIME_VERSION.to_owned(),
        started_unix_ms: clock::unix_millis(),
    }
}
