//! Commands whose output nobody reads to its end, and files whose names are no UTF-8.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The exit code of a command, and its lines on standard error.
fn ended(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

/// `pointsman`, to be run in a folder.
fn pointsman(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.current_dir(folder).env("XDG_CACHE_HOME", folder);
    command
}

#[test]
fn a_reader_that_closes_the_pipe_changes_nothing_of_how_a_command_ends() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.wasm"), "hello").unwrap();
    for (words, code) in [
        (&["completions", "bash"][..], 0),
        (&["man"], 0),
        (&["devices"], 0),
        (&["policy", "inspect", "text.wasm"], 1),
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = pointsman(folder.path());
        let ended = ended(command.args(words).stdout(writer));
        assert_eq!(ended, (Some(code), String::new()), "{words:?}");
    }
}

#[test]
fn a_file_whose_name_is_no_utf_8_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"text\xff.wasm");
    fs::write(folder.path().join(name), "hello").unwrap();
    let mut command = pointsman(folder.path());
    command.args(["policy", "inspect"]).arg(name);
    let ended = ended(command.stdout(Stdio::null()));
    assert_eq!(ended, (Some(1), String::new()));
}
