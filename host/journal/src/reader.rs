//! Reading: the entries of one file, or of all files of a folder in order.
//!
//! A file that was cut off ends with its last whole entry. That is no error: a run that is stopped
//! leaves such a file ([`JournalReader::torn_tails`]). Damage elsewhere is an error with file and
//! offset, and reading goes on behind it: at the end of the damaged frame if its length leads to an
//! intact one, or else at the next intact frame. A replay must not continue across an error except
//! from a keyframe.
//!
//! # Bounds
//! One file is in memory at a time.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blob::Blob;
use crate::components;
use crate::entry::{Entry, Header};
use crate::folder;
use crate::frame::{self, FILE_HEAD, FileError, FileHead, Framed, Frames};

/// An entry and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// File that contains the entry.
    pub file: Arc<Path>,
    /// Offset of the entry's frame, in bytes.
    pub offset: u64,
    /// The entry itself.
    pub entry: Entry<'static>,
}

/// The end of a file that was cut off within an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// File that was cut off.
    pub file: Arc<Path>,
    /// End of the last whole entry, in bytes.
    pub offset: u64,
    /// Number of bytes after that.
    pub bytes: u64,
}

/// A failure to open a journal.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// A fault of a journal at one place. Reading goes on after it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file cannot be read.
    #[error("{}: {source}", file.display())]
    Io {
        /// File that could not be read.
        file: Arc<Path>,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is no journal, or of an unknown version.
    #[error("{}: {why}", file.display())]
    File {
        /// File that was passed over.
        file: Arc<Path>,
        /// Reason from the file's first bytes.
        why: FileError,
    },
    /// Bytes that are no entry.
    #[error("{} at {offset}: {bytes} damaged bytes", file.display())]
    Damaged {
        /// File with the damage.
        file: Arc<Path>,
        /// Offset of the first damaged byte.
        offset: u64,
        /// Number of bytes that were passed over.
        bytes: u64,
    },
    /// An intact frame whose content this build does not know.
    #[error("{} at {offset}: unreadable entry: {why}", file.display())]
    Unreadable {
        /// File with the entry.
        file: Arc<Path>,
        /// Offset of the frame, in bytes.
        offset: u64,
        /// Message of the decoder.
        why: String,
    },
    /// Files of a run are missing.
    #[error("{files} files of the run are missing before {}", file.display())]
    Missing {
        /// First file after the missing ones.
        file: Arc<Path>,
        /// Number of files that are missing.
        files: u32,
    },
}

/// A piece of one file's bytes.
#[derive(Debug)]
enum Found {
    Entry(Entry<'static>),
    Unreadable(String),
    Damaged { bytes: u64 },
    Torn { bytes: u64 },
}

/// The bytes of one file, and the position reached in them.
#[derive(Debug)]
struct Scan<B> {
    frames: Frames<B>,
    at: usize,
}

impl<B: AsRef<[u8]>> Scan<B> {
    fn new(bytes: B) -> Result<Self, FileError> {
        let at = match frame::read_file_head(bytes.as_ref())? {
            FileHead::Whole => FILE_HEAD,
            FileHead::Torn => 0,
        };
        let frames = Frames::new(bytes);
        Ok(Self { frames, at })
    }

    /// Reads the piece at the current position, returns it with its offset, and moves behind it.
    fn step(&mut self) -> Option<(u64, Found)> {
        let (start, len) = (self.at, self.frames.len());
        if start < FILE_HEAD && start < len {
            self.at = len;
            let bytes = span(start, len);
            return Some((span(0, start), Found::Torn { bytes }));
        }
        let (found, next) = match self.frames.at(start) {
            Framed::End => return None,
            Framed::Frame(payload) => {
                let next = payload.end;
                let entry = frame::decode(self.frames.payload(payload));
                (entry.map_or_else(Found::Unreadable, Found::Entry), next)
            }
            Framed::Damaged { next } => {
                let bytes = span(start, next);
                (Found::Damaged { bytes }, next)
            }
            Framed::DamagedToEnd => {
                let bytes = span(start, len);
                (Found::Damaged { bytes }, len)
            }
            Framed::Torn => {
                let bytes = span(start, len);
                (Found::Torn { bytes }, len)
            }
        };
        self.at = next;
        Some((span(0, start), found))
    }
}

/// Gives the policies that `entry` names the components that lie beside `file`.
fn whole(mut entry: Entry<'static>, file: &Path) -> Entry<'static> {
    let policies = match &mut entry {
        Entry::Keyframe(keyframe) => keyframe.roster.policies.iter_mut(),
        Entry::Bound(bound) => bound.roster.policies.iter_mut(),
        Entry::Header(_)
        | Entry::Input { .. }
        | Entry::Round { .. }
        | Entry::Decision(_)
        | Entry::Fact(_)
        | Entry::PolicyEvent(_)
        | Entry::Gap(_)
        | Entry::Briefed(_)
        | Entry::Restarted(_)
        | Entry::Saved(_) => [].iter_mut(),
    };
    if let Some(folder) = file.parent() {
        for policy in policies.filter(|policy| policy.code.is_none()) {
            policy.code = components::read(folder, policy.digest).map(Blob);
        }
    }
    entry
}

fn span(start: usize, end: usize) -> u64 {
    u64::try_from(end.saturating_sub(start)).unwrap_or(u64::MAX)
}

/// The entries in the bytes of one file.
#[derive(Debug)]
pub struct Entries<'a>(Scan<&'a [u8]>);

/// Reads a journal file from memory, passing over damage.
///
/// # Errors
/// If these are not the bytes of a journal that this build reads.
pub fn read_bytes(bytes: &[u8]) -> Result<Entries<'_>, FileError> {
    Ok(Entries(Scan::new(bytes)?))
}

impl Iterator for Entries<'_> {
    /// An entry and the offset of its frame.
    type Item = (u64, Entry<'static>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (offset, Found::Entry(entry)) = self.0.step()? {
                return Some((offset, entry));
            }
        }
    }
}

/// The entries of a journal, oldest first, with an error at each fault. Components beside it are read
/// into the policies that name them.
#[derive(Debug)]
pub struct JournalReader {
    files: VecDeque<PathBuf>,
    open: Option<(Arc<Path>, Scan<Vec<u8>>)>,
    /// Header of the last file that had one.
    header: Option<Header>,
    /// A header that is returned after the error about files missing before it.
    held: Option<Located>,
    torn: Vec<TornTail>,
}

impl JournalReader {
    /// Reads a file, or all files of a journal's folder.
    ///
    /// # Errors
    /// If there is no such file, or the folder cannot be listed.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let files = if path.is_dir() {
            folder::list(path).map(|files| files.into_values().collect())
        } else {
            fs::metadata(path).map(|_| VecDeque::from([path.to_owned()]))
        };
        let files = files.map_err(|source| OpenError {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            files,
            open: None,
            header: None,
            held: None,
            torn: Vec::new(),
        })
    }

    /// Files read so far that end within an entry: files of runs that were stopped, and the file
    /// that is being written.
    #[must_use]
    pub fn torn_tails(&self) -> &[TornTail] {
        &self.torn
    }

    fn load(&mut self, path: PathBuf) -> Result<(), ReadError> {
        let file: Arc<Path> = path.into();
        let bytes = match pointsman_files::read(&file, u64::MAX) {
            Ok(bytes) => bytes,
            // The writer keeps a bounded number of files, and may have removed this one since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(ReadError::Io { file, source }),
        };
        match Scan::new(bytes) {
            Ok(scan) => {
                self.open = Some((file, scan));
                Ok(())
            }
            Err(why) => Err(ReadError::File { file, why }),
        }
    }

    /// Reads the next entry or fault of the open file. A torn tail is noted and not returned.
    fn step(&mut self) -> Option<Result<Located, ReadError>> {
        let (file, scan) = self.open.as_mut()?;
        let Some((offset, found)) = scan.step() else {
            self.open = None;
            return None;
        };
        let file = Arc::clone(file);
        Some(match found {
            Found::Entry(entry) => Ok(Located {
                entry: whole(entry, &file),
                file,
                offset,
            }),
            Found::Unreadable(why) => Err(ReadError::Unreadable { file, offset, why }),
            Found::Damaged { bytes } => Err(ReadError::Damaged {
                file,
                offset,
                bytes,
            }),
            Found::Torn { bytes } => {
                self.torn.push(TornTail {
                    file,
                    offset,
                    bytes,
                });
                return None;
            }
        })
    }

    /// Checks that no file is missing between the last header and this one.
    fn check(&mut self, located: Located) -> Result<Located, ReadError> {
        let Entry::Header(header) = &located.entry else {
            return Ok(located);
        };
        let last = self.header.replace(header.clone());
        let expected = last
            .filter(|last| last.started_unix_ms == header.started_unix_ms)
            .map_or(header.file, |last| last.file.saturating_add(1));
        let files = header.file.saturating_sub(expected);
        if files == 0 {
            return Ok(located);
        }
        let file = Arc::clone(&located.file);
        self.held = Some(located);
        Err(ReadError::Missing { file, files })
    }
}

impl Iterator for JournalReader {
    type Item = Result<Located, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(header) = self.held.take() {
            return Some(Ok(header));
        }
        loop {
            if let Some(found) = self.step() {
                return Some(found.and_then(|located| self.check(located)));
            }
            if self.open.is_none() {
                let path = self.files.pop_front()?;
                if let Err(error) = self.load(path) {
                    return Some(Err(error));
                }
            }
        }
    }
}
