//! `pointsman policy` as an operator has it: orders to a server that runs, by the binary.

use std::process::Command;

use serde_json::Value;

use super::host::{Host, policy};

#[test]
fn status_says_who_decides_what() {
    let host = Host::start("");
    let said = host.policy(&["status"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    for (hook, policy) in [
        ("admission", "budget"),
        ("priority", "aging"),
        ("routing", "memory-aware"),
    ] {
        let line = said
            .out
            .lines()
            .find(|line| line.trim_start().starts_with(hook));
        assert!(line.unwrap().contains(policy), "{}", said.out);
    }
    assert_eq!(host.status()["hooks"]["routing"]["policy"], "memory-aware");
}

#[test]
fn orders_are_carried_out_or_refused_with_a_reason() {
    let host = Host::start("");
    let said = host.policy(&["bind", "routing", "nobody"]);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(
        said.out.contains("there is no policy nobody"),
        "{}",
        said.out
    );
    let said = host.policy(&["bind", "routing", "aging"]);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.out.contains("does not export routing"), "{}", said.out);
    let said = host.policy(&["rollback", "aging"]);
    assert_eq!(said.code, 1, "{}", said.err);
    let said = host.policy(&["release", &"0".repeat(64)]);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.out.contains("in quarantine"), "{}", said.out);
    let said = host.policy(&["mode", "aging", "loud"]);
    assert_eq!(said.code, 2, "{}", said.out);
    assert!(
        said.err.contains("enforce, shadow, or canary"),
        "{}",
        said.err
    );
    let said = host.policy(&["eject", "routing"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("memory-aware"), "{}", said.out);
    let said = host.policy(&["dump"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("no fault"), "{}", said.out);
    let said = host.policy(&["dump", "7"]);
    assert_eq!(said.code, 1, "{}", said.err);
}

#[test]
fn a_shadow_is_promoted_and_ejected_by_the_command_line() {
    let host = Host::start("");
    host.drop_in("least-loaded.toml", b"mode = 'shadow'\n");
    host.drop_in("least-loaded.wasm", &policy("least-loaded"));
    let shadow = |status: &Value| {
        let policies = status["policies"].as_array().unwrap();
        policies
            .iter()
            .any(|policy| policy["name"] == "least-loaded" && policy["mode"] == "shadow")
    };
    while !shadow(&host.status()) {}
    let routes = || host.status()["hooks"]["routing"]["policy"].clone();
    assert_eq!(routes(), "memory-aware");
    let said = host.policy(&["promote", "least-loaded"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert!(said.out.contains("least-loaded"), "{}", said.out);
    assert_eq!(routes(), "least-loaded");
    let said = host.policy(&["mode", "least-loaded", "canary", "10%"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert_eq!(routes(), "memory-aware");
    let said = host.policy(&["bind", "routing", "least-loaded"]);
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    assert!(said.out.contains("promote it"), "{}", said.out);
    let said = host.policy(&["mode", "least-loaded", "enforce"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert_eq!(routes(), "least-loaded");
    let said = host.policy(&["eject"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert_eq!(routes(), "memory-aware");
}

#[test]
fn a_server_that_wants_a_key_gets_it_from_flag_or_environment() {
    let host = Host::start("[admin]\nkey = 'root'");
    let said = host.policy(&["status"]);
    assert_eq!(said.code, 2, "{}", said.out);
    assert!(said.err.contains("POINTSMAN_ADMIN_KEY"), "{}", said.err);
    assert_eq!(host.policy(&["status", "--admin-key", "guess"]).code, 2);
    assert_eq!(host.policy(&["status", "--admin-key", "root"]).code, 0);
    assert_eq!(host.policy_with(&["status"], Some("root")).code, 0);
}

#[test]
fn a_server_that_is_not_there_is_said() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .args(["policy", "status", "--server", &url])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot be reached"), "{said}");
}
