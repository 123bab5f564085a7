//! Files that were cut off, damaged or made up: entries before the damage are read, and nothing
//! panics.

use crate::common::{Memory, everything, keyframe, numbered, run_info};
use fastrand::Rng;
use pointsman_journal::{
    Entry, FileError, JournalReader, JournalSettings, JournalWriter, ReadError, read_bytes,
};

/// The bytes of a file, and its entries with their offsets.
fn file() -> (Vec<u8>, Vec<(u64, Entry<'static>)>) {
    let memory = Memory::default();
    let settings = JournalSettings::default();
    let mut writer = JournalWriter::start(memory.clone(), run_info(), settings).unwrap();
    writer.write_keyframe(keyframe(1));
    for entry in everything() {
        writer.write(&entry);
    }
    drop(writer);
    let bytes = memory.file(1);
    let entries = read_bytes(&bytes).unwrap().collect();
    (bytes, entries)
}

#[test]
fn a_file_that_was_cut_off_anywhere_gives_every_whole_entry_and_no_error() {
    let (bytes, entries) = file();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("cut.pmj");
    for end in 0..bytes.len() {
        std::fs::write(&path, &bytes[..end]).unwrap();
        let mut reader = JournalReader::open(&path).unwrap();
        let found: Vec<_> = reader
            .by_ref()
            .map(|located| located.unwrap())
            .map(|located| (located.offset, located.entry))
            .collect();
        let starts = entries.iter().skip(1).map(|(offset, _)| *offset);
        let ends = starts.chain([bytes.len() as u64]);
        let whole = ends.filter(|it| *it <= end as u64).count();
        assert_eq!(found, entries[..whole], "cut off at {end}");
        let is_clean = whole > 0 && whole < entries.len() && entries[whole].0 == end as u64;
        let first = entries[0].0;
        let is_clean = is_clean || end == 0 || end as u64 == first;
        assert_eq!(reader.torn_tails().is_empty(), is_clean, "cut off at {end}");
    }
}

#[test]
fn zeros_at_the_end_are_a_torn_tail() {
    let (mut bytes, entries) = file();
    bytes.extend([0; 1000]);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("zeros.pmj");
    std::fs::write(&path, &bytes).unwrap();
    let mut reader = JournalReader::open(&path).unwrap();
    assert_eq!(reader.by_ref().filter(Result::is_ok).count(), entries.len());
    assert_eq!(reader.torn_tails()[0].bytes, 1000);
}

#[test]
fn a_damaged_byte_costs_the_entry_it_is_in_and_is_said_with_its_place() {
    let (bytes, entries) = file();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("damaged.pmj");
    let first = usize::try_from(entries[0].0).unwrap();
    // Damage in the last entry looks like a file that was cut off.
    let last = usize::try_from(entries.last().unwrap().0).unwrap();
    for at in (first..last).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        std::fs::write(&path, &damaged).unwrap();
        let mut errors = Vec::new();
        let mut found = Vec::new();
        for located in JournalReader::open(&path).unwrap() {
            match located {
                Ok(located) => found.push((located.offset, located.entry)),
                Err(error) => errors.push(error),
            }
        }
        let hit = entries.partition_point(|(offset, _)| *offset <= at as u64) - 1;
        let offset = entries[hit].0;
        // A damaged length may lead to the beginning of another entry, by chance.
        let led_to = end_of_frame(&damaged, offset);
        let next = entries.iter().position(|(offset, _)| *offset == led_to);
        let next = next.filter(|next| *next > hit).unwrap_or(hit + 1);
        let mut expected = entries.clone();
        expected.drain(hit..next);
        assert_eq!(found, expected, "damaged at {at}");
        assert!(
            matches!(&errors[..], [ReadError::Damaged { offset: it, .. }] if *it == offset),
            "{errors:?}"
        );
    }
}

/// The end of a frame by the length in its head: mark, length and checksum, then the payload.
fn end_of_frame(bytes: &[u8], offset: u64) -> u64 {
    let at = usize::try_from(offset).unwrap();
    let length = bytes[at + 2..at + 6].try_into().unwrap();
    offset + 10 + u64::from(u32::from_le_bytes(length))
}

#[test]
fn whatever_the_bytes_are_reading_ends() {
    let (bytes, _) = file();
    let mut rng = Rng::with_seed(1);
    for _ in 0..3000 {
        let mut damaged = bytes.clone();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(0..damaged.len());
            match rng.u32(0..4) {
                0 => damaged[at] = rng.u8(..),
                1 => damaged.truncate(at.max(1)),
                2 => damaged.insert(at, rng.u8(..)),
                _ => {
                    let from = rng.usize(0..damaged.len());
                    let piece =
                        damaged[from..(from + rng.usize(0..80)).min(damaged.len())].to_vec();
                    damaged.splice(at..at, piece);
                }
            }
        }
        if let Ok(entries) = read_bytes(&damaged) {
            assert!(entries.count() < 1000);
        }
    }
}

#[test]
fn what_is_no_journal_and_what_a_later_version_wrote_is_refused() {
    let (mut bytes, _) = file();
    assert_eq!(read_bytes(b"{}").unwrap_err(), FileError::NotAJournal);
    bytes[8] = 2;
    let refused = read_bytes(&bytes).unwrap_err();
    assert_eq!(refused, FileError::UnknownFormat { found: 2 });
    assert_eq!(
        refused.to_string(),
        "format version 2, and this build reads up to 1"
    );
}

#[test]
fn a_missing_file_of_a_run_is_said() {
    let memory = Memory::default();
    let settings = JournalSettings {
        file_bytes: 4096,
        ..JournalSettings::default()
    };
    let mut writer = JournalWriter::start(memory.clone(), run_info(), settings).unwrap();
    while writer.stats().files < 3 {
        if writer.is_keyframe_due() {
            writer.write_keyframe(keyframe(1));
        }
        writer.write(&numbered(1));
        writer.flush();
        std::thread::yield_now();
    }
    drop(writer);
    let place = tempfile::tempdir().unwrap();
    for number in [1, 3] {
        let path = place.path().join(format!("{number:010}.pmj"));
        std::fs::write(path, memory.file(number)).unwrap();
    }
    let errors: Vec<_> = JournalReader::open(place.path())
        .unwrap()
        .filter_map(Result::err)
        .collect();
    assert!(
        matches!(&errors[..], [ReadError::Missing { files: 1, .. }]),
        "{errors:?}"
    );
}
