//! The writer and its thread: nobody waits, every loss is reported, files are bounded.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{Memory, everything, keyframe, numbered, run_info};
use pointsman_events::{Micros, Round};
use pointsman_journal::{
    Blob, Entry, FRAME_BYTES_MAX, Folder, FolderError, JournalReader, JournalSettings,
    JournalStartError, JournalWriter, Keyframe, PolicyEventEntry, read_bytes,
};

/// Bounds so small that a few entries fill a file.
fn small() -> JournalSettings {
    JournalSettings {
        file_bytes: 4096,
        round_bytes: 4096,
        total_bytes: 20_000,
        age_max: Duration::from_secs(3600),
        batch_bytes: 256,
        batches_max: 4,
        batch_age: Micros(20_000),
        // Only a guard against a test that hangs.
        close_wait: Duration::from_secs(60),
    }
}

fn start(memory: &Memory, settings: JournalSettings) -> JournalWriter {
    JournalWriter::start(memory.clone(), run_info(), settings).unwrap()
}

fn read(memory: &Memory, number: u32) -> Vec<Entry<'static>> {
    let bytes = memory.file(number);
    read_bytes(&bytes)
        .unwrap()
        .map(|(_, entry)| entry)
        .collect()
}

/// The numbers of entries that [`numbered`] made.
fn numbers(entries: &[Entry<'static>]) -> Vec<u64> {
    let rounds = entries.iter().filter_map(|entry| match entry {
        Entry::Round { round, .. } => Some(round.0),
        _ => None,
    });
    rounds.collect()
}

fn gaps(entries: &[Entry<'static>]) -> Vec<u64> {
    let gaps = entries.iter().filter_map(|entry| match entry {
        Entry::Gap(gap) => Some(gap.dropped),
        _ => None,
    });
    gaps.collect()
}

/// Waits until `is_so` holds, for at most a minute.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    panic!("in vain: {what}");
}

#[test]
fn what_is_written_is_read_again_in_order() {
    let memory = Memory::default();
    let mut writer = start(&memory, JournalSettings::default());
    assert!(writer.is_keyframe_due(), "a file begins with one");
    writer.write_keyframe(keyframe(1));
    let entries = everything();
    for entry in &entries {
        writer.write(entry);
    }
    drop(writer);
    let found = read(&memory, 1);
    assert!(matches!(&found[0], Entry::Header(header) if header.file == 0));
    assert_eq!(found[1], Entry::Keyframe(Box::new(keyframe(1))));
    assert_eq!(found[2..], entries);
}

#[test]
fn what_comes_before_the_first_keyframe_is_counted_and_not_written() {
    let memory = Memory::default();
    let mut writer = start(&memory, small());
    writer.write(&numbered(1));
    writer.flush();
    writer.write_keyframe(keyframe(1));
    writer.write(&numbered(2));
    let monitor = writer.monitor();
    drop(writer);
    assert_eq!(monitor.stats().lost, 1);
    let found = read(&memory, 1);
    assert_eq!((numbers(&found), gaps(&found)), (vec![2], vec![1]));
}

#[test]
fn every_file_begins_with_a_header_and_a_keyframe_and_only_the_newest_are_kept() {
    let memory = Memory::default();
    let roomy = JournalSettings {
        batches_max: 64,
        ..small()
    };
    let mut writer = start(&memory, roomy);
    let mut keyframes = 0;
    for n in 0..5000 {
        wait_until("room for the next", || {
            let stats = writer.stats();
            stats.written.saturating_sub(stats.files + keyframes) + 60 > n
        });
        if writer.is_keyframe_due() {
            keyframes += 1;
            writer.write_keyframe(keyframe(n));
        }
        writer.write(&numbered(n));
    }
    let monitor = writer.monitor();
    drop(writer);
    let stats = monitor.stats();
    assert_eq!((stats.dropped, stats.lost, stats.errors), (0, 0, 0));
    assert!(stats.files >= 10 && keyframes >= stats.files, "{stats:?}");
    let files = memory.numbers();
    assert!((2..=3).contains(&files.len()), "{files:?}");
    let mut found = Vec::new();
    for number in &files {
        let entries = read(&memory, *number);
        assert!(matches!(&entries[0], Entry::Header(header) if header.file + 1 == *number));
        assert!(matches!(entries[1], Entry::Keyframe(_)));
        assert!(memory.file(*number).len() < 2 * 4096 + 1024, "bounded");
        found.extend(numbers(&entries));
    }
    let first = found[0];
    assert_eq!(found, (first..5000).collect::<Vec<_>>(), "none is missing");
}

#[test]
fn a_writer_whose_disk_stands_still_waits_for_nothing_and_says_how_much_is_missing() {
    let (memory, word) = Memory::gated();
    let mut writer = start(&memory, small());
    writer.write_keyframe(keyframe(1));
    // The thread is stuck, and these calls return: entries that do not fit into the channel are
    // dropped.
    for n in 0..10_000 {
        writer.write(&numbered(n));
    }
    writer.flush();
    let dropped = writer.stats().dropped;
    assert!(dropped > 9000, "{dropped}");
    drop(word);
    let mut total = 10_000;
    wait_until("a gap", || {
        writer.write(&numbered(total));
        writer.flush();
        total += 1;
        writer.is_keyframe_due()
    });
    writer.write_keyframe(keyframe(2));
    writer.write(&numbered(total));
    let monitor = writer.monitor();
    drop(writer);
    let mut found = Vec::new();
    for number in memory.numbers() {
        found.extend(read(&memory, number));
    }
    let stats = monitor.stats();
    let missing = stats.dropped + stats.lost;
    assert_eq!(gaps(&found).iter().sum::<u64>(), missing);
    let written = numbers(&found);
    assert_eq!(written.len() as u64 + missing, total + 1);
    assert_eq!(written.last(), Some(&total));
    let gap = found
        .iter()
        .position(|entry| matches!(entry, Entry::Gap(_)));
    let after = &found[gap.unwrap()..];
    let keyframe = after.iter().position(|it| matches!(it, Entry::Keyframe(_)));
    assert!(keyframe.is_some(), "a replay can go on after a gap");
}

#[test]
fn a_disk_that_is_full_costs_no_history_and_is_tried_again() {
    let memory = Memory {
        room: Some(Arc::new(Mutex::new(6000))),
        ..Memory::default()
    };
    let mut writer = start(&memory, small());
    let mut n = 0;
    let mut write = |writer: &mut JournalWriter| {
        if writer.is_keyframe_due() {
            writer.write_keyframe(keyframe(n));
        }
        writer.write(&numbered(n));
        writer.flush();
        n += 1;
    };
    wait_until("the disk is full", || {
        write(&mut writer);
        writer.stats().errors > 0
    });
    let first = memory.numbers()[0];
    assert_eq!(first, 1, "the oldest file is still there");
    *memory.room.as_ref().unwrap().lock().unwrap() = usize::MAX;
    let files = writer.stats().files;
    wait_until("another file", || {
        write(&mut writer);
        writer.stats().files > files
    });
    let monitor = writer.monitor();
    drop(writer);
    assert!(monitor.stats().last_error.is_some());
    let newest = *memory.numbers().last().unwrap();
    assert!(!gaps(&read(&memory, newest)).is_empty());
}

#[test]
fn a_disk_that_is_full_is_one_outage_however_often_it_is_tried() {
    let room = Arc::new(Mutex::new(0));
    let memory = Memory {
        room: Some(Arc::clone(&room)),
        ..Memory::default()
    };
    let mut writer = start(&memory, small());
    let write = |writer: &mut JournalWriter| {
        if writer.is_keyframe_due() {
            writer.write_keyframe(keyframe(0));
        }
        writer.write(&numbered(0));
        writer.flush();
    };
    for outage in 1..=2 {
        *room.lock().unwrap() = 0;
        let errors = writer.stats().errors;
        wait_until("several failures", || {
            write(&mut writer);
            writer.stats().errors >= errors + 3
        });
        let stats = writer.stats();
        assert_eq!((stats.failing, stats.outages), (true, outage));
        *room.lock().unwrap() = usize::MAX;
        wait_until("the end of the outage", || {
            write(&mut writer);
            !writer.stats().failing
        });
    }
}

#[test]
fn a_disk_that_stays_full_costs_a_keyframe_more_and_more_rarely() {
    let memory = Memory {
        room: Some(Arc::new(Mutex::new(0))),
        ..Memory::default()
    };
    let mut writer = start(&memory, small());
    let monitor = writer.monitor();
    let turns = 1024;
    let mut keyframes = 0;
    for turn in 0..turns {
        if writer.is_keyframe_due() {
            keyframes += 1;
            writer.write_keyframe(keyframe(turn));
        }
        writer.write(&numbered(turn));
        writer.flush();
        // Nothing is written, so the queue is empty between any two turns.
        wait_until("an empty queue", || monitor.queued() == 0);
    }
    assert!((2..=10).contains(&keyframes), "{keyframes}");
    assert_eq!(writer.stats().lost, turns + keyframes);
}

#[test]
fn a_keyframe_that_is_too_long_is_asked_for_more_and_more_rarely() {
    let memory = Memory::default();
    let mut writer = start(&memory, small());
    let mut refused = 0;
    // Two minutes, in turns of a tenth of a second.
    for turn in 0..1200 {
        let now = Micros(turn * 100_000);
        if writer.is_keyframe_due() {
            refused += 1;
            writer.write_keyframe(Keyframe {
                now,
                machine: Blob(vec![0; FRAME_BYTES_MAX]),
                ..keyframe(0)
            });
        }
        writer.turn(now);
    }
    assert!((2..=8).contains(&refused), "{refused}");
    assert_eq!(writer.stats().refused, refused);
    writer.turn(Micros(3_600_000_000));
    assert!(writer.is_keyframe_due(), "it is still needed");
    writer.write_keyframe(keyframe(1));
    writer.write(&numbered(1));
    drop(writer);
    let found = read(&memory, 1);
    assert_eq!((numbers(&found), gaps(&found)), (vec![1], vec![refused]));
}

#[test]
fn a_batch_that_has_waited_long_enough_is_handed_over() {
    let memory = Memory::default();
    let mut writer = start(&memory, small());
    writer.write_keyframe(keyframe(1));
    wait_until("the keyframe", || writer.stats().written == 2);
    writer.write(&numbered(1));
    writer.turn(Micros(1000));
    assert_eq!(writer.flush_at(), Some(Micros(21_000)));
    writer.turn(Micros(20_999));
    assert_eq!(writer.stats().written, 2);
    writer.turn(Micros(21_000));
    assert_eq!(writer.flush_at(), None);
    wait_until("the batch", || writer.stats().written == 3);
}

#[test]
fn bounds_out_of_their_range_are_refused() {
    let total_bytes = JournalSettings {
        total_bytes: JournalSettings::default().file_bytes,
        ..JournalSettings::default()
    };
    let file_bytes = JournalSettings {
        file_bytes: 4095,
        ..JournalSettings::default()
    };
    for (settings, name) in [(total_bytes, "total-bytes"), (file_bytes, "file-bytes")] {
        let refused = JournalWriter::start(Memory::default(), run_info(), settings);
        assert!(
            matches!(&refused, Err(JournalStartError::OutOfRange { name: it, .. }) if *it == name),
            "{refused:?}"
        );
    }
}

#[test]
fn a_folder_has_one_writer_and_goes_on_behind_the_files_of_earlier_runs() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("journal");
    let run = |n: u64| {
        let folder = Folder::open(&path).unwrap();
        assert!(matches!(
            Folder::open(&path),
            Err(FolderError::InUse { .. })
        ));
        let mut writer = JournalWriter::start(folder, run_info(), small()).unwrap();
        writer.write_keyframe(keyframe(n));
        writer.write(&numbered(n));
    };
    run(1);
    std::fs::write(path.join("notes.txt"), "not a journal").unwrap();
    run(2);
    let mut reader = JournalReader::open(&path).unwrap();
    let entries: Vec<_> = reader
        .by_ref()
        .map(|located| located.unwrap().entry)
        .collect();
    assert_eq!(numbers(&entries), [1, 2]);
    assert_eq!(reader.torn_tails(), []);
    let first = path.join("0000000001.pmj");
    assert!(first.exists() && path.join("0000000002.pmj").exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&first).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "for its owner's eyes");
    }
}

#[test]
fn eight_restarts_leave_the_history_that_led_to_them() {
    let memory = Memory::default();
    let run = |n: u64| {
        let mut writer = start(
            &memory,
            JournalSettings {
                total_bytes: 60_000,
                ..small()
            },
        );
        writer.write_keyframe(keyframe(n));
        writer.write(&numbered(n));
    };
    (0..9).for_each(run);
    let kept = memory.numbers().into_iter();
    let kept = kept.map(|number| numbers(&read(&memory, number)));
    assert_eq!(
        kept.flatten().collect::<Vec<_>>(),
        (0..9).collect::<Vec<_>>()
    );
}

#[test]
fn a_file_ends_at_an_eighth_of_the_greatest_age() {
    let memory = Memory::default();
    let mut writer = start(&memory, small());
    writer.write_keyframe(keyframe(0));
    let eighth = 3_600_000_000 / 8;
    for (n, now) in [(1, eighth - 1), (2, eighth)] {
        wait_until("room", || writer.stats().written == n + 1);
        assert!(!writer.is_keyframe_due(), "after {n}");
        writer.turn(Micros(now));
        writer.write(&numbered(n));
        writer.flush();
    }
    wait_until("a keyframe is due", || writer.is_keyframe_due());
    writer.write_keyframe(Keyframe {
        now: Micros(eighth),
        ..keyframe(3)
    });
    drop(writer);
    assert_eq!(memory.numbers(), [1, 2]);
}

/// An event of the given length, or almost.
fn event(bytes: usize) -> Entry<'static> {
    Entry::PolicyEvent(PolicyEventEntry {
        now: Micros(0),
        policy: 1,
        what: "logged".to_owned(),
        detail: "x".repeat(bytes),
    })
}

#[test]
fn a_round_has_its_bytes_and_what_is_past_them_is_a_gap() {
    let memory = Memory::default();
    let roomy = JournalSettings {
        file_bytes: 1 << 20,
        total_bytes: 1 << 30,
        batches_max: 64,
        ..small()
    };
    let mut writer = start(&memory, roomy);
    writer.write_keyframe(keyframe(0));
    for round in 1..4 {
        writer.write(&numbered(round));
        for _ in 0..10 {
            writer.write(&event(1000));
        }
    }
    wait_until("a keyframe is due", || {
        writer.flush();
        writer.is_keyframe_due()
    });
    writer.write_keyframe(keyframe(4));
    writer.write(&numbered(4));
    let monitor = writer.monitor();
    drop(writer);
    let found = read(&memory, 1);
    // Of each round the three events are there that fit, and its seven others are not.
    let stats = monitor.stats();
    assert_eq!((stats.cut, stats.withheld), (3 * 7, 0));
    assert_eq!(gaps(&found), [7; 3]);
    assert_eq!(numbers(&found), [1, 2, 3, 4]);
    let bytes = monitor.stats().bytes;
    assert!(bytes < 4 * 4096, "{bytes}");
}

#[test]
fn keyframes_for_gaps_take_no_more_than_the_entries_between_them() {
    let memory = Memory::default();
    let mut writer = start(
        &memory,
        JournalSettings {
            file_bytes: 1 << 30,
            total_bytes: 1 << 40,
            ..small()
        },
    );
    let large = |n| Keyframe {
        machine: Blob(vec![0; 100_000]),
        ..keyframe(n)
    };
    writer.write_keyframe(large(0));
    let mut keyframes = 0;
    for round in 0..100 {
        // Each round is past its bytes, and leaves a gap.
        writer.write(&numbered(round));
        writer.write(&event(3500));
        writer.write(&event(3500));
        writer.flush();
        let monitor = writer.monitor();
        wait_until("all is written", || monitor.queued() == 0);
        if writer.is_keyframe_due() {
            keyframes += 1;
            writer.write_keyframe(large(round));
        }
    }
    assert!((1..=4).contains(&keyframes), "{keyframes}");
}

#[test]
fn lines_of_a_log_take_no_more_of_a_journal_than_all_the_rest() {
    let memory = Memory::default();
    let mut writer = start(
        &memory,
        JournalSettings {
            round_bytes: 1 << 20,
            ..JournalSettings::default()
        },
    );
    writer.write_keyframe(keyframe(0));
    let logged = |writer: &mut JournalWriter| {
        (0..200)
            .filter(|_| writer.write_spare(&event(1000)))
            .count()
    };
    assert_eq!(logged(&mut writer), 64, "64 KiB ahead");
    assert_eq!(logged(&mut writer), 0);
    for _ in 0..10 {
        writer.write(&event(1000));
    }
    assert_eq!(logged(&mut writer), 10, "as much as the rest");
    let monitor = writer.monitor();
    drop(writer);
    let stats = monitor.stats();
    assert_eq!((stats.cut, stats.withheld), (0, 600 - 74));
    assert!(
        gaps(&read(&memory, 1)).is_empty(),
        "a replay misses nothing"
    );
}

#[test]
fn a_keyframe_says_where_it_stands() {
    let memory = Memory::default();
    let mut writer = start(&memory, small());
    writer.write_keyframe(keyframe(9));
    drop(writer);
    let found = read(&memory, 1);
    assert!(matches!(&found[1], Entry::Keyframe(it) if it.round == Round(9)));
}
