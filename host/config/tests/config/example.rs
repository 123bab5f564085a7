//! `examples/pointsman.toml` has every key, with its default.

use std::fs;
use std::path::Path;
use std::time::Duration;

use pointsman_config::TenantConfig;
use pointsman_http::test_util::pem;
use tempfile::TempDir;

use super::{folder, known, load, load_in};

fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pointsman.toml");
    fs::read_to_string(path).unwrap()
}

/// The example with all its settings in force, in a folder that has what it names.
fn example_in_force() -> (TempDir, String) {
    let lines = example()
        .lines()
        .map(setting)
        .collect::<Vec<_>>()
        .join("\n");
    let folder = folder(&lines);
    for name in ["policies.d", "keys"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    for name in ["carol", "api"] {
        let key = folder.path().join("keys").join(name);
        fs::write(key, format!("key-of-{name}")).unwrap();
    }
    let certificate = rcgen::generate_simple_self_signed(["backend".to_owned()]).unwrap();
    let pem = pem("CERTIFICATE", certificate.cert.der());
    fs::write(folder.path().join("backends.pem"), pem).unwrap();
    (folder, lines)
}

/// A line of the example without the sign that keeps a setting from being one.
fn setting(line: &str) -> String {
    match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting.to_owned(),
        _ => line.to_owned(),
    }
}

#[test]
fn the_example_changes_nothing_as_it_is() {
    let (mut example, default) = (load(&example()).unwrap(), load("").unwrap());
    // Each has a file of its own.
    example.flags = default.flags.clone();
    assert_eq!(format!("{example:?}"), format!("{default:?}"));
}

#[test]
fn the_example_shows_the_defaults() {
    let (folder, _) = example_in_force();
    let shown = load_in(folder.path(), "").unwrap();
    let default = load("").unwrap();
    assert_eq!(shown.listen, default.listen);
    assert_eq!(shown.drain, default.drain);
    assert_eq!(shown.http, default.http);
    let tls = load("[tls]\ncertificate = 'a'\nkey = 'b'")
        .unwrap()
        .tls
        .unwrap();
    let shown_tls = shown.tls.unwrap();
    assert_eq!(shown_tls.handshake_timeout, tls.handshake_timeout);
    assert_eq!(shown_tls.poll, tls.poll);
    let (server, default_server) = (&shown.backends[0].server, &shown.backends[1].server);
    assert_eq!(server.poll, default_server.poll);
    assert_eq!(server.first_byte_timeout, default_server.first_byte_timeout);
    assert_eq!(server.stall_timeout, default_server.stall_timeout);
    assert_eq!(server.load_timeout, default_server.load_timeout);
    assert_eq!(server.unload_after, Some(Duration::from_secs(600)));
    assert_eq!(server.broken_streams, default_server.broken_streams);
    assert_eq!(server.headers["anthropic-version"], "2023-06-01");
    assert_eq!(server.prompt_cache, default_server.prompt_cache);
    assert_eq!(shown.local.models[0].source, default.local.models[0].source);
    assert_eq!(shown.local.executors[0], default.local.executors[0]);
    let (device, default_device) = (&default.local.devices[0], &shown.local.devices[0]);
    assert_eq!(device.kv_bytes, None);
    assert_eq!(device.tokens_per_step, default_device.tokens_per_step);
    let second = &shown.local.devices[1];
    assert_eq!(second.tokens_per_step, default_device.tokens_per_step);
    assert_eq!(shown.tenants[0].weight, TenantConfig::new("alice").weight);
    assert_eq!(shown.hints, default.hints);
    assert_eq!(shown.core, default.core);
    assert_eq!(shown.log, default.log);
    let telemetry = load("[telemetry]\notlp-endpoint = 'http://127.0.0.1:4318'");
    let telemetry = telemetry.unwrap().telemetry.unwrap();
    let mut shown_telemetry = shown.telemetry.unwrap();
    assert_eq!(
        shown_telemetry.headers["x-api-key"],
        "a-key-of-the-collector"
    );
    shown_telemetry.headers.clear();
    assert_eq!(shown_telemetry, telemetry);
    assert_eq!(shown.journal.settings, default.journal.settings);
    assert_eq!(shown.patience, default.patience);
    let (shown, default) = (shown.policies, default.policies);
    assert_eq!((shown.settle, shown.poll), (default.settle, default.poll));
    assert_eq!(shown.limits, default.limits);
}

#[test]
fn the_example_shows_how_long_a_model_stays_loaded_where_others_could_displace_it() {
    let (folder, _) = example_in_force();
    let shown = load_in(folder.path(), "").unwrap();
    let unsaid = load(
        "[[executors]]\nname = 'both'\nmodels = ['demo']\nmodels-max = 1\n\
         [[backends]]\nurl = 'http://gpu1:8000'\nmodels-max = 1",
    )
    .unwrap();
    let mut executors = shown.local.executors.iter();
    let both = executors.find(|executor| executor.name.as_deref() == Some("both"));
    assert_eq!(both.unwrap().terms, unsaid.local.executors[0].terms);
    let stays = [&shown, &unsaid].map(|config| config.backends[0].terms.model_unload_delay);
    assert_eq!(stays[0], stays[1]);
}

#[test]
fn the_example_has_every_key() {
    let (_folder, text) = example_in_force();
    let example: toml::Table = text.parse().unwrap();
    let mut keys = 0;
    let mut tables = vec![(String::new(), String::new(), vec![example])];
    while let Some((path, header, shown)) = tables.pop() {
        for key in known(&header) {
            keys += 1;
            let path = format!("{path}{key}");
            let values = shown.iter().filter_map(|table| table.get(&key));
            let mut values = values.peekable();
            let value = *values.peek().unwrap_or_else(|| panic!("no {path}"));
            // Settings are the policies' own.
            if path == "policies.settings" {
                continue;
            }
            if value.is_table() {
                let inner = values.filter_map(|value| value.as_table().cloned());
                tables.push((format!("{path}."), format!("[{path}]\n"), inner.collect()));
            } else if let Some(list) = value.as_array()
                && list.iter().any(toml::Value::is_table)
            {
                let inner = list.iter().filter_map(|value| value.as_table().cloned());
                tables.push((format!("{path}."), format!("[[{path}]]\n"), inner.collect()));
            }
        }
    }
    assert!(keys > 70, "{keys}");
}
