//! Looks at the policy folder and reads its files, never more than what was announced.
//!
//! # Invariants
//! 1. What [`read`] returns is the file that was stamped, whole: it is looked at before and
//!    after (`a_file_that_changed_since_it_was_seen_is_not_read`).

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::folder::{FolderId, Listing, Sight, Stamp, Unlisted};

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// It is not the file that was seen any more.
    #[error("changed while it was read")]
    Changed,
    /// Larger than what is read.
    #[error("{bytes} bytes, {max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// What is allowed.
        max: usize,
    },
    /// The operating system refused.
    #[error("cannot be read")]
    Io(#[source] io::Error),
}

/// Lists `folder`, following links: its policies and sidecars as they really are.
pub(crate) fn list(folder: &Path) -> Result<Listing, Unlisted> {
    look_into(folder).map_err(|error| {
        if error.kind() == ErrorKind::NotFound {
            Unlisted::Missing
        } else {
            Unlisted::Unreadable(error.to_string())
        }
    })
}

fn look_into(folder: &Path) -> io::Result<Listing> {
    let mut listing = Listing {
        folder: folder_id(folder)?,
        files: BTreeMap::new(),
    };
    for entry in fs::read_dir(folder)? {
        // A name that is not text is nobody's policy.
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        if name.ends_with(".wasm") || name.ends_with(".toml") {
            let sight = look_at(&folder.join(&name));
            listing.files.insert(name, sight);
        }
    }
    Ok(listing)
}

/// Which folder `path` leads to.
pub(crate) fn folder_id(path: &Path) -> io::Result<FolderId> {
    let metadata = fs::metadata(path)?;
    Ok(FolderId {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

fn look_at(path: &Path) -> Sight {
    let real = fs::canonicalize(path);
    match real.and_then(|real| Ok((fs::metadata(&real)?, real))) {
        Ok((metadata, real)) if metadata.is_file() => Sight::File(stamp(real, &metadata)),
        Ok(_) => Sight::NotAFile,
        Err(error) => Sight::Unreadable(error.to_string()),
    }
}

fn stamp(path: PathBuf, metadata: &Metadata) -> Stamp {
    Stamp {
        path,
        bytes: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// The file that was seen as `seen`, of at most `max` bytes.
pub(crate) fn read(seen: &Stamp, max: usize) -> Result<Vec<u8>, ReadError> {
    let bytes = seen.bytes;
    if usize::try_from(bytes).map_or(true, |bytes| bytes > max) {
        return Err(ReadError::TooLarge { bytes, max });
    }
    match read_seen(seen) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(ReadError::Changed),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(ReadError::Changed),
        Err(error) => Err(ReadError::Io(error)),
    }
}

/// The file's bytes, if it was the one that was seen from beginning to end.
fn read_seen(seen: &Stamp) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(&seen.path)?;
    if stamp(seen.path.clone(), &file.metadata()?) != *seen {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    // One byte more would show that it has grown.
    (&mut file)
        .take(seen.bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    let whole = u64::try_from(bytes.len()).is_ok_and(|read| read == seen.bytes);
    let same = stamp(seen.path.clone(), &file.metadata()?) == *seen;
    Ok((whole && same).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &Path) -> Stamp {
        match look_at(path) {
            Sight::File(stamp) => stamp,
            other @ (Sight::NotAFile | Sight::Unreadable(_)) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_that_changed_since_it_was_seen_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        fs::write(&path, "one").unwrap();
        let stamp = seen(&path);
        assert_eq!(read(&stamp, 3).unwrap(), b"one");
        fs::write(&path, "four").unwrap();
        assert!(matches!(read(&stamp, 9), Err(ReadError::Changed)));
        fs::remove_file(&path).unwrap();
        assert!(matches!(read(&stamp, 9), Err(ReadError::Changed)));
    }

    #[test]
    fn a_file_that_is_too_large_is_not_even_opened() {
        let stamp = Stamp {
            path: PathBuf::from("/nowhere"),
            bytes: 10,
            modified: (0, 0),
            changed: (0, 0),
        };
        let error = read(&stamp, 9).unwrap_err();
        assert_eq!(error.to_string(), "10 bytes, 9 are allowed");
    }

    #[test]
    fn links_are_followed_and_what_is_no_file_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("real"), "one").unwrap();
        std::os::unix::fs::symlink(at("real"), at("link.wasm")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("dangling.wasm")).unwrap();
        fs::create_dir(at("folder.wasm")).unwrap();
        fs::write(at("other.txt"), "one").unwrap();
        let files = list(folder.path()).unwrap().files;
        let names: Vec<&String> = files.keys().collect();
        assert_eq!(names, ["dangling.wasm", "folder.wasm", "link.wasm"]);
        assert!(matches!(files["dangling.wasm"], Sight::Unreadable(_)));
        assert_eq!(files["folder.wasm"], Sight::NotAFile);
        assert_eq!(files["link.wasm"], Sight::File(seen(&at("real"))));
        assert_eq!(list(&at("nowhere")).unwrap_err(), Unlisted::Missing);
        let error = list(&at("real")).unwrap_err();
        assert!(matches!(error, Unlisted::Unreadable(_)), "{error:?}");
    }
}
