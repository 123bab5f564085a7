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
    host.wait_until(shadow);
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

/// The line of a listing that begins with these words.
fn line<'a>(listing: &'a str, words: &str) -> &'a str {
    let mut lines = listing.lines();
    let found = lines.find(|line| line.trim_start().starts_with(words));
    found.unwrap_or_else(|| panic!("{words}: {listing}"))
}

#[test]
fn an_ejection_is_seen_and_a_file_that_holds_nothing_says_why() {
    let host = Host::start("");
    let said = host.policy(&["status"]);
    assert!(
        line(&said.out, "routing").ends_with("default"),
        "{}",
        said.out
    );
    let said = host.policy(&["eject"]);
    assert!(
        line(&said.out, "routing").contains("EJECTED by order"),
        "{}",
        said.out
    );
    host.drop_in("mine.wasm", &policy("first-policy"));
    host.wait_for_policy("mine");
    let status = host.status();
    let mut transactions = status["transactions"].as_array().unwrap().iter();
    let idle = transactions.find(|it| it["policy"] == "mine").unwrap();
    assert_eq!(idle["outcome"], "idle");
    let why = "routing was ejected by order, and is the embedded default's until it is bound again";
    assert_eq!(idle["why"], why);
    let said = host.policy(&["status"]);
    assert!(
        line(&said.out, "routing").contains("EJECTED by order"),
        "{}",
        said.out
    );
    assert_eq!(line(&said.out, "mine: "), format!("  mine: {why}"));
    let said = host.policy(&["bind", "routing"]);
    assert!(
        line(&said.out, "routing").ends_with("its file"),
        "{}",
        said.out
    );
    let said = host.policy(&["bind", "priority", "aging"]);
    assert!(
        line(&said.out, "priority").contains("  order"),
        "{}",
        said.out
    );
}

#[test]
fn a_probation_is_seen_with_its_count() {
    let host = Host::start("");
    host.drop_in("mine.wasm", &policy("first-policy"));
    host.wait_for_policy("mine");
    host.complete("Hello");
    let said = host.policy(&["status"]);
    let mine = line(&said.out, "mine");
    assert!(mine.contains("enforce, on probation ("), "{}", said.out);
    assert!(mine.contains(" of 1,000 questions, "), "{}", said.out);
    let budget = line(&said.out, "budget");
    assert!(!budget.contains("probation"), "{}", said.out);
    // What is rolled back is released by its name.
    let said = host.policy(&["rollback", "mine"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    let said = host.policy(&["release", "mine"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert_eq!(host.status()["quarantine"], serde_json::json!([]));
}

/// The policy that placed the request of this answer.
fn placed_by(answer: &str) -> &str {
    let line = line(answer, "x-pointsman-policy: ");
    line.trim_start_matches("x-pointsman-policy: ").trim()
}

#[test]
fn a_canary_that_tries_nobody_says_so_and_divides_by_sessions_or_requests() {
    let host = Host::start("");
    host.drop_in("new.toml", b"mode = 'canary 10%'\n");
    host.drop_in("new.wasm", &policy("first-policy"));
    host.wait_for_policy("new");
    host.wait_until(|status| {
        let mut policies = status["policies"].as_array().unwrap().iter();
        !policies.any(|it| it["name"] == "new" && it["running"].is_null())
    });
    for _ in 0..3 {
        assert_eq!(placed_by(&host.complete("Hello")), "memory-aware");
    }
    // The tenant `default` is in a share from 22 percent on.
    let said = host.policy(&["status"]);
    let new = line(
        &said.out,
        "new: 10% of tenants, 0 of 3 requests asked about",
    );
    assert!(new.contains("it tries nobody so far"), "{}", said.out);

    let said = host.policy(&["mode", "new", "canary", "50%", "of", "requests"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    let by: Vec<String> = (0..24)
        .map(|_| placed_by(&host.complete("Hello")).to_owned())
        .collect();
    let tried = by.iter().filter(|by| *by == "new").count();
    assert!((6..=18).contains(&tried), "{by:?}");
    let said = host.policy(&["status"]);
    assert!(line(&said.out, "new: 50% of requests").contains(" requests asked about"));

    let said = host.policy(&["mode", "new", "canary 50% of sessions"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    let mut tried = 0;
    for session in 0..16 {
        let session = format!("x-pointsman-session: s{session}\r\n");
        let by = [(); 3].map(|()| {
            let answer = host.complete_with("Hello", &session);
            placed_by(&answer).to_owned()
        });
        assert!(by.iter().all(|other| *other == by[0]), "{by:?}");
        tried += u32::from(by[0] == "new");
    }
    assert!((4..=12).contains(&tried), "{tried}");
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
