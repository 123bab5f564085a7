//! Servers that cannot do without their state folder, those that can, and those that find that of another.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::host::{Host, Start, policy};

/// The configuration of a server with the folder `state`, and this line.
fn config(line: &str) -> String {
    format!("listen = '127.0.0.1:0'\nstate-folder = 'state'\n{line}\n")
}

const REQUIRED: &str = "state = 'required'";

/// A command over `text` as the configuration in `folder`, where nothing else names a state folder.
fn command(folder: &Path, text: &str, flags: &[&str]) -> Command {
    fs::write(folder.join("other.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command
        .args(["serve", "--config", "other.toml"])
        .args(flags);
    for name in ["HOME", "STATE_DIRECTORY", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    command.current_dir(folder).stderr(Stdio::piped());
    command
}

/// The log of a server up to the line that says that it serves; none if it ended before that.
fn serves(child: &mut Child) -> Option<String> {
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while log.read_line(&mut said).unwrap() > 0 {
        if said.contains("serving on ") {
            return Some(said);
        }
    }
    None
}

/// The last words of a server that does not start.
fn refused(folder: &Path, text: &str, flags: &[&str]) -> String {
    let output = command(folder, text, flags).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("serving on"), "{said}");
    said
}

#[test]
fn a_server_that_requires_state_serves_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = command(folder.path(), &config(REQUIRED), &[])
        .spawn()
        .unwrap();
    let log = serves(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(log.unwrap().contains("state folder read"));
    assert!(folder.path().join("state/lock").exists());
}

#[test]
fn a_server_that_requires_state_does_not_start_beside_one_that_has_it() {
    let host = Host::start("");
    let said = refused(&host.path(""), &config(REQUIRED), &[]);
    let expected = "pointsman: state = \"required\": the folder cannot be used: state is in use by another server";
    assert_eq!(said.lines().last(), Some(expected), "{said}");
}

#[test]
fn a_server_that_requires_state_does_not_start_without_a_usable_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("state"), "no folder").unwrap();
    let said = refused(folder.path(), &config(REQUIRED), &[]);
    assert!(
        said.contains("state = \"required\": the folder cannot be used: "),
        "{said}"
    );
    // The same without the need.
    let mut child = command(folder.path(), &config(""), &[]).spawn().unwrap();
    let log = serves(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(log.unwrap().contains("nothing outlives this server"));
}

#[test]
fn a_server_that_requires_state_does_not_start_where_no_folder_is_named() {
    let folder = TempDir::new().unwrap();
    for flags in [&[][..], &["--check"]] {
        let said = refused(folder.path(), REQUIRED, flags);
        assert!(
            said.contains("there is no state folder; name one with `state-folder`"),
            "{said}"
        );
    }
}

#[test]
fn a_server_that_requires_state_does_not_start_without_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("state")).unwrap();
    fs::write(folder.path().join("state/journal"), "no folder").unwrap();
    let said = refused(folder.path(), &config(REQUIRED), &[]);
    assert!(
        said.contains("state = \"required\": no journal can be written: "),
        "{said}"
    );
    // One that writes none can do without.
    let off = format!("{}[journal]\nfolder = 'off'\n", config(REQUIRED));
    let mut child = command(folder.path(), &off, &[]).spawn().unwrap();
    let log = serves(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(log.is_some());
}

#[test]
fn a_mode_that_was_ordered_is_not_for_a_folder_of_the_same_name_elsewhere() {
    let aging = policy("aging");
    let mine = Start {
        files: &[("mine.wasm", aging.as_slice())],
        ..Start::default()
    };
    let mode = |host: &Host| {
        let listing = host.policies();
        let mut policies = listing["policies"].as_array().unwrap().iter();
        let found = policies.find(|policy| policy["name"] == "mine");
        found.unwrap()["mode"].clone()
    };
    let first = Host::served(&mine);
    let said = first.policy(&["mode", "mine", "shadow"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(mode(&first), "shadow");
    let state = TempDir::new().unwrap();
    let kept = first.path("state/state.json");
    fs::copy(kept, state.path().join("state.json")).unwrap();
    // Both are `policies.d` where their servers were started.
    let second = Host::served(&Start {
        flags: &["--state", state.path().to_str().unwrap()],
        ..mine
    });
    assert_eq!(mode(&second), "enforce");
}

#[test]
fn a_check_refuses_folders_that_a_start_cannot_use_and_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    fs::write(home.join("file"), "no folder").unwrap();
    fs::create_dir(home.join("halved")).unwrap();
    fs::write(home.join("halved/journal"), "no folder").unwrap();
    let state = |path: &str| format!("state-folder = '{path}'\n{REQUIRED}\n");
    let journal = |path: &str| format!("[journal]\nfolder = '{path}'\n");
    for (text, why) in [
        (state("file"), "the folder cannot be used: "),
        (state("halved"), "no journal can be written: "),
        (journal("file"), "[journal] folder: "),
        (journal("file/below"), "[journal] folder: "),
    ] {
        let text = format!("listen = '127.0.0.1:0'\n{text}");
        for flags in [&[][..], &["--check"]] {
            let said = refused(home, &text, flags);
            assert!(said.contains(why), "{why} not in {said}");
        }
    }
    let good = state("new") + &journal("new-journal/below");
    let output = command(home, &good, &["--check"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    for folder in ["new", "new-journal"] {
        assert!(!home.join(folder).exists(), "{folder}");
    }
}
