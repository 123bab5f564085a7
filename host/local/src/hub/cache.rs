//! The cache of models, laid out as the hub's own tools lay it out.
//!
//! A folder `models--ORG--NAME` has the files by their contents (`blobs`), the files of each commit as links to these
//! (`snapshots/COMMIT`), and the commits of branches and tags (`refs`). The tools lock a file while they fetch it, in
//! `.locks`; so does this one.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pointsman_notation::HubModel;
use sha2::{Digest as _, Sha256};
use tokio::time;
use tracing::info;

use super::{HubError, HubSettings};

/// The most folders within each other of which files are looked for.
const DEPTH_MAX: usize = 8;
/// Time between two attempts to lock a file.
const LOCK_AGAIN: Duration = Duration::from_millis(500);
const PIECE_BYTES: usize = 1 << 20;

/// The folder of one model.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    locks: PathBuf,
}

/// The files of one commit.
#[derive(Debug)]
pub(super) struct Snapshot {
    folder: PathBuf,
    commit: String,
}

/// A file that is not there whole.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl Cache {
    pub(super) fn of(model: &HubModel, hub: &HubSettings) -> Result<Self, HubError> {
        let cache = hub.cache.as_ref().ok_or(HubError::NoCache)?;
        let name = format!("models--{}--{}", model.maker(), model.name());
        Ok(Self {
            folder: cache.join(&name),
            locks: cache.join(".locks").join(name),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files of a commit, which may not be there.
    pub(super) fn at(&self, commit: &str) -> Snapshot {
        Snapshot {
            folder: self.folder.join("snapshots").join(commit),
            commit: commit.to_owned(),
        }
    }

    /// The files of a branch, a tag or a commit; absent: it is not known.
    pub(super) fn snapshot(&self, revision: &str) -> Option<Snapshot> {
        let named = fs::read_to_string(self.folder.join("refs").join(revision));
        let commit = named.unwrap_or_else(|_unknown| revision.to_owned());
        let snapshot = self.at(commit.trim());
        (super::client::is_commit(commit.trim()) && snapshot.folder.is_dir()).then_some(snapshot)
    }

    /// Says which commit a branch or a tag is. Nothing is written where that is said already: the cache may be one that
    /// can only be read.
    pub(super) async fn name(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        let path = self.folder.join("refs").join(revision);
        let is_said = || fs::read_to_string(&path).is_ok_and(|said| said.trim() == commit);
        if revision == commit || is_said() {
            return Ok(());
        }
        make_parent(&path)?;
        // All processes write the same one. Not in `refs`, where the tools would take it for a branch.
        let beside = self.folder.join("refs.incomplete");
        let _lock = self.lock("refs").await?;
        let written = put(commit, &beside, &path);
        written.map_err(|source| HubError::Cache { path, source })
    }

    /// The place of a content.
    pub(super) fn blob(&self, tag: &str) -> PathBuf {
        self.folder.join("blobs").join(tag)
    }

    /// Waits until no other process fetches a content, for as long as the lock is kept.
    pub(super) async fn lock(&self, tag: &str) -> Result<File, HubError> {
        let path = self.locks.join(format!("{tag}.lock"));
        make_parent(&path)?;
        let unusable = |source| HubError::Cache {
            path: path.clone(),
            source,
        };
        let mut options = OpenOptions::new();
        let lock = options.create(true).append(true).open(&path);
        let lock = lock.map_err(unusable)?;
        let mut waits = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::Error(source)) => return Err(unusable(source)),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut waits, true) {
                        let lock = path.display();
                        info!(%lock, "another process fetches this file: waiting for it");
                    }
                    time::sleep(LOCK_AGAIN).await;
                }
            }
        }
    }

    /// Opens what was fetched of a content.
    pub(super) fn part(&self, tag: &str) -> Result<Part, HubError> {
        let path = self.folder.join("blobs").join(format!("{tag}.incomplete"));
        make_parent(&path)?;
        Part::open(&path).map_err(|source| HubError::Cache { path, source })
    }
}

impl Snapshot {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn commit(&self) -> &str {
        &self.commit
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The names of its files.
    pub(super) fn files(&self) -> BTreeSet<String> {
        let mut files = BTreeSet::new();
        gather(&self.folder, "", &mut files, DEPTH_MAX);
        files
    }

    /// Gives a content its name.
    pub(super) fn link(&self, name: &str, blob: &Path) -> Result<(), HubError> {
        let path = self.path(name);
        make_parent(&path)?;
        // Out of the folders of the name, of the commit, and of all commits.
        let up = "../".repeat(name.matches('/').count() + 2);
        let content = blob.file_name().unwrap_or_default();
        let to = Path::new(&up).join("blobs").join(content);
        match symlink(to, &path) {
            // A link to a content that was removed, or a link of another process.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_file() => Ok(()),
            linked => linked.map_err(|source| HubError::Cache { path, source }),
        }
    }
}

fn gather(folder: &Path, before: &str, files: &mut BTreeSet<String>, depth: usize) {
    let Some(deeper) = depth.checked_sub(1) else {
        return;
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let name = format!("{before}{name}");
        match entry.path().is_dir() {
            true => gather(&entry.path(), &format!("{name}/"), files, deeper),
            false => drop(files.insert(name)),
        }
    }
}

fn make_parent(path: &Path) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|source| HubError::Cache {
        path: folder.to_owned(),
        source,
    })
}

/// Puts a text at `path`, which it is written beside first: whoever reads there finds all of it, or what was there before.
fn put(text: &str, beside: &Path, path: &Path) -> io::Result<()> {
    let mut file = File::create(beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(beside, path)
}

// === impl Part ===

impl Part {
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).create(true).append(true).open(path)?;
        let mut part = Self {
            path: path.to_owned(),
            hash: Sha256::new(),
            bytes: 0,
            file: file.try_clone()?,
        };
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(part),
                read => part.count(&piece[..read]),
            }
        }
    }

    /// The bytes that are there.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let written = self.file.write_all(bytes);
        written.map_err(|source| self.unusable(source))?;
        self.count(bytes);
        Ok(())
    }

    /// Begins again.
    pub(super) fn clear(&mut self) -> Result<(), HubError> {
        let cleared = self.file.set_len(0);
        cleared.map_err(|source| self.unusable(source))?;
        (self.hash, self.bytes) = (Sha256::new(), 0);
        Ok(())
    }

    /// The SHA-256 of what is there, in hexadecimal digits.
    pub(super) fn sha256(&self) -> String {
        let digest = self.hash.clone().finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Puts the whole content to its place.
    pub(super) fn finish(self, blob: &Path) -> Result<(), HubError> {
        let finished = self.file.sync_all();
        let finished = finished.and_then(|()| fs::rename(&self.path, blob));
        finished.map_err(|source| self.unusable(source))
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn unusable(&self, source: io::Error) -> HubError {
        HubError::Cache {
            path: self.path.clone(),
            source,
        }
    }
}
