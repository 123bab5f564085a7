//! Large components, each in a file of its own beside the journal's files.
//!
//! Every journal file begins with all that its policies are. A component of many megabytes would
//! fill the journal with itself: it is stored once, and the files name its digest. The name of its
//! own file has the number of the last journal file that does, so that it goes with that one.
//!
//! # Invariants
//! 1. A component is there whole, and on the disk, before an entry names it
//!    (`a_large_component_is_stored_once_and_goes_with_the_last_file_that_names_it`).
//! 2. What a killed process has left of one goes before the next is stored
//!    (`what_a_killed_writer_left_of_a_component_goes_before_the_next_is_stored`).

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blob::ContentHash;

/// Name of the folder of components, in that of the journal.
const FOLDER: &str = "components";

/// Size of the largest component that is read, in bytes.
const READ_MAX: u64 = 1 << 30;

/// A component that an entry names by its digest.
#[derive(Clone)]
pub struct Component {
    /// SHA-256 of the bytes.
    pub digest: ContentHash,
    /// The component's bytes, shared with its owner.
    pub bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
}

/// A component in a [`Store`](crate::Store).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredComponent {
    /// SHA-256 of the bytes, in hex.
    pub digest: String,
    /// Number of the last file that names it.
    pub file: u32,
    /// Length in bytes.
    pub bytes: u64,
}

impl StoredComponent {
    fn path(&self, journal: &Path) -> PathBuf {
        let name = format!("{}.{:010}", self.digest, self.file);
        journal.join(FOLDER).join(name)
    }
}

/// Lists the components beside the journal in `journal`. Other files are ignored.
pub(crate) fn list(journal: &Path) -> io::Result<Vec<StoredComponent>> {
    let entries = match fs::read_dir(journal.join(FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut components = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some((digest, file)) = entry.file_name().to_str().and_then(named) {
            let bytes = fs::symlink_metadata(entry.path())?.len();
            components.push(StoredComponent {
                digest,
                file,
                bytes,
            });
        }
    }
    Ok(components)
}

/// The digest and the number in the name of a component's file.
fn named(name: &str) -> Option<(String, u32)> {
    let (digest, file) = name.split_once('.')?;
    let is_ours = digest.len() == 64 && file.len() == 10;
    let number = file.parse().ok().filter(|_| is_ours)?;
    Some((digest.to_owned(), number))
}

/// Notes that the file with number `file` names `component`, and stores it where it is not there
/// yet. Returns the number of bytes written.
pub(crate) fn keep(journal: &Path, component: &Component, file: u32) -> io::Result<u64> {
    let bytes = (*component.bytes).as_ref();
    let wanted = StoredComponent {
        digest: component.digest.to_string(),
        file,
        bytes: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
    };
    let path = wanted.path(journal);
    let mut stored = list(journal)?.into_iter();
    let earlier = stored.find(|it| it.digest == wanted.digest && it.bytes == wanted.bytes);
    if let Some(earlier) = earlier {
        fs::rename(earlier.path(journal), path)?;
        return Ok(0);
    }
    let folder = journal.join(FOLDER);
    fs::create_dir_all(&folder)?;
    // It is another number's than this one's, so that this one would not replace it.
    pointsman_files::remove_unfinished(&folder, |name| named(name).is_some())?;
    pointsman_files::replace(&path, |to| to.write_all(bytes))?;
    Ok(wanted.bytes)
}

/// Removes a component.
pub(crate) fn remove(journal: &Path, component: &StoredComponent) -> io::Result<()> {
    fs::remove_file(component.path(journal))
}

/// Reads the component with `digest` beside the journal in `journal`; `None` if it is not there.
pub(crate) fn read(journal: &Path, digest: ContentHash) -> Option<Vec<u8>> {
    let (stored, digest) = (list(journal).ok()?, digest.to_string());
    let found = stored.iter().find(|it| it.digest == digest)?;
    pointsman_files::read(&found.path(journal), READ_MAX).ok()
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Component({})", self.digest)
    }
}
