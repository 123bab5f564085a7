//! The things that are said before anybody is served: by `serve --check`, and by a server that does not start.

use std::process::Command;

use pointsman_model::test_util::fp8::Fp8Model;

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
        ("[[models]]\nname = 'x'\npath = 'nowhere'", "nowhere"),
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
    let open = "whoever reaches 0.0.0.0:0 may use the models, as the tenant `default`";
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
