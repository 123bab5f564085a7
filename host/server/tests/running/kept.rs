//! Executors that operators add outlive the server, and those that they remove do not come back.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::Value;

use super::host::Host;

const EXECUTORS: &str = "/admin/executors";
const FILE: &str = "state/executors.json";
/// The folder of a model.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo-model");

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
    by_default("cpu0/demo")
}

/// An executor on default terms.
fn by_default(name: &str) -> (String, u64, u64) {
    (name.to_owned(), 8, 1)
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

#[test]
fn an_executor_of_a_model_of_the_configuration_comes_back_with_that_model_alone() {
    let config = format!("[[models]]\nname = 'big'\npath = '{FOLDER}'\n");
    let mut host = Host::start(&config);
    add(&host, r#"{"name": "big", "executor": "second"}"#);
    // Only the embedded model could have that name now.
    host.restart("");
    assert_eq!(listed(&host), [first()]);
    let told = "there is no model `big`; there are: demo";
    assert!(host.log().contains(told), "{}", host.log());
    host.restart(&config);
    assert_eq!(listed(&host), ["cpu0/big", "second"].map(by_default));
    // As the order came.
    let kept = r#"{"version": 1, "executors": [{"name": "big", "executor": "second"}]}"#;
    fs::write(host.path(FILE), kept).unwrap();
    for (config, expected) in [
        (&*config, &["cpu0/big", "second"].map(by_default)[..]),
        ("", &[first()]),
    ] {
        host.restart(config);
        assert_eq!(listed(&host), expected);
    }
}

#[test]
fn an_executor_comes_back_with_the_model_of_the_order_that_loaded_it() {
    let mut host = Host::start("");
    let folder = host.path("big");
    symlink(FOLDER, &folder).unwrap();
    let big = format!(
        r#"{{"name": "big", "path": "{}", "executor": "one"}}"#,
        folder.display()
    );
    add(&host, &big);
    add(&host, r#"{"name": "big", "executor": "two"}"#);
    // Of these the first is given the embedded model.
    add(&host, r#"{"name": "small", "executor": "three"}"#);
    add(&host, r#"{"name": "small", "executor": "four"}"#);
    for gone in ["one", "three"] {
        let (status, said) = host.ask("DELETE", &format!("{EXECUTORS}/{gone}"), "");
        assert_eq!(status, 202, "{said}");
    }
    let [two, four] = ["two", "four"].map(by_default);
    host.restart("");
    assert_eq!(listed(&host), [first(), two, four.clone()]);
    fs::remove_file(folder).unwrap();
    host.restart("");
    assert_eq!(listed(&host), [first(), four]);
    let told = "an executor that an operator added is not there";
    assert!(host.log().contains(told), "{}", host.log());
}

#[test]
fn an_order_that_replaces_a_kept_one_comes_after_the_one_that_loads_its_model() {
    let mut host = Host::start("");
    let kept = format!(
        r#"{{"version": 1, "executors": [
            {{"name": "lost", "path": "/nowhere", "executor": "again"}},
            {{"name": "big", "path": "{FOLDER}", "executor": "loader"}}
        ]}}"#
    );
    fs::write(host.path(FILE), kept).unwrap();
    host.restart("");
    let [loader, again] = ["loader", "again"].map(by_default);
    assert_eq!(listed(&host), [first(), loader.clone()]);
    add(&host, r#"{"models": ["big"], "executor": "again"}"#);
    // The order of later starts is that of the file, which each of them writes.
    for _ in 0..2 {
        host.restart("");
        let expected = [first(), loader.clone(), again.clone()];
        assert_eq!(listed(&host), expected);
    }
}
