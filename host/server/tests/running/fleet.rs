//! `--fleet`: several executors of the demo model, between which a policy chooses.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::host::{Host, policy};

/// A stream that runs for as long as the test needs it.
const LONG: &str = r#"{"model": "demo", "prompt": "Once", "max_tokens": 1500, "ignore_eos": true, "stream": true}"#;

#[test]
fn a_fleet_gives_the_first_policy_something_to_choose() {
    let host = Host::start_as(&["--fleet", "4"], "");
    let (status, listed) = host.ask("GET", "/admin/executors", "");
    assert_eq!(status, 200);
    let executors = listed["executors"].as_array().unwrap().iter();
    let slots = executors.map(|it| (it["name"].as_str().unwrap(), it["slots_total"].as_u64()));
    let expected = ["cpu0/demo", "cpu1/demo", "cpu2/demo", "cpu3/demo"];
    let expected = expected.into_iter().zip([8, 4, 2, 1].map(Some));
    assert_eq!(slots.collect::<Vec<_>>(), expected.collect::<Vec<_>>());

    host.drop_in("first-policy.wasm", &policy("first-policy"));
    host.wait_for_policy("first-policy");
    // The first executor has more free slots than the second one until four requests run there.
    let running: Vec<_> = (0..6).map(|_| host.stream(LONG)).collect();
    let told = |header: &str| -> BTreeSet<String> {
        let heads = running.iter().map(|(head, _)| head);
        let values = heads.map(|head| {
            let mut lines = head.lines();
            let value = lines.find_map(|line| line.strip_prefix(header));
            value.unwrap_or_else(|| panic!("{head}")).to_owned()
        });
        values.collect()
    };
    let policies = told("x-pointsman-policy: ");
    assert_eq!(policies, BTreeSet::from(["first-policy".to_owned()]));
    let executors = told("x-pointsman-executor: ");
    let chosen = ["cpu0/demo", "cpu1/demo"].map(str::to_owned);
    assert_eq!(executors, BTreeSet::from(chosen));
}

#[test]
fn a_fleet_of_one_or_of_other_models_is_refused() {
    for (arguments, why) in [
        (&["--fleet", "1"][..], "1 is not in 2..=8"),
        (
            &["--fleet", "4", "--model", "chat=x"],
            "cannot be used with",
        ),
        (
            &["--fleet", "4", "--backend", "http://gpu"],
            "cannot be used with",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
        let said = command.arg("serve").args(arguments).output().unwrap();
        let text = String::from_utf8(said.stderr).unwrap();
        assert!(!said.status.success() && text.contains(why), "{text}");
    }
}

#[test]
fn a_fleet_stands_in_the_place_of_what_the_file_has() {
    let file =
        "[[models]]\nname = 'mine'\npath = '/nowhere'\n[[devices]]\nname = 'cpu1'\nthreads = 1\n";
    let host = Host::start_as(&["--fleet", "2"], file);
    let (_, listed) = host.ask("GET", "/admin/executors", "");
    let models = listed["executors"].as_array().unwrap().iter();
    let models: Vec<&Value> = models.map(|it| &it["models"][0]).collect();
    assert_eq!(models, ["demo", "demo"]);
}
