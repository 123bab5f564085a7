//! Journals replayed: whole, from the middle, cut off, damaged, changed, and beside another policy.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and looks only for the entries it is about"
)]

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Result, ensure};
use pointsman_component::PolicyEngine;
use pointsman_config::JournalPlace;
use pointsman_core::{Author, Hook, Reply};
use pointsman_journal::{Blob, Entry, JournalReader, Located};
use pointsman_policy_cli::Verdict;
use pointsman_policy_cli::journal::{self, JournalCommand, ReplayArgs, ShowArgs};
use pointsman_replay::{ComponentCache, Difference, Replay, ReplayTally};
use pointsman_testkit::component::component_path;
use pointsman_tests::client::streamed_chat;
use pointsman_tests::journal::{Orders, Plan, Recorded, record, replay_args, replay_said};
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::{Serving, component, holds};
use tempfile::TempDir;

use crate::retelling::retold;

/// Records a journal of `decisions` decisions, with a policy that traps.
fn recorded(decisions: u64, file_bytes: u64) -> (TempDir, Recorded) {
    let (folder, run) = recorded_with(decisions, file_bytes, Orders::Trapping);
    assert!(run.faults > 10, "{run:?}");
    (folder, run)
}

fn recorded_with(decisions: u64, file_bytes: u64, orders: Orders) -> (TempDir, Recorded) {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        decisions,
        file_bytes,
        orders,
    };
    let run = record(folder.path(), plan).unwrap();
    let stats = &run.stats;
    assert_eq!((stats.dropped, stats.refused, stats.errors), (0, 0, 0));
    assert!(
        stats.lost <= 2,
        "but for what came before the first keyframe: {stats:?}"
    );
    (folder, run)
}

/// The files of the journal in a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "pmj"))
        .collect();
    files.sort();
    files
}

fn read(path: &Path) -> Vec<Located> {
    JournalReader::open(path).unwrap().flatten().collect()
}

/// A replay at its beginning.
fn replay() -> Replay {
    static COMPONENTS: LazyLock<ComponentCache> =
        LazyLock::new(|| ComponentCache::new(PolicyEngine::new().unwrap()));
    Replay::new(COMPONENTS.clone())
}

/// The counters of a replay of these entries, and the first difference.
fn replayed(entries: Vec<Located>) -> (ReplayTally, Option<Difference>) {
    let mut replay = replay();
    for located in entries {
        if let Some(difference) = replay.take(located).unwrap() {
            return (replay.tally().clone(), Some(*difference));
        }
    }
    let end = replay.finish().unwrap();
    (replay.tally().clone(), end.map(|difference| *difference))
}

fn said(args: &ReplayArgs) -> (String, Verdict) {
    replay_said(args).unwrap()
}

#[test]
fn ten_thousand_decisions_come_out_the_same_byte_by_byte() {
    let (folder, run) = recorded(10_000, 64 << 20);
    let (tally, difference) = replayed(read(folder.path()));
    assert_eq!(difference, None);
    assert_eq!(tally.decisions, run.decisions);
    assert!(tally.decisions >= 10_000, "{tally:?}");
    assert_eq!((tally.faults, tally.faults_taken), (run.faults, 0));
    assert!(tally.facts > 10_000 && tally.snapshots > 100, "{tally:?}");
}

#[test]
fn every_file_can_be_replayed_by_itself() {
    let (folder, run) = recorded(3000, 100_000);
    let whole = replayed(read(folder.path()));
    assert_eq!(whole.1, None);
    assert_eq!(whole.0.decisions, run.decisions);
    let files = files(folder.path());
    assert!(files.len() > 2, "{files:?}");
    assert_eq!(usize::try_from(whole.0.keyframes).unwrap(), files.len() - 1);
    let mut decisions = 0;
    for file in &files {
        let (tally, difference) = replayed(read(file));
        assert_eq!(difference, None, "{}", file.display());
        decisions += tally.decisions;
    }
    assert_eq!(decisions, run.decisions);
    // An operator names the round.
    let last = read(folder.path()).into_iter().rev();
    let last = last.filter_map(|located| match located.entry {
        Entry::Keyframe(keyframe) => Some(keyframe.round.0),
        _ => None,
    });
    let last = last.max().unwrap();
    let from = ReplayArgs {
        from: Some(last),
        ..replay_args(folder.path())
    };
    let (said, verdict) = said(&from);
    assert_eq!(verdict, Verdict::Good, "{said}");
    let (tally, _) = replayed(read(files.last().unwrap()));
    assert!(
        said.contains(&format!("{} decisions", tally.decisions)),
        "{said}"
    );
}

/// The number of fresh instances that were told elsewhere what there was, and then answered or
/// trapped.
fn asked_after_briefing(entries: &[Located]) -> u64 {
    let mut asked = 0;
    let mut waiting = BTreeSet::new();
    for pair in entries.windows(2) {
        match (&pair[0].entry, &pair[1].entry) {
            (Entry::Restarted(restarted), Entry::Briefed(_)) => {
                waiting.insert(restarted.policy);
            }
            (Entry::Restarted(restarted), _) => {
                waiting.remove(&restarted.policy);
            }
            (Entry::Decision(decision), _) => {
                let asked_last = match decision.answer.author {
                    Author::Policy(policy) => Some(policy),
                    Author::BuiltIn => None,
                };
                let faults = decision.answer.faults.iter();
                let faulted = faults.map(|fault| fault.policy);
                for policy in faulted.chain(asked_last) {
                    asked += u64::from(waiting.remove(&policy));
                }
            }
            _ => {}
        }
    }
    asked
}

#[test]
fn what_a_fresh_instance_was_told_elsewhere_it_is_told_in_a_replay() {
    let (folder, run) = recorded_with(3000, 100_000, Orders::TrappingElsewhere);
    assert!(run.faults > 1, "{run:?}");
    let entries = read(folder.path());
    let briefed = asked_after_briefing(&entries);
    assert!(briefed > 1, "{briefed}");
    let (tally, difference) = replayed(entries);
    assert_eq!(difference, None);
    assert_eq!(tally.briefed, briefed);
    assert_eq!((tally.decisions, tally.faults), (run.decisions, run.faults));
    for file in files(folder.path()) {
        let (_, difference) = replayed(read(&file));
        assert_eq!(difference, None, "{}", file.display());
    }
}

#[test]
fn that_a_policys_snapshots_had_ended_is_known_in_every_file() {
    let (folder, run) = recorded_with(2000, 100_000, Orders::Hoarding);
    assert_eq!(run.faults, 1, "its first snapshot, and no other");
    let files = files(folder.path());
    assert!(files.len() > 2, "{files:?}");
    for pair in files.windows(2) {
        let both = pair.iter().flat_map(|file| read(file)).collect();
        let (_, difference) = replayed(both);
        assert_eq!(difference, None, "{pair:?}");
    }
}

#[test]
fn a_policy_that_had_no_instance_at_a_keyframe_has_none_in_a_replay() {
    let (folder, run) = recorded_with(2000, 100_000, Orders::Struck);
    assert!(run.faults > 10, "{run:?}");
    let entries = read(folder.path());
    let keyframes = entries.iter().filter_map(|located| match &located.entry {
        Entry::Keyframe(keyframe) => Some(keyframe),
        _ => None,
    });
    let policies = keyframes.flat_map(|keyframe| &keyframe.roster.policies);
    let struck = policies.filter(|policy| policy.name == "budget");
    let (up, down): (Vec<_>, Vec<_>) = struck.partition(|policy| policy.is_up());
    assert!(!down.is_empty() && up.len() > 1, "{down:?} and {up:?}");
    let (tally, difference) = replayed(entries);
    assert_eq!(difference, None);
    assert_eq!(tally.decisions, run.decisions);
}

#[test]
fn a_journal_that_was_cut_off_is_replayed_up_to_there() {
    let (folder, _) = recorded(300, 64 << 20);
    let path = folder.path().join("0000000001.pmj");
    let bytes = fs::read(&path).unwrap();
    let entries = read(&path);
    let first = usize::try_from(entries[3].offset).unwrap();
    let mut decisions = 0;
    for at in (first..bytes.len()).step_by((bytes.len() - first) / 40) {
        fs::write(&path, &bytes[..at]).unwrap();
        let (tally, difference) = replayed(read(&path));
        assert_eq!(difference, None, "cut off at {at}");
        assert!(
            tally.decisions >= decisions,
            "the more there is, the more is replayed"
        );
        decisions = tally.decisions;
    }
    assert!(decisions > 250, "{decisions}");
    // Within the last entry: a file that ends with a whole one is not known to be cut off.
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (said, verdict) = said(&replay_args(&path));
    assert_eq!(verdict, Verdict::Good, "{said}");
    assert!(said.contains("cut off"), "{said}");
}

#[test]
fn after_missing_entries_a_replay_goes_on_with_the_next_keyframe() {
    let (folder, run) = recorded(3000, 100_000);
    let mut entries = read(folder.path());
    let idx = entries.len() / 3;
    let damaged = idx..idx + 50;
    entries.drain(damaged);
    let gap = Entry::Gap(pointsman_journal::Gap { dropped: 50 });
    let located = Located {
        entry: gap,
        ..entries[idx].clone()
    };
    entries.insert(idx, located);
    let (tally, difference) = replayed(entries);
    assert_eq!(difference, None);
    assert_eq!(tally.restarts, 1);
    assert!(
        tally.skipped > 0 && tally.decisions < run.decisions,
        "{tally:?}"
    );
}

/// The entries as an earlier run has them, each changed.
fn earlier(
    entries: &[Located],
    started_unix_ms: u64,
    change: fn(&mut Entry<'static>),
) -> Vec<Located> {
    let mut entries = entries.to_vec();
    for located in &mut entries {
        if let Entry::Header(header) = &mut located.entry {
            header.started_unix_ms = started_unix_ms;
        }
        change(&mut located.entry);
    }
    entries
}

#[test]
fn another_run_is_no_gap_and_may_follow_one_that_was_cut_off() {
    let (folder, run) = recorded(500, 64 << 20);
    let ours = read(folder.path());
    let before = earlier(&ours, 1, |_| {});
    let decision = |located: &Located| matches!(located.entry, Entry::Decision(_));
    let within_a_round = before.iter().rposition(decision).unwrap();
    for end in [before.len(), within_a_round] {
        let (tally, difference) = replayed([&before[..end], &ours[..]].concat());
        assert_eq!(difference, None);
        assert_eq!((tally.restarts, tally.skipped), (0, 0));
        assert!(tally.decisions > run.decisions, "{tally:?}");
    }
}

#[test]
fn the_last_round_of_a_run_is_compared_before_another_run_and_found_at_its_own_place() {
    let (folder, _) = recorded(500, 64 << 20);
    let mut ours = read(folder.path());
    let mut nexts = [
        earlier(&ours, 1, |_| {}),
        earlier(&ours, 1, as_of_another_version),
    ];
    for located in nexts.iter_mut().flatten() {
        located.file = Path::new("next.pmj").into();
    }
    let routed = |located: &Located| match &located.entry {
        Entry::Decision(decision) => matches!(decision.answer.value, Some(Reply::Routing(_))),
        _ => false,
    };
    let last = ours.iter().rposition(routed).unwrap();
    ours.truncate(last + 1);
    if let Entry::Decision(decision) = &mut ours[last].entry
        && let Some(Reply::Routing(verdicts)) = &mut decision.answer.to_mut().value
    {
        verdicts[0].reason += 1;
    }
    let changed = (ours[last].file.clone(), ours[last].offset);
    for next in nexts {
        let (_, difference) = replayed([&ours[..], &next[..]].concat());
        let difference = difference.unwrap();
        assert_eq!((difference.file, difference.offset), changed);
    }
}

fn as_of_another_version(entry: &mut Entry<'static>) {
    if let Entry::Header(header) = entry {
        header.pointsman = "0.0.1".to_owned();
    }
}

#[test]
fn runs_of_others_are_passed_over_and_fail_alone() {
    let (folder, run) = recorded(500, 64 << 20);
    let ours = read(folder.path());
    let version = earlier(&ours, 1, as_of_another_version);
    let build = earlier(&ours, 2, |entry| {
        if let Entry::Keyframe(keyframe) = entry {
            keyframe.machine = Blob::default();
        }
    });
    let others = [version.clone(), build.clone()].concat();
    let (tally, difference) = replayed([others.clone(), ours.clone()].concat());
    assert_eq!(difference, None);
    assert_eq!((tally.decisions, tally.restarts), (run.decisions, 0));

    for (entries, note, why) in [
        (
            version,
            "1 runs by Pointsman 0.0.1 are passed over",
            "was written by Pointsman 0.0.1: ",
        ),
        (
            build,
            "1 runs have a keyframe that cannot be read",
            "the machine of the keyframe cannot be read",
        ),
    ] {
        let mut replay = replay();
        for located in entries {
            assert_eq!(replay.take(located).unwrap(), None);
        }
        let notes = replay.passed_over().notes();
        assert!(notes.len() == 1 && notes[0].starts_with(note), "{notes:?}");
        let said = replay.finish().unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }

    let rounds = retold(ours.clone()).unwrap();
    assert!(rounds > 0);
    assert_eq!(retold([others.clone(), ours].concat()).unwrap(), rounds);
    assert!(retold(others).is_err());
}

#[test]
fn an_answer_that_is_not_the_policys_is_found_with_its_place() {
    let (folder, _) = recorded(500, 64 << 20);
    let mut entries = read(folder.path());
    let changed = entries.iter_mut().skip(200).find_map(|located| {
        let Entry::Decision(decision) = &mut located.entry else {
            return None;
        };
        let Some(Reply::Routing(verdicts)) = &mut decision.answer.to_mut().value else {
            return None;
        };
        verdicts[0].reason += 1;
        Some(located.offset)
    });
    let (_, difference) = replayed(entries);
    let difference = difference.unwrap();
    assert_eq!(Some(difference.offset), changed);
    assert!(difference.what.contains("memory-aware"), "{difference:?}");
    for answer in [&difference.recorded, &difference.replayed] {
        let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        assert!(answer["Routing"].is_array(), "{answer}");
    }
    assert_ne!(difference.recorded, difference.replayed);
    assert!(!difference.context.is_empty());
}

#[test]
fn a_fact_fuel_or_input_that_was_changed_is_found() {
    let (folder, _) = recorded(500, 64 << 20);
    let entries = read(folder.path());
    type Change = fn(&mut Entry<'static>) -> bool;
    let changes: [(&str, Change); 3] = [
        ("what happened", |entry| match entry {
            Entry::Fact(fact) => {
                fact.to_mut().now.0 += 1;
                true
            }
            _ => false,
        }),
        ("fuel", |entry| match entry {
            // The replay has followed this policy since its predecessor's fault.
            Entry::Decision(decision) if decision.generation > 1 && decision.fuel > 0 => {
                decision.fuel += 1;
                true
            }
            _ => false,
        }),
        ("", |entry| match entry {
            Entry::Input { input, .. } => {
                *input = Cow::Owned(pointsman_core::Input::TimePassed);
                true
            }
            _ => false,
        }),
    ];
    for (what, change) in changes {
        let mut entries = entries.clone();
        assert!(entries.iter_mut().skip(400).any(|it| change(&mut it.entry)));
        let (_, difference) = replayed(entries);
        let difference = difference.unwrap();
        assert!(difference.what.contains(what), "{difference:?}");
    }
}

#[test]
fn what_another_policy_would_have_done_is_counted_with_examples() {
    let (folder, _) = recorded(1000, 64 << 20);
    let rival = |name: &str| ReplayArgs {
        policy: Some(component_path(name)),
        ..replay_args(folder.path())
    };
    let (same, verdict) = said(&rival("memory-aware"));
    assert_eq!(verdict, Verdict::Good);
    assert!(
        same.contains("memory-aware would have decided 0 of "),
        "{same}"
    );
    // It names one executor, where the default names what comes next, too.
    let (alike, _) = said(&rival("round-robin"));
    let counted =
        "would have decided 0 of 200 otherwise at routing, and 200 alike but for the fallbacks";
    assert!(alike.contains(counted), "{alike}");
    let (other, verdict) = said(&rival("first-policy"));
    assert_eq!(verdict, Verdict::Good);
    assert!(other.contains("e.g. round "), "{other}");
    assert!(other.contains("routing: memory-aware"), "{other}");
    assert!(!other.contains("decided 0 of"), "{other}");
}

#[test]
fn a_journal_is_shown_in_sums() {
    let (folder, run) = recorded(300, 64 << 20);
    let command = JournalCommand::Show(ShowArgs {
        journal: folder.path().to_owned(),
        entries: false,
    });
    let mut out = Vec::new();
    let verdict = journal::journal(&command, &mut out).unwrap();
    let shown = String::from_utf8(out).unwrap();
    assert_eq!(verdict, Verdict::Good);
    assert!(
        shown.contains(&format!("{}  decisions", run.decisions)),
        "{shown}"
    );
    assert!(shown.contains("routing by memory-aware"), "{shown}");
}

/// The number of a hook's decisions in a journal.
fn decisions(path: &Path, hook: Hook) -> usize {
    let entries = read(path).into_iter();
    let decisions = entries.filter(|it| match &it.entry {
        Entry::Decision(decision) => decision.hook == hook,
        _ => false,
    });
    decisions.count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_recorded_under_load_and_reloads_is_replayed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    let place = JournalPlace::Folder(journal.clone());
    let serving = Serving::start(|config| {
        config.journal.place = place;
        config.journal.settings.file_bytes = 3 << 20;
        config.patience.snapshot_every = 8;
    })
    .await?;
    let load = LoadGenerator::start(serving.client, 16, |client| {
        streamed_chat(&format!("Count from {client} to {}.", client + 3))
    });
    let hostile = component("test/hostile")?;
    let sidecar = "[settings]\noutrage = \"trap\"\ncalls = [\"order\"]\ngood-calls = 10\n";
    for round in 0..6 {
        serving.drop_in(
            "router.wasm",
            &component(["round-robin", "memory-aware"][round % 2])?,
        )?;
        serving.drop_in("orders.toml", sidecar.as_bytes())?;
        serving.drop_in("orders.wasm", &hostile)?;
        serving
            .report_until(|report| holds(report, "router"))
            .await?;
        serving.client.chat("Hello").await?.text()?;
    }
    let served = load.served(100).await?;
    ensure!(served >= 100, "{served}");
    let metrics = serving.client.get("/metrics").await?;
    let metrics = String::from_utf8(metrics.body)?;
    ensure!(
        metrics.contains("pointsman_journal_entries_total{outcome=\"written\"}"),
        "{metrics}"
    );
    serving.server.stop().await?;
    ensure!(decisions(&journal, Hook::Routing) > 50);
    let (said, verdict) = tokio::task::spawn_blocking(move || said(&replay_args(&journal))).await?;
    ensure!(verdict == Verdict::Good, "{said}");
    ensure!(!said.contains("began anew"), "nothing is missing: {said}");
    Ok(())
}

/// A policy with this many bytes more, which mean nothing.
fn padded(name: &str, bytes: u32) -> Result<Vec<u8>> {
    let mut padded = component(name)?;
    // A custom section without a name; its length as a LEB128 of five bytes.
    padded.push(0);
    let length = bytes + 1;
    padded.extend((0..5).map(|at| {
        let low = (length >> (7 * at)) & 0x7f;
        u8::try_from(low).unwrap() | if at < 4 { 0x80 } else { 0 }
    }));
    padded.push(0);
    padded.resize(padded.len() + usize::try_from(bytes)?, 0);
    Ok(padded)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_policy_is_in_the_journal_once_however_often_the_server_starts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    for _ in 0..3 {
        let place = JournalPlace::Folder(journal.clone());
        let serving = Serving::start(|config| config.journal.place = place).await?;
        serving.drop_in("router.wasm", &padded("round-robin", 2 << 20)?)?;
        serving
            .report_until(|report| holds(report, "router"))
            .await?;
        serving.client.chat("Hello").await?.text()?;
        serving.server.stop().await?;
    }
    let bytes = |path: PathBuf| fs::metadata(path).map(|file| file.len());
    let files = files(&journal).into_iter().map(bytes);
    let files: u64 = files.sum::<std::io::Result<u64>>()?;
    ensure!(files < 6 << 20, "{files} bytes without the policy");
    ensure!(fs::read_dir(journal.join("components"))?.count() == 1);
    let args = replay_args(&journal);
    let (said, verdict) = tokio::task::spawn_blocking(move || said(&args)).await?;
    ensure!(verdict == Verdict::Good, "{said}");
    ensure!(!said.contains("began anew"), "nothing is missing: {said}");
    fs::remove_dir_all(journal.join("components"))?;
    let replayed = tokio::task::spawn_blocking(move || replay_said(&replay_args(&journal))).await?;
    let why = format!("{:#}", replayed.expect_err("the policy is missing"));
    ensure!(why.contains("beside the journal is missing"), "{why}");
    Ok(())
}
