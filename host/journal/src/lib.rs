//! The decision journal: what happened to a machine, what its policies answered, and what came of
//! it, as one binary stream.
//!
//! Whoever drives a machine owns a [`JournalWriter`] and gives it an [`Entry`] for each input,
//! round, decision and fact; a thread of the writer's own puts them into files. A
//! [`JournalReader`] gives them back. What a replay makes of them is its own affair.
//!
//! # Invariants
//! 1. The writer's owner never waits: what finds no room is dropped, counted, and stands in the
//!    journal as a [`Gap`] (`tests/journal/writer.rs`).
//! 2. Every file begins with a [`Header`] and a [`Keyframe`], so that a replay can start with any
//!    of them (`tests/journal/writer.rs`).
//! 3. Whatever a file's bytes are, the reader neither panics nor runs on without end, and gives
//!    every entry in front of a damage (`tests/journal/damage.rs`, and a fuzz target).
//! 4. What an earlier version of the format wrote is still read (`tests/journal/golden.rs`).
//!
//! # Not here
//! What is recorded when, and replays (the server); the machine's bytes in a keyframe (the core).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod blob;
mod entry;
mod export;
mod folder;
mod frame;
mod reader;
mod worker;
mod writer;

pub use blob::{Blob, BlobError, Digest, crc32};
pub use entry::{
    Bound, Briefed, Chain, Decision, Entry, Gap, Header, Keyframe, PolicyEvent, PolicyRecord,
    Restarted, Roster, Saved,
};
pub use export::{json_line, text_line};
pub use folder::{Folder, FolderError, Store};
pub use frame::{FORMAT, FRAME_BYTES_MAX, FileError};
pub use reader::{Entries, JournalReader, Located, OpenError, ReadError, TornTail, read_bytes};
pub use writer::{About, JournalMonitor, JournalSettings, JournalStats, JournalWriter, StartError};
