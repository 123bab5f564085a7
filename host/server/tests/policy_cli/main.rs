//! `pointsman policy` as its users have it: the binary, in a folder that is in no workspace.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests; a panic there is a failed test, and who skips one says so"
)]

mod across_languages;
mod languages;
mod place;
mod properties;
mod refused;
mod said;
mod scenario;
mod toolchain;
mod tune;

use std::fs;

use pointsman_core::Hook;

use place::{Place, can_build};
use said::Said;
use scenario::one_is_placed;

/// The names of every hook, and of the explanation.
fn hooks() -> Vec<&'static str> {
    let decisions = Hook::ALL.into_iter().map(Hook::as_str);
    decisions.chain(["explanation"]).collect()
}

fn every_hook() -> String {
    format!("new mine --hooks {}", hooks().join(","))
}

#[test]
fn a_new_policy_builds_is_good_passes_its_scenarios_and_is_measured() {
    if !can_build() {
        return;
    }
    let place = Place::new();
    place
        .say(&every_hook())
        .says(0, &["cd mine && pointsman policy build"]);
    let manifest = fs::read_to_string(place.path("mine/Cargo.toml")).unwrap();
    place.write(
        "mine/Cargo.toml",
        manifest
            .replace("# authors", "authors")
            .replace("# license", "license"),
    );

    place.say("build mine").says(0, &["mine/mine.wasm: "]);

    place.say("inspect mine/mine.wasm").says(
        0,
        &[
            "imports      pointsman:scheduling/log@0.1.0\n",
            "exports      pointsman:scheduling/admission@0.1.0\n",
            "pointsman:scheduling/explanation@0.1.0\n",
            "name         mine\n",
            "version      0.1.0\n",
            "authors      Your Name <you@example.com>\n",
            "licenses     Apache-2.0\n",
            "source       none\n",
        ],
    );

    place.say("check mine/mine.wasm").says(
        0,
        &[
            &format!("decides   {}\n", Hook::ALL.map(Hook::as_str).join(", ")),
            "name      mine 0.1.0\n",
            "settings  none\n",
            "reasons   the queue has room\n",
            "reads     priority: waiting\n",
            "routing: executors, loads, residencies, devices, models, waiting\n",
            "KiB of the 65,536 KiB it may have\n",
            "good: a server takes it\n",
        ],
    );
    settings_are_checked(&place);
    scenarios_are_run(&place);
    // In its folder a policy is built and put through all there is.
    let mut in_its_folder = place.command();
    let all = ["test", "--properties", "--runs", "1", "--events", "20"];
    Said::of(in_its_folder.current_dir(place.path("mine")).args(all)).says(
        0,
        &[
            "./mine.wasm: ",
            "bytes\nmine\n",
            "mine (component)\n",
            "10 passed, 3 skipped",
        ],
    );
    place
        .say("test mine/mine.wasm --properties --runs 2 --events 40")
        .says(0, &["mine (component)", "7 passed, 1 skipped"]);

    let bench = place.say("bench mine/mine.wasm --executors 1,100 --questions 20");
    bench.says(
        0,
        &[
            "memory-aware (default)",
            "aging (default)",
            "budget (default)",
            "explanation",
        ],
    );
    // A head, and each hook and the explanation with each size for both.
    assert_eq!(bench.out.lines().count(), 1 + 6 * 2 * 2, "{}", bench.out);
}

/// The beginning of a `rank` that calls what no policy should.
const PITFALLS: &str = "{
        let began = std::time::Instant::now();
        let known: std::collections::HashMap<u32, u32> = [(1, 2)].into();
        println!(\"{known:?} {began:?}\");
        std::thread::sleep(std::time::Duration::from_millis(1));
        if std::thread::spawn(|| 3).join().is_err() {
            eprintln!(\"no thread\");
        }
";

#[test]
fn a_build_warns_of_what_will_panic_or_vanish() {
    if !can_build() {
        return;
    }
    let place = Place::new();
    place.say("new mine --hooks routing").ended(0);
    let clean = place.say("build mine");
    assert!(!clean.ended(0).contains("warning"), "{}", clean.out);
    let text = place.text("mine/src/routing.rs");
    let head = "-> (Seat, Reverse<u32>) {\n";
    assert!(text.contains(head), "{text}");
    let wrong = text.replace(head, &head.replace("{\n", PITFALLS));
    place.write("mine/src/routing.rs", wrong);
    place.say("build mine").says(
        0,
        &[
            "warning: it reads a clock of `std::time`, which panics",
            "warning: it sleeps, which panics",
            "warning: it starts a thread, which fails",
            "warning: it has a hash map or set with random keys",
            "warning: what it prints vanishes: `pointsman_sdk::log`",
        ],
    );
}

fn settings_are_checked(place: &Place) {
    place.write("good.toml", "[limits]\nmemory-bytes = 4_194_304\n");
    place
        .say("check mine/mine.wasm --settings good.toml")
        .says(0, &["KiB of the 4,096 KiB it may have"]);
    place.write("unknown.toml", "[settings]\nbonus = 3\n");
    place
        .say("check mine/mine.wasm --settings unknown.toml")
        .says(
            1,
            &[
                "does not start: settings refused: ",
                "bonus",
                "to fix it: change what `--settings` names",
            ],
        );
    place.write("broken.toml", "[settings]\nbonus = \n");
    place
        .say("check mine/mine.wasm --settings broken.toml")
        .says(2, &["broken.toml:2:9: "]);
}

fn scenarios_are_run(place: &Place) {
    place
        .say("test mine/mine.wasm mine/scenarios")
        .says(0, &["5 passed"]);

    let failing = fs::read_to_string(place.path("mine/scenarios/routing.toml")).unwrap();
    let failing = failing.replace("expect.waiting = [\"d\"]", "expect.waiting = []");
    place.write("failing.toml", &failing);
    place
        .say("test mine/mine.wasm mine/scenarios failing.toml")
        .says(1, &["5 passed, 1 failed", "waiting: expected [], got [d]"]);

    place
        .say("test mine/mine.wasm failing.toml --format junit")
        .says(1, &["<failure", "<testsuite"]);
    place
        .say("test mine/mine.wasm mine/scenarios --format json --output report.json")
        .says(0, &["5 passed"]);
    let report = fs::read_to_string(place.path("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report.is_object(), "{report}");

    place.write("malformed.toml", failing.replace("[[step]]", "[[stpe]]"));
    place
        .say("test mine/mine.wasm malformed.toml")
        .says(1, &["1 broken", "malformed.toml:14:3: ", "stpe"]);
    place.write("other.toml", one_is_placed("memory-aware"));
    place.say("test mine/mine.wasm other.toml").says(
        1,
        &["it is not about this policy: bind it with [policy.mine]"],
    );
}
