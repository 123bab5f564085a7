//! The folder on disk.
//!
//! ```text
//! lock              held by the server that uses it
//! state.json        orders, quarantine, digests of the last good policies
//! state.damaged     a state.json that could not be read
//! executors.json    executors that operators added (`pointsman_admin::KeptExecutors`)
//! policies/         last good components, by digest
//! dumps/            faults, the newest last
//! code/             compiled components, private
//! ```

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::iter;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use pointsman_component::{Digest, read_component};

use super::Remembered;
use super::file::{self, Unreadable};

/// The most dumps that are kept.
pub(super) const DUMPS_MAX: usize = 64;

/// The most bytes of the state file, whose content is bounded and far smaller.
const STATE_BYTES_MAX: u64 = 16 << 20;

/// The folders in it without which it cannot be used.
const PARTS: [&str; 2] = ["policies", "dumps"];

/// The mode of folders: they may hold facts about tenants that policies have learned.
const PRIVATE: u32 = 0o700;

/// The reason why the state folder, or the state file in it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    #[error("{} is in use by another server", .0.display())]
    Locked(PathBuf),
    #[error("{}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// The state file was set aside, and has this path now.
    #[error("{}", .0.display())]
    SetAside(PathBuf, #[source] Unreadable),
}

/// A folder that this process alone uses.
#[derive(Debug)]
pub(super) struct StateFolder {
    path: PathBuf,
    /// Number of the next dump.
    dump_next: u64,
    /// The file whose lock keeps the folder for this process, until the value is dropped.
    _lock: File,
}

impl StateFolder {
    /// The folder at `path`, made if it is not there, and the state in it.
    pub(super) fn open(path: &Path) -> Result<(Self, Result<Remembered, StateError>), StateError> {
        let at = |error| StateError::Io(path.to_owned(), error);
        for part in PARTS {
            make(&path.join(part)).map_err(at)?;
        }
        let lock = pointsman_files::create(&path.join("lock")).map_err(at)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at(error)),
        }
        let mut folder = Self {
            path: path.to_owned(),
            dump_next: 0,
            _lock: lock,
        };
        let dumps = folder.dumps().map_err(at)?;
        folder.dump_next = dumps.last().map_or(0, |(number, _)| number + 1);
        let read = folder.read()?;
        Ok((folder, read))
    }

    /// Checks that a folder at `path` could be opened, but for whether another server uses it. Makes nothing.
    pub(super) fn check(path: &Path) -> Result<(), StateError> {
        let parts = PARTS.iter().map(|part| path.join(part));
        let mut folders = iter::once(path.to_owned()).chain(parts);
        let checked = folders.try_for_each(|folder| pointsman_files::check_folder(&folder));
        checked.map_err(|error| StateError::Io(path.to_owned(), error))
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.path.join("code")
    }

    // === The state file ===

    /// The state in the file. A file that makes no sense is set aside.
    fn read(&self) -> Result<Result<Remembered, StateError>, StateError> {
        let path = self.path.join("state.json");
        let read = match pointsman_files::read(&path, STATE_BYTES_MAX) {
            Ok(bytes) => file::parse(&bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Remembered::default()),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => Err(Unreadable::TooLarge),
            Err(error) => return Err(StateError::Io(path, error)),
        };
        match read {
            Ok(remembered) => Ok(Ok(remembered)),
            Err(unreadable) => {
                let aside = self.path.join("state.damaged");
                fs::rename(&path, &aside).map_err(|error| StateError::Io(path, error))?;
                Ok(Err(StateError::SetAside(aside, unreadable)))
            }
        }
    }

    /// Writes down all of `state`.
    pub(super) fn write(&self, state: &Remembered) -> Result<(), StateError> {
        let path = self.path.join("state.json");
        let written = replace(&path, &file::text(state));
        written.map_err(|error| StateError::Io(path, error))
    }

    // === Components ===

    /// Removes the components that `state` does not name, once it is written down.
    pub(super) fn sweep(&self, state: &Remembered) -> Result<(), StateError> {
        let policies = self.path.join("policies");
        let named = |path: &Path| {
            state
                .last_good
                .values()
                .any(|good| self.code_at(good.digest) == path)
        };
        let swept = sweep(&policies, |path| !named(path));
        swept.map_err(|error| StateError::Io(policies, error))
    }

    fn code_at(&self, digest: Digest) -> PathBuf {
        self.path.join("policies").join(format!("{digest}.wasm"))
    }

    pub(super) fn keep_code(&self, digest: Digest, code: &[u8]) -> Result<(), StateError> {
        if self.code(digest).is_some() {
            return Ok(());
        }
        let path = self.code_at(digest);
        replace(&path, code).map_err(|error| StateError::Io(path, error))
    }

    pub(super) fn code(&self, digest: Digest) -> Option<Vec<u8>> {
        read_component(&self.code_at(digest), digest)
    }

    // === Dumps ===

    pub(super) fn keep_dump(&mut self, dump: &[u8]) -> Result<(), StateError> {
        let number = self.dump_next;
        let path = self.path.join("dumps").join(format!("{number:08}.json"));
        replace(&path, dump).map_err(|error| StateError::Io(path.clone(), error))?;
        self.dump_next += 1;
        let pruned = self.dumps().and_then(|dumps| {
            let past = dumps.len().saturating_sub(DUMPS_MAX);
            let past = dumps.iter().take(past);
            past.into_iter()
                .try_for_each(|(_, path)| fs::remove_file(path))
        });
        pruned.map_err(|error| StateError::Io(path, error))
    }

    fn dumps(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        dumps(&self.path)
    }
}

/// The dumps in a state folder, by number.
///
/// # Errors
/// If the folder cannot be read.
pub fn dumps(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut dumps = Vec::new();
    for entry in fs::read_dir(folder.join("dumps"))? {
        let path = entry?.path();
        let number = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        dumps.extend(number.map(|number| (number, path)));
    }
    dumps.sort_unstable();
    Ok(dumps)
}

// === Files ===

fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE)
        .create(folder)
}

/// Puts a file with `bytes` at `path`, whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    pointsman_files::replace(path, |file| file.write_all(bytes))
}

/// Removes the files of `folder` that are `unwanted`.
fn sweep(folder: &Path, unwanted: impl Fn(&Path) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if unwanted(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
