//! The writer, on the side of the machine's owner: [`JournalWriter`].
//!
//! Entries are encoded at once, into a batch. A full batch, or one that has grown old
//! ([`JournalWriter::turn`]), goes through a bounded channel to the thread that owns the files.
//! Neither side waits for the other: a batch that finds the channel full is dropped and counted.
//!
//! # Keyframes
//! Without a keyframe the thread begins no file and does not continue after a gap. It requests one
//! with a flag that [`JournalWriter::is_keyframe_due`] reads between two rounds; the owner answers
//! with [`JournalWriter::write_keyframe`] at its own time. Entries written until then still go to
//! the open file, up to twice a file's size. The flag is up at the start, so a keyframe is also the
//! first entry to write. One that is longer than a frame may be is refused, and the next one is due
//! after a time that doubles with each: to make one takes the owner long
//! (`a_keyframe_that_is_too_long_is_asked_for_more_and_more_rarely`).
//!
//! # Bounds
//! 1. The entries from one [`Entry::Round`] to the next have at most
//!    [`JournalSettings::round_bytes`]; what is past them is missing like any other entry. A
//!    [`Entry::Bound`] is the operator's and counts for nothing
//!    (`a_round_has_its_bytes_and_what_is_past_them_is_a_gap`).
//! 2. Entries that a replay does without ([`JournalWriter::write_spare`]) have together at most as
//!    many bytes as all others, and [`SPARE_BYTES`]
//!    (`lines_of_a_log_take_no_more_of_a_journal_than_all_the_rest`).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use pointsman_events::Micros;
use tracing::{info, warn};

use crate::components::Component;
use crate::entry::{Entry, Header, Keyframe};
use crate::folder::Store;
use crate::frame::{FrameError, write_frame};
use crate::worker::Worker;

/// Bounds of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// Bytes after the first keyframe at which a file is full: it ends with the next keyframe. At
    /// least 4,096.
    pub file_bytes: u64,
    /// Bytes of all files and components, those of earlier runs included. A file that begins has room for
    /// [`Self::file_bytes`] made for it: the oldest go. At least twice that.
    pub total_bytes: u64,
    /// Age of a file's last entry at which it goes when another file begins. A file ends at an
    /// eighth of it, however small it is.
    pub age_max: Duration,
    /// Bytes of all entries from one round to the next; what is past them is a gap. At least 4,096.
    pub round_bytes: u64,
    /// Bytes at which a batch is handed over. At least 1.
    pub batch_bytes: usize,
    /// Number of batches that may wait for the thread. At least 2.
    pub batches_max: usize,
    /// Age of a batch's first entry at which the batch is handed over at the end of a turn, in µs.
    pub batch_age: Micros,
    /// Longest time that dropping the writer waits for the thread.
    pub close_wait: Duration,
}

impl Default for JournalSettings {
    /// 1 GiB in files of 64 MiB, for a week, and at most 8 MiB waiting for the thread.
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            total_bytes: 1 << 30,
            age_max: Duration::from_secs(7 * 24 * 3600),
            round_bytes: 4 << 20,
            batch_bytes: 64 << 10,
            batches_max: 128,
            batch_age: Micros(20_000),
            close_wait: Duration::from_secs(2),
        }
    }
}

/// Bytes that entries which a replay does without may be ahead of the others.
const SPARE_BYTES: u64 = 64 << 10;

/// The waiting time after the first keyframe that is longer than a frame may be, and the longest one.
const TOO_LONG_PAUSE: Micros = Micros(1_000_000);
const TOO_LONG_PAUSE_MAX: Micros = Micros(600_000_000);

/// Facts about a run, for the headers of its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// Version of Pointsman, as in `0.1.0`.
    pub pointsman: String,
    /// Version of wasmtime, as in `48.0.8`.
    pub wasmtime: String,
    /// Start of the run, in milliseconds since 1970. The caller sets it: the journal reads no
    /// clock.
    pub started_unix_ms: u64,
}

/// A reason why no journal is written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalStartError {
    /// A bound is out of its range.
    #[error("{name} must be at least {min}")]
    OutOfRange {
        /// Name of the bound, as in the configuration.
        name: &'static str,
        /// The smallest allowed value.
        min: u64,
    },
    /// The store cannot list its files.
    #[error("journal files cannot be listed: {0}")]
    List(#[source] io::Error),
    /// The thread cannot be started.
    #[error("journal thread cannot be started: {0}")]
    Thread(#[source] io::Error),
}

/// Counters of a journal since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Entries in files, headers and gaps included.
    pub written: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Number of files begun.
    pub files: u64,
    /// Entries dropped because the thread did not keep up.
    pub dropped: u64,
    /// Entries lost because a file could not be written, was full before a keyframe came, or was
    /// waiting for its first keyframe.
    pub lost: u64,
    /// Entries refused because they are longer than a frame may be.
    pub refused: u64,
    /// Entries cut off because their round had its bytes.
    pub cut: u64,
    /// Entries that a replay does without, withheld because there was no room for them.
    pub withheld: u64,
    /// Failures to list, make, write or remove a file.
    pub errors: u64,
    /// Text of the last failure.
    pub last_error: Option<String>,
    /// True from a failed write until a file has been begun again: nothing is written meanwhile.
    pub failing: bool,
    /// Times that writing began to fail.
    pub outages: u64,
}

/// State shared by the two sides, neither of which waits.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) keyframe_due: AtomicBool,
    /// Batches that were handed over and are not yet written.
    pub(crate) queued: AtomicUsize,
    pub(crate) dropped: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) cut: AtomicU64,
    pub(crate) withheld: AtomicU64,
    /// Counters of the thread. The lock is held for a copy of a few numbers, and never by the
    /// writer's owner.
    pub(crate) told: Mutex<JournalStats>,
    /// The batch that the owner had in hand when it ended. The thread takes it when the channel is
    /// empty; the owner locks once, for a move.
    pub(crate) last: Mutex<Option<Batch>>,
}

/// Encoded entries for the thread.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) kind: BatchKind,
    /// Time of the last turn or keyframe before the batch was handed over.
    pub(crate) now: Micros,
    /// Entries dropped before the first of this batch.
    pub(crate) dropped_before: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: Vec<u8>,
    /// Components that the entries name.
    pub(crate) components: Vec<Component>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BatchKind {
    #[default]
    Entries,
    /// One keyframe and nothing else.
    Keyframe,
}

/// A handle to watch a journal from any thread.
#[derive(Clone, Debug)]
pub struct JournalMonitor(Arc<Shared>);

impl JournalMonitor {
    /// Batches that the thread has not written yet, the one under way included.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.queued.load(Ordering::Acquire)
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        let told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        JournalStats {
            dropped: self.0.dropped.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
            cut: self.0.cut.load(Ordering::Relaxed),
            withheld: self.0.withheld.load(Ordering::Relaxed),
            ..told.clone()
        }
    }
}

/// Writes a journal. The owner of the machine owns it; no method waits, except its `drop`.
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
    /// Components that the next entry names.
    brought: Vec<Component>,
    /// Bytes that the round may still have.
    round_left: u64,
    /// Bytes that entries which a replay does without may still have.
    spare_left: u64,
    /// Time of the last turn or keyframe.
    now: Micros,
    /// Time at which [`Self::turn`] first saw entries in the batch.
    batch_since: Option<Micros>,
    /// The wait for the next keyframe; absent: the last one was not too long.
    too_long: Option<TooLongPause>,
}

/// The wait after a keyframe that was longer than a frame may be.
#[derive(Clone, Copy, Debug)]
struct TooLongPause {
    lasting: Micros,
    until: Micros,
}

impl JournalWriter {
    /// Starts the thread that writes to `store`. New files get numbers above those in `store`.
    ///
    /// # Errors
    /// If a bound is out of its range, the store cannot be listed or the thread cannot be started.
    pub fn start(
        mut store: impl Store,
        info: RunInfo,
        settings: JournalSettings,
    ) -> Result<Self, JournalStartError> {
        settings.validate()?;
        let files = store.files().map_err(JournalStartError::List)?;
        let (sender, batches) = sync_channel(settings.batches_max);
        let (spares, spare) = sync_channel(settings.batches_max);
        let (alive, ended) = sync_channel(0);
        let shared = Arc::new(Shared::default());
        shared.keyframe_due.store(true, Ordering::Relaxed);
        let header = Header {
            pointsman: info.pointsman,
            wasmtime: info.wasmtime,
            started_unix_ms: info.started_unix_ms,
            file: 0,
        };
        let next = files.last().map_or(1, |last| last.number.saturating_add(1));
        let worker = Worker::new(store, (header, next), settings, Arc::clone(&shared));
        thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                worker.run(&batches, &spares);
                drop(alive);
            })
            .map_err(JournalStartError::Thread)?;
        Ok(Self {
            settings,
            sender: Some(sender),
            spare,
            ended,
            shared,
            batch: Batch::default(),
            brought: Vec::new(),
            round_left: settings.round_bytes,
            spare_left: SPARE_BYTES,
            now: Micros::default(),
            batch_since: None,
            too_long: None,
        })
    }

    /// Has a component stored that the next entry, a keyframe or [`Entry::Bound`], names by its
    /// digest alone. Storing it is left to the thread.
    pub fn bring(&mut self, component: Component) {
        self.brought.push(component);
    }

    /// Writes an entry.
    pub fn write(&mut self, entry: &Entry<'_>) {
        if matches!(entry, Entry::Round { .. }) {
            self.round_left = self.settings.round_bytes;
        }
        let is_free = matches!(entry, Entry::Bound(_)) && self.round_left > 0;
        let bytes_max = if is_free { u64::MAX } else { self.round_left };
        match self.encode(entry, bytes_max) {
            Ok(bytes) => {
                let counted = if is_free { 0 } else { bytes };
                self.round_left = self.round_left.saturating_sub(counted);
                self.spare_left = self.spare_left.saturating_add(bytes).min(SPARE_BYTES);
                self.flush_if_full();
            }
            Err(Unencoded::TooLong) => self.refuse(),
            Err(Unencoded::NoRoom) => self.end_round(),
        }
    }

    /// Writes an entry that a replay does without, if there is room for it, and tells whether there
    /// was. Without it nothing is missing to a reader.
    pub fn write_spare(&mut self, entry: &Entry<'_>) -> bool {
        let encoded = self.encode(entry, self.spare_left.min(self.round_left));
        if let Ok(bytes) = encoded {
            self.round_left = self.round_left.saturating_sub(bytes);
            self.spare_left = self.spare_left.saturating_sub(bytes);
            self.flush_if_full();
        } else {
            self.shared.withheld.fetch_add(1, Ordering::Relaxed);
        }
        encoded.is_ok()
    }

    /// Hands the batch over if it is old enough. The driver calls it at the end of each turn, and
    /// at [`Self::flush_at`] when nothing is written until then.
    pub fn turn(&mut self, now: Micros) {
        self.now = now;
        if self.batch.bytes.is_empty() {
            return;
        }
        let since = *self.batch_since.get_or_insert(now);
        if now.since(since) >= self.settings.batch_age {
            self.flush();
        }
    }

    /// Latest time for the next call of [`Self::turn`].
    #[must_use]
    pub fn flush_at(&self) -> Option<Micros> {
        Some(self.batch_since?.after(self.settings.batch_age))
    }

    /// Hands the batch over.
    pub fn flush(&mut self) {
        if self.batch.bytes.is_empty() {
            return;
        }
        let fresh = Batch {
            bytes: self.spare.try_recv().unwrap_or_default(),
            ..Batch::default()
        };
        let mut batch = std::mem::replace(&mut self.batch, fresh);
        batch.now = self.now;
        self.batch_since = None;
        if let Err(batch) = self.send(batch) {
            self.drop_batch(batch);
        }
    }

    /// Tells whether a keyframe is the next entry to write, as soon as the machine is between two
    /// rounds. False as long as the channel has no room for one, and for a while after one that was
    /// too long.
    #[must_use]
    pub fn is_keyframe_due(&self) -> bool {
        self.shared.keyframe_due.load(Ordering::Relaxed)
            && self.too_long.is_none_or(|pause| pause.until <= self.now)
            // The current batch goes first, and needs a place as well.
            && self.shared.queued.load(Ordering::Relaxed) + 2 <= self.settings.batches_max
    }

    /// Writes a keyframe, after all entries before it.
    pub fn write_keyframe(&mut self, keyframe: Keyframe) {
        self.flush();
        self.now = keyframe.now;
        let mut bytes = Vec::new();
        let entry = Entry::Keyframe(Box::new(keyframe));
        if let Err(error) = write_frame(&mut bytes, &entry) {
            self.refuse_keyframe(&error);
            return;
        }
        if self.too_long.take().is_some() {
            info!("a keyframe of the journal fits into a frame again");
        }
        let batch = Batch {
            kind: BatchKind::Keyframe,
            now: self.now,
            dropped_before: std::mem::take(&mut self.batch.dropped_before),
            entries: 1,
            bytes,
            components: std::mem::take(&mut self.brought),
        };
        self.shared.keyframe_due.store(false, Ordering::Relaxed);
        if let Err(batch) = self.send(batch) {
            self.shared.keyframe_due.store(true, Ordering::Relaxed);
            self.drop_batch(batch);
        }
    }

    /// Returns a handle that watches this journal.
    #[must_use]
    pub fn monitor(&self) -> JournalMonitor {
        JournalMonitor(Arc::clone(&self.shared))
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        self.monitor().stats()
    }

    /// Puts an entry of at most `bytes_max` bytes into the batch, and returns its length.
    fn encode(&mut self, entry: &Entry<'_>, bytes_max: u64) -> Result<u64, Unencoded> {
        if bytes_max == 0 {
            return Err(Unencoded::NoRoom);
        }
        let before = self.batch.bytes.len();
        write_frame(&mut self.batch.bytes, entry).map_err(|_too_long| Unencoded::TooLong)?;
        let bytes = size(self.batch.bytes.len() - before);
        if bytes > bytes_max {
            self.batch.bytes.truncate(before);
            return Err(Unencoded::NoRoom);
        }
        self.batch.entries += 1;
        self.batch.components.append(&mut self.brought);
        Ok(bytes)
    }

    fn flush_if_full(&mut self) {
        if self.batch.bytes.len() >= self.settings.batch_bytes {
            self.flush();
        }
    }

    fn refuse(&mut self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        self.miss();
    }

    /// Refuses a keyframe. It stays due, but not before a pause is over.
    fn refuse_keyframe(&mut self, error: &FrameError) {
        if self.too_long.is_none() {
            warn!(
                %error,
                "the journal cannot be written: with the host's state a keyframe is too long. \
                 `tier-blocks-max`, `queue-max` and `parking-max` of `[core]` bound that state"
            );
        }
        let lasting = self.too_long.map_or(TOO_LONG_PAUSE, |last| {
            last.lasting.after(last.lasting).min(TOO_LONG_PAUSE_MAX)
        });
        self.too_long = Some(TooLongPause {
            lasting,
            until: self.now.after(lasting),
        });
        self.brought.clear();
        self.refuse();
    }

    /// Cuts off an entry and all that follow it until the next round.
    fn end_round(&mut self) {
        self.round_left = 0;
        self.shared.cut.fetch_add(1, Ordering::Relaxed);
        self.miss();
    }

    /// Counts an entry as missing: to a reader it is so whatever the reason.
    fn miss(&mut self) {
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

    /// Counts the entries of a batch as missing before the next batch.
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

/// Hands over the last batch and waits for the thread, but no longer than
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
        // The channel closes with the thread, or the wait times out.
        let ended = self.ended.recv_timeout(self.settings.close_wait);
        debug_assert!(ended.is_err(), "nothing is ever sent");
    }
}

/// A reason why an entry is not in the batch.
#[derive(Clone, Copy)]
enum Unencoded {
    /// The entry is longer than a frame may be.
    TooLong,
    /// The entry is longer than the room that is left for it.
    NoRoom,
}

/// Number of bytes, as files are measured.
pub(crate) fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl JournalSettings {
    fn validate(&self) -> Result<(), JournalStartError> {
        let bounds = [
            ("file-bytes", self.file_bytes, 4096),
            (
                "total-bytes",
                self.total_bytes,
                self.file_bytes.saturating_mul(2),
            ),
            ("round-bytes", self.round_bytes, 4096),
            ("batch-bytes", size(self.batch_bytes), 1),
            ("batches-max", size(self.batches_max), 2),
        ];
        for (name, value, min) in bounds {
            if value < min {
                return Err(JournalStartError::OutOfRange { name, min });
            }
        }
        Ok(())
    }
}
