//! Reading: the entries of one file, or of a folder's files one after the other.
//!
//! A file that was cut off ends where its last whole entry ends; that is no error, since it is how
//! a stopped run ends ([`JournalReader::torn_tails`]). Damage elsewhere is an error with file and
//! offset, and reading goes on behind it: at the end of the damaged frame if its length leads to
//! an intact one, or else at the next place where an intact frame begins. Who replays must not go
//! on across an error other than by a keyframe.
//!
//! # Bounds
//! One file is in memory at a time.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::entry::{Entry, Header};
use crate::folder;
use crate::frame::{self, FILE_HEAD, FileError, FileHead, Framed, Frames};

/// An entry and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// In which file.
    pub file: Arc<Path>,
    /// Where in it its frame begins.
    pub offset: u64,
    /// What it says.
    pub entry: Entry<'static>,
}

/// A file that ends within an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// Which.
    pub file: Arc<Path>,
    /// Where its last whole entry ends.
    pub offset: u64,
    /// Bytes after that.
    pub bytes: u64,
}

/// Why a journal is not opened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// What is wrong with a journal at one place. Reading goes on after each of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file cannot be read.
    #[error("{}: {source}", file.display())]
    Io {
        /// Which.
        file: Arc<Path>,
        /// Why.
        source: io::Error,
    },
    /// A file is not read.
    #[error("{}: {why}", file.display())]
    File {
        /// Which.
        file: Arc<Path>,
        /// Why.
        why: FileError,
    },
    /// Bytes that are no entry.
    #[error("{} at {offset}: {bytes} damaged bytes", file.display())]
    Damaged {
        /// In which file.
        file: Arc<Path>,
        /// Where they begin.
        offset: u64,
        /// How many were passed over.
        bytes: u64,
    },
    /// An intact frame with something in it that this build does not know.
    #[error("{} at {offset}: unreadable entry: {why}", file.display())]
    Unreadable {
        /// In which file.
        file: Arc<Path>,
        /// Where the frame begins.
        offset: u64,
        /// What was expected.
        why: String,
    },
    /// Files of a run are missing.
    #[error("{files} files of the run are missing before {}", file.display())]
    Missing {
        /// The first one that is there again.
        file: Arc<Path>,
        /// How many are not.
        files: u32,
    },
}

/// Something in one file's bytes.
#[derive(Debug)]
enum Found {
    Entry(Entry<'static>),
    Unreadable(String),
    Damaged { bytes: u64 },
    Torn { bytes: u64 },
}

/// One file's bytes, and how far they have been read.
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

    /// What stands here, with its offset. Moves behind it.
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

fn span(start: usize, end: usize) -> u64 {
    u64::try_from(end.saturating_sub(start)).unwrap_or(u64::MAX)
}

/// The entries in one file's bytes, for those who have no file.
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

/// The entries of a journal, oldest first, and what is wrong with it between them.
#[derive(Debug)]
pub struct JournalReader {
    files: VecDeque<PathBuf>,
    open: Option<(Arc<Path>, Scan<Vec<u8>>)>,
    /// Of the last file that had one.
    header: Option<Header>,
    /// A header, while what is missing before it is told.
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

    /// Files read so far that end within an entry: those of runs that were stopped, and one that
    /// is being written.
    #[must_use]
    pub fn torn_tails(&self) -> &[TornTail] {
        &self.torn
    }

    fn load(&mut self, path: PathBuf) -> Result<(), ReadError> {
        let file: Arc<Path> = path.into();
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            // The writer keeps a bounded number of files, and may have gone on since.
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

    /// The next thing in the open file, if it is one to tell of.
    fn step(&mut self) -> Option<Result<Located, ReadError>> {
        let (file, scan) = self.open.as_mut()?;
        let Some((offset, found)) = scan.step() else {
            self.open = None;
            return None;
        };
        let file = Arc::clone(file);
        Some(match found {
            Found::Entry(entry) => Ok(Located {
                file,
                offset,
                entry,
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

    /// Looks out for files that are missing between the last header and this one.
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
