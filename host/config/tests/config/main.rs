//! The configurations that are taken (here) and refused (`refused`), durations (`durations`), and
//! the example (`example`).

// Without a model in the binary the defaults are refused, see `validate::models`.
#![cfg(feature = "demo-model")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests; a panic there is a failed test"
)]

mod devices;
mod durations;
mod example;
mod refused;

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use pointsman_config::{
    Claims, Config, ConfigError, Flags, LogFormat, ModelPattern, Rights, StateNeed, TenantConfig,
    UsableModels, Wrong,
};
use pointsman_core::rows::RequestClass;
use pointsman_core::{Hook, Micros};
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms, ModelSource};
use pointsman_local::Hardware;
use pointsman_notation::TomlProblem;
use tempfile::TempDir;

// === Helpers ===

/// A command line of nothing but flags.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

/// The flags of a command line.
fn flags(line: &str) -> Flags {
    let line = format!("serve {line}");
    Line::try_parse_from(line.split_whitespace()).unwrap().flags
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

/// The known keys of the table that `before` opens.
fn known(before: &str) -> Vec<String> {
    // Where the keys are those of a list, a value of another type is found first.
    let known = ["0", "''"].into_iter().find_map(|value| {
        let error = load(&format!("{before}no-such-key = {value}")).unwrap_err();
        let Wrong::Toml(TomlProblem::UnknownKey { known, .. }) = *error.wrong else {
            return None;
        };
        Some(known)
    });
    known.unwrap_or_else(|| panic!("after {before:?}: no unknown key"))
}

// === What is taken ===

#[test]
fn with_nothing_given_the_demo_model_is_served_on_loopback_to_everybody() {
    let config = Config::load(&Flags::default()).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.local.models.len(), 1);
    assert_eq!(config.local.models[0].name, "demo");
    assert_eq!(config.local.models[0].source, ModelSource::Embedded);
    assert!(config.keys.is_empty());
    assert_eq!(config.tenants, [TenantConfig::new("default")]);
    assert_eq!(config.core, pointsman_core::Config::default());
    assert_eq!(
        config.policies.limits,
        pointsman_component::Limits::default()
    );
    assert_eq!(config.log.format, LogFormat::Human);
}

#[test]
fn the_need_of_state_is_one_of_two_words() {
    assert_eq!(load("").unwrap().state, StateNeed::Optional);
    let need = |word| load(&format!("state = '{word}'")).map(|config| config.state);
    assert_eq!(need("optional").unwrap(), StateNeed::Optional);
    assert_eq!(need("required").unwrap(), StateNeed::Required);
    let error = need("must").unwrap_err().to_string();
    assert!(error.contains("pointsman.toml:1:9"), "{error}");
    assert!(
        error.contains("`optional`") && error.contains("`required`"),
        "{error}"
    );
}

#[test]
fn a_table_of_a_model_describes_its_executor() {
    let config = load(
        "[[models]]\nname = 'llama'\npath = 'models/llama'\nrunning-max = 9\nexecutor = 'one'\n\
         device = 'cpu1'\nslots = 2\ngroup = 3\nqueue = 4\npreemptible = false\nshare-weight = 5\n\
         model-unload-delay = '3s'\n\
         [[models]]\nname = 'demo'\n\
         [[devices]]\nname = 'cpu1'\nthreads = 7",
    )
    .unwrap();
    let limits = config.local.models.iter().map(|model| model.running_max);
    assert_eq!(limits.collect::<Vec<_>>(), [Some(9), None]);
    let one = ExecutorConfig {
        name: Some("one".to_owned()),
        models: vec!["llama".to_owned()],
        device: Some("cpu1".to_owned()),
        terms: ExecutorTerms {
            slots: 2,
            share_weight: 5,
            group: 3,
            queue: 4,
            preemptible: false,
            models_max: None,
            model_unload_delay: Micros(3_000_000),
        },
    };
    assert_eq!(config.local.executors, [one, ExecutorConfig::new("demo")]);
    let devices = config.local.devices.iter();
    let devices: Vec<_> = devices
        .map(|device| (&*device.name, device.kv_bytes))
        .collect();
    assert_eq!(devices, [("cpu0", None), ("cpu1", None)]);
    let (threads, cores) = (7, None);
    let seven = Hardware::Processors { threads, cores };
    assert_eq!(config.local.devices[1].hardware, seven);
}

#[test]
fn an_executor_with_a_table_of_its_own_serves_the_models_it_names() {
    let config = load(
        "[[models]]\nname = 'demo'\n[[models]]\nname = 'llama'\npath = 'models/llama'\n\
         [[models]]\nname = 'alone'\npath = 'models/alone'\n\
         [[executors]]\nname = 'both'\nmodels = ['llama', 'demo']\nmodels-max = 1\n\
         model-unload-delay = '3s'\nslots = 2\n\
         [[executors]]\nname = 'second'\nmodels = ['demo']",
    )
    .unwrap();
    let executors = config.local.executors.iter();
    let served: Vec<_> = executors
        .map(|executor| (executor.name.as_deref(), executor.models.join(" ")))
        .collect();
    let expected = [
        (None, "alone"),
        (Some("both"), "llama demo"),
        (Some("second"), "demo"),
    ];
    assert_eq!(
        served,
        expected.map(|(name, models)| (name, models.to_owned()))
    );
    let terms = config.local.executors[1].terms;
    assert_eq!((terms.models_max, terms.slots), (Some(1), 2));
    assert_eq!(terms.model_unload_delay, Micros(3_000_000));
    // The demo model needs no table to be named.
    let demo = load("[[executors]]\nname = 'one'\nmodels = ['demo']\nslots = 3").unwrap();
    assert_eq!(
        (demo.local.models.len(), demo.local.executors.len()),
        (1, 1)
    );
}

#[test]
fn a_model_stays_loaded_by_default_only_where_others_could_displace_it() {
    for (keys, micros) in [
        ("", 0),
        ("models-max = 2", 3_000_000),
        ("models-max = 2\nmodel-unload-delay = '0s'", 0),
        ("model-unload-delay = '5s'", 5_000_000),
    ] {
        let config = load(&format!(
            "[[executors]]\nname = 'one'\nmodels = ['demo']\n{keys}\n\
             [[backends]]\nurl = 'http://gpu1:8000'\n{keys}"
        ))
        .unwrap();
        let terms = [config.local.executors[0].terms, config.backends[0].terms];
        let stays = terms.map(|terms| terms.model_unload_delay);
        assert_eq!(stays, [Micros(micros); 2], "{keys}");
    }
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
    assert_eq!(config.http.bodies_bytes_max, 512 << 20);
    assert_eq!(config.http.read_timeout.as_millis(), 500);
    assert_eq!(config.http.write_timeout.as_secs(), 30);
    assert!(!config.http.metrics_public);
    assert_eq!(
        (
            config.local.executors[0].terms.slots,
            config.local.executors[0].terms.share_weight
        ),
        (2, 1)
    );
    assert_eq!(config.core.wait_max.0, 5_000_000);
    let within = (config.core.unplaced_max.0, config.core.held_max.0);
    assert_eq!(within, (833_333, 2_500_000), "a part of wait-max");
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
    let large = load("http.body-max = '1GiB'").unwrap();
    assert_eq!(large.http.bodies_bytes_max, 1 << 30);
    let large = load("journal.file-size = '1GiB'").unwrap();
    assert_eq!(large.journal.settings.total_bytes, 2 << 30);
    assert_eq!(config.patience.back_off_max_micros, 20_000_000);
    assert_eq!(config.log.format, LogFormat::Json);
}

#[test]
fn settings_may_be_for_several_policies_at_once() {
    let config = load(
        "[policies.settings.'aging, memory-aware']\naffinity-bonus = 0\n\
         [policies.settings.memory-aware]\ncandidates = 2\n",
    )
    .unwrap();
    let settings = |name: &str| {
        let mut all = config.policies.settings.iter();
        let (_, settings) = all.find(|(policy, _)| policy == name).unwrap();
        serde_json::Value::from(settings.clone()).to_string()
    };
    assert_eq!(settings("aging"), r#"{"affinity-bonus":0}"#);
    assert_eq!(
        settings("memory-aware"),
        r#"{"affinity-bonus":0,"candidates":2}"#
    );
    assert_eq!(config.policies.settings.len(), 2);
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
        config.local.models[0].source,
        ModelSource::Path(here("models/llama"))
    );
    assert_eq!(config.policies.folder, Some(here("mine")));
    let same = load("[[keys]]\nkey = 'sesame'").unwrap();
    assert_eq!(config.keys[0].sha256, same.keys[0].sha256);
}

/// The state folder remembers the path, also for a server that starts elsewhere.
#[test]
fn the_policy_folder_has_the_same_absolute_path_however_it_is_named() {
    // The tests run in the folder of their package.
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for named in ["tests", "./tests", "tests/", tests.to_str().unwrap()] {
        let flags = flags(&format!("--policies {named}"));
        let config = Config::load(&flags).unwrap();
        assert_eq!(config.policies.folder, Some(tests.clone()), "{named}");
    }
    assert_eq!(load("").unwrap().policies.folder, None);
}

#[test]
fn a_seed_makes_a_model_of_random_weights() {
    let folder = folder("[[models]]\nname = 'large'\npath = 'models/large'\ndummy-seed = 7\n");
    let expected = ModelSource::Dummy {
        config: folder.path().join("models/large"),
        seed: 7,
    };
    let config = load_in(folder.path(), "").unwrap();
    assert_eq!(config.local.models[0].source, expected);
}

#[test]
fn a_metric_that_is_read_beside_another_one_is_alone_where_the_software_may_have_that_one() {
    for software in ["", "software = 'vllm'\n"] {
        let metrics = "waiting-metric = 'w'\nkv-usage-metric = 'u'\n";
        let text = format!("[[backends]]\nurl = 'http://a'\n{software}{metrics}");
        let config = load(&text).unwrap();
        let metrics = &config.backends[0].server.metrics;
        let named = (metrics.waiting.as_deref(), metrics.kv_usage.as_deref());
        assert_eq!(named, (Some("w"), Some("u")));
        assert_eq!((&metrics.running, &metrics.kv_info), (&None, &None));
    }
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
    let tenants: Vec<_> = config
        .keys
        .iter()
        .map(|key| key.rights.tenant.as_str())
        .collect();
    assert_eq!(tenants, ["default", "bob"]);
    assert_eq!(
        config.tenants,
        [TenantConfig::new("default"), TenantConfig::new("bob")]
    );
    assert_eq!(config.admin.key.as_deref(), Some("super-secret"));
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn tenants_that_are_listed_keep_their_rights() {
    let config = load(
        "[[tenants]]\nname = 'alice'\nweight = 3\ntokens-per-minute = 1000\n\
         priority-max = -5\nclass-max = 'throughput'\nhead-start-max = '1s'\n\
         [[keys]]\nkey = 'a'\ntenant = 'alice'\n[[keys]]\nkey = 'b'",
    );
    let alice = TenantConfig {
        weight: 3,
        tokens_per_minute: Some(1000),
        claims: Claims {
            priority_max: -5,
            class_max: RequestClass::Throughput,
            head_start_max: Duration::from_secs(1),
        },
        ..TenantConfig::new("alice")
    };
    assert_eq!(
        config.unwrap().tenants,
        [alice, TenantConfig::new("default")]
    );
}

#[test]
fn a_key_has_the_rights_that_its_table_says() {
    let config = load(
        "[[tenants]]\nname = 'alice'\npriority-max = 50\n\
         [[keys]]\nkey = 'a'\ntenant = 'alice'\nmodels = ['demo', 'llama*']\npriority = 7\n\
         priority-max = 20\n[[keys]]\nkey = 'b'\ntenant = 'alice'",
    );
    let config = config.unwrap();
    let rights: Vec<&Rights> = config.keys.iter().map(|key| &key.rights).collect();
    let expected = Rights {
        models: UsableModels::Listed(vec![
            ModelPattern::Name("demo".to_owned()),
            ModelPattern::Beginning("llama".to_owned()),
        ]),
        priority: 7,
        priority_max: 20,
        ..Rights::of_tenant("alice")
    };
    assert_eq!(rights, [&expected, &Rights::of_tenant("alice")]);
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
        .local
        .executors
        .iter()
        .map(|executor| (&*executor.models[0], executor.terms.slots))
        .collect();
    assert_eq!(models, [("chat", 8), ("d", 8)]);
    assert_eq!(
        config.local.models[0].source,
        ModelSource::Path("/a/b".into())
    );
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.log.filter, "debug");
}
