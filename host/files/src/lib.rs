//! Files in folders where somebody else may put things too.
//!
//! A FIFO in the place of a file blocks whoever opens it until somebody writes to it, and a device
//! may have no end. Whoever reads a policy, a model, a key or a state does it here: a file is opened
//! without waiting, looked at through the same descriptor, and read up to a bound.
//!
//! # Invariants
//! 1. Nothing here waits for another process, whatever is at the path (`tests`).
//! 2. A file that is replaced is there whole or as it was, nothing is left beside it, and no other file is
//!    touched (`tests`).
//!
//! # Not here
//! Locks and permissions of folders: their owners know what they are for.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags, access};

/// Mode of files that are made here: for their owner's eyes.
const PRIVATE: u32 = 0o600;
/// Mode of files that everybody may read, whatever the mask of new files is.
const READABLE: u32 = 0o644;

/// The longest name that a file may have, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The beginning and the end of the name that a file has until it is whole.
const UNFINISHED: [&str; 2] = [".", ".new"];

/// The state of a file at one look. Equal stamps mean that the file has not been touched.
///
/// Times are seconds and nanoseconds. A stamp has no inode: some network file systems make one up
/// at each look. A file moved over another shows in the time of its last status change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// The real path, links resolved.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The time of its last change of contents.
    pub modified: (i64, i64),
    /// The time of its last change of status.
    pub changed: (i64, i64),
}

/// Opens the regular file at `path` for reading.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    opened(OpenOptions::new().read(true), path)
}

/// Reads the whole regular file at `path`, of at most `bytes_max` bytes.
///
/// # Errors
/// If it cannot be read, is no regular file, or is larger ([`ErrorKind::FileTooLarge`]).
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    // One byte more shows that there are too many, even in a file that grows.
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|read| read <= bytes_max) {
        return Ok(bytes);
    }
    let why = format!("more than {bytes_max} bytes");
    Err(io::Error::new(ErrorKind::FileTooLarge, why))
}

/// Reads the whole text in the regular file at `path`, of at most `bytes_max` bytes.
///
/// # Errors
/// As [`read`], or if it is not UTF-8 ([`ErrorKind::InvalidData`]).
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, bytes_max)?);
    text.map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// Opens the regular file at `path` for writing, empty, and makes it if it is not there.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    opened(options.write(true).create(true).truncate(true), path)
}

/// Puts a file at `path` that `write` fills: whole or not at all, and on the disk when this returns.
/// Nobody but its owner may read it.
///
/// # Errors
/// If it cannot be written; the file at `path` is then as it was.
pub fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    put(path, PRIVATE, write)
}

/// Puts a file at `path` as [`replace`] does, which everybody may read: a server of another user has to,
/// where it is a policy or its sidecar.
///
/// # Errors
/// As [`replace`].
pub fn replace_readable(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    put(path, READABLE, write)
}

fn put(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let beside = beside(path);
    let file = begin(&beside)?;
    let written = fill(file, mode, write).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // On a full disk it would take room that is needed.
        fs::remove_file(&beside).unwrap_or_default();
        return written;
    }
    // The move is on the disk once the folder is.
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes the file at `beside` that is to be moved, empty. One that a process has left there that was killed is
/// removed; what is no file is nobody's left-over, and stays.
fn begin(beside: &Path) -> io::Result<File> {
    if fs::symlink_metadata(beside).is_ok_and(|found| found.is_file()) {
        fs::remove_file(beside)?;
    }
    opened(OpenOptions::new().write(true).create_new(true), beside)
}

fn fill(
    mut file: File,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    write(&mut file)?;
    file.flush()?;
    file.sync_all()
}

/// Removes what [`replace`] has left in `folder` of the files whose names satisfy `is_ours`: a process was killed. Call
/// it where no other process puts such files at present.
///
/// # Errors
/// If they cannot be found or removed.
pub fn remove_unfinished(folder: &Path, is_ours: impl Fn(&str) -> bool) -> io::Result<()> {
    let [begins, ends] = UNFINISHED;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(begins));
        let name = name.and_then(|name| name.strip_suffix(ends));
        if name.is_some_and(&is_ours) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Checks that [`replace`] could put a file at `path` at present, for who has much to do before that.
///
/// # Errors
/// If it could not.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let beside = beside(path);
    begin(&beside)?;
    fs::remove_file(&beside)
}

/// Checks that files could be put into a folder at `path` at present, which is made first where it is not there.
/// Makes nothing.
///
/// # Errors
/// If they could not.
pub fn check_folder(path: &Path) -> io::Result<()> {
    for folder in path.ancestors() {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        match fs::metadata(folder) {
            Ok(found) if found.is_dir() => {
                let writable = Access::WRITE_OK | Access::EXEC_OK;
                return access(folder, writable).map_err(io::Error::from);
            }
            Ok(_) => return Err(ErrorKind::NotADirectory.into()),
            // No folder can be made where there is a link to nothing.
            Err(error) if error.kind() == ErrorKind::NotFound && !is_link(folder) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::NotFound.into())
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

/// The path at which a file is until it is whole: a hidden name of its own, `.NAME.new`, with as much of the name
/// as there is room for.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let [begins, ends] = UNFINISHED.map(str::as_bytes);
    let room = NAME_BYTES_MAX - begins.len() - ends.len();
    let name = [begins, &name[..name.len().min(room)], ends].concat();
    path.with_file_name(OsStr::from_bytes(&name))
}

fn opened(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).expect("flags of the system are of its type");
    let file = options.mode(PRIVATE).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        "not a regular file",
    ))
}

// === impl FileStamp ===

impl FileStamp {
    /// Makes the stamp of the file with this real path and metadata.
    #[must_use]
    pub fn of(path: PathBuf, metadata: &Metadata) -> Self {
        Self {
            path,
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn fifo(path: &Path) {
        mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let home = tempfile::tempdir().unwrap();
        let (fifo_at, link) = (home.path().join("fifo"), home.path().join("link"));
        fifo(&fifo_at);
        symlink(&fifo_at, &link).unwrap();
        let paths = [&fifo_at, &link, home.path(), Path::new("/dev/zero")];
        for path in paths {
            let error = read(path, 10).unwrap_err();
            assert_eq!(
                error.to_string(),
                "not a regular file",
                "{}",
                path.display()
            );
        }
        // Nobody reads from it, so it cannot even be opened for writing.
        assert!(create(&fifo_at).is_err());
        assert!(create(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let error = read(&path, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "more than 4 bytes");
        fs::write(&path, [0xff]).unwrap();
        let error = read_text(&path, 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all_and_nothing_is_left() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file.json");
        replace(&path, |file| file.write_all(b"one")).unwrap();
        let full = replace(&path, |file| {
            file.write_all(b"tw")?;
            Err(ErrorKind::StorageFull.into())
        });
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        fifo(&home.path().join(".file.json.new"));
        assert!(replace(&path, |_| Ok(())).is_err(), "a FIFO beside it");
        assert!(check_replaceable(&path).is_err(), "a FIFO beside it");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_of_other_names_stay_as_they_are() {
        let home = tempfile::tempdir().unwrap();
        let long = "x".repeat(NAME_BYTES_MAX);
        let paths = ["x", "x.html", "x.new", long.as_str()].map(|name| home.path().join(name));
        for path in &paths {
            fs::write(path, "old").unwrap();
        }
        for path in &paths {
            check_replaceable(path).unwrap();
        }
        for (replaced, path) in paths.iter().enumerate() {
            for (idx, path) in paths.iter().enumerate() {
                let expected = if idx < replaced { "new" } else { "old" };
                assert_eq!(fs::read_to_string(path).unwrap(), expected);
            }
            replace(path, |file| file.write_all(b"new")).unwrap();
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), paths.len());
    }

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let others = [".other.new", "ours.new", ".ours", "ours"].map(at);
        for path in &others {
            fs::write(path, "whole").unwrap();
        }
        fs::write(beside(&at("ours.json")), "half").unwrap();
        fs::create_dir(beside(&at("ours.folder"))).unwrap();
        remove_unfinished(home.path(), |name| name.starts_with("ours")).unwrap();
        assert!(!beside(&at("ours.json")).exists());
        assert!(beside(&at("ours.folder")).exists());
        assert!(others.iter().all(|path| path.exists()));
    }

    #[test]
    fn a_file_has_the_mode_of_its_kind_whatever_was_left_beside_it_and_there_before() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file.toml");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let leave = |mode| {
            let beside = beside(&path);
            fs::write(&beside, "half").unwrap();
            fs::set_permissions(&beside, Permissions::from_mode(mode)).unwrap();
        };
        leave(0o600);
        replace_readable(&path, |file| file.write_all(b"one")).unwrap();
        assert_eq!(mode(), 0o644);
        leave(0o666);
        replace(&path, |file| file.write_all(b"one")).unwrap();
        assert_eq!(mode(), 0o600);
        replace_readable(&path, |file| file.write_all(b"two")).unwrap();
        assert_eq!(mode(), 0o644);
        assert_eq!(fs::read(&path).unwrap(), b"two");
    }

    #[test]
    fn a_check_says_if_a_file_could_be_replaced_and_leaves_all_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file.json");
        check_replaceable(&path).unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        fs::write(&path, "one").unwrap();
        check_replaceable(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let error = check_replaceable(home.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        assert!(check_replaceable(&path.join("below")).is_err());
    }

    #[test]
    fn a_check_says_if_a_folder_could_be_used_and_makes_none() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "no folder").unwrap();
        for path in ["", "folder", "folder/below"] {
            check_folder(&home.path().join(path)).unwrap();
        }
        check_folder(Path::new("a_folder_that_is_not_here")).unwrap();
        for path in [file.clone(), file.join("below"), file.join("far/below")] {
            let error = check_folder(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotADirectory);
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        let dangling = home.path().join("dangling");
        symlink(home.path().join("nowhere"), &dangling).unwrap();
        for path in [dangling.clone(), dangling.join("below")] {
            assert!(fs::create_dir_all(&path).is_err());
            let error = check_folder(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        let closed = home.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o500)).unwrap();
        // Root may write anywhere.
        let may_write = File::create(closed.join("file")).is_ok();
        assert_eq!(check_folder(&closed.join("below")).is_ok(), may_write);
    }

    #[test]
    fn a_name_without_a_folder_is_in_the_current_one() {
        let name = format!("a_name_without_a_folder.{}", std::process::id());
        let path = Path::new(&name);
        replace(path, |file| file.write_all(b"one")).unwrap();
        let read = fs::read(path);
        fs::remove_file(path).unwrap();
        assert_eq!(read.unwrap(), b"one");
    }
}
