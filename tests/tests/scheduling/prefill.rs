//! The sequences of an engine's steps, and who is prefilled first in them, in a server that runs: told
//! by its journal, not by time.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, JournalPlace};
use pointsman_core::rows::RequestClass;
use pointsman_core::{Input, RequestId};
use pointsman_journal::{Entry, JournalReader};
use pointsman_tests::client::chat;
use pointsman_tests::gate::Gate;
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const TOKENS_PER_STEP: u32 = 32;
/// Nine tenths of them: the default policy leaves some to engines that may come.
const ENGINE_TOKENS: u32 = 28;
const BULK: u32 = 4;

/// A chat of a long prompt, with so many tokens of an answer.
fn prompt(words: &str, class: &str, max_tokens: u32) -> Value {
    let mut body = chat(words);
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(max_tokens);
    body["pointsman"] = json!({"class": class});
    body
}

/// The way of the urgent request, by the journal of the run.
#[derive(Debug, Default)]
struct Way {
    arrivals: u64,
    urgent: Option<(RequestId, u32)>,
    stage: Stage,
    /// Steps of its engine from its start to its first token.
    steps: u32,
}

/// The stage of the urgent request.
#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Waits,
    Runs,
    HasToken,
}

impl Way {
    fn input(&mut self, input: &Input) {
        if let Input::RequestArrived(new) = input {
            let id = RequestId(self.arrivals);
            self.arrivals += 1;
            if new.class == RequestClass::LatencyCritical {
                self.urgent = Some((id, new.prompt_tokens));
            }
        }
        let Some((urgent, _)) = self.urgent else {
            return;
        };
        if let Input::SequenceStarted(sequence) = input
            && sequence.request == urgent
        {
            self.stage = Stage::Runs;
        }
        if let Input::StepFinished(report) = input
            && self.stage == Stage::Runs
        {
            self.steps += 1;
            let mut made = report.progress.iter();
            if made.any(|made| made.request == urgent && made.generated > 0) {
                self.stage = Stage::HasToken;
            }
        }
    }
}

fn way(journal: &Path) -> Result<Way> {
    let mut way = Way::default();
    for located in JournalReader::open(journal)? {
        if let Entry::Input { input, .. } = &located?.entry {
            way.input(input);
        }
    }
    Ok(way)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_token_of_an_urgent_request_does_not_wait_for_bulk_prompts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    let place = JournalPlace::Folder(journal.clone());
    let serving = Serving::start(|config| {
        config.journal.place = place;
        config.local.devices[0].tokens_per_step = TOKENS_PER_STEP;
        config.local.executors[0].terms.slots = 8;
    })
    .await?;
    let client = serving.client;
    let mut bulk = JoinSet::new();
    for n in 0..BULK {
        // With an answer, so that all of them are seen to run at once.
        let words = format!("{n}. {}", "Tell me a long story. ".repeat(100));
        let body = prompt(&words, "throughput", 300);
        bulk.spawn(async move { client.post("/v1/chat/completions", &body).await });
    }
    let running = |slots| move |load: &pointsman_driver::message::Load| load.slots_used == slots;
    serving.load_until(running(BULK)).await?;
    let body = prompt(&"What is the time? ".repeat(50), "latency-critical", 1);
    let urgent = client.post("/v1/chat/completions", &body).await?;
    ensure!(urgent.status == 200, "{urgent:?}");
    while let Some(answer) = bulk.join_next().await {
        let answer = answer??;
        ensure!(answer.status == 200, "{answer:?}");
    }
    serving.server.stop().await?;
    let way = tokio::task::spawn_blocking(move || way(&journal)).await??;
    let (_, prompt_tokens) = way.urgent.context("it has arrived")?;
    // Each of the others gets a token of a step, and the urgent one all that is left. An engine may
    // make steps before it is told so. In order of arrival it would be more than a hundred.
    let steps = prompt_tokens.div_ceil(ENGINE_TOKENS - BULK);
    ensure!(steps > 10, "it is long: {way:?}");
    ensure!(
        way.stage == Stage::HasToken && way.steps <= 2 * steps,
        "{way:?}"
    );
    Ok(())
}

/// The requests of each step, by the journal of the run.
fn steps(journal: &Path) -> Result<Vec<Vec<RequestId>>> {
    let mut steps = Vec::new();
    for located in JournalReader::open(journal)? {
        if let Entry::Input { input, .. } = &located?.entry
            && let Input::StepFinished(report) = input.as_ref()
        {
            let mut requests: Vec<_> = report.progress.iter().map(|made| made.request).collect();
            requests.sort();
            steps.push(requests);
        }
    }
    Ok(steps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_joins_the_next_step_of_those_that_run_as_far_as_there_are_slots() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    let place = JournalPlace::Folder(journal.clone());
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        config.journal.place = place;
        config.local.executors[0].terms.slots = 3;
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let mut sent = JoinSet::new();
    for (n, slots) in [1, 2, 3, 3].into_iter().enumerate() {
        let body = prompt(&format!("{n}. Hello"), "throughput", 3);
        sent.spawn(async move { client.post("/v1/chat/completions", &body).await });
        serving
            .load_until(|load| load.live == n + 1 && load.slots_used == slots)
            .await?;
        // The step of the first has begun before the others come, and goes on without them.
        gate.stands(1).await?;
    }
    gate.open();
    while let Some(answer) = sent.join_next().await {
        let answer = answer??;
        ensure!(answer.status == 200, "{answer:?}");
    }
    serving.server.stop().await?;
    let steps = tokio::task::spawn_blocking(move || steps(&journal)).await??;
    let of = |requests: &[u64]| requests.iter().copied().map(RequestId).collect::<Vec<_>>();
    ensure!(
        steps[..2] == [of(&[0]), of(&[0, 1, 2])],
        "the fourth has no slot: {steps:?}"
    );
    ensure!(
        steps.last() == Some(&of(&[3])),
        "it follows alone: {steps:?}"
    );
    Ok(())
}
