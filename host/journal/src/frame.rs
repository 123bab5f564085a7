//! The layout of a file: a head, then frames with length and checksum.
//!
//! # Bounds
//! Reading `n` bytes checksums no more than [`SEARCH_FACTOR`] times as many, however they are
//! damaged. A search that would cost more ends, and the rest of the file counts as damaged.

use std::ops::Range;

use serde::Serialize;

use crate::entry::Entry;

/// The version of the format that is written.
pub const FORMAT: u32 = 1;

/// Length of the longest entry, in bytes. A keyframe is encoded where decisions are made, and all
/// of them wait for it: a longer one costs more than a journal is worth.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// First bytes of every journal. No text begins like this, and a translated line end shows.
const MAGIC: [u8; 8] = *b"\x89PMJ\r\n\x1a\n";

/// Length of magic and version, in bytes.
pub(crate) const FILE_HEAD: usize = MAGIC.len() + 4;

/// First bytes of a frame. The very first occurs in no UTF-8 text.
const MARK: [u8; 2] = [0xf7, 0x4a];

/// Length of a frame's head: mark, length of the payload, and CRC-32 of that length and the
/// payload.
pub(crate) const FRAME_HEAD: usize = MARK.len() + 4 + 4;

/// Bytes that a search for the next frame may checksum, for each byte of the file.
const SEARCH_FACTOR: usize = 8;

/// A reason why a file is not read at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file does not begin like a journal.
    #[error("not a journal")]
    NotAJournal,
    /// Another version of Pointsman wrote the file.
    #[error("format version {found}, and this build reads up to {FORMAT}")]
    UnknownFormat {
        /// Version that the file states.
        found: u32,
    },
}

/// Makes the first bytes of a file.
pub(crate) fn file_head() -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..MAGIC.len()].copy_from_slice(&MAGIC);
    head[MAGIC.len()..].copy_from_slice(&FORMAT.to_le_bytes());
    head
}

/// Tells whether a file that begins with these bytes is a journal's, of whatever version.
#[must_use]
pub fn is_journal(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The first bytes of a file that is being read.
pub(crate) enum FileHead {
    Whole,
    /// The file ends within its head.
    Torn,
}

pub(crate) fn read_file_head(bytes: &[u8]) -> Result<FileHead, FileError> {
    let Some((magic, rest)) = bytes.split_first_chunk() else {
        return match MAGIC.strip_prefix(bytes) {
            Some(_) => Ok(FileHead::Torn),
            None => Err(FileError::NotAJournal),
        };
    };
    if *magic != MAGIC {
        return Err(FileError::NotAJournal);
    }
    match rest.first_chunk().map(|found| u32::from_le_bytes(*found)) {
        Some(FORMAT) => Ok(FileHead::Whole),
        Some(found) => Err(FileError::UnknownFormat { found }),
        None => Ok(FileHead::Torn),
    }
}

/// A reason why an entry is not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("{0}")]
    Encode(postcard::Error),
    #[error("an entry of {0} bytes, of at most {FRAME_BYTES_MAX}")]
    TooLong(usize),
}

/// Appends a frame to `out`. On error `out` stays as it was.
pub(crate) fn write_frame(out: &mut Vec<u8>, entry: &Entry<'_>) -> Result<(), FrameError> {
    let start = out.len();
    let written = append(out, entry, start + FRAME_HEAD);
    if written.is_err() {
        out.truncate(start);
    }
    written
}

fn append(out: &mut Vec<u8>, entry: &Entry<'_>, payload: usize) -> Result<(), FrameError> {
    out.resize(payload, 0);
    entry
        .serialize(&mut postcard::Serializer {
            output: Appended(out),
        })
        .map_err(FrameError::Encode)?;
    let length = out.len() - payload;
    let too_long = FrameError::TooLong(length);
    let Some(length) = u32::try_from(length)
        .ok()
        .filter(|_| length <= FRAME_BYTES_MAX)
    else {
        return Err(too_long);
    };
    let length = length.to_le_bytes();
    let crc = checksum(length, &out[payload..]).to_le_bytes();
    let head = &mut out[payload - FRAME_HEAD..payload];
    head[..2].copy_from_slice(&MARK);
    head[2..6].copy_from_slice(&length);
    head[6..].copy_from_slice(&crc);
    Ok(())
}

/// Appends to a buffer that is used again, as output of postcard.
struct Appended<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Appended<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&length);
    crc.update(payload);
    crc.finalize()
}

/// The content at an offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Framed {
    /// A whole frame, by the place of its payload.
    Frame(Range<usize>),
    /// Bytes that are no frame; the next frame is at `next`.
    Damaged { next: usize },
    /// Bytes that are no frame, with no frame behind them, and unlike the end of a file that was
    /// cut off.
    DamagedToEnd,
    /// An end in the middle of a frame: the file was cut off.
    Torn,
    /// The regular end of the file.
    End,
}

/// The bytes of one file, read as frames.
#[derive(Debug)]
pub(crate) struct Frames<B> {
    bytes: B,
    /// Bytes that searches may still checksum.
    search: usize,
}

/// A frame's head, as far as the bytes show it.
enum Head {
    Whole {
        crc: u32,
        payload: Range<usize>,
    },
    /// The bytes end within the frame.
    Short,
    Not,
}

impl<B: AsRef<[u8]>> Frames<B> {
    pub(crate) fn new(bytes: B) -> Self {
        let search = bytes.as_ref().len().saturating_mul(SEARCH_FACTOR);
        Self { bytes, search }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.as_ref().len()
    }

    pub(crate) fn payload(&self, payload: Range<usize>) -> &[u8] {
        &self.bytes.as_ref()[payload]
    }

    pub(crate) fn at(&mut self, offset: usize) -> Framed {
        if offset >= self.len() {
            return Framed::End;
        }
        let led_to = match self.head(offset) {
            Head::Whole { crc, payload } => {
                if self.is_intact(crc, payload.clone()) {
                    return Framed::Frame(payload);
                }
                // Bytes that look like a frame may lie inside a payload, so the damaged frame's
                // length is followed first, if it leads to an intact frame.
                Some(payload.end).filter(|end| self.is_frame(*end))
            }
            Head::Short | Head::Not => None,
        };
        match led_to.or_else(|| self.search(offset + 1)) {
            Some(next) => Framed::Damaged { next },
            None if self.is_cut_off(offset) => Framed::Torn,
            None => Framed::DamagedToEnd,
        }
    }

    fn head(&self, offset: usize) -> Head {
        let bytes = self.bytes.as_ref().get(offset..).unwrap_or_default();
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD>() else {
            let is_prefix = bytes.starts_with(&MARK) || MARK.starts_with(bytes);
            return if is_prefix { Head::Short } else { Head::Not };
        };
        let [m0, m1, l0, l1, l2, l3, crc @ ..] = *head;
        let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3]));
        match length {
            Ok(length) if [m0, m1] == MARK && length <= FRAME_BYTES_MAX => {
                let start = offset + FRAME_HEAD;
                if length > rest.len() {
                    return Head::Short;
                }
                Head::Whole {
                    crc: u32::from_le_bytes(crc),
                    payload: start..start + length,
                }
            }
            Ok(_) | Err(_) => Head::Not,
        }
    }

    fn is_intact(&self, crc: u32, payload: Range<usize>) -> bool {
        let payload = self.payload(payload);
        let length = u32::try_from(payload.len());
        length.is_ok_and(|length| checksum(length.to_le_bytes(), payload) == crc)
    }

    /// Tells whether an intact frame is at `offset`. Says no once the search has used up its bytes.
    fn is_frame(&mut self, offset: usize) -> bool {
        let Head::Whole { crc, payload } = self.head(offset) else {
            return false;
        };
        match self.search.checked_sub(payload.len()) {
            Some(left) => self.search = left,
            None => return false,
        }
        self.is_intact(crc, payload)
    }

    /// Finds the first intact frame from `offset` on.
    fn search(&mut self, offset: usize) -> Option<usize> {
        (offset..self.len()).find(|offset| self.is_frame(*offset))
    }

    /// Tells whether the rest looks like the end of a file whose writer was stopped: half a frame,
    /// or zeros, as a power failure leaves them.
    fn is_cut_off(&self, offset: usize) -> bool {
        let rest = &self.bytes.as_ref()[offset..];
        matches!(self.head(offset), Head::Short) || rest.iter().all(|byte| *byte == 0)
    }
}

/// Decodes the entry in a frame.
pub(crate) fn decode(payload: &[u8]) -> Result<Entry<'static>, String> {
    match postcard::take_from_bytes(payload) {
        Ok((entry, [])) => Ok(entry),
        Ok((_, rest)) => Err(format!("{} bytes after the entry", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}
