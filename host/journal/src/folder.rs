//! The place of a journal's files: [`Store`], and [`Folder`], a store on disk.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::components::{self, Component, StoredComponent};

/// Keeps a journal's files, which have numbers, and the components that they name. Only the writer's
/// thread calls it.
pub trait Store: Send + 'static {
    /// Lists its files, ascending by number.
    ///
    /// # Errors
    /// If the files cannot be listed.
    fn files(&mut self) -> io::Result<Vec<StoredFile>>;

    /// Makes a new file. An existing file is never overwritten.
    ///
    /// # Errors
    /// If the file cannot be made.
    fn create(&mut self, number: u32) -> io::Result<Box<dyn Write + Send>>;

    /// Removes a file.
    ///
    /// # Errors
    /// If the file cannot be removed.
    fn remove(&mut self, number: u32) -> io::Result<()>;

    /// Lists the components beside its files.
    ///
    /// # Errors
    /// If they cannot be listed.
    fn components(&mut self) -> io::Result<Vec<StoredComponent>>;

    /// Notes that the file with this number names `component`, and stores it where it is not there
    /// yet. Returns the number of bytes written.
    ///
    /// # Errors
    /// If the component cannot be stored.
    fn keep_component(&mut self, component: &Component, number: u32) -> io::Result<u64>;

    /// Removes a component.
    ///
    /// # Errors
    /// If the component cannot be removed.
    fn remove_component(&mut self, component: &StoredComponent) -> io::Result<()>;
}

/// A file in a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Number of the file.
    pub number: u32,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Time of the last write to the file, by the store's clock: the journal reads none.
    pub modified: SystemTime,
}

/// A folder with files `0000000001.pmj` and so on, and a folder `components` in it. A lock makes sure that only one process writes
/// to it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Locked as long as the file is open.
    _lock: File,
}

/// A reason why a folder cannot be written to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The folder or its lock cannot be made or opened.
    #[error("{}: {source}", path.display())]
    Io {
        /// The folder that was to be used.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another process writes its journal to the folder.
    #[error("{}: another process writes its journal here", path.display())]
    InUse {
        /// The folder that was to be used.
        path: PathBuf,
    },
}

impl Folder {
    /// Makes the folder if it is missing, and locks it.
    ///
    /// # Errors
    /// If the folder cannot be made or is locked by another process.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let io = |source| FolderError::Io {
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(io)?;
        let lock = pointsman_files::create(&path.join("lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(FolderError::InUse {
                path: path.to_owned(),
            }),
            Err(TryLockError::Error(source)) => Err(io(source)),
        }
    }

    /// Checks that [`Self::open`] could have a folder at `path`, but for whether another process writes to it. Makes
    /// nothing.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn check(path: &Path) -> Result<(), FolderError> {
        pointsman_files::check_folder(path).map_err(|source| FolderError::Io {
            path: path.to_owned(),
            source,
        })
    }

    fn file(&self, number: u32) -> PathBuf {
        self.path.join(format!("{number:010}.{EXTENSION}"))
    }
}

impl Store for Folder {
    fn files(&mut self) -> io::Result<Vec<StoredFile>> {
        let mut files = Vec::new();
        for (number, path) in list(&self.path)? {
            let found = fs::symlink_metadata(path)?;
            files.push(StoredFile {
                number,
                bytes: found.len(),
                modified: found.modified()?,
            });
        }
        Ok(files)
    }

    fn create(&mut self, number: u32) -> io::Result<Box<dyn Write + Send>> {
        let file =
            private(OpenOptions::new().write(true).create_new(true)).open(self.file(number))?;
        Ok(Box::new(file))
    }

    fn remove(&mut self, number: u32) -> io::Result<()> {
        fs::remove_file(self.file(number))
    }

    fn components(&mut self) -> io::Result<Vec<StoredComponent>> {
        components::list(&self.path)
    }

    fn keep_component(&mut self, component: &Component, number: u32) -> io::Result<u64> {
        components::keep(&self.path, component, number)
    }

    fn remove_component(&mut self, component: &StoredComponent) -> io::Result<()> {
        components::remove(&self.path, component)
    }
}

const EXTENSION: &str = "pmj";

/// Makes files readable for their owner only: a journal tells which tenant asked when.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// A folder's journal files by number. Other files are ignored.
pub(crate) fn list(folder: &Path) -> io::Result<BTreeMap<u32, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(number) = number(&path) {
            files.insert(number, path);
        }
    }
    Ok(files)
}

fn number(path: &Path) -> Option<u32> {
    let (stem, extension) = path.file_name()?.to_str()?.split_once('.')?;
    let is_ours = extension == EXTENSION && stem.len() == 10;
    stem.parse().ok().filter(|_| is_ours)
}
