//! The choice of files that a journal gives up. A component counts for the last file that names it,
//! and goes with that one.
//!
//! # Invariants
//! 1. The newest file stays, and of the older ones those that follow each other back from it
//!    (`what_does_not_fit_goes_from_the_oldest_on_and_the_newest_stays`), whatever their times are
//!    (`a_clock_that_was_wrong_for_a_while_makes_no_file_older_than_those_before_it`).

use std::time::{Duration, SystemTime};

use crate::components::StoredComponent;
use crate::folder::StoredFile;
use crate::writer::JournalSettings;

/// Bytes that a file counts for at least: a disk gives it about as many, and so the number of files
/// is bounded as well.
const FILE_BYTES_MIN: u64 = 4096;

/// The numbers of the files that go now that the last of `files` has begun, the oldest first. Room
/// for what that one has yet to take is kept free.
pub(crate) fn surplus(
    files: &[StoredFile],
    components: &[StoredComponent],
    settings: &JournalSettings,
) -> Vec<u32> {
    let Some((newest, older)) = files.split_last() else {
        return Vec::new();
    };
    let size = |file: &StoredFile| {
        let named = components.iter().filter(|it| it.file == file.number);
        let named = named.fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
        file.bytes.max(FILE_BYTES_MIN).saturating_add(named)
    };
    // Whatever its own time is, a file was written after those before it.
    let mut latest = SystemTime::UNIX_EPOCH;
    let written = older.iter().map(|file| {
        latest = latest.max(file.modified);
        latest
    });
    let written: Vec<SystemTime> = written.collect();
    let mut total = settings.file_bytes.saturating_add(size(newest));
    let mut surplus: Vec<u32> = Vec::new();
    for (file, written) in older.iter().zip(written).rev() {
        total = total.saturating_add(size(file));
        if total > settings.total_bytes || age(written, newest) > settings.age_max {
            surplus.push(file.number);
        }
    }
    surplus.reverse();
    surplus
}

/// The time from a file's last entry, which was `written` then, to the first of the newest; none if a clock was set
/// back in between.
fn age(written: SystemTime, newest: &StoredFile) -> Duration {
    let age = newest.modified.duration_since(written);
    age.unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u32; 0] = [];
    const HOUR: Duration = Duration::from_secs(3600);

    fn settings() -> JournalSettings {
        JournalSettings {
            file_bytes: 10_000,
            total_bytes: 50_000,
            age_max: 24 * HOUR,
            ..JournalSettings::default()
        }
    }

    /// The files that go, of files with these bytes and hours of the last entry.
    fn gone(files: &[(u64, u32)]) -> Vec<u32> {
        let files = (1..).zip(files).map(|(number, &(bytes, hour))| StoredFile {
            number,
            bytes,
            modified: SystemTime::UNIX_EPOCH + hour * HOUR,
        });
        surplus(&files.collect::<Vec<_>>(), &[], &settings())
    }

    #[test]
    fn what_does_not_fit_goes_from_the_oldest_on_and_the_newest_stays() {
        assert_eq!(gone(&[]), NONE);
        assert_eq!(gone(&[(90_000, 0)]), NONE);
        // 10,000 bytes are for the newest file to grow.
        assert_eq!(gone(&[(20_000, 0), (15_000, 0), (5000, 0)]), NONE);
        assert_eq!(gone(&[(20_001, 0), (15_000, 0), (5000, 0)]), [1]);
        // A small file behind a large one that goes would leave a hole.
        assert_eq!(gone(&[(1, 0), (60_000, 0), (15_000, 0), (5000, 0)]), [1, 2]);
        // Each counts as a block of a disk.
        assert_eq!(gone(&[(0, 0); 12]), [1, 2, 3]);
    }

    #[test]
    fn a_component_counts_for_the_last_file_that_names_it() {
        let file = |number| StoredFile {
            number,
            bytes: 5000,
            modified: SystemTime::UNIX_EPOCH,
        };
        let files: Vec<StoredFile> = (1..=4).map(file).collect();
        let component = |file, bytes| StoredComponent {
            digest: String::new(),
            file,
            bytes,
        };
        let gone = |components: &[StoredComponent]| surplus(&files, components, &settings());
        // 30,000 bytes are files, and room for the newest.
        assert_eq!(gone(&[component(4, 20_000)]), NONE);
        assert_eq!(gone(&[component(4, 20_001)]), [1]);
        assert_eq!(gone(&[component(2, 30_001)]), [1, 2]);
        assert_eq!(gone(&[component(4, 90_000)]), [1, 2, 3]);
    }

    #[test]
    fn what_is_too_old_goes_however_small_and_a_clock_that_was_set_back_costs_nothing() {
        assert_eq!(gone(&[(5000, 0), (5000, 1), (5000, 25)]), [1]);
        assert_eq!(gone(&[(5000, 100), (5000, 99), (5000, 0)]), NONE);
    }

    #[test]
    fn a_clock_that_was_wrong_for_a_while_makes_no_file_older_than_those_before_it() {
        let hours = |hours: &[u32]| {
            let files = hours.iter().map(|&hour| (5000, hour));
            gone(&files.collect::<Vec<_>>())
        };
        // It began in 1970.
        assert_eq!(hours(&[1000, 1001, 0, 1002]), NONE);
        assert_eq!(hours(&[1000, 1001, 0, 1025]), [1]);
        assert_eq!(hours(&[1000, 1001, 0, 1026]), [1, 2, 3]);
        // It was ahead.
        assert_eq!(hours(&[0, 90, 1, 80, 26]), [1]);
        assert_eq!(hours(&[0, 90, 1, 80, 115]), [1, 2, 3, 4]);
    }
}
