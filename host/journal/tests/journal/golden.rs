//! Version 1 of the format: bytes that must not change.
//!
//! `tests/journal/golden/v1.pmj` has one entry of each kind. A failure means that the format has
//! changed: then it needs a new version, and the old one must still be read. As long as no version
//! is released, `UPDATE=1` writes the file anew.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::common::{Memory, everything, keyframe, run_info};
use pointsman_journal::{
    Blob, Entry, JournalReader, JournalSettings, JournalWriter, Located, json_line, read_bytes,
    text_line,
};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/journal/golden")
        .join(name)
}

fn written() -> Vec<u8> {
    let memory = Memory::default();
    let settings = JournalSettings::default();
    let mut writer = JournalWriter::start(memory.clone(), run_info(), settings).unwrap();
    writer.write_keyframe(keyframe(1));
    for entry in everything() {
        writer.write(&entry);
    }
    drop(writer);
    memory.file(1)
}

/// Reads a golden file, and writes it first if `UPDATE` is set.
fn golden(name: &str, now: &[u8]) -> Vec<u8> {
    // Tests run in parallel, and none may read a file that another is writing.
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path("")).unwrap();
        std::fs::write(path(name), now).unwrap();
    }
    std::fs::read(path(name)).unwrap()
}

#[test]
fn the_bytes_of_version_1_are_what_they_were() {
    let written = written();
    let golden = golden("v1.pmj", &written);
    let differs = written
        .iter()
        .zip(&golden)
        .position(|(one, other)| one != other);
    assert_eq!((differs, written.len()), (None, golden.len()));
}

#[test]
fn a_file_of_version_1_is_read() {
    let golden = golden("v1.pmj", &written());
    let found: Vec<_> = read_bytes(&golden)
        .unwrap()
        .map(|(_, entry)| entry)
        .collect();
    assert_eq!(found[2..], everything());
}

#[test]
fn the_lines_of_the_export_are_what_they_were() {
    let bytes = written();
    let mut lines = String::new();
    for (offset, entry) in read_bytes(&bytes).unwrap() {
        let file = PathBuf::from("/var/0000000001.pmj").into();
        let located = Located {
            file,
            offset,
            entry,
        };
        lines.push_str(&json_line(&located).unwrap());
        lines.push('\n');
    }
    let golden = golden("v1.jsonl", lines.as_bytes());
    assert_eq!(lines, String::from_utf8(golden).unwrap());
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["file"], "0000000001.pmj");
    }
}

#[test]
fn a_blob_is_the_value_it_was_made_of() {
    let value = (7_u64, "text".to_owned(), vec![1_u8, 2]);
    let blob = Blob::of(&value).unwrap();
    assert_eq!(blob.read::<(u64, String, Vec<u8>)>().unwrap(), value);
    let mut longer = blob;
    longer.0.push(0);
    let refused = longer.read::<(u64, String, Vec<u8>)>().unwrap_err();
    assert_eq!(refused.to_string(), "1 bytes too many");
}

#[test]
fn a_reader_of_the_golden_folder_finds_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("0000000001.pmj");
    std::fs::write(&file, golden("v1.pmj", &written())).unwrap();
    let reader = JournalReader::open(&file).unwrap();
    let keyframes = reader
        .map(Result::unwrap)
        .filter(|located| matches!(located.entry, Entry::Keyframe(_)));
    assert_eq!(keyframes.count(), 2);
}

#[test]
fn lines_for_people_have_nothing_of_rusts_own_notation() {
    for entry in everything() {
        let line = text_line(&entry);
        for part in ["Some(", "None", "RequestId(", "Micros(", " { "] {
            assert!(!line.contains(part), "{part} in {line}");
        }
    }
}
