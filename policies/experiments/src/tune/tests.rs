//! `pointsman policy tune` with real components, on small workloads.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use clap::Parser;
use pointsman_testkit::component::component_path;

use super::*;
use crate::Verdict;

/// The command line of a test.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// A folder with `kv-cost.wasm` and bad settings.
struct Place {
    folder: tempfile::TempDir,
}

/// Settings by which it does not matter what an executor holds of a prompt.
const BAD: &str = "mode = \"shadow\"\n[settings]\nprefill-scale = 0\nseed = 1\n";

/// Requests most of whose prompts begin as others do.
const LOAD: &str = "poisson:rate=4,requests=60,prompt=9000,prompt-max=32000,output=20,prefixes=8,prefix-tokens=8000";

const OBJECTIVE: &str = "hit-rate; goodput >= 90%";

/// A trace of 90 requests with so many beginnings.
fn requests(beginnings: u32) -> String {
    let line = |at: u32| {
        let block = at % beginnings;
        format!(
            "{{\"timestamp\":{},\"input_length\":1024,\"output_length\":20,\"hash_ids\":[{block},{}]}}\n",
            at * 150,
            at + 100
        )
    };
    (0..90).map(line).collect()
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self { folder };
        fs::copy(component_path("kv-cost"), place.path("kv-cost.wasm")).unwrap();
        place.write("kv-cost.toml", BAD);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn tune(&self, objective: &str, more: &[&str]) -> Result<Done> {
        let file = self.path("kv-cost.wasm");
        let file = file.to_str().unwrap();
        let mut line = vec![
            "tune",
            file,
            "--executors",
            "4",
            "--budget",
            "12",
            "--built-in",
        ];
        line.extend(["--objective", objective]);
        line.extend(more);
        let mut line = Line::try_parse_from(line)?;
        line.args.command = more.iter().map(|word| (*word).to_owned()).collect();
        run(&line.args, &[])
    }

    fn tuned(&self, more: &[&str]) -> Done {
        let more: Vec<&str> = ["--workload", LOAD].iter().chain(more).copied().collect();
        self.tune(OBJECTIVE, &more).unwrap()
    }
}

#[test]
fn bad_settings_get_better_and_what_was_held_out_confirms_it() {
    let place = Place::new();
    let done = place.tuned(&[]);
    assert_eq!(done.verdict, Verdict::Good, "{}", done.text);
    let text = place.text("kv-cost.toml");
    let read = pointsman_sidecar::parse(
        Path::new("kv-cost.toml"),
        text.clone().into_bytes(),
        &pointsman_component::Limits::default(),
    );
    let settings = read.unwrap().settings.unwrap();
    assert_ne!(settings["prefill-scale"], 0, "{text}");
    assert_eq!(settings["seed"], 1, "{text}");
    for part in [
        "mode = \"shadow\"\n",
        "#| kv-cost, tuned: hit-rate; goodput >= 90%\n#| policy sha256 ",
        "#| seed 0, budget 12\n#| command: --workload poisson:",
        "searched: poisson:",
        ", seed 0  before",
        "held out: poisson:",
        ", seed 1  before",
        " # before: 0\n",
    ] {
        assert!(text.contains(part), "{part:?} not in\n{text}");
    }
    let written = fs::metadata(place.path("kv-cost.toml")).unwrap();
    let mode = written.permissions().mode() & 0o777;
    assert_eq!(mode, 0o644, "a server of another user reads it");
    // The second time there is little left to gain, and the evidence of the first is replaced.
    place.tuned(&["--unconfirmed"]);
    let again = place.text("kv-cost.toml");
    assert_eq!(again.matches("[settings]").count(), 1, "{again}");
    assert_eq!(again.matches("policy sha256").count(), 1, "{again}");
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let all = ["1", "4"].map(|threads| {
        let place = Place::new();
        place.tuned(&[
            "--trials",
            place.path("t").to_str().unwrap(),
            "--threads",
            threads,
        ]);
        let sidecar = place.text("kv-cost.toml");
        // The folder is another one each time.
        let sidecar = sidecar.replace(place.folder.path().to_str().unwrap(), "");
        (sidecar, place.text("t"))
    });
    assert_eq!(all[0], all[1]);
    let other = Place::new();
    other.tuned(&["--trials", other.path("t").to_str().unwrap(), "--seed", "9"]);
    assert_ne!(other.text("t"), all[0].1);
}

#[test]
fn a_search_goes_on_where_it_was_interrupted() {
    let place = Place::new();
    let trials = place.path("t");
    let more = ["--trials", trials.to_str().unwrap()];
    place.tuned(&more);
    let (sidecar, kept) = (place.text("kv-cost.toml"), place.text("t"));
    let lines: Vec<&str> = kept.lines().collect();
    assert!(lines.len() > 10, "{kept}");
    for left in [1, 2, lines.len() / 2] {
        place.write("kv-cost.toml", BAD);
        place.write("t", &format!("{}\n", lines[..left].join("\n")));
        place.tuned(&more);
        assert_eq!(place.text("kv-cost.toml"), sidecar);
        assert_eq!(place.text("t"), kept);
    }
    // What is kept is used: numbers that cannot be lead elsewhere.
    place.write("kv-cost.toml", BAD);
    let last = lines[..6]
        .join("\n")
        .replace("\"numbers\":[[", "\"numbers\":[[-9");
    let forged = format!(
        "{}\n{}\n",
        lines[..2].join("\n"),
        last.lines().skip(2).collect::<Vec<_>>().join("\n")
    );
    place.write("t", &forged);
    place.tuned(&[more[0], more[1], "--unconfirmed"]);
    assert_ne!(place.text("kv-cost.toml"), sidecar);
}

#[test]
fn trials_of_another_search_are_refused() {
    let place = Place::new();
    let trials = place.path("t");
    let trials = trials.to_str().unwrap();
    place.tuned(&["--trials", trials]);
    place.write("kv-cost.toml", BAD);
    let said = |more: &[&str]| {
        let error = place.tune(OBJECTIVE, more).unwrap_err();
        format!("{error:#}")
    };
    for (flag, value, differs) in [
        ("--seed", "3", "seed is 0 and not 3"),
        ("--profile", "smg", "--profile is null and not \"smg\""),
        ("--wait-max", "5s", "--wait-max is null and not \"5s\""),
    ] {
        let said = said(&["--workload", LOAD, "--trials", trials, flag, value]);
        let expected = format!("another search, whose {differs}: ");
        assert!(said.contains(&expected), "{said}");
    }
    let limited = format!("{BAD}[limits]\ncall-fuel = 19000000\n");
    place.write("kv-cost.toml", &limited);
    let limits = said(&["--workload", LOAD, "--trials", trials]);
    let expected = "whose limits.call-fuel is 20000000 and not 19000000";
    assert!(limits.contains(expected), "{limits}");
}

#[test]
fn trials_of_a_trace_that_has_changed_are_refused() {
    let place = Place::new();
    let (trace, trials) = (place.path("trace.jsonl"), place.path("t"));
    let more = [
        "--workload",
        trace.to_str().unwrap(),
        "--trials",
        trials.to_str().unwrap(),
    ];
    // All are served, before and after.
    place.write("trace.jsonl", &requests(5));
    place.tune("served", &more).unwrap();
    place.write("kv-cost.toml", BAD);
    place.write("trace.jsonl", &requests(45));
    let error = place.tune("served", &more).unwrap_err();
    let said = format!("{error:#}");
    assert!(
        said.contains("other numbers for the settings before"),
        "{said}"
    );
}

#[test]
fn a_path_that_is_no_text_is_in_the_way_of_trials_alone() {
    let place = Place::new();
    let fleet = place.folder.path().join(OsStr::from_bytes(b"fleet-\xff"));
    fs::write(&fleet, "[[executors]]\n").unwrap();
    let words = [
        "tune",
        "--built-in",
        "--budget=4",
        "--objective=ttft",
        "--workload",
        LOAD,
        "--fleet",
    ];
    let words = words.into_iter().map(OsString::from);
    let words = words.chain([fleet.into(), place.path("kv-cost.wasm").into()]);
    let mut line = Line::try_parse_from(words).unwrap();
    run(&line.args, &[]).unwrap();
    line.args.trials = Some(place.path("t"));
    let error = format!("{:#}", run(&line.args, &[]).unwrap_err());
    assert!(error.contains("UTF-8"), "{error}");
}

#[test]
fn what_is_not_confirmed_is_not_written_without_a_flag() {
    let place = Place::new();
    // One request at a time, and nothing that two of them share: no choice matters.
    let idle = [
        "--workload",
        LOAD,
        "--held-out",
        "poisson:rate=0.05,requests=20,prompt=500",
    ];
    let done = place.tune(OBJECTIVE, &idle).unwrap();
    assert_eq!(done.verdict, Verdict::NotGood);
    assert!(
        done.text
            .contains("NOT CONFIRMED: held out gains nothing\n"),
        "{}",
        done.text
    );
    assert_eq!(place.text("kv-cost.toml"), BAD);
    let all_the_same: Vec<&str> = idle.iter().copied().chain(["--unconfirmed"]).collect();
    let done = place.tune(OBJECTIVE, &all_the_same).unwrap();
    assert_eq!(done.verdict, Verdict::Good);
    let text = place.text("kv-cost.toml");
    assert!(
        text.contains("#| NOT CONFIRMED: held out gains nothing\n"),
        "{text}"
    );
    // A bound that nothing keeps.
    let bound = "mean ttft; goodput >= 100%; p99 ttft <= 1ms";
    let done = place.tune(bound, &["--workload", LOAD]).unwrap();
    assert!(
        done.text
            .contains("NOT CONFIRMED: searched breaks a bound\n"),
        "{}",
        done.text
    );
}

#[test]
fn several_workloads_are_searched_and_a_trace_is_parted_by_time() {
    let place = Place::new();
    let trace = requests(5);
    place.write("trace.jsonl", &trace);
    place.write("one.jsonl", trace.lines().next().unwrap());
    let trace = place.path("trace.jsonl");
    let both = [
        "--workload",
        trace.to_str().unwrap(),
        "--workload",
        LOAD,
        "--only",
        "prefill-scale",
    ];
    let done = place.tune(OBJECTIVE, &both).unwrap();
    for part in [
        "trace.jsonl, first two thirds ",
        "trace.jsonl, last third ",
        ", seed 0",
        ", seed 1",
    ] {
        assert!(done.text.contains(part), "{part:?} not in\n{}", done.text);
    }
    let text = place.text("kv-cost.toml");
    assert!(
        !text.contains("device-credit"),
        "it was not to be searched: {text}"
    );
    let one = place.path("one.jsonl");
    let error = place
        .tune(OBJECTIVE, &["--workload", one.to_str().unwrap()])
        .unwrap_err();
    assert!(error.to_string().contains("too few requests"), "{error:#}");
}

#[test]
fn what_is_of_no_use_is_refused_before_anything_runs() {
    let place = Place::new();
    let said = |objective: &str, more: &[&str]| {
        let more: Vec<&str> = ["--workload", LOAD].iter().chain(more).copied().collect();
        format!("{:#}", place.tune(objective, &more).unwrap_err())
    };
    assert_eq!(
        said("p95 tfft", &[]),
        "--objective: character 5: there is no number `tfft`; did you mean `ttft`?"
    );
    assert_eq!(
        said("ttft", &["--only", "prefil-scale"]),
        "--only prefil-scale: the policy has no such setting; did you mean `prefill-scale`?"
    );
    assert_eq!(
        said("ttft", &["--only", "seed"]),
        "--only seed: it has no range that could be searched, but is a whole number"
    );
    let nowhere = said("ttft", &["--output", "/nowhere/x.toml"]);
    assert!(
        nowhere.starts_with("--output /nowhere/x.toml cannot be written"),
        "{nowhere}"
    );
    let folder = said("ttft", &["--trials", place.folder.path().to_str().unwrap()]);
    assert!(
        folder.ends_with("cannot be written: is a directory"),
        "{folder}"
    );
    place.write("kv-cost.toml", "[settings]\nprefill-scale = 100001\n");
    let range = said("ttft", &[]);
    assert!(
        range.contains("`prefill-scale`: 100001 is not between 0 and 100000"),
        "{range}"
    );
}

#[test]
fn a_sidecar_whose_settings_cannot_be_replaced_is_refused_before_any_trial() {
    let place = Place::new();
    let trials = place.path("t");
    for settings in [
        "settings = { prefill-scale = 0 }\n",
        "settings.prefill-scale = 0\n",
    ] {
        place.write("kv-cost.toml", settings);
        let more = ["--workload", LOAD, "--trials", trials.to_str().unwrap()];
        let error = place.tune(OBJECTIVE, &more).unwrap_err();
        let said = format!("{error:#}");
        assert!(
            said.contains("kv-cost.toml: its settings are not in a table [settings]"),
            "{said}"
        );
        assert!(!trials.exists(), "{settings}");
    }
}

#[test]
fn settings_that_could_not_be_written_in_the_end_are_told() {
    let place = Place::new();
    let both = place.path("t");
    let both = both.to_str().unwrap();
    // By then it is a file of trials, which has no settings to replace.
    let done = place.tuned(&["--trials", both, "--output", both, "--unconfirmed"]);
    assert_eq!(done.verdict, Verdict::NotGood);
    for part in [
        "kv-cost, tuned: hit-rate; goodput >= 90%\n",
        "prefill-scale: 0 before, ",
        "no file is written: ",
    ] {
        assert!(done.text.contains(part), "{part:?} not in\n{}", done.text);
    }
    assert!(place.text("t").starts_with('{'));
}

#[test]
fn a_policy_without_a_setting_to_search_is_told() {
    let place = Place::new();
    fs::copy(component_path("round-robin"), place.path("kv-cost.wasm")).unwrap();
    place.write("kv-cost.toml", "");
    let error = place.tune("ttft", &["--workload", LOAD]).unwrap_err();
    assert!(
        error.to_string().contains("there is nothing to search"),
        "{error:#}"
    );
}
