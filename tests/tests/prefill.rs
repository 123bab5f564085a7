//! Who is prefilled first in a server that runs: told by the steps in its journal, not by time.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use pointsman_core::rows::RequestClass;
use pointsman_core::{Input, RequestId};
use pointsman_journal::{Entry, JournalReader};
use pointsman_server::config::JournalPlace;
use pointsman_tests::client::chat;
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
        config.devices[0].tokens_per_step = TOKENS_PER_STEP;
        config.executors[0].terms.slots = 8;
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
