//! The decision journal: inputs, rounds, answers of policies, and facts of one machine as a binary
//! stream.
//!
//! The owner of a machine also owns a [`JournalWriter`] and gives it an [`Entry`] for each input,
//! round, decision and fact; the writer's thread puts them into files. A [`JournalReader`] returns
//! them.
//!
//! # Invariants
//! 1. The writer's owner never waits: an entry that finds no room is dropped and counted, and the
//!    journal shows a [`Gap`]
//!    (`a_writer_whose_disk_stands_still_waits_for_nothing_and_says_how_much_is_missing` in
//!    `tests/journal/writer.rs`).
//! 2. Every file begins with a [`Header`] and a [`Keyframe`], so that a replay can start with any
//!    file and the components beside it (`every_file_begins_with_a_header_and_a_keyframe_and_only_the_newest_are_kept`).
//! 3. The reader ends without a panic on any bytes, and returns every entry before a damage
//!    (`tests/journal/damage.rs`, and a fuzz target).
//! 4. Files of earlier versions of the format are still read (`tests/journal/golden.rs`).
//!
//! # Not here
//! The choice of what is recorded, and replays: `host/replay`. The bytes of the machine in a
//! keyframe: `host/core`.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod blob;
mod components;
mod entry;
mod export;
mod folder;
mod frame;
mod reader;
mod retention;
mod worker;
mod writer;

pub use blob::{Blob, BlobError, ContentHash, crc32};
pub use components::{Component, StoredComponent};
pub use entry::{
    Bound, Briefed, Chain, Decision, Entry, Gap, Header, Keyframe, PolicyEventEntry, PolicyRecord,
    Restarted, Roster, Saved,
};
pub use export::{json_line, text_line};
pub use folder::{Folder, FolderError, Store, StoredFile};
pub use frame::{FORMAT, FRAME_BYTES_MAX, FileError, is_journal};
pub use reader::{Entries, JournalReader, Located, OpenError, ReadError, TornTail, read_bytes};
pub use writer::{
    JournalMonitor, JournalSettings, JournalStartError, JournalStats, JournalWriter, RunInfo,
};
