//! Looks at the policy folder and reads its files.
//!
//! # Invariants
//! 1. Nothing that is put into the folder makes a look or a [`read`] wait
//!    (`what_was_replaced_by_a_fifo_is_not_waited_for`).
//! 2. [`read`] returns the whole file that was stamped, which is looked at before and after
//!    (`a_file_that_changed_since_it_was_seen_is_not_read`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pointsman_files::FileStamp;
use pointsman_state::FolderId;

use super::folder::{Listing, Sight};
use super::report::ReloadStep;
use super::transactions::Failure;

/// Lists the policies and sidecars in `folder`, following links.
pub(crate) fn list(folder: &Path) -> io::Result<Listing> {
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

/// The folder that `path` leads to.
pub(crate) fn folder_id(path: &Path) -> io::Result<FolderId> {
    let metadata = fs::metadata(path)?;
    Ok(FolderId {
        path: path.to_owned(),
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

fn look_at(path: &Path) -> Sight {
    let real = fs::canonicalize(path);
    match real.and_then(|real| Ok((fs::metadata(&real)?, real))) {
        Ok((metadata, real)) if metadata.is_file() => Ok(FileStamp::of(real, &metadata)),
        Ok(_) => Err("not a regular file".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The bytes of the file that was seen as `seen`, at most `max` of them; absent: the file has
/// changed.
pub(crate) fn read(seen: &FileStamp, max: usize) -> Result<Option<Vec<u8>>, Failure> {
    let bytes = seen.bytes;
    if usize::try_from(bytes).map_or(true, |bytes| bytes > max) {
        return Err(failure(format!("{bytes} bytes, {max} are allowed")));
    }
    match read_seen(seen) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failure(format!("cannot be read: {error}"))),
    }
}

fn failure(why: String) -> Failure {
    let step = ReloadStep::Read;
    Failure { step, why }
}

fn read_seen(seen: &FileStamp) -> io::Result<Option<Vec<u8>>> {
    let mut file = pointsman_files::open(&seen.path)?;
    if FileStamp::of(seen.path.clone(), &file.metadata()?) != *seen {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    // One byte more would show that it has grown.
    (&mut file)
        .take(seen.bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    let whole = u64::try_from(bytes.len()).is_ok_and(|read| read == seen.bytes);
    let same = FileStamp::of(seen.path.clone(), &file.metadata()?) == *seen;
    Ok((whole && same).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    fn seen(path: &Path) -> FileStamp {
        look_at(path).unwrap()
    }

    #[test]
    fn a_file_that_changed_since_it_was_seen_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        fs::write(&path, "one").unwrap();
        let stamp = seen(&path);
        assert_eq!(read(&stamp, 3).unwrap().as_deref(), Some(&b"one"[..]));
        fs::write(&path, "four").unwrap();
        assert_eq!(read(&stamp, 9).unwrap(), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&stamp, 9).unwrap(), None);
    }

    #[test]
    fn what_was_replaced_by_a_fifo_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        fs::write(&path, "one").unwrap();
        let stamp = seen(&path);
        fs::remove_file(&path).unwrap();
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let failure = read(&stamp, 9).unwrap_err();
        assert_eq!(failure.why, "cannot be read: not a regular file");
        let files = list(folder.path()).unwrap().files;
        assert_eq!(files["a.wasm"], Err("not a regular file".to_owned()));
    }

    #[test]
    fn a_file_that_is_too_large_is_not_even_opened() {
        let stamp = FileStamp {
            path: PathBuf::from("/nowhere"),
            bytes: 10,
            modified: (0, 0),
            changed: (0, 0),
        };
        let failure = read(&stamp, 9).unwrap_err();
        assert_eq!(failure.why, "10 bytes, 9 are allowed");
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
        assert!(files["dangling.wasm"].is_err());
        assert_eq!(files["folder.wasm"], Err("not a regular file".to_owned()));
        assert_eq!(files["link.wasm"], Ok(seen(&at("real"))));
        let kind = |path: &Path| list(path).unwrap_err().kind();
        assert_eq!(kind(&at("nowhere")), ErrorKind::NotFound);
        assert_ne!(kind(&at("real")), ErrorKind::NotFound);
    }
}
