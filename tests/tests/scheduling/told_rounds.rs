//! Rounds of journals as scenarios: what was decided comes out again, and another policy is caught.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and looks only for the entries it is about"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use pointsman_component::EmbeddedPolicy;
use pointsman_config::JournalPlace;
use pointsman_core::Fact;
use pointsman_journal::{Entry, JournalReader, Located};
use pointsman_policy_cli::{Done, PolicyCommand, Verdict, run};
use pointsman_testkit::component::component_path;
use pointsman_tests::fleet::DEFAULTS;
use pointsman_tests::journal::{Orders, Plan, record};
use pointsman_tests::serving::Serving;
use tempfile::TempDir;

#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    command: PolicyCommand,
}

/// The default policies, as the binary embeds them.
fn defaults() -> &'static [EmbeddedPolicy] {
    let load = |name| EmbeddedPolicy {
        name,
        wasm: fs::read(component_path(name)).unwrap().leak(),
        code: None,
    };
    DEFAULTS.map(|(name, _)| load(name)).to_vec().leak()
}

/// Runs `pointsman policy`; a word may have spaces.
fn policy(words: &[&str]) -> Result<Done> {
    let line = Line::try_parse_from(words)?;
    run(&line.command, || Ok(defaults()))
}

fn recorded(decisions: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        decisions,
        file_bytes: 64 << 20,
        orders: Orders::Default,
    };
    record(folder.path(), plan).unwrap();
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The rounds of the last run in which something was placed.
fn placing(journal: &Path) -> Vec<u64> {
    let (mut run, mut rounds) = (None, BTreeSet::new());
    for located in JournalReader::open(journal).unwrap().flatten() {
        match located.entry {
            Entry::Header(header) if run != Some(header.started_unix_ms) => {
                run = Some(header.started_unix_ms);
                rounds.clear();
            }
            Entry::Fact(stamped) if matches!(stamped.fact, Fact::Placed { .. }) => {
                rounds.insert(stamped.round.0);
            }
            _ => {}
        }
    }
    rounds.into_iter().collect()
}

fn scenario(journal: &Path, round: u64) -> Result<Done> {
    policy(&["scenario", text(journal), &round.to_string()])
}

fn refusal(journal: &Path, round: u64) -> String {
    let error = scenario(journal, round).expect_err("there is nothing to tell");
    let error = error.to_string();
    let (_, why) = error.split_once(": ").unwrap();
    why.to_owned()
}

#[test]
fn what_was_decided_comes_out_again_and_another_policy_is_caught() {
    let folder = recorded(400);
    let mut told = Vec::new();
    for round in placing(folder.path()).into_iter().take(12) {
        let done = scenario(folder.path(), round).unwrap();
        let says = match done.verdict {
            Verdict::Good => "# The policies of the journal decide so in it.\n",
            Verdict::NotGood => {
                "# The policies of the journal decide otherwise in it, for what it lacks:\n- "
            }
        };
        let says = says.replace("\n- ", "\n# - ");
        assert!(done.text.starts_with(&says), "{}", done.text);
        if done.verdict == Verdict::Good {
            told.push((round, done.text));
        }
    }
    assert!(told.len() >= 3, "{told:?}");
    let is_busy = |text: &str| text.contains("[[running]]") && !text.contains("= \"engine0\" }");
    let (round, busy) = told.iter().find(|(_, text)| is_busy(text)).unwrap();
    let lacks = "# What they were told and this file cannot say:\n\
                 # - the state of aging, which begins anew\n\
                 # - the state of memory-aware, which begins anew\n\
                 # - the state of budget, which begins anew\n";
    assert!(busy.contains(lacks), "{busy}");
    assert!(
        busy.contains(": memory-aware: least KV pressure, then least load\n"),
        "{busy}"
    );

    // It is written to a file, once, and is run like any other.
    let file = folder.path().join("round.toml");
    let round = round.to_string();
    let written = [
        "scenario",
        text(folder.path()),
        &round,
        "--output",
        text(&file),
    ];
    let done = policy(&written).unwrap();
    let again = format!(
        "again: pointsman policy test POLICY.wasm {}\n",
        file.display()
    );
    assert!(done.text.ends_with(&again), "{}", done.text);
    assert_eq!(&fs::read_to_string(&file).unwrap(), busy);
    let error = policy(&written).expect_err("it is there already");
    assert!(
        error.to_string().contains("name another with --output"),
        "{error}"
    );
    let same = component_path("memory-aware");
    let done = policy(&["test", text(&same), text(&file)]).unwrap();
    assert_eq!(done.verdict, Verdict::Good, "{}", done.text);
    let other = folder.path().join("memory-aware.wasm");
    fs::copy(component_path("round-robin"), &other).unwrap();
    let done = policy(&["test", text(&other), text(&file)]).unwrap();
    assert_eq!(done.verdict, Verdict::NotGood, "{}", done.text);
    assert!(done.text.contains("placed: expected `r"), "{}", done.text);
}

#[test]
fn a_round_that_is_not_there_is_told_with_the_nearest() {
    let folder = recorded(60);
    let rounds = placing(folder.path());
    let last = rounds.last().unwrap();
    let beyond = refusal(folder.path(), 1_000_000);
    assert!(
        beyond.starts_with("there is no round 1000000: it ends with "),
        "{beyond}"
    );
    assert!(
        beyond.contains("; the nearest with a decision: "),
        "{beyond}"
    );
    let idle = (1..*last)
        .rev()
        .find(|round| scenario(folder.path(), *round).is_err())
        .unwrap();
    let nothing = refusal(folder.path(), idle);
    let expected =
        format!("nothing was decided in round {idle} that a scenario could expect; the nearest");
    assert!(nothing.starts_with(&expected), "{nothing}");
    assert!(
        nothing.contains(" and "),
        "one before and one after: {nothing}"
    );
    let before = refusal(folder.path(), 0);
    assert!(
        before.starts_with("there is no round 0 in it; the nearest"),
        "{before}"
    );
}

#[test]
fn a_journal_that_is_cut_off_is_told_up_to_there() {
    let folder = recorded(60);
    let last = *placing(folder.path()).last().unwrap();
    let entries: Vec<Located> = JournalReader::open(folder.path())
        .unwrap()
        .flatten()
        .collect();
    let begins =
        |entry: &Entry<'_>| matches!(entry, Entry::Round { round, .. } if round.0 + 1 == last);
    let mut pairs = entries.windows(2);
    let first = pairs.find_map(|pair| {
        let is_first = begins(&pair[0].entry) && matches!(pair[1].entry, Entry::Decision(_));
        is_first.then_some(&pair[1])
    });
    // The round's first decision is not whole.
    let at = first.unwrap();
    let whole = fs::read(&at.file).unwrap();
    let end = usize::try_from(at.offset).unwrap() + 5;
    fs::write(&at.file, &whole[..end]).unwrap();
    let why = refusal(folder.path(), last);
    let expected = format!(
        "it is cut off after round {}, so round {last} is not whole; the nearest",
        last - 1
    );
    assert!(why.starts_with(&expected), "{why}");
    assert!(why.contains("\ncut off: "), "{why}");
    let earlier = placing(folder.path());
    scenario(folder.path(), *earlier.last().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_run_of_a_server_that_has_the_round_is_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    for limit in [3, 4] {
        let place = JournalPlace::Folder(journal.clone());
        let serving = Serving::start(|config| {
            config.journal.place = place;
            config.core.queue_max = limit;
        })
        .await?;
        serving.client.chat("Hello").await?.text()?;
        serving.server.stop().await?;
    }
    let rounds = placing(&journal);
    let round = *rounds.first().context("the request was placed")?;
    let done = tokio::task::spawn_blocking(move || scenario(&journal, round)).await??;
    let text = &done.text;
    ensure!(done.verdict == Verdict::Good, "{text}");
    ensure!(text.contains("\n[machine]\nqueue-max = 4\n"), "{text}");
    ensure!(text.contains("kind = \"cpu\"\n"), "{text}");
    ensure!(text.contains("model = \"demo\""), "{text}");
    ensure!(!text.contains("Hello"), "{text}");
    Ok(())
}
