//! The things that are said before anybody is served: by `serve --check`, and by a server that does not start.

use std::path::Path;
use std::process::Command;

use pointsman_model::test_util::fp8::Fp8Model;
use serde_json::{Value, json};

use super::Process;

/// Runs `pointsman serve --check` for a configuration beside a policy folder with these files.
fn checked(config: &str, policies: &[(&str, &[u8])]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{config}\n[policies]\nfolder = 'policies.d'\n");
    std::fs::write(folder.path().join("pointsman.toml"), config).unwrap();
    std::fs::create_dir(folder.path().join("policies.d")).unwrap();
    for (name, bytes) in policies {
        std::fs::write(folder.path().join("policies.d").join(name), bytes).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .args(["serve", "--check", "--config", "pointsman.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn policies_that_do_not_agree_on_a_setting_that_means_the_same_in_both_are_named() {
    let said = |policies: &str, bonus: u32| {
        let table = format!("[policies.settings.'{policies}']\naffinity-bonus = {bonus}");
        let (code, out, err) = checked(&table, &[]);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        out
    };
    let apart = "perhaps not meant so\n  affinity-bonus is 0 for aging and not set for memory-aware, and means the same in \
                 both: write it once, in [policies.settings.\"aging, memory-aware\"]";
    let out = said("aging", 0);
    assert!(out.contains(apart), "{out}");
    let out = said("aging, memory-aware", 0);
    assert!(!out.contains("perhaps not meant so"), "{out}");
}

#[test]
fn a_configuration_is_checked_with_its_policies_and_nobody_is_served() {
    let policy = pointsman_testkit::component::component_path("first-policy");
    let policy = std::fs::read(policy).unwrap();
    let good = "[policies.settings.memory-awre]\ncold-models-max = 1\n[http]\nread-timeout = '1s'";
    let (code, out, err) = checked(good, &[("mine.wasm", &policy)]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for part in [
        "the configuration can be used\n",
        "  models     demo\n",
        "  admission  budget\n",
        "  routing    mine\n",
        "perhaps not meant so\n  [policies.settings.memory-awre] is about no policy that is there; did you \
         mean `memory-aware`?",
    ] {
        assert!(out.contains(part), "{part} not in\n{out}");
    }
    assert!(!out.contains("to be sorted out"), "{out}");
    let of_hub = "[[models]]\nname = 'tiny'\nhub = 'org/nowhere-cached'";
    let (code, out, err) = checked(of_hub, &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let line = "  models     tiny (fetched when the server starts)\n";
    assert!(out.contains(line), "{out}");

    let (code, out, _) = checked("", &[("mine.wasm", b"no component")]);
    assert_eq!(code, 1, "{out}");
    let refused = "to be sorted out\n  policy mine is refused: validate: ";
    assert!(out.contains(refused), "{out}");

    for (wrong, why) in [
        (
            "[cpu]\nkv-memory = '1TiB'",
            "kv-memory of the processors' devices, 1TiB, cannot be had",
        ),
        (
            "[policies.settings.aging]\nbonus = 1",
            "policy aging does not start",
        ),
        (
            "[[models]]\nname = 'x'\npath = 'nowhere'",
            "nowhere does not exist",
        ),
        ("[tls]\ncertificate = 'a'\nkey = 'b'", "tls: "),
        ("listn = ':80'", "did you mean `listen`"),
    ] {
        let (code, out, err) = checked(wrong, &[]);
        assert_eq!(code, 1, "{out}");
        assert!(err.contains(why), "{why} not in {err}");
    }
}

#[test]
fn a_model_in_fp8_is_refused_where_processors_are_to_compute_it() {
    let folder = tempfile::tempdir().unwrap();
    Fp8Model::write_demo(folder.path());
    let model = folder.path().display();
    let config = format!("[[models]]\nname = 'small'\npath = '{model}'");
    let (code, out, err) = checked(&config, &[]);
    assert_eq!(code, 1, "{out}");
    let expected = "model small: tensor model.layers.0.self_attn.q_proj.weight is FP8, which only CUDA devices";
    assert!(err.contains(expected), "{err}");
}

#[test]
fn a_server_that_others_reach_without_a_key_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    std::fs::write(&config, "listen = ':0'\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .args(["serve", "--check", "--config", config.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let open = "whoever reaches [::]:0 may use the models, as the tenant `default`";
    assert!(said.contains(open), "{said}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_keeps_it_from_starting_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    std::fs::write(&config, "listn = \"127.0.0.1:0\"\n").unwrap();
    let path = config.to_str().unwrap();
    let settings = folder.path().join("settings.toml");
    std::fs::write(&settings, "[policies.settings.aging]\nbonus = 1\n").unwrap();
    let settings = settings.to_str().unwrap();
    let device = folder.path().join("device.toml");
    std::fs::write(&device, "[[devices]]\nname = \"gpu0\"\ncuda = 15\n").unwrap();
    let device = device.to_str().unwrap();
    let free = "127.0.0.1:0";
    for (args, expected) in [
        (vec!["serve", "--config", path], "did you mean `listen`"),
        (vec!["serve", "--config", "/no/such/file"], "/no/such/file"),
        (
            vec!["serve", "--listen", free, "--model", "x=/no/such/folder"],
            "/no/such/folder",
        ),
        (
            vec!["serve", "--listen", free, "--config", settings],
            "policy aging does not start",
        ),
        (
            vec!["serve", "--listen", free, "--config", device],
            "device gpu0: ",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(&args)
            .env("STATE_DIRECTORY", folder.path().join("state"))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn cores_that_the_process_may_not_run_on_are_named_beside_those_that_it_may() {
    let (code, out, err) = checked("[[devices]]\nname = 'far'\ncores = '1022-1023'", &[]);
    assert_eq!(code, 1, "{out}");
    for part in [
        "device far: this process may run on the cores ",
        ", not on 1022-1023",
    ] {
        assert!(err.contains(part), "{part} not in\n{err}");
    }
}

/// Writes the architecture of a model into a folder, with `sizes`, and returns the table that has it served with weights
/// that are made.
fn dummy(folder: &Path, sizes: Value) -> String {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 32, "num_attention_heads": 32, "head_dim": 128, "max_position_embeddings": 131_072,
    });
    let (Value::Object(keys), Value::Object(sizes)) = (&mut config, sizes) else {
        panic!("configurations are objects");
    };
    keys.extend(sizes);
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let path = folder.display();
    format!("[[models]]\nname = 'large'\npath = '{path}'\ndummy-seed = 1")
}

#[test]
fn memory_of_a_device_that_holds_no_block_of_its_models_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // A token takes 1 MiB.
    let model = dummy(folder.path(), json!({}));
    for (memory, said) in [
        (
            "kv-memory = '8MiB'",
            "kv-memory of 8388608 bytes, on device cpu0, holds no block: one takes 16777216 bytes",
        ),
        (
            "swap-memory = '8MiB'",
            "swap-memory of 8388608 bytes, on device cpu0, holds no block: one takes 16777216 bytes",
        ),
    ] {
        let (code, out, err) = checked(&format!("[cpu]\n{memory}\n{model}"), &[]);
        assert_eq!(code, 1, "{out}");
        assert!(err.contains(said), "{said} not in {err}");
    }
}

#[test]
fn a_kv_cache_that_cuts_a_context_is_told_with_what_a_whole_one_takes() {
    let folder = tempfile::tempdir().unwrap();
    let large = dummy(folder.path(), json!({}));
    let (code, out, err) = checked(&format!("[cpu]\nkv-memory = '64MiB'\n{large}"), &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let advice = "perhaps not meant so\n  device cpu0 has KV cache for 64 of the 131072 tokens of large's context: one \
                  whole sequence takes a kv-memory of 128GiB";
    assert!(out.contains(advice), "{out}");

    let config = folder.path().join("pointsman.toml");
    std::fs::write(&config, "[cpu]\nkv-memory = '1MiB'").unwrap();
    let process = Process::start(&["--config", config.to_str().unwrap()]);
    let told = "device cpu0 has KV cache for 336 of the 2048 tokens of demo's context: one whole sequence takes a \
                kv-memory of 6MiB";
    let mut lines = process.first_lines.iter();
    let warned = lines.any(|line| line.contains("WARN") && line.contains(told));
    assert!(warned, "{:?}", process.first_lines);
    process.signal("TERM");
    assert!(process.end().0.success());
}

#[test]
#[cfg(target_os = "linux")]
fn weights_for_which_there_is_no_memory_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    // 24 TiB.
    let wide =
        json!({"hidden_size": 1 << 20, "intermediate_size": 1 << 20, "num_hidden_layers": 4});
    let config = folder.path().join("pointsman.toml");
    std::fs::write(&config, dummy(folder.path(), wide)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .env("STATE_DIRECTORY", folder.path().join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "and weights of the processors' models, ",
        ", cannot be had: ",
    ] {
        assert!(said.contains(part), "{part} not in {said}");
    }
}
