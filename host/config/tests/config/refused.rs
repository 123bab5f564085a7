//! Configurations that cannot be used: a text, and the whole message.

use pointsman_config::Config;

use super::{flags, folder, known, load_in};

/// The error of `text`, without the folder of the file.
fn refusal(text: &str, line: &str) -> String {
    let folder = folder(text);
    let error = load_in(folder.path(), line).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

/// Checks texts, each with its error.
pub(super) fn refused(cases: &[(&str, &str)]) {
    for (text, said) in cases {
        assert_eq!(refusal(text, ""), *said, "of {text:?}");
    }
}

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
            "pointsman.toml:1:2: unknown key `server`; there are: listen, drain, ready-executors, state-folder, state, tls, \
             http, keys, tenants, hints, models, executors, backends, cpu, devices, core, policies, admin, journal, log, telemetry",
        ),
        (
            "[journal]\nfiles-max = 8",
            "pointsman.toml:2:1: journal.files-max is no longer there: write total-size, the size \
             of all files together, such as \"256MiB\", or age-max",
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
            "pointsman.toml:2:1: unknown key `admin.password`; there are: listen, key, read-key, decisions-max",
        ),
        (
            "[telemetry]\nendpoint = 'http://a'",
            "pointsman.toml:2:1: unknown key `telemetry.endpoint`; did you mean `otlp-endpoint`?",
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
             \"250ms\", \"1.5s\" or \"24h\": whole microseconds, in us, ms, s, min or h",
        ),
        (
            "[http]\nread-timeout = '30 s'",
            "pointsman.toml:2:16: http.read-timeout: invalid value: string \"30 s\", expected a \
             time such as \"250ms\", \"1.5s\" or \"24h\": whole microseconds, in us, ms, s, min or h",
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
            "pointsman.toml:1:1: keys: invalid type: map, expected tables, each in two brackets: [[...]]",
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
            "listen = '8080'",
            "pointsman.toml:1:10: listen: expected an address and a port, such as 127.0.0.1:8080, localhost:8080 or \
             :8080",
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
fn an_origin_that_no_browser_writes_is_refused() {
    refused(&[
        (
            "[http]\ncors-origins = ['*']",
            "pointsman.toml:2:17: http.cors-origins: expected an origin such as \
             `https://chat.example`, without a path, not \"*\"",
        ),
        (
            "[http]\ncors-origins = ['https://a', 'https://b/c']",
            "pointsman.toml:2:30: http.cors-origins: expected an origin such as \
             `https://chat.example`, without a path, not \"https://b/c\"",
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
            "[http]\nbodies-max = '3MiB'",
            "pointsman.toml:2:14: http.bodies-max must be from 32MiB to 1TiB, not 3MiB",
        ),
        (
            "[http]\nreading-queue-max = -1",
            "pointsman.toml:2:21: http.reading-queue-max must be from 0 to 1000000, not -1",
        ),
        (
            "[journal]\nfile-size = '64MiB'\ntotal-size = '100MiB'",
            "pointsman.toml:3:14: journal.total-size must be from 128MiB to 1TiB, not 100MiB",
        ),
        (
            "journal.round-size = '1KiB'",
            "pointsman.toml:1:22: journal.round-size must be from 64KiB to 1GiB, not 1KiB",
        ),
        (
            "journal.age-max = '1min'",
            "pointsman.toml:1:19: journal.age-max must be from 1h to 87600h, not 1min",
        ),
        (
            "drain = '2h'",
            "pointsman.toml:1:9: drain must be from 0s to 1h, not 2h",
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
    assert_eq!(core.len(), 20);
    let times = [
        "wait-max",
        "unplaced-max",
        "evict-retry",
        "down-for",
        "retry-after",
    ];
    for key in core {
        let values = if times.contains(&&*key) {
            ["'0s'", "'1000h'"]
        } else if ["unserved-max", "held-max"].contains(&&*key) {
            ["'25h'", "'1000h'"]
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
fn a_setting_that_a_policy_has_from_two_tables_is_refused() {
    refused(&[(
        "[policies.settings.a]\nx = 1\n[policies.settings.'a, b']\nx = 2",
        "pointsman.toml:3:1: policies.settings, for a: `x` is there already",
    )]);
}

#[test]
fn holds_must_leave_the_built_in_rule_time_to_place_a_request() {
    refused(&[
        (
            "[core]\nheld-max = '595s'",
            "pointsman.toml:2:12: core.held-max (595s) and core.unplaced-max (10s) together must be \
             less than core.wait-max (10min)",
        ),
        (
            "[core]\nwait-max = '20s'\nunplaced-max = '10s'",
            "pointsman.toml:3:16: core.held-max (10s) and core.unplaced-max (10s) together must be \
             less than core.wait-max (20s)",
        ),
        (
            "[core]\nwait-max = '1us'",
            "pointsman.toml:2:12: core.held-max (0s) and core.unplaced-max (1us) together must be \
             less than core.wait-max (1us)",
        ),
    ]);
}

#[test]
fn a_name_that_stands_for_two_things_or_none_is_refused() {
    refused(&[
        (
            "[[models]]\nname = 'a'\npath = 'x'\n[[models]]\nname = 'a'\npath = 'y'",
            "pointsman.toml:5:8: models[1].name: `a` is there already; for another executor of \
             that model write a table [[executors]]",
        ),
        (
            "[[models]]\nname = 'a'\nexecutor = 'x'\n[[models]]\nname = 'b'\nexecutor = 'x'",
            "pointsman.toml:6:12: models[1].executor: `x` is there already",
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
            "pointsman.toml:2:8: models[0].name: expected a name of 1 to 128 characters, without \
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
fn half_of_what_tls_needs_is_refused() {
    refused(&[
        (
            "[tls]\ncertificate = 'a.pem'",
            "pointsman.toml:2:15: the certificate for TLS needs `tls.key` too",
        ),
        (
            "[tls]\nkey = 'a.pem'",
            "pointsman.toml:2:7: the certificate for TLS needs `tls.certificate` too",
        ),
        (
            "[tls]\nhandshake-timeout = '1ms'",
            "pointsman.toml:2:21: tls.handshake-timeout must be from 10ms to 1h, not 1ms",
        ),
    ]);
}

#[test]
fn rights_of_a_key_that_cannot_be_are_refused() {
    refused(&[
        (
            "[[keys]]\nkey = 'a'\nmodels = []",
            "pointsman.toml:3:10: keys[0].models: expected 1 to 256 models; without this key all \
             may be used",
        ),
        (
            "[[keys]]\nkey = 'a'\nmodels = ['*llama']",
            "pointsman.toml:3:11: keys[0].models: expected the name of a model, or the beginning \
             of names and a `*`, not \"*llama\"",
        ),
        (
            "[[keys]]\nkey = 'a'\nmodels = ['demo', 'demo']",
            "pointsman.toml:3:19: keys[0].models: `demo` is there already",
        ),
        (
            "[[keys]]\nkey = 'a'\npriority-max = 101",
            "pointsman.toml:3:16: keys[0].priority-max must be from -100 to 100, not 101",
        ),
        (
            "[[tenants]]\nname = 'b'\npriority-max = 5\n[[keys]]\nkey = 'a'\ntenant = 'b'\n\
             priority-max = 6",
            "pointsman.toml:7:16: keys[0].priority-max must be from -100 to 5, not 6",
        ),
        (
            "[[keys]]\nkey = 'a'\npriority-max = 5\npriority = 6",
            "pointsman.toml:4:12: keys[0].priority must be from -100 to 5, not 6",
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
            "pointsman.toml:2:10: keys[0].sha256: expected 64 hexadecimal digits, as \
             `sha256sum` prints them of the key",
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
fn executors_that_stand_for_two_things_or_none_are_refused() {
    refused(&[
        (
            "[[models]]\nname = 'a'\nexecutor = 'x'\n[[models]]\nname = 'b'\n\
             [[executors]]\nname = 'x'\nmodels = ['b']",
            "pointsman.toml:7:8: executors[0].name: `x` is there already",
        ),
        (
            "[[models]]\nname = 'a'\nslots = 3\n[[executors]]\nname = 'x'\nmodels = ['a']",
            "pointsman.toml:3:9: models[0].slots: a table [[executors]] names `a`, so that the terms \
             of its executors are there",
        ),
        (
            "[[models]]\nname = 'a'\npath = 'b'\nhub = 'org/name'",
            "pointsman.toml:4:7: models[0].hub: a model is at a `path` or on the `hub`: give one of them",
        ),
        (
            "[[models]]\nname = 'a'\nhub = 'name'",
            "pointsman.toml:3:7: models[0].hub: expected a model on the hub, as in org/name, org/name:Q4_K_M \
             or org/name@revision, not \"name\"",
        ),
        (
            "[[models]]\nname = 'a'\ndummy-seed = 3",
            "pointsman.toml:3:14: models[0].dummy-seed: weights are made for a `config.json`: name it, or \
             its folder, with `path`",
        ),
        (
            "[[executors]]\nname = 'x'\nmodels = ['demo', 'demi']",
            "pointsman.toml:3:19: executors[0].models: there is no model `demi`; did you mean `demo`?",
        ),
        (
            "[[executors]]\nname = 'x'\nmodels = ['demo', 'demo']",
            "pointsman.toml:3:19: executors[0].models: `demo` is there already",
        ),
        (
            "[[executors]]\nname = 'x'\nmodels = []",
            "pointsman.toml:3:10: executors[0].models: expected the name of at least one model, not \
             \"[]\"",
        ),
        (
            "[[models]]\nname = 'a'\ndevice = 'gpu'",
            "pointsman.toml:3:10: models[0].device: there is no device `gpu`; did you mean `cpu0`?",
        ),
    ]);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    refused(&[
        (
            "[cpu]\ntokens-per-step = 4",
            "pointsman.toml:2:19: 8 slots, all executors on cpu0 together, need as many tokens \
             per step, not 4",
        ),
        (
            "[[models]]\nname = 'a'\npath = 'a'\nslots = 200\n\
             [[models]]\nname = 'b'\npath = 'b'\nslots = 100",
            "pointsman.toml:1:1: 300 slots, all executors on cpu0 together, need as many tokens \
             per step, not 256",
        ),
        (
            "[[models]]\nname = 'a'\ndevice = 'cpu1'\n[[devices]]\nname = 'cpu1'\ntokens-per-step = 7",
            "pointsman.toml:6:19: 8 slots, all executors on cpu1 together, need as many tokens per \
             step, not 7",
        ),
        (
            "[core]\nexecutors-max = 1\n[[models]]\nname = 'a'\npath = 'a'\n\
             [[models]]\nname = 'b'\npath = 'b'",
            "pointsman.toml:2:17: 2 executors are more than core.executors-max, which is 1",
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
    let many: String = (0..33).map(|model| format!("--model m{model} ")).collect();
    let said = "--model: 264 slots, all executors on cpu0 together, need as many tokens per step, not \
                256";
    assert_eq!(refusal("", &many), said);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(&flags("--config /no/such/file.toml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--config: /no/such/file.toml cannot be read: No such file or directory (os error 2)"
    );
}

#[test]
fn a_server_elsewhere_that_cannot_be_used_is_refused_where_it_stands() {
    refused(&[
        (
            "[[backends]]\nurl = 'gpu1:8000'",
            "pointsman.toml:2:7: backends[0].url: the address has to begin with http:// or https://",
        ),
        (
            "[[backends]]\nurl = 'http://gpu1'\nsoftware = 'vlm'",
            "pointsman.toml:3:12: backends[0].software: expected one of vllm, sglang, llama-cpp, \
             ollama, openai, not \"vlm\"",
        ),
        (
            "[[backends]]\nurl = 'http://a'\nkey = 'x'\nkey-file = 'y'",
            "pointsman.toml:4:12: backends[0].key-file: the key is given twice; leave out `key` or `key-file`",
        ),
        (
            "[[backends]]\nurl = 'http://a'\n[[backends]]\nurl = 'http://a'",
            "pointsman.toml:3:1: backends: `a` is there already",
        ),
        (
            "[[models]]\nname = 'demo'\nexecutor = 'a'\n[[backends]]\nurl = 'http://b'\nname = 'a'",
            "pointsman.toml:4:1: backends: `a` is there already",
        ),
        (
            "[[backends]]\nurl = 'http://a'\npoll = '1ms'",
            "pointsman.toml:3:8: backends[0].poll must be from 50ms to 1h, not 1ms",
        ),
        (
            "[[backends]]\nurl = 'http://a'\nsoftware = 'ollama'\nmetrics-path = '/stats'",
            "pointsman.toml:4:16: backends[0].metrics-path: no metrics of ollama are known; name them, as with \
             `running-metric`, or leave it out",
        ),
        (
            "[[backends]]\nurl = 'http://a'\nsoftware = 'openai'\nwaiting-metric = 'w'",
            "pointsman.toml:4:18: backends[0].waiting-metric tells nothing without `running-metric`: name both or neither",
        ),
        (
            "[[backends]]\nurl = 'http://a'\nsoftware = 'sglang'\nkv-usage-metric = 'u'",
            "pointsman.toml:4:19: backends[0].kv-usage-metric tells nothing without `kv-info-metric`: name both or neither",
        ),
    ]);
}

#[test]
fn a_collector_that_cannot_be_told_is_refused_and_no_header_is_shown() {
    let no_header = "3:12: telemetry.headers: expected a header as in \"name: value\", and not one of a connection or of a length";
    let with = |line: &str| format!("[telemetry]\notlp-endpoint = 'http://a:4318'\n{line}");
    let cases = [
        (
            "[telemetry]\nservice-name = 'a'".to_owned(),
            "2:16: telemetry needs `otlp-endpoint`, the collector's address",
        ),
        (
            "[telemetry]\notlp-endpoint = 'a:4317'".to_owned(),
            "2:17: telemetry.otlp-endpoint: the address has to begin with http:// or https://",
        ),
        (with("headers = ['secret']"), no_header),
        (with("headers = ['content-length: 7']"), no_header),
        (with("headers = ['secret name: value']"), no_header),
        (
            with("sample-ratio = 1.5"),
            "3:16: telemetry.sample-ratio must be from 0 to 1, not 1.5",
        ),
        (
            with("spans-every = '1us'"),
            "3:15: telemetry.spans-every must be from 10ms to 1h, not 1us",
        ),
    ];
    for (text, said) in cases {
        assert_eq!(refusal(&text, ""), format!("pointsman.toml:{said}"));
    }
}
