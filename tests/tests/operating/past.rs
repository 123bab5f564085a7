//! Journals simulated: one that a simulation made, so that all of it is known, and one of a real server
//! under load.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Parser;
use pointsman_config::JournalPlace;
use pointsman_core::Round;
use pointsman_core::rows::RequestClass;
use pointsman_journal::{
    Blob, Folder, JournalReader, JournalSettings, JournalWriter, Keyframe, Roster, RunInfo,
};
use pointsman_policy_cli::PolicyCommand;
use pointsman_server::journal::run_info;
use pointsman_sim::fleet::{ExecutorPlan, FleetPlan, KvKeeper};
use pointsman_sim::latency::{LatencyProfile, LinearCost};
use pointsman_sim::measure::RunReport;
use pointsman_sim::workload::{Arrival, Listed, PromptText, Roll};
use pointsman_sim::{Micros, Plan};
use pointsman_testkit::component::component_path;
use pointsman_tests::client::streamed_chat;
use pointsman_tests::journal::record_simulation;
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::Serving;
use pointsman_tests::simulated;
use serde_json::Value;
use tempfile::TempDir;

fn said(journal: &Path, flags: &str) -> Result<String> {
    let journal = journal.display().to_string();
    let words = [journal.as_str()].into_iter();
    simulated::said(words.chain(flags.split_whitespace()), &[])
}

/// The command line of a test of `pointsman policy`.
#[derive(Debug, Parser)]
struct PolicyLine {
    #[command(subcommand)]
    command: PolicyCommand,
}

/// Tunes a policy on a journal, without embedded policies.
fn tuned(journal: &Path, output: &Path, flags: &str) -> Result<String> {
    let policy = component_path("kv-cost").display().to_string();
    let (journal, output) = (journal.display().to_string(), output.display().to_string());
    let words = ["policy", "tune", &policy, "--workload", &journal];
    let words = words.into_iter().chain(["--output", &output]);
    let line = words.chain(flags.split_whitespace());
    let line = PolicyLine::try_parse_from(line.chain(["--objective", "mean ttft"]))?;
    Ok(pointsman_policy_cli::run(&line.command, || Ok(&[]))?.text)
}

fn json(journal: &Path, flags: &str) -> Value {
    let journal = journal.display().to_string();
    let words = [journal.as_str()].into_iter();
    simulated::json(words.chain(flags.split_whitespace()), &[]).unwrap()
}

fn refused(journal: &Path, flags: &str) -> String {
    format!("{:#}", said(journal, flags).unwrap_err())
}

// === A journal of which all is known ===

const FAST: LinearCost = LinearCost {
    step_ms: 3.0,
    prefill_token_ms: 0.05,
    prefill_pair_ms: 0.0,
    decode_ms: 0.4,
    decode_context_ms: 0.0,
};
const SLOW: LinearCost = LinearCost {
    step_ms: 5.0,
    prefill_token_ms: 0.12,
    prefill_pair_ms: 0.0,
    decode_ms: 0.6,
    decode_context_ms: 0.0,
};

/// A fleet of one fast executor and one slow one.
fn fleet(kv: KvKeeper) -> FleetPlan {
    let executor = |name: &str, cost: LinearCost| ExecutorPlan {
        name: name.to_owned(),
        profile: LatencyProfile::Linear(cost),
        kv,
        blocks_total: 4096,
        tokens_per_block: 16,
        sequences_max: 8,
        step_tokens: 1024,
        ..ExecutorPlan::named("polynomial").unwrap()
    };
    FleetPlan {
        executors: vec![executor("fast", FAST), executor("slow", SLOW)],
    }
}

/// Requests of two tenants, many of which begin alike; every tenth is of a session, and throughput. Neither tenant is
/// beyond its share, where whether a slot is kept free would hang on the last token.
fn workload() -> Listed {
    let arrival = |n: u64| {
        let (tokens, output) = (200 + n * 37 % 900, 8 + n * 11 % 50);
        let pieces = (0..tokens / 64).map(|at| {
            if at < 4 {
                (n % 5) << 8 | at
            } else {
                n << 8 | at
            }
        });
        let tokens = u32::try_from(tokens).unwrap();
        let prompt = PromptText::of_pieces(tokens, 64, pieces.map(|name| name + 1));
        let is_tenth = n.is_multiple_of(10);
        Arrival {
            tenant: u32::from(n % 20 < 9),
            session: is_tenth.then_some(n % 4),
            class: if is_tenth {
                RequestClass::Throughput
            } else {
                RequestClass::LatencyCritical
            },
            ..Arrival::new(Micros(n * 30_000), prompt, u32::try_from(output).unwrap())
        }
    };
    Listed::new(
        Roll::of_tenants(["a", "b"]),
        (0..300).map(arrival).collect(),
    )
}

/// Records a simulation, and returns the journal's folder and the run's report.
fn recorded(kv: KvKeeper) -> (TempDir, RunReport) {
    let folder = tempfile::tempdir().unwrap();
    let report = record_simulation(folder.path(), Plan::new(fleet(kv), workload())).unwrap();
    (folder, report)
}

fn assert_speed(speed: &Value, made: LinearCost, within: f64) {
    for (key, made) in [
        ("step_ms", made.step_ms),
        ("prefill_token_ms", made.prefill_token_ms),
        ("decode_ms", made.decode_ms),
    ] {
        let fitted = speed[key].as_f64().unwrap();
        assert!(
            (fitted / made - 1.0).abs() < within,
            "{key} of {made}: {speed:#}"
        );
    }
}

/// Checks that the journal tells the run's own report, as far as it can.
fn assert_recorded(recorded: &Value, run: &RunReport) {
    // Through text, as the other came.
    let run: Value = serde_json::from_str(&serde_json::to_string(run).unwrap()).unwrap();
    let told = [
        "requests",
        "finished",
        "hit_rate",
        "goodput",
        "prompt_tokens",
        "jain",
    ];
    for key in told
        .into_iter()
        .chain(["ttft_ms", "wait_ms", "whole_ms", "tpot_ms"])
    {
        assert_eq!(recorded[key], run[key], "{key}");
    }
    assert_eq!(recorded["tenants"], run["tenants"]);
}

#[test]
fn a_journal_of_engines_tells_their_speed_and_comes_out_again() {
    let (folder, run) = recorded(KvKeeper::Host);
    let json = json(folder.path(), "");
    let journal = &json["journal"];
    assert_recorded(&journal["recorded"], &run);
    assert_speed(&journal["speeds"][0], FAST, 0.02);
    assert_speed(&journal["speeds"][1], SLOW, 0.02);
    assert_eq!(journal["notes"], serde_json::json!([]));
    let simulated = &journal["simulated"];
    for key in ["requests", "finished", "prompt_tokens"] {
        assert_eq!(simulated[key], journal["recorded"][key], "{key}");
    }
    for (key, at) in [
        ("ttft_ms", 0),
        ("ttft_ms", 2),
        ("wait_ms", 0),
        ("whole_ms", 1),
    ] {
        let off = journal["differences"][key][at]["share"].as_f64().unwrap();
        assert!(off.abs() < 0.03, "{key}: {:#}", journal["differences"]);
    }
}

#[test]
fn a_journal_of_servers_tells_their_speed_from_reports_of_many_steps() {
    let (folder, run) = recorded(KvKeeper::Server);
    let json = json(folder.path(), "");
    let journal = &json["journal"];
    assert_recorded(&journal["recorded"], &run);
    assert_speed(&journal["speeds"][0], FAST, 0.02);
    assert_speed(&journal["speeds"][1], SLOW, 0.02);
    // A request that goes to the other executor has another wait, which hangs on microseconds.
    for (key, within) in [("ttft_ms", 0.1), ("whole_ms", 0.03)] {
        let off = journal["differences"][key][0]["share"].as_f64();
        assert!(
            off.unwrap().abs() < within,
            "{key}: {:#}",
            journal["differences"]
        );
    }
}

#[test]
fn other_policies_are_simulated_beside_the_recorded_ones_and_the_output_is_the_same_each_time() {
    let (folder, _) = recorded(KvKeeper::Host);
    let policy = |name| component_path(name).display().to_string();
    let flags = format!(
        "--policy {} --compare {}",
        policy("round-robin"),
        policy("least-loaded")
    );
    let text = said(folder.path(), &flags).unwrap();
    assert_eq!(text, said(folder.path(), &flags).unwrap());
    let lines: Vec<&str> = text.lines().collect();
    let table = lines
        .iter()
        .position(|line| line.starts_with("policies"))
        .unwrap();
    let labels = lines[table + 1..]
        .iter()
        .filter_map(|line| line.split_whitespace().next());
    let labels: Vec<&str> = labels.take_while(|label| !label.ends_with(':')).collect();
    assert_eq!(
        labels,
        ["recorded", "simulated", "round-robin", "least-loaded"],
        "{text}"
    );
    for line in [
        "fast: 3.00 ms a step, ",
        "slow: 5.00 ms a step, ",
        "TTFT p95",
        "wait p95",
    ] {
        assert!(
            lines.iter().any(|it| it.starts_with(line)),
            "{line}: {text}"
        );
    }
    // Twice the load is not what happened, which is simulated apart.
    let faster = json(folder.path(), "--speed-up 2");
    let journal = &faster["journal"];
    let off = journal["differences"]["ttft_ms"][0]["share"].as_f64();
    assert!(off.unwrap().abs() < 0.03, "{journal:#}");
    let twice = &faster["contenders"][0]["runs"][0]["report"]["ttft_ms"]["mean"];
    assert!(
        twice.as_f64().unwrap() > 2.0 * journal["recorded"]["ttft_ms"]["mean"].as_f64().unwrap()
    );
}

#[test]
fn a_request_goes_only_where_the_journal_says_that_it_may() {
    let asked = |n: u64| Arrival {
        allowed: Some(vec![1]),
        ..Arrival::new(Micros(n * 60_000), PromptText::unlike_others(200), 10)
    };
    let asked = Listed::new(Roll::single(), (0..60).map(asked).collect());
    let folder = tempfile::tempdir().unwrap();
    record_simulation(folder.path(), Plan::new(fleet(KvKeeper::Host), asked)).unwrap();
    let flags = format!("--policy {}", component_path("round-robin").display());
    let json = json(folder.path(), &flags);
    for contender in [0_usize, 1] {
        let report = &json["contenders"][contender]["runs"][0]["report"];
        let requests = |executor: usize| report["executors"][executor]["requests"].as_u64();
        assert_eq!([requests(0), requests(1)], [Some(0), Some(60)]);
    }
}

#[test]
fn a_policy_is_tuned_on_a_journal() {
    let (folder, _) = recorded(KvKeeper::Host);
    write_unreadable_run(folder.path(), "0.0.1", 1);
    let beside = tempfile::tempdir().unwrap();
    let output = beside.path().join("kv-cost.toml");
    let text = tuned(folder.path(), &output, "--budget 6 --unconfirmed").unwrap();
    let shown = folder.path().display();
    for part in ["searched: {}, first two thirds", "held out: {}, last third"] {
        let line = part.replace("{}", &shown.to_string());
        assert!(text.contains(&line), "{line} not in\n{text}");
    }
    let note = format!("note: {shown}: 1 runs by Pointsman 0.0.1 are passed over");
    assert!(text.contains(&note), "{note} not in\n{text}");
    let fleet = tuned(folder.path(), &output, "--executors 3").unwrap_err();
    let said = format!("{fleet:#}");
    assert!(
        said.contains("the executors of a journal are those that it has"),
        "{said}"
    );
}

// === Journals that lack something ===

/// Writes a run into a journal whose one keyframe has a machine that cannot be read.
fn write_unreadable_run(folder: &Path, version: &str, started_unix_ms: u64) {
    let info = RunInfo {
        pointsman: version.to_owned(),
        started_unix_ms,
        ..run_info()
    };
    let folder = Folder::open(folder).unwrap();
    let mut writer = JournalWriter::start(folder, info, JournalSettings::default()).unwrap();
    writer.write_keyframe(Keyframe {
        now: Micros(0),
        round: Round(0),
        machine: Blob::default(),
        roster: Roster::default(),
    });
}

#[test]
fn runs_that_cannot_be_read_are_passed_over_and_fail_alone() {
    let folder = tempfile::tempdir().unwrap();
    let ours = run_info().pointsman;
    for (version, started_unix_ms) in [("0.0.1", 1), ("0.0.1", 2), (ours.as_str(), 3)] {
        write_unreadable_run(folder.path(), version, started_unix_ms);
    }
    let why = refused(folder.path(), "");
    let written = "0000000001.pmj was written by Pointsman 0.0.1: ";
    assert!(why.contains(written), "{why}");
    let why = refused(&folder.path().join("0000000003.pmj"), "");
    let unread = "the machine of the keyframe cannot be read";
    assert!(why.contains(unread), "{why}");
    let mut newer = fs::read(file_of(folder.path())).unwrap();
    newer[8] = 9;
    fs::write(folder.path().join("0000000004.pmj"), newer).unwrap();
    record_simulation(folder.path(), Plan::new(fleet(KvKeeper::Host), workload())).unwrap();
    let text = said(folder.path(), "").unwrap();
    for note in [
        "note: 2 runs by Pointsman 0.0.1 are passed over",
        "note: 1 runs have a keyframe that cannot be read",
        "note: 1 files of the journal have a format that this version does not read",
    ] {
        assert!(text.contains(note), "{note} not in\n{text}");
    }
}

/// The one file of a journal.
fn file_of(folder: &Path) -> PathBuf {
    folder.join("0000000001.pmj")
}

/// The offset of the entry before which two thirds of all are.
fn two_thirds(path: &Path) -> usize {
    let offsets = JournalReader::open(path)
        .unwrap()
        .map(|it| it.unwrap().offset);
    let offsets: Vec<u64> = offsets.collect();
    usize::try_from(offsets[offsets.len() * 2 / 3]).unwrap()
}

#[test]
fn a_journal_that_lacks_what_is_needed_is_refused_with_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(folder.path(), "").ends_with("no journal in it"));
    let few = Listed::new(
        Roll::single(),
        vec![Arrival::new(Micros(0), PromptText::unlike_others(64), 3)],
    );
    record_simulation(folder.path(), Plan::new(fleet(KvKeeper::Host), few)).unwrap();
    let why = refused(folder.path(), "");
    assert!(why.contains("it has 3 reports of steps, too few"), "{why}");

    let (folder, _) = recorded(KvKeeper::Host);
    let why = refused(folder.path(), "--executors 3");
    assert!(why.contains("the executors of a journal"), "{why}");
    let why = refused(folder.path(), "--max-tokens 100");
    assert!(why.contains("leave out --max-tokens"), "{why}");
    let bytes = fs::read(file_of(folder.path())).unwrap();
    let other = folder.path().join("other");
    let mut newer = bytes.clone();
    newer[8] = 9;
    fs::write(&other, newer).unwrap();
    let why = refused(&other, "");
    assert!(why.contains("format version 9"), "{why}");
    fs::write(&other, &bytes[..200]).unwrap();
    let why = refused(&other, "");
    assert!(why.contains("no keyframe"), "{why}");
}

#[test]
fn a_journal_that_is_cut_off_or_damaged_is_simulated_as_far_as_it_goes() {
    let (folder, _) = recorded(KvKeeper::Host);
    let path = file_of(folder.path());
    let bytes = fs::read(&path).unwrap();
    let other = folder.path().join("other");
    let at = two_thirds(&path);
    fs::write(&other, &bytes[..at + 5]).unwrap();
    let text = said(&other, "").unwrap();
    assert!(
        text.contains("had not ended when the journal did"),
        "{text}"
    );
    assert!(
        text.contains("note: 1 files of the journal end within an entry"),
        "{text}"
    );
    let mut damaged = bytes.clone();
    damaged[at..at + 8].fill(0xff);
    fs::write(&other, damaged).unwrap();
    let text = said(&other, "").unwrap();
    assert!(
        text.contains("note: 1 places of the journal are damaged"),
        "{text}"
    );
}

// === A real server ===

/// Serves some clients with a journal in `folder`, and returns how many requests were served.
async fn serve(folder: &Path) -> Result<usize> {
    const CLIENTS: usize = 6;
    let place = folder.to_owned();
    let serving =
        Serving::start(|config| config.journal.place = JournalPlace::Folder(place)).await?;
    let ask = |n: usize| {
        let mut body = streamed_chat(&"Tell me a story. ".repeat(n + 1));
        body["max_tokens"] = (12 + 4 * n).into();
        body
    };
    let served = LoadGenerator::start(serving.client, CLIENTS, ask)
        .served(120)
        .await?;
    serving.server.stop().await?;
    Ok(served)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_of_a_server_under_load_is_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(folder.path()).await.unwrap();
    let text = json(
        folder.path(),
        &format!("--policy {}", component_path("round-robin").display()),
    );
    let journal = &text["journal"];
    let (was, is) = (&journal["recorded"], &journal["simulated"]);
    for key in ["requests", "finished"] {
        assert_eq!(was[key], served, "{key}");
        assert_eq!(is[key], served, "{key}");
    }
    assert_eq!(was["prompt_tokens"], is["prompt_tokens"]);
    assert_eq!(was["tenants"][0]["tokens"], is["tenants"][0]["tokens"]);
    // All prompts of a client are alike, so what is cached does not depend on who was faster.
    let hit = |run: &Value| run["hit_rate"].as_f64().unwrap_or_default();
    assert!(
        (hit(was) - hit(is)).abs() < 0.1,
        "{} and {}",
        hit(was),
        hit(is)
    );
    // The machine that runs the tests is as slow as it likes, but not so for one half alone.
    let whole = |run: &Value| run["whole_ms"]["mean"].as_f64().unwrap_or_default();
    let ratio = whole(is) / whole(was);
    assert!(
        (0.1..10.0).contains(&ratio),
        "{ratio}: {:#}",
        journal["differences"]
    );
    let router = &text["contenders"][1];
    assert_eq!(router["policies"], "round-robin");
    assert_eq!(router["runs"][0]["report"]["finished"], served);
}
