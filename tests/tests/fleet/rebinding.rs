//! Policies that take over, or get other settings, while nothing changes in the fleet: engines stay busy, and
//! requests wait.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, JournalPlace};
use pointsman_core::{Fact, Hook, Input, Micros};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_journal::{Entry, JournalReader};
use pointsman_policy_cli::Verdict;
use pointsman_tests::gate::Gate;
use pointsman_tests::journal::{replay_args, replay_said};
use pointsman_tests::serving::{Serving, serve_demo};
use serde_json::json;

use super::budgets::{shares, weighted};
use super::pools::{answered, of_blocks};
use super::{endless, order, over, running};

const HOUR: Micros = Micros(3_600_000_000);
/// A policy with which a request of a session waits for the executor of that session.
const WAITS: &str = "when-full = \"wait\"";

/// A folder for a journal, of which a server tells everything.
fn recorded(config: &mut Config, folder: &Path) -> PathBuf {
    let journal = folder.join("journal");
    config.journal.place = JournalPlace::Folder(journal.clone());
    journal
}

/// Replays a journal, and finds nothing that differs.
async fn replayed(journal: &Path) -> Result<()> {
    let args = replay_args(journal);
    let (said, verdict) = tokio::task::spawn_blocking(move || replay_said(&args)).await??;
    ensure!(verdict == Verdict::Good, "{said}");
    ensure!(!said.contains("began anew"), "nothing is missing: {said}");
    Ok(())
}

fn settings(lines: &str) -> String {
    format!("[settings]\n{lines}\n")
}

#[tokio::test]
async fn busy_engines_get_budgets_by_the_settings_of_now() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let gate = Gate::default();
    let mut journal = PathBuf::new();
    let tune = |config: &mut Config| {
        weighted(config, &[1, 3]);
        journal = recorded(config, folder.path());
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    let mut streams = Vec::new();
    for model in ["demo", "second", "second"] {
        streams.push(running(client, endless(model, json!({}))).await?);
    }
    gate.shut();
    gate.stands(2).await?;
    // Of 256 tokens one engine has at most 900 permille: no bound for either.
    shares(client, &[64, 192]).await?;
    serving
        .decide_by("budget", "budget", "max-single-engine = 600")
        .await?;
    shares(client, &[103, 153]).await?;
    let sidecar = settings("max-single-engine = 550\nprefill-max = 40");
    serving.drop_in("budget.toml", sidecar.as_bytes())?;
    shares(client, &[116, 140]).await?;
    order(client, "/admin/eject", &json!({"hooks": ["budget"]})).await?;
    shares(client, &[64, 192]).await?;
    ensure!(serving.load_until(|_| true).await?.slots_used == 3);
    gate.open();
    drop(streams);
    over(serving).await?;
    let entries = JournalReader::open(&journal)?.flatten();
    let arranged = entries.filter_map(|located| {
        if let Entry::Fact(fact) = located.entry
            && let Fact::Arranged { arrangement, .. } = &fact.fact
        {
            Some(arrangement.prefill_max)
        } else {
            None
        }
    });
    let arranged: Vec<Option<u32>> = arranged.collect();
    // The engine of two sequences, with these settings and without them.
    let bounds: Vec<Option<u32>> = vec![Some(40), None];
    ensure!(arranged.starts_with(&bounds), "{arranged:?}");
    replayed(&journal).await
}

#[tokio::test]
async fn a_request_that_is_held_is_placed_as_soon_as_a_policy_would_not_hold_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let gate = Gate::default();
    let mut journal = PathBuf::new();
    let tune = |config: &mut Config| {
        let of_one_slot = || ExecutorTerms {
            slots: 1,
            ..ExecutorTerms::default()
        };
        serve_demo(config, [("left", of_one_slot()), ("right", of_one_slot())]);
        // No hold ends by itself.
        config.core.wait(Micros(2 * HOUR.0));
        config.core.held_max = HOUR;
        journal = recorded(config, folder.path());
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    serving.decide_by("sticky", "sticky", WAITS).await?;
    let of_session = json!({"session": "ann"});
    let first = running(client, endless("demo", of_session.clone())).await?;
    gate.shut();
    let second = answered(client, of_blocks(1, "demo", &of_session));
    serving.load_until(|load| load.queued == 1).await?;
    let sidecar = settings("when-full = \"next\"");
    serving.drop_in("sticky.toml", sidecar.as_bytes())?;
    // Both stand, since no engine makes a step.
    serving.load_until(|load| load.slots_used == 2).await?;
    gate.open();
    let second = second.await??;
    ensure!(second.status == 200, "{second:?}");
    let places = [super::place(&first), second.header("x-pointsman-executor")];
    ensure!(places == ["left", "right"], "{places:?}");
    drop(first);
    over(serving).await?;
    let mut entries = JournalReader::open(&journal)?.flatten();
    let told = Input::PolicyChanged(Hook::Routing);
    let told =
        entries.find(|it| matches!(&it.entry, Entry::Input { input, .. } if **input == told));
    told.context("the journal has no such input")?;
    replayed(&journal).await
}
