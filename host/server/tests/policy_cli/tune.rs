//! `policy tune`: a server takes what it writes, and Ctrl-C ends it.

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use pointsman_testkit::component::component_path;
use rustix::process::{Pid, Signal, kill_process};

use super::place::Place;
use super::said::Said;

/// Settings by which it does not matter what an executor holds of a prompt.
const BAD: &str = "[settings]\nprefill-scale = 0\n";

const TUNE: [&str; 12] = [
    "tune",
    "policies.d/kv-cost.wasm",
    "--workload",
    "poisson:rate=4,requests=60,prompt=9000,prompt-max=32000,output=20,prefixes=8,prefix-tokens=8000",
    "--objective",
    "hit-rate; goodput >= 90%",
    "--executors",
    "4",
    "--budget",
    "16",
    "--trials",
    "trials.jsonl",
];

fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.path("policies.d")).unwrap();
    fs::copy(
        component_path("kv-cost"),
        place.path("policies.d/kv-cost.wasm"),
    )
    .unwrap();
    place.write("policies.d/kv-cost.toml", BAD);
    place
}

/// Waits for a file to have so many lines.
fn await_trials(place: &Place, child: &mut Child, count: usize) {
    let path = place.path("trials.jsonl");
    while fs::read_to_string(&path).map_or(0, |text| text.lines().count()) < count {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn what_is_tuned_is_taken_and_ctrl_c_only_delays_it() {
    let whole = place();
    whole.policy(TUNE).says(
        0,
        &[
            "kv-cost, tuned: hit-rate; goodput >= 90%\n",
            "command: ",
            "written: policies.d/kv-cost.toml\n",
        ],
    );
    whole
        .say("check policies.d/kv-cost.wasm --settings policies.d/kv-cost.toml")
        .says(
            0,
            &[
                "good: a server takes it\n",
                "prefill-scale: 0 to 100000; 1000 by default.",
            ],
        );
    let mut serve = whole.pointsman();
    let serve = serve.args(["serve", "--check", "--policies", "policies.d"]);
    let taken = Said::of(serve);
    assert!(taken.ended(0).contains("kv-cost"), "{}", taken.out);

    let stopped = place();
    let mut command = stopped.command();
    command
        .args(TUNE)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    await_trials(&stopped, &mut child, 4);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let said = child.wait_with_output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.starts_with("stopped. The best so far:\n"), "{text}");
    assert_eq!(stopped.text("policies.d/kv-cost.toml"), BAD);
    assert!(stopped.text("trials.jsonl").len() < whole.text("trials.jsonl").len());
    stopped.policy(TUNE).ended(0);
    for file in ["policies.d/kv-cost.toml", "trials.jsonl"] {
        assert_eq!(stopped.text(file), whole.text(file), "{file}");
    }
}
