//! Executors that operators add outlive the server, and those that they remove do not come back.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::host::Host;

const EXECUTORS: &str = "/admin/executors";
const FILE: &str = "state/executors.json";

/// The executors of a server: name, slots and share of each.
fn listed(host: &Host) -> Vec<(String, u64, u64)> {
    let (status, listed) = host.ask("GET", EXECUTORS, "");
    assert_eq!(status, 200, "{listed}");
    let row = |it: &Value| {
        let number = |field: &str| it[field].as_u64().unwrap();
        let name = it["name"].as_str().unwrap().to_owned();
        (name, number("slots_total"), number("share_weight"))
    };
    let rows = listed["executors"].as_array().unwrap();
    rows.iter().map(row).collect()
}

fn add(host: &Host, order: &str) {
    let (status, said) = host.ask("POST", EXECUTORS, order);
    assert_eq!(status, 201, "{said}");
}

/// The executor of the default configuration.
fn first() -> (String, u64, u64) {
    ("cpu0/demo".to_owned(), 8, 1)
}

#[test]
fn executors_that_operators_added_outlive_a_restart() {
    let mut host = Host::start("");
    add(
        &host,
        r#"{"name": "demo", "executor": "second", "slots": 2, "share-weight": 3}"#,
    );
    add(&host, r#"{"name": "demo", "executor": "third"}"#);
    add(
        &host,
        r#"{"url": "http://127.0.0.1:9", "executor": "away", "key": "sesame", "slots": 1}"#,
    );
    let share = r#"{"share-weight": 5}"#;
    let (status, _) = host.ask("POST", "/admin/executors/second/share-weight", share);
    assert_eq!(status, 200);
    let (status, _) = host.ask("DELETE", "/admin/executors/third", "");
    assert_eq!(status, 202);
    host.restart("");
    let expected = [
        first(),
        ("second".to_owned(), 2, 5),
        ("away".to_owned(), 1, 1),
    ];
    assert_eq!(listed(&host), expected);
    let answer = host.complete_with("Hello", "x-pointsman-executors: second\r\n");
    assert!(answer.contains("x-pointsman-executor: second"), "{answer}");
    // It has the key of a server.
    let file = host.path(FILE);
    assert!(fs::read_to_string(&file).unwrap().contains("sesame"));
    let mode = fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");

    for name in ["second", "away"] {
        let (status, said) = host.ask("DELETE", &format!("{EXECUTORS}/{name}"), "");
        assert_eq!(status, 202, "{said}");
    }
    host.restart("");
    assert_eq!(listed(&host), [first()]);
}

#[test]
fn a_file_that_cannot_be_read_is_told_and_the_server_starts() {
    let mut host = Host::start("");
    for damaged in [
        "{",
        r#"{"version": 2, "executors": []}"#,
        r#"{"version": 1, "executors": [{}]}"#,
    ] {
        fs::write(host.path(FILE), damaged).unwrap();
        host.restart("");
        assert_eq!(listed(&host), [first()]);
        assert!(
            host.log().contains("their file is set aside"),
            "{}",
            host.log()
        );
        let aside = fs::read_to_string(host.path("state/executors.damaged"));
        assert_eq!(aside.unwrap(), damaged);
    }
}

#[test]
fn the_configuration_has_a_name_before_an_executor_that_was_added() {
    let mut host = Host::start("");
    add(
        &host,
        r#"{"name": "demo", "executor": "second", "slots": 2}"#,
    );
    host.restart("[[executors]]\nname = 'second'\nmodels = ['demo']\nslots = 5\n");
    assert_eq!(listed(&host), [("second".to_owned(), 5, 1)]);
    let told = "the configuration has an executor of this name";
    assert!(host.log().contains(told), "{}", host.log());
    host.restart("");
    assert_eq!(listed(&host), [first()]);
    assert!(!host.log().contains(told), "{}", host.log());
}

#[test]
fn an_executor_that_cannot_be_added_is_told_and_tried_again_until_it_is_forgotten() {
    let mut host = Host::start("");
    let lost = r#"{"version": 1, "executors": [{"name": "lost", "path": "/nowhere", "executor": "lost"}]}"#;
    fs::write(host.path(FILE), lost).unwrap();
    for _ in 0..2 {
        host.restart("");
        assert_eq!(listed(&host), [first()]);
        let told = "an executor that an operator added is not there";
        assert!(host.log().contains(told), "{}", host.log());
    }
    let (status, said) = host.ask("DELETE", "/admin/executors/lost", "");
    let message = said["error"]["message"].as_str().unwrap();
    assert_eq!(status, 404, "{message}");
    assert!(message.ends_with("does not now"), "{message}");
    assert!(
        !fs::read_to_string(host.path(FILE))
            .unwrap()
            .contains("lost")
    );
}
