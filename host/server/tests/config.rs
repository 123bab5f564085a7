//! What the configuration takes, what it makes of it, and what it says of the rest.

// Without a model in the binary the defaults are refused, see `config::validate::models`.
#![cfg(feature = "demo-model")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests; a panic there is a failed test"
)]

use std::fs;
use std::path::Path;

use clap::Parser;
use pointsman_core::Hook;
use pointsman_server::cli::{Cli, Command};
use pointsman_server::config::{Config, ConfigError, Flags, LogFormat, ModelSource, Tenant, Wrong};
use tempfile::TempDir;

// === Helpers ===

/// The flags of a command line.
fn flags(line: &str) -> Flags {
    let line = format!("pointsman serve {line}");
    let Command::Serve(flags) = Cli::try_parse_from(line.split_whitespace())
        .unwrap()
        .command;
    flags
}

/// A folder with `text` as its `pointsman.toml`.
fn folder(text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointsman.toml"), text).unwrap();
    folder
}

fn load_in(folder: &Path, line: &str) -> Result<Config, ConfigError> {
    let flags = Flags {
        config: Some(folder.join("pointsman.toml")),
        ..flags(line)
    };
    Config::load(&flags)
}

fn load(text: &str) -> Result<Config, ConfigError> {
    load_in(folder(text).path(), "")
}

/// What is said of `text`, without the folder of the file.
fn refusal(text: &str, line: &str) -> String {
    let folder = folder(text);
    let error = load_in(folder.path(), line).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

/// A text, and what is said of it.
fn refused(cases: &[(&str, &str)]) {
    for (text, said) in cases {
        assert_eq!(refusal(text, ""), *said, "of {text:?}");
    }
}

// === What is taken ===

#[test]
fn with_nothing_given_the_demo_model_is_served_on_loopback_to_everybody() {
    let config = Config::load(&Flags::default()).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.models.len(), 1);
    assert_eq!(config.models[0].name, "demo");
    assert_eq!(config.models[0].source, ModelSource::Embedded);
    assert!(config.keys.is_empty());
    assert_eq!(config.tenants, [Tenant::new("default")]);
    assert_eq!(config.core, pointsman_core::Config::default());
    assert_eq!(config.policies.limits, pointsman_policy::Limits::default());
    assert_eq!(config.log.format, LogFormat::Human);
}

#[test]
fn what_is_written_replaces_the_default_and_nothing_else() {
    let config = load(
        "listen = '[::1]:9000'\ndrain = '2min'\n\
         [http]\nbody-max = '1MiB'\nread-timeout = '500ms'\nmetrics-public = false\n\
         [[models]]\nname = 'llama'\npath = 'models/llama'\nslots = 2\n\
         [core]\nwait-max = '5s'\nparking-max = 0\n\
         [policies]\nsettle = '0s'\n\
         [policies.bind]\nrouting = 'mine'\npriority = 'aging'\n\
         [policies.settings.aging]\naffinity-bonus = 3\n\
         [policies.limits]\nmemory-bytes = 1_000_000\n\
         [policies.patience]\nback-off = '20s'\n\
         [log]\nformat = 'json'\nfilter = 'warn,pointsman=trace'\n",
    )
    .unwrap();
    assert_eq!(config.listen.to_string(), "[::1]:9000");
    assert_eq!(config.drain.as_secs(), 120);
    assert_eq!(config.http.body_bytes_max, 1 << 20);
    assert_eq!(config.http.read_timeout.as_millis(), 500);
    assert_eq!(config.http.write_timeout.as_secs(), 30);
    assert!(!config.http.metrics_public);
    assert_eq!(
        (config.models[0].slots, config.models[0].share_weight),
        (2, 1)
    );
    assert_eq!(config.core.wait_max.0, 5_000_000);
    assert_eq!((config.core.parking_max, config.core.queue_max), (0, 4096));
    let policies = &config.policies;
    assert!(policies.settle.is_zero());
    let bound = [
        (Hook::Priority, "aging".to_owned()),
        (Hook::Routing, "mine".to_owned()),
    ];
    assert_eq!(policies.bind, bound);
    assert_eq!(policies.settings[0].1["affinity-bonus"], 3);
    assert_eq!(policies.limits.memory_bytes, 1_000_000);
    // What is not written grows with what is.
    assert_eq!(policies.patience.back_off_max_micros, 20_000_000);
    assert_eq!(config.log.format, LogFormat::Json);
}

#[test]
fn paths_of_the_file_are_relative_to_its_folder() {
    let folder = folder(
        "[[models]]\nname = 'llama'\npath = 'models/llama'\n\
         [policies]\nfolder = 'mine'\n\
         [[keys]]\nfile = 'keys/alice'\n",
    );
    let here = |path: &str| folder.path().join(path);
    fs::create_dir_all(here("mine")).unwrap();
    fs::create_dir_all(here("keys")).unwrap();
    fs::write(here("keys/alice"), "sesame\n").unwrap();
    let config = load_in(folder.path(), "").unwrap();
    assert_eq!(
        config.models[0].source,
        ModelSource::Folder(here("models/llama"))
    );
    assert_eq!(config.policies.folder, Some(here("mine")));
    let same = load("[[keys]]\nkey = 'sesame'").unwrap();
    assert_eq!(config.keys[0].sha256, same.keys[0].sha256);
}

#[test]
fn a_key_is_given_as_text_hash_or_file_and_never_shown() {
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let text = format!(
        "[[keys]]\nkey = 'secret'\n[[keys]]\nsha256 = '{}'\ntenant = 'bob'\n\
         [admin]\nkey = 'super-secret'",
        hash.replace('2', "3"),
    );
    let config = load(&text).unwrap();
    let hex: String = config.keys[0]
        .sha256
        .map(|byte| format!("{byte:02x}"))
        .concat();
    assert_eq!(hex, hash);
    let tenants: Vec<_> = config.keys.iter().map(|key| key.tenant.as_str()).collect();
    assert_eq!(tenants, ["default", "bob"]);
    assert_eq!(config.tenants, [Tenant::new("default"), Tenant::new("bob")]);
    assert_eq!(config.admin_key.as_deref(), Some("super-secret"));
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn tenants_that_are_listed_keep_their_rights() {
    let config = load(
        "[[tenants]]\nname = 'alice'\nweight = 3\ntokens-per-minute = 1000\n\
         [[keys]]\nkey = 'a'\ntenant = 'alice'\n[[keys]]\nkey = 'b'",
    );
    let alice = Tenant {
        weight: 3,
        tokens_per_minute: Some(1000),
        ..Tenant::new("alice")
    };
    assert_eq!(config.unwrap().tenants, [alice, Tenant::new("default")]);
}

#[test]
fn flags_override_the_file() {
    let folder = folder(
        "listen = '127.0.0.1:1'\n[policies]\nfolder = 'of-the-file'\n\
         [[models]]\nname = 'llama'\npath = 'models/llama'\nslots = 2\n\
         [log]\nformat = 'human'\nfilter = 'warn'",
    );
    for name in ["of-the-file", "of-the-flag"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let mine = folder.path().join("of-the-flag");
    let line = format!(
        "--listen 127.0.0.1:2 --policies {} --model chat=/a/b --model /c/d \
         --log-format json --log debug",
        mine.display(),
    );
    let config = load_in(folder.path(), &line).unwrap();
    assert_eq!(config.listen.port(), 2);
    assert_eq!(config.policies.folder, Some(mine));
    let models: Vec<_> = config
        .models
        .iter()
        .map(|model| (&*model.name, model.slots))
        .collect();
    assert_eq!(models, [("chat", 8), ("d", 8)]);
    assert_eq!(config.models[0].source, ModelSource::Folder("/a/b".into()));
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.log.filter, "debug");
}

// === What is refused ===

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    refused(&[
        (
            "listn = 'x'",
            "pointsman.toml:1:1: unknown key `listn`; did you mean `listen`?",
        ),
        (
            "drain = '1s'\n[http]\n  conections-max = 1",
            "pointsman.toml:3:3: unknown key `http.conections-max`; did you mean \
             `connections-max`?",
        ),
        (
            "[server]",
            "pointsman.toml:1:2: unknown key `server`; there are: listen, drain, http, keys, \
             tenants, hints, models, cpu, core, policies, admin, log",
        ),
        (
            "[[models]]\nname = 'a'\npath = 'a'\n[[models]]\nname = 'b'\nslot = 1",
            "pointsman.toml:6:1: unknown key `models[1].slot`; did you mean `slots`?",
        ),
        (
            "policies = { bind = { rooting = 'a' } }",
            "pointsman.toml:1:23: unknown key `policies.bind.rooting`; did you mean `routing`?",
        ),
        (
            "[policies.limits]\ncal-fuel = 1",
            "pointsman.toml:2:1: unknown key `policies.limits.cal-fuel`; did you mean \
             `call-fuel`?",
        ),
        (
            "[admin]\npassword = 'x'",
            "pointsman.toml:2:1: unknown key `admin.password`; there are: key",
        ),
    ]);
}

#[test]
fn a_value_of_the_wrong_type_is_refused_where_it_stands() {
    refused(&[
        (
            "listen = 8080",
            "pointsman.toml:1:10: listen: invalid type: integer `8080`, expected a string",
        ),
        (
            "drain = 30",
            "pointsman.toml:1:9: drain: invalid type: integer `30`, expected a time such as \
             \"30s\", in whole us, ms, s, min or h",
        ),
        (
            "[http]\nread-timeout = '30 s'",
            "pointsman.toml:2:16: http.read-timeout: invalid value: string \"30 s\", expected a \
             time such as \"30s\", in whole us, ms, s, min or h",
        ),
        (
            "cpu.kv-memory = '64MB'",
            "pointsman.toml:1:17: cpu.kv-memory: invalid value: string \"64MB\", expected a size \
             such as \"64MiB\", in whole B, KiB, MiB, GiB or TiB",
        ),
        (
            "[core]\nqueue-max = 1.5",
            "pointsman.toml:2:13: core.queue-max: invalid type: floating point `1.5`, expected a \
             whole number",
        ),
        (
            "[http]\nmetrics-public = 'yes'",
            "pointsman.toml:2:18: http.metrics-public: invalid type: string \"yes\", expected a \
             boolean",
        ),
        (
            "http = true",
            "pointsman.toml:1:8: http: invalid type: boolean `true`, expected a table",
        ),
        (
            "[keys]\nkey = 'a'",
            "pointsman.toml:1:1: keys: invalid type: map, expected a sequence",
        ),
        (
            "[[models]]\nslots = 1",
            "pointsman.toml:1:1: models[0]: missing field `name`",
        ),
        (
            "[log]\nformat = 'xml'",
            "pointsman.toml:2:10: log.format: unknown variant `xml`, expected `human` or `json`",
        ),
        (
            "listen = 'localhost:8080'",
            "pointsman.toml:1:10: listen: expected an address and a port, not \"localhost:8080\"",
        ),
        (
            "[log]\nfilter = 'inof'",
            "pointsman.toml:2:10: log.filter: no level is called `inof`; did you mean `info`?",
        ),
        (
            "[policies.settings.aging]\nbonus = nan",
            "pointsman.toml:1:1: policies.settings.aging: bonus is no finite number",
        ),
    ]);
}

#[test]
fn what_is_no_toml_is_refused_where_it_ends_to_be() {
    refused(&[
        (
            "listen = '127.0.0.1:1'\nlisten = '127.0.0.1:2'",
            "pointsman.toml:2:1: duplicate key",
        ),
        ("[http]\n[cpu]\n[http]", "pointsman.toml:3:2: duplicate key"),
        (
            "[http\n",
            "pointsman.toml:1:6: unclosed table, expected `]`",
        ),
    ]);
}

#[test]
fn a_value_out_of_its_range_is_refused_with_the_range() {
    refused(&[
        (
            "[http]\nconnections-max = 0",
            "pointsman.toml:2:19: http.connections-max must be from 1 to 1000000, not 0",
        ),
        (
            "[http]\nrequests-max = 5_000_000_000",
            "pointsman.toml:2:16: http.requests-max must be from 1 to 1000000, not 5000000000",
        ),
        (
            "http.body-max = '1B'",
            "pointsman.toml:1:17: http.body-max must be from 1KiB to 1GiB, not 1B",
        ),
        (
            "drain = '2h'",
            "pointsman.toml:1:9: drain must be from 0us to 1h, not 2h",
        ),
        (
            "hints.priority-max = -1",
            "pointsman.toml:1:22: hints.priority-max must be from 0 to 1000000, not -1",
        ),
        (
            "cpu.threads = 0",
            "pointsman.toml:1:15: cpu.threads must be from 1 to 1024, not 0",
        ),
        (
            "[core]\nwait-max = '25h'",
            "pointsman.toml:2:12: core.wait-max must be from 1us to 24h, not 25h",
        ),
        (
            "[policies.limits]\ncall-fuel = 0",
            "pointsman.toml:2:13: policies.limits.call-fuel must be from 1 to 10000000000, not 0",
        ),
        (
            "[policies.patience]\nback-off = '10s'\nback-off-max = '1s'",
            "pointsman.toml:3:16: policies.patience.back-off-max must be from 10s to 1h, not 1s",
        ),
        (
            "[[tenants]]\nname = 'a'\nweight = 0",
            "pointsman.toml:3:10: tenants[0].weight must be from 1 to 1000000, not 0",
        ),
    ]);
}

#[test]
fn no_bound_of_the_machine_takes_what_does_not_fit() {
    let core = known("[core]\n");
    assert_eq!(core.len(), 14);
    for key in core {
        let values = if ["wait-max", "unplaced-max", "evict-retry"].contains(&&*key) {
            ["'0s'", "'1000h'"]
        } else {
            ["-1", "5_000_000_000"]
        };
        for value in values {
            let said = refusal(&format!("[core]\n{key} = {value}"), "");
            let expected = format!(
                "pointsman.toml:2:{}: core.{key} must be from",
                key.len() + 4
            );
            assert!(said.starts_with(&expected), "{said}");
        }
    }
}

#[test]
fn a_name_that_stands_for_two_things_or_none_is_refused() {
    refused(&[
        (
            "[[models]]\nname = 'a'\npath = 'x'\n[[models]]\nname = 'a'\npath = 'y'",
            "pointsman.toml:5:8: models[1].name: `a` is there already",
        ),
        (
            "[[tenants]]\nname = 'a'\n[[tenants]]\nname = 'a'",
            "pointsman.toml:4:8: tenants[1].name: `a` is there already",
        ),
        (
            "[hints]\nlabel-keys = ['team', 'app', 'team']",
            "pointsman.toml:2:30: hints.label-keys: `team` is there already",
        ),
        (
            "[hints]\nlabel-keys = ['team=a']",
            "pointsman.toml:2:15: hints.label-keys: expected a name without `=`, not \"team=a\"",
        ),
        (
            "[[models]]\nname = ''",
            "pointsman.toml:2:8: models[0].name: expected a name of 1 to 128 bytes, without \
             control characters and outer spaces, not \"\"",
        ),
        (
            "[[tenants]]\nname = 'alice'\n[[keys]]\nkey = 'a'\ntenant = 'alcie'",
            "pointsman.toml:5:10: keys[0].tenant: there is no tenant `alcie`; did you mean \
             `alice`?",
        ),
        (
            "[[tenants]]\nname = 'alice'\n[[tenants]]\nname = 'bob'\n[[keys]]\nkey = 'a'\n\
             tenant = 'carol'",
            "pointsman.toml:7:10: keys[0].tenant: there is no tenant `carol`; there are: alice, \
             bob",
        ),
        (
            "[policies]\nfolder = 'nowhere'",
            "pointsman.toml:2:10: policies.folder: there is no folder nowhere",
        ),
    ]);
}

#[test]
fn a_key_that_cannot_be_used_is_refused_without_showing_it() {
    refused(&[
        (
            "[[keys]]\ntenant = 'alice'",
            "pointsman.toml:1:1: keys[0] needs one of `key`, `sha256` and `file`",
        ),
        (
            "[[keys]]\nkey = 'hidden'\nfile = 'x'",
            "pointsman.toml:1:1: keys[0] needs one of `key`, `sha256` and `file`",
        ),
        (
            "[[keys]]\nkey = 'hid den'",
            "pointsman.toml:2:7: keys[0].key: a key consists of visible ASCII characters",
        ),
        (
            "[admin]\nkey = ''",
            "pointsman.toml:2:7: admin.key: a key consists of visible ASCII characters",
        ),
        (
            "[[keys]]\nsha256 = 'abc'",
            "pointsman.toml:2:10: keys[0].sha256: expected 64 hexadecimal digits, not \"abc\"",
        ),
        (
            "[[keys]]\nkey = 'hidden'\n[[keys]]\nkey = 'other'\n[[keys]]\nkey = 'hidden'",
            "pointsman.toml:5:1: keys[2] is the same key as keys[0]",
        ),
        (
            "[[keys]]\nfile = 'gone'",
            "pointsman.toml:2:8: gone cannot be read: No such file or directory (os error 2)",
        ),
    ]);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    refused(&[
        (
            "[cpu]\ntokens-per-step = 4",
            "pointsman.toml:2:19: 8 slots, all models together, need as many tokens per step, \
             not 4",
        ),
        (
            "[[models]]\nname = 'a'\npath = 'a'\nslots = 200\n\
             [[models]]\nname = 'b'\npath = 'b'\nslots = 100",
            "pointsman.toml:1:1: 300 slots, all models together, need as many tokens per step, \
             not 256",
        ),
        (
            "[core]\nexecutors-max = 1\n[[models]]\nname = 'a'\npath = 'a'\n\
             [[models]]\nname = 'b'\npath = 'b'",
            "pointsman.toml:3:1: 2 models need as many executors, but core.executors-max is 1",
        ),
    ]);
}

#[test]
fn what_a_flag_asks_for_is_refused_at_the_flag() {
    for (line, said) in [
        (
            "--model a/x --model b/x",
            "--model: models: `x` is there already",
        ),
        (
            "--policies /no/such/folder",
            "--policies: policies.folder: there is no folder /no/such/folder",
        ),
        (
            "--log loud",
            "--log: log.filter: no level is called `loud`; there are: off, error, warn, info, \
             debug, trace",
        ),
    ] {
        assert_eq!(refusal("", line), said);
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(&flags("--config /no/such/file.toml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--config: /no/such/file.toml cannot be read: No such file or directory (os error 2)"
    );
}

// === The example ===

/// The keys that are known after `before`, which opens a table.
fn known(before: &str) -> Vec<String> {
    match load(&format!("{before}no-such-key = 0")).unwrap_err().wrong {
        Wrong::UnknownKey { known, .. } => known,
        other => panic!("after {before:?}: {other}"),
    }
}

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
    fs::write(folder.path().join("keys/carol"), "key-of-carol").unwrap();
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
    let (example, default) = (load(&example()).unwrap(), load("").unwrap());
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
    assert_eq!(shown.models[0], default.models[0]);
    assert_eq!(shown.cpu.kv_bytes, default.cpu.kv_bytes);
    assert_eq!(shown.cpu.tokens_per_step, default.cpu.tokens_per_step);
    assert_eq!(shown.tenants[0].weight, Tenant::new("alice").weight);
    assert_eq!(shown.hints, default.hints);
    assert_eq!(shown.core, default.core);
    assert_eq!(shown.log, default.log);
    let (shown, default) = (shown.policies, default.policies);
    assert_eq!((shown.settle, shown.poll), (default.settle, default.poll));
    assert_eq!(
        (shown.limits, shown.patience),
        (default.limits, default.patience)
    );
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
