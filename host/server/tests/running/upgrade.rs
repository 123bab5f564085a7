//! What `host/docs/upgrade.md` says of versions, and of files of another one.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::host::Host;

fn repository(path: &str) -> String {
    fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(path),
    )
    .unwrap()
}

/// The version in the row of the page's table that begins with these words.
fn named(row: &str) -> String {
    let page = repository("host/docs/upgrade.md");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {row}")));
    row.unwrap().split('|').nth(2).unwrap().trim().to_owned()
}

fn version(host: &Host, file: &str) -> String {
    let file: Value = serde_json::from_slice(&fs::read(host.path(file)).unwrap()).unwrap();
    file["version"].to_string()
}

#[test]
fn the_page_about_upgrades_names_the_versions_that_there_are() {
    let host = Host::start("");
    assert_eq!(host.policy(&["eject"]).code, 0);
    let second = r#"{"name": "demo", "executor": "second", "slots": 2}"#;
    assert_eq!(host.ask("POST", "/admin/executors", second).0, 201);
    assert_eq!(named("`state.json`"), version(&host, "state/state.json"));
    assert_eq!(
        named("`executors.json`"),
        version(&host, "state/executors.json")
    );
    assert_eq!(
        named("files of the journal"),
        pointsman_journal::FORMAT.to_string()
    );
    let package = format!("package pointsman:scheduling@{};", named("the interface"));
    assert_eq!(repository("wit/hooks.wit").lines().next(), Some(&*package));
}

#[test]
fn files_of_another_version_are_set_aside_and_the_server_begins_anew() {
    let mut host = Host::start("");
    assert_eq!(host.policy(&["eject"]).code, 0);
    let said = host.policy(&["status"]);
    assert!(said.out.contains("EJECTED"), "{}", said.out);
    for file in ["state", "executors"] {
        let later = r#"{"version": 99}"#;
        fs::write(host.path(&format!("state/{file}.json")), later).unwrap();
        host.restart("");
        let kept = fs::read_to_string(host.path(&format!("state/{file}.damaged")));
        assert_eq!(kept.unwrap(), later, "{file}");
    }
    let said = host.policy(&["status"]);
    assert!(!said.out.contains("EJECTED"), "{}", said.out);
}
