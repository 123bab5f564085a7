//! Large components beside the journal.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::{keyframe, numbered, roster, run_info};
use pointsman_events::Micros;
use pointsman_journal::{
    Blob, Bound, Component, ContentHash, Entry, Folder, JournalReader, JournalSettings,
    JournalStats, JournalWriter, Keyframe, Roster,
};

const LARGE: &[u8] = &[7; 50_000];

/// The policies of the fixture, whose components have this digest and lie elsewhere.
fn without_code(digest: u8) -> Roster {
    let mut roster = roster();
    for policy in &mut roster.policies {
        policy.digest = ContentHash([digest; 32]);
        policy.code = None;
    }
    roster
}

fn component(digest: u8) -> Component {
    Component {
        digest: ContentHash([digest; 32]),
        bytes: Arc::new(LARGE),
    }
}

/// A run of one file, whose keyframe names a component.
fn run(journal: &Path, digest: u8, total_bytes: u64) -> JournalStats {
    let settings = JournalSettings {
        file_bytes: 4096,
        total_bytes,
        ..JournalSettings::default()
    };
    let folder = Folder::open(journal).unwrap();
    let mut writer = JournalWriter::start(folder, run_info(), settings).unwrap();
    writer.bring(component(digest));
    writer.write_keyframe(Keyframe {
        roster: without_code(digest),
        ..keyframe(1)
    });
    writer.write(&numbered(1));
    let monitor = writer.monitor();
    drop(writer);
    monitor.stats()
}

/// The names of the components, of which each has as many bytes as it should.
fn names(journal: &Path) -> Vec<String> {
    let entries = fs::read_dir(journal.join("components")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            assert_eq!(fs::read(entry.path()).unwrap(), LARGE);
            entry.file_name().into_string().unwrap()
        })
        .collect();
    names.sort();
    names
}

fn name(digest: &str, file: u32) -> String {
    format!("{}.{file:010}", digest.repeat(32))
}

/// The codes of the policies that the entries of a file or a folder name.
fn codes(path: &Path) -> Vec<Option<Blob>> {
    let entries = JournalReader::open(path).unwrap();
    let rosters = entries.filter_map(|located| match located.unwrap().entry {
        Entry::Keyframe(keyframe) => Some(keyframe.roster),
        Entry::Bound(bound) => Some(bound.roster),
        _ => None,
    });
    let policies = rosters.flat_map(|roster| roster.policies);
    policies.map(|policy| policy.code).collect()
}

#[test]
fn a_large_component_is_stored_once_and_goes_with_the_last_file_that_names_it() {
    let place = tempfile::tempdir().unwrap();
    let journal = place.path();
    for file in 1..=8 {
        let stats = run(journal, 1, 1 << 20);
        assert_eq!(stats.errors, 0, "{stats:?}");
        assert_eq!(stats.bytes > 50_000, file == 1, "{stats:?}");
        assert_eq!(names(journal), [name("01", file)]);
    }
    assert_eq!(codes(journal), vec![Some(Blob(LARGE.to_vec())); 8]);
    let last = journal.join("0000000008.pmj");
    assert_eq!(codes(&last), [Some(Blob(LARGE.to_vec()))]);
    run(journal, 2, 1 << 20);
    assert_eq!(names(journal), [name("01", 8), name("02", 9)]);
    // Room for one of the two, and for the files that name it.
    run(journal, 2, 90_000);
    assert_eq!(names(journal), [name("02", 10)]);
    assert!(!last.exists() && journal.join("0000000009.pmj").exists());
}

#[test]
fn what_a_killed_writer_left_of_a_component_goes_before_the_next_is_stored() {
    let place = tempfile::tempdir().unwrap();
    let components = place.path().join("components");
    fs::create_dir(&components).unwrap();
    for (digest, file) in [("01", 7), ("02", 8)] {
        let left = format!(".{}.new", name(digest, file));
        fs::write(components.join(left), "half").unwrap();
    }
    let stats = run(place.path(), 1, 1 << 20);
    assert_eq!(stats.errors, 0, "{stats:?}");
    assert_eq!(names(place.path()), [name("01", 1)]);
}

#[test]
fn a_policy_that_is_taken_in_later_brings_its_component_to_the_file_that_is_open() {
    let place = tempfile::tempdir().unwrap();
    let journal = place.path();
    let folder = Folder::open(journal).unwrap();
    let mut writer = JournalWriter::start(folder, run_info(), JournalSettings::default()).unwrap();
    writer.write_keyframe(keyframe(1));
    writer.bring(component(3));
    writer.write(&Entry::Bound(Bound {
        now: Micros(2),
        roster: without_code(3),
    }));
    writer.write(&numbered(1));
    drop(writer);
    assert_eq!(names(journal), [name("03", 1)]);
    assert_eq!(codes(journal), [Some(Blob(LARGE.to_vec()))]);
}

#[test]
fn no_entry_names_a_component_that_could_not_be_stored() {
    let place = tempfile::tempdir().unwrap();
    let journal = place.path();
    fs::write(journal.join("components"), "no folder").unwrap();
    let stats = run(journal, 1, 1 << 20);
    assert!(stats.failing && stats.errors > 0, "{stats:?}");
    assert!(!journal.join("0000000001.pmj").exists());
}

#[test]
fn a_component_that_is_gone_is_missing_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    run(place.path(), 1, 1 << 20);
    fs::remove_dir_all(place.path().join("components")).unwrap();
    assert_eq!(codes(place.path()), [None]);
}
