//! The thread that owns a journal's files.
//!
//! # Invariants
//! 1. A file begins with a header, a gap if entries are missing before it, and a keyframe. Without
//!    a keyframe there is no file
//!    (`every_file_begins_with_a_header_and_a_keyframe_and_only_the_newest_are_kept`).
//! 2. After a failed write nothing more is written to that file: its end may be half an entry.
//! 3. An older file is removed only when a newer one has content, so a full disk costs no history
//!    (`a_disk_that_is_full_costs_no_history_and_is_tried_again`).
//! 4. A failure is logged when it begins and when it has another reason, and its end is logged
//!    (`a_disk_that_is_full_is_one_outage_however_often_it_is_tried`).
//! 5. After a failure no keyframe is requested before batches are lost, each time more of them
//!    (`a_disk_that_stays_full_costs_a_keyframe_more_and_more_rarely`).

use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use pointsman_events::Micros;
use tracing::{info, warn};

use crate::entry::{Entry, Gap, Header};
use crate::folder::Store;
use crate::frame::{file_head, write_frame};
use crate::retention;
use crate::writer::{Batch, BatchKind, JournalSettings, JournalStats, Shared, size};

/// Largest number of batches that are lost for want of a keyframe before one is requested again.
/// The number doubles with each request and again with each failure, so that a disk which stays full
/// costs the driver less and less.
const LOST_BATCHES_MAX: u32 = 1 << 12;

/// Number of files, at least, over which the entries of [`JournalSettings::age_max`] are spread: a
/// file goes as a whole, and only when its last entry is too old.
const FILES_PER_AGE: u32 = 8;

pub(crate) struct Worker<S> {
    store: S,
    settings: JournalSettings,
    shared: Arc<Shared>,
    /// Header of the next file.
    header: Header,
    number: u32,
    file: Option<OpenFile>,
    stats: JournalStats,
    /// Entries that are missing behind the last one written.
    missing: u64,
    need: Need,
    back_off: BackOff,
    /// Bytes to write before the next gap gets a keyframe: as many as the keyframe of the last gap
    /// had. Whatever makes gaps, keyframes for them take no more than entries do.
    keyframe_debt: u64,
}

struct OpenFile {
    to: Box<dyn Write + Send>,
    /// Bytes after the first keyframe: however large a keyframe is, entries follow it.
    bytes: u64,
    /// Time of the first keyframe.
    began: Micros,
}

/// The need for a keyframe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    No,
    /// Needed, but not requested yet: after a gap not before the queue is empty, without a file not
    /// before [`BackOff`] is over.
    Later,
    /// Requested from the writer's owner.
    Requested,
}

/// The waiting time between requests for a keyframe, in lost batches.
#[derive(Clone, Copy)]
struct BackOff {
    /// Batches to lose before the request after the next.
    batches: u32,
    /// Batches to lose before the next request.
    left: u32,
}

impl BackOff {
    const NONE: BackOff = BackOff {
        batches: 1,
        left: 1,
    };

    fn lengthen(&mut self) {
        self.left = self.batches;
        self.batches = self.batches.saturating_mul(2).min(LOST_BATCHES_MAX);
    }
}

/// A reason why a batch is not written.
enum Unwritten {
    /// No file is open that could take the batch.
    NoFile,
    Io(io::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl<S: Store> Worker<S> {
    pub(crate) fn new(
        store: S,
        (header, number): (Header, u32),
        settings: JournalSettings,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            store,
            settings,
            shared,
            header,
            number,
            file: None,
            stats: JournalStats::default(),
            missing: 0,
            need: Need::Requested,
            back_off: BackOff::NONE,
            keyframe_debt: 0,
        }
    }

    /// Writes batches until the other side has ended and its last batch is written.
    pub(crate) fn run(mut self, batches: &Receiver<Batch>, spares: &SyncSender<Vec<u8>>) {
        while let Some(batch) = self.next(batches) {
            let mut bytes = self.take(batch);
            // After the write: whoever waits for an empty queue also waits for the last batch.
            self.shared.queued.fetch_sub(1, Ordering::Release);
            bytes.clear();
            // Without room for it the buffer is one too many.
            drop(spares.try_send(bytes));
        }
        let last = self.shared.last.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(batch) = last {
            self.take(batch);
        }
    }

    fn next(&mut self, batches: &Receiver<Batch>) -> Option<Batch> {
        match batches.try_recv() {
            Ok(batch) => return Some(batch),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        // The queue is empty: time for the keyframe that a gap in a file requires. Under load it
        // would only make things worse.
        if self.need == Need::Later && self.file.is_some() && self.keyframe_debt == 0 {
            self.ask_for_keyframe();
        }
        batches.recv().ok()
    }

    /// Writes a batch or counts it as missing, and returns its buffer.
    fn take(&mut self, batch: Batch) -> Vec<u8> {
        self.missing += batch.dropped_before;
        if let Err(why) = self.write(&batch) {
            self.missing += batch.entries;
            self.stats.lost += batch.entries;
            match why {
                Unwritten::NoFile => self.wait_for_keyframe(),
                Unwritten::Io(error) => self.fail(&error),
            }
        }
        self.tell();
        batch.bytes
    }

    fn write(&mut self, batch: &Batch) -> Result<(), Unwritten> {
        match batch.kind {
            BatchKind::Keyframe => {
                if self.is_full(batch.now) {
                    self.begin_file(batch)?;
                } else {
                    self.append(batch)?;
                    self.keyframe_debt = size(batch.bytes.len());
                }
                self.need = Need::No;
                self.back_off = BackOff::NONE;
                self.shared.keyframe_due.store(false, Ordering::Relaxed);
            }
            BatchKind::Entries => {
                let gap = self.append(batch)?;
                let debt = self.keyframe_debt;
                self.keyframe_debt = debt.saturating_sub(size(batch.bytes.len()));
                if gap > 0 && self.need == Need::No {
                    self.need = Need::Later;
                }
                if self.is_full(batch.now) && self.need != Need::Requested {
                    self.ask_for_keyframe();
                }
            }
        }
        Ok(())
    }

    /// Tells whether a keyframe at the time `now` begins a file.
    fn is_full(&self, now: Micros) -> bool {
        let JournalSettings {
            file_bytes,
            age_max,
            ..
        } = self.settings;
        self.file.as_ref().is_none_or(|file| {
            let age = Duration::from_micros(now.since(file.began).0);
            file.bytes >= file_bytes || age >= age_max / FILES_PER_AGE
        })
    }

    /// Stores the components that a batch for the file with this number names.
    fn keep(&mut self, batch: &Batch, number: u32) -> io::Result<()> {
        for component in &batch.components {
            self.stats.bytes += self.store.keep_component(component, number)?;
        }
        Ok(())
    }

    /// Writes a batch to the open file and returns the number of gaps noted, 0 or 1.
    fn append(&mut self, batch: &Batch) -> Result<u64, Unwritten> {
        let hard_limit = self.settings.file_bytes.saturating_mul(2);
        let has_room = |file: &OpenFile| file.bytes < hard_limit;
        if !self.file.as_ref().is_some_and(has_room) {
            return Err(Unwritten::NoFile);
        }
        self.keep(batch, self.number.saturating_sub(1))?;
        let mut gap = Vec::new();
        let gaps = note_gap(&mut gap, self.missing)?;
        let file = self.file.as_mut().ok_or(Unwritten::NoFile)?;
        file.put(&gap)?;
        file.put(&batch.bytes)?;
        let bytes = size(gap.len()) + size(batch.bytes.len());
        self.count(gaps + batch.entries, bytes);
        self.missing = 0;
        Ok(gaps)
    }

    /// Begins a new file with a keyframe.
    fn begin_file(&mut self, keyframe: &Batch) -> io::Result<()> {
        self.file = None;
        let mut head = file_head().to_vec();
        let header = Entry::Header(self.header.clone());
        write_frame(&mut head, &header).map_err(io::Error::other)?;
        // Entries are missing between two files; a replay starts anew from this file's keyframe.
        let gaps = note_gap(&mut head, self.missing)?;
        self.keep(keyframe, self.number)?;
        let mut file = OpenFile {
            to: self.store.create(self.number)?,
            bytes: 0,
            began: keyframe.now,
        };
        let put = file.put(&head).and_then(|()| file.put(&keyframe.bytes));
        if let Err(error) = put {
            drop(file);
            self.remove(self.number);
            return Err(error);
        }
        file.bytes = 0;
        self.file = Some(file);
        self.header.file = self.header.file.saturating_add(1);
        self.number = self.number.saturating_add(1);
        self.stats.files += 1;
        let bytes = size(head.len()) + size(keyframe.bytes.len());
        self.count(1 + gaps + keyframe.entries, bytes);
        self.missing = 0;
        self.note_recovery();
        self.remove_oldest();
        Ok(())
    }

    fn count(&mut self, entries: u64, bytes: u64) {
        self.stats.written += entries;
        self.stats.bytes += bytes;
    }

    fn remove_oldest(&mut self) {
        let stored = self.store.files();
        let stored = stored.and_then(|files| Ok((files, self.store.components()?)));
        let (files, components) = match stored {
            Ok(stored) => stored,
            Err(error) => return self.note_error(&error),
        };
        let surplus = retention::surplus(&files, &components, &self.settings);
        let oldest = files.get(surplus.len()).map_or(0, |file| file.number);
        for number in surplus {
            self.remove(number);
        }
        for component in components.iter().filter(|it| it.file < oldest) {
            if let Err(error) = self.store.remove_component(component) {
                self.note_error(&error);
            }
        }
    }

    fn remove(&mut self, number: u32) {
        if let Err(error) = self.store.remove(number) {
            self.note_error(&error);
        }
    }

    /// Closes the file after an error.
    fn fail(&mut self, error: &io::Error) {
        self.file = None;
        self.keyframe_debt = 0;
        self.note_error(error);
        self.stats.outages += u64::from(!self.stats.failing);
        self.stats.failing = true;
        self.back_off.lengthen();
        self.need = Need::Later;
        self.shared.keyframe_due.store(false, Ordering::Relaxed);
    }

    /// Counts a batch that was lost for want of a keyframe.
    fn wait_for_keyframe(&mut self) {
        self.back_off.left -= 1;
        if self.back_off.left == 0 {
            self.back_off.lengthen();
            self.ask_for_keyframe();
        }
    }

    fn ask_for_keyframe(&mut self) {
        self.need = Need::Requested;
        self.shared.keyframe_due.store(true, Ordering::Relaxed);
    }

    fn note_error(&mut self, error: &io::Error) {
        let text = error.to_string();
        let is_known = self.stats.failing && self.stats.last_error.as_ref() == Some(&text);
        if !is_known {
            warn!(
                error = text,
                "the journal cannot be written, or an old file of it removed"
            );
        }
        self.stats.errors += 1;
        self.stats.last_error = Some(text);
    }

    fn note_recovery(&mut self) {
        if std::mem::take(&mut self.stats.failing) {
            info!(lost = self.stats.lost, "the journal is written again");
        }
    }

    fn tell(&self) {
        let told = self.shared.told.lock();
        told.unwrap_or_else(PoisonError::into_inner)
            .clone_from(&self.stats);
    }
}

impl OpenFile {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.bytes += size(bytes.len());
        Ok(())
    }
}

/// Writes a gap if entries are missing, and returns the number of gaps written.
fn note_gap(out: &mut Vec<u8>, dropped: u64) -> io::Result<u64> {
    if dropped == 0 {
        return Ok(0);
    }
    let gap = Entry::Gap(Gap { dropped });
    write_frame(out, &gap).map_err(io::Error::other)?;
    Ok(1)
}
