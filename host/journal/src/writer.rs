//! Writing, on the side of whoever drives the machine: [`JournalWriter`].
//!
//! Entries are encoded where they are written, into a batch; a full batch, or one that has grown
//! old ([`JournalWriter::turn`]), goes through a bounded channel to the thread that owns the
//! files. Neither waits for the other: a batch that finds the channel full is dropped and counted.
//!
//! # Keyframes
//! The thread begins no file, and goes on after no gap, without a keyframe. It asks for one by a
//! flag that [`JournalWriter::is_keyframe_due`] reads between two rounds; the owner gives one with
//! [`JournalWriter::write_keyframe`] when it suits it, and what it writes until then still goes to
//! the file there is, up to twice a file's size. The flag is up at the start, so a keyframe is
//! also the first thing to write.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use pointsman_core::Micros;

use crate::entry::{Entry, Header, Keyframe};
use crate::folder::Store;
use crate::frame::write_frame;
use crate::worker::Worker;

/// Bounds of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// A file with as many bytes behind its first keyframe ends with the next. From 4,096.
    pub file_bytes: u64,
    /// Files that are kept, those of earlier runs included. From 2.
    pub files_max: u32,
    /// A batch that has as many bytes is handed over. From 1.
    pub batch_bytes: usize,
    /// Batches on their way to the thread. From 2.
    pub batches_max: usize,
    /// A batch whose first entry is older than that is handed over at the end of a turn.
    pub batch_age: Micros,
    /// How long the end of the writer waits for what is on its way.
    pub close_wait: Duration,
}

impl Default for JournalSettings {
    /// 16 files of 64 MiB, and at most 8 MiB on their way.
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            files_max: 16,
            batch_bytes: 64 << 10,
            batches_max: 128,
            batch_age: Micros(20_000),
            close_wait: Duration::from_secs(2),
        }
    }
}

/// By whom a journal is written, and when: what its headers say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Version of Pointsman.
    pub pointsman: String,
    /// Version of wasmtime.
    pub wasmtime: String,
    /// Now, in milliseconds since 1970: the journal reads no clock.
    pub started_unix_ms: u64,
}

/// Why no journal is written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A bound out of its range.
    #[error("{name} must be at least {min}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// The smallest allowed.
        min: u64,
    },
    /// The store does not say what it has.
    #[error("journal files cannot be listed: {0}")]
    List(#[source] io::Error),
    /// There is no thread to be had.
    #[error("journal thread cannot be started: {0}")]
    Thread(#[source] io::Error),
}

/// What became of a journal so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Entries in files, headers and gaps included.
    pub written: u64,
    /// Bytes in files.
    pub bytes: u64,
    /// Files begun.
    pub files: u64,
    /// Entries dropped since the thread did not keep up.
    pub dropped: u64,
    /// Entries lost since a file could not be written, had no room left before a keyframe came, or
    /// none had come.
    pub lost: u64,
    /// Entries that cannot be written: longer than a frame may be.
    pub refused: u64,
    /// Failures to make, write or remove a file.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<String>,
}

/// What the two sides tell each other without waiting.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) keyframe_due: AtomicBool,
    /// Messages on their way.
    pub(crate) queued: AtomicUsize,
    pub(crate) dropped: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// The thread's counts. Held for a copy of a few numbers, and never by the writer's owner.
    pub(crate) told: Mutex<JournalStats>,
    /// What the owner had in hand when it ended; taken when the channel is empty. The owner locks
    /// it once, for a move.
    pub(crate) last: Mutex<Option<Batch>>,
}

/// Frames on their way to the thread.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) kind: BatchKind,
    /// Entries that were to stand before it and were dropped.
    pub(crate) dropped_before: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BatchKind {
    #[default]
    Entries,
    /// A keyframe alone.
    Keyframe,
}

/// Watches a journal from anywhere.
#[derive(Clone, Debug)]
pub struct JournalMonitor(Arc<Shared>);

impl JournalMonitor {
    /// Batches that the thread has not taken yet.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.queued.load(Ordering::Relaxed)
    }

    /// What became of it so far.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        let told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        JournalStats {
            dropped: self.0.dropped.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
            ..told.clone()
        }
    }
}

/// Writes a journal. Owned by whoever drives the machine; none of its methods waits, but for its
/// end.
#[derive(Debug)]
pub struct JournalWriter {
    settings: JournalSettings,
    /// `None` once the writer has ended.
    sender: Option<SyncSender<Batch>>,
    /// Buffers that come back from the thread.
    spare: Receiver<Vec<u8>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    shared: Arc<Shared>,
    batch: Batch,
    /// When [`Self::turn`] first saw something in the batch.
    batch_since: Option<Micros>,
}

impl JournalWriter {
    /// Starts the thread that writes to `store`. Numbers go on where those in `store` end.
    ///
    /// # Errors
    /// If a bound is out of its range, or the store or the thread cannot be had.
    pub fn start(
        mut store: impl Store,
        about: About,
        settings: JournalSettings,
    ) -> Result<Self, StartError> {
        settings.validate()?;
        let numbers = store.numbers().map_err(StartError::List)?;
        let (sender, batches) = sync_channel(settings.batches_max);
        let (spares, spare) = sync_channel(settings.batches_max);
        let (alive, ended) = sync_channel(0);
        let shared = Arc::new(Shared::default());
        shared.keyframe_due.store(true, Ordering::Relaxed);
        let header = Header {
            pointsman: about.pointsman,
            wasmtime: about.wasmtime,
            started_unix_ms: about.started_unix_ms,
            file: 0,
        };
        let next = numbers.last().map_or(1, |last| last.saturating_add(1));
        let worker = Worker::new(store, (header, next), settings, Arc::clone(&shared));
        thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                worker.run(&batches, &spares);
                drop(alive);
            })
            .map_err(StartError::Thread)?;
        Ok(Self {
            settings,
            sender: Some(sender),
            spare,
            ended,
            shared,
            batch: Batch::default(),
            batch_since: None,
        })
    }

    /// Notes an entry.
    pub fn write(&mut self, entry: &Entry<'_>) {
        if write_frame(&mut self.batch.bytes, entry).is_err() {
            self.refuse();
            return;
        }
        self.batch.entries += 1;
        if self.batch.bytes.len() >= self.settings.batch_bytes {
            self.flush();
        }
    }

    /// A turn of the driver ends: hands over what has waited long enough. Called at a time when
    /// nothing is written, it does so as well; [`Self::flush_at`] says when that is due.
    pub fn turn(&mut self, now: Micros) {
        if self.batch.bytes.is_empty() {
            return;
        }
        let since = *self.batch_since.get_or_insert(now);
        if now.since(since) >= self.settings.batch_age {
            self.flush();
        }
    }

    /// When [`Self::turn`] is to be called at the latest.
    #[must_use]
    pub fn flush_at(&self) -> Option<Micros> {
        Some(self.batch_since?.after(self.settings.batch_age))
    }

    /// Hands over what there is.
    pub fn flush(&mut self) {
        if self.batch.bytes.is_empty() {
            return;
        }
        let fresh = Batch {
            bytes: self.spare.try_recv().unwrap_or_default(),
            ..Batch::default()
        };
        let batch = std::mem::replace(&mut self.batch, fresh);
        self.batch_since = None;
        if let Err(batch) = self.send(batch) {
            self.drop_batch(batch);
        }
    }

    /// Whether the next thing to write, as soon as the machine is between two rounds, is a
    /// keyframe. False as long as one would find no room.
    #[must_use]
    pub fn is_keyframe_due(&self) -> bool {
        self.shared.keyframe_due.load(Ordering::Relaxed)
            // What is in hand goes first, and takes a place as well.
            && self.shared.queued.load(Ordering::Relaxed) + 2 <= self.settings.batches_max
    }

    /// Notes a keyframe, behind what was written before.
    pub fn write_keyframe(&mut self, keyframe: Keyframe) {
        self.flush();
        let mut bytes = Vec::new();
        let entry = Entry::Keyframe(Box::new(keyframe));
        if write_frame(&mut bytes, &entry).is_err() {
            self.refuse();
            return;
        }
        let batch = Batch {
            kind: BatchKind::Keyframe,
            dropped_before: std::mem::take(&mut self.batch.dropped_before),
            entries: 1,
            bytes,
        };
        self.shared.keyframe_due.store(false, Ordering::Relaxed);
        if let Err(batch) = self.send(batch) {
            self.shared.keyframe_due.store(true, Ordering::Relaxed);
            self.drop_batch(batch);
        }
    }

    /// What watches this journal.
    #[must_use]
    pub fn monitor(&self) -> JournalMonitor {
        JournalMonitor(Arc::clone(&self.shared))
    }

    /// What became of the journal so far.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        self.monitor().stats()
    }

    fn refuse(&mut self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        // The entry is missing like any other.
        self.flush();
        self.batch.dropped_before += 1;
    }

    fn send(&mut self, batch: Batch) -> Result<(), Batch> {
        let Some(sender) = &self.sender else {
            return Err(batch);
        };
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        sender.try_send(batch).map_err(|error| {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(batch) | TrySendError::Disconnected(batch) => batch,
            }
        })
    }

    /// Counts a batch as missing before the next one.
    fn drop_batch(&mut self, mut batch: Batch) {
        self.shared
            .dropped
            .fetch_add(batch.entries, Ordering::Relaxed);
        self.batch.dropped_before += batch.dropped_before + batch.entries;
        if self.batch.bytes.capacity() == 0 {
            batch.bytes.clear();
            self.batch.bytes = batch.bytes;
        }
    }
}

/// Hands over what is left and waits for the thread, but no longer than
/// [`JournalSettings::close_wait`]: a stuck disk must not keep a server from ending.
impl Drop for JournalWriter {
    fn drop(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        *self
            .shared
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(batch);
        self.sender = None;
        // It ends with the thread, or the wait does.
        let ended = self.ended.recv_timeout(self.settings.close_wait);
        debug_assert!(ended.is_err(), "nothing is ever sent");
    }
}

impl JournalSettings {
    fn validate(&self) -> Result<(), StartError> {
        let size = |size| u64::try_from(size).unwrap_or(u64::MAX);
        let bounds = [
            ("file-bytes", self.file_bytes, 4096),
            ("files-max", u64::from(self.files_max), 2),
            ("batch-bytes", size(self.batch_bytes), 1),
            ("batches-max", size(self.batches_max), 2),
        ];
        for (name, value, min) in bounds {
            if value < min {
                return Err(StartError::OutOfRange { name, min });
            }
        }
        Ok(())
    }
}
