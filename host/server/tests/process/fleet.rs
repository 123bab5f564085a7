//! The tables of devices and executors in a configuration, as a server shows them that was started with it.

use std::fs;

use serde_json::{Value, json};

use super::Process;

const TABLES: &str = r#"
[cpu]
kv-memory = "6MiB"
swap-memory = "3MiB"
tokens-per-step = 96
threads = 1

[[devices]]
name = "apart"
kv-memory = "12MiB"
swap-memory = "9MiB"
tokens-per-step = 48
threads = 2

[[models]]
name = "demo"

[[executors]]
name = "special"
models = ["demo"]
device = "apart"
slots = 5
share-weight = 7
group = 3
queue = 2
preemptible = false
models-max = 1
model-unload-delay = "1h"

[[executors]]
name = "plain"
models = ["demo"]
"#;

impl Process {
    fn shown(&self, path: &str) -> Value {
        let answer = self.ask(&format!("GET {path}"), "");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }
}

/// Checks that a row has these values.
#[track_caller]
fn has(row: &Value, values: &[(&str, Value)]) {
    for (field, value) in values {
        assert_eq!(row[field], *value, "{field}: {row}");
    }
}

#[test]
fn a_server_has_the_devices_and_executors_of_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pointsman.toml");
    fs::write(&path, TABLES).unwrap();
    let process = Process::start(&["--config", path.to_str().unwrap()]);
    // Blocks of 48 KiB.
    let devices = process.shown("/admin/devices");
    for (at, name, blocks, host_blocks, tokens) in
        [(0, "cpu0", 128, 64, 96), (1, "apart", 256, 192, 48)]
    {
        let values = [
            ("name", json!(name)),
            ("blocks_total", json!(blocks)),
            ("host_blocks_total", json!(host_blocks)),
            ("tokens_per_step", json!(tokens)),
        ];
        has(&devices["devices"][at], &values);
    }
    let body = r#"{"model": "demo", "prompt": "Hello", "max_tokens": 1,
        "pointsman": {"executors": ["special"]}}"#;
    let answer = process.ask("POST /v1/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let listed = process.shown("/admin/executors");
    let special = &listed["executors"][0];
    let values = [
        ("name", json!("special")),
        ("models", json!(["demo"])),
        ("device", json!("apart")),
        ("slots_total", json!(5)),
        ("share_weight", json!(7)),
        ("group", json!(3)),
        ("queue_max", json!(2)),
        ("preemptible", json!(false)),
        ("models_max", json!(1)),
    ];
    has(special, &values);
    let until = special["models_present"][0]["warm_until_micros"].as_u64();
    assert!(until > Some(3_600_000_000), "{special}");
    let values = [
        ("name", json!("plain")),
        ("device", json!("cpu0")),
        ("slots_total", json!(8)),
        ("share_weight", json!(1)),
        ("group", json!(0)),
        ("queue_max", json!(0)),
        ("preemptible", json!(true)),
        ("models_max", Value::Null),
    ];
    has(&listed["executors"][1], &values);
    process.signal("TERM");
    let (status, said) = process.end();
    assert!(status.success(), "{said}");
}
