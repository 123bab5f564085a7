//! The benchmark `engine`: tokens per second.
//!
//! First the model alone, over its backend: prefill and decode with a batch size. Then a whole
//! server under load, with the share of time in which its engine waited for decisions.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_core::BlockId;
use pointsman_engine::backend::KvShape;
use pointsman_engine::backend::{Backend, Chunk, Logits};
use pointsman_engine::cpu::{CpuBackend, Processors};
use pointsman_executor::stats::{Counter, EngineStats};
use pointsman_model::files::ModelFiles;
use pointsman_model::host::HostModel;
use serde_json::Value;

use crate::client::streamed_chat;
use crate::clock::clock;
use crate::load::LoadGenerator;
use crate::serving::Serving;

/// A case of the benchmark of the model.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of sequences in a step.
    pub batch: u32,
    /// Number of tokens of each prompt.
    pub context: u32,
    /// Number of decode steps.
    pub steps: u32,
    /// Number of threads that compute.
    pub threads: NonZeroUsize,
}

/// The figures of the model.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Prompt tokens per second, one prompt after the other.
    pub prefill: f64,
    /// Generated tokens per second, all sequences together.
    pub decode: f64,
    /// Hash of the last logits, to compare two runs.
    pub hash: u64,
}

const TOKENS_PER_BLOCK: u32 = 16;

/// Loads the demo model of the repository.
///
/// # Errors
/// If the model cannot be loaded.
pub fn demo_model() -> Result<Arc<HostModel>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo-model");
    Ok(Arc::new(HostModel::load(&ModelFiles::Folder(folder))?))
}

/// Measures prefill and decode.
///
/// # Errors
/// If the backend fails.
pub fn measure(model: &Arc<HostModel>, case: Case) -> Result<Speed> {
    let blocks_each = (case.context + case.steps).div_ceil(TOKENS_PER_BLOCK);
    let shape = KvShape {
        tokens_per_block: TOKENS_PER_BLOCK,
        blocks_total: blocks_each * case.batch,
    };
    let processors = match case.threads {
        NonZeroUsize::MIN => Processors::of_caller(),
        threads => Processors::start("cpu", threads, None)?,
    };
    let mut backend = CpuBackend::new(Arc::clone(model), shape, processors);
    let prompt = |seq: u32| -> Vec<u32> {
        let ids = 0..case.context;
        ids.map(|idx| (idx + 31 * seq) % 700 + 5).collect()
    };
    let prompts: Vec<Vec<u32>> = (0..case.batch).map(prompt).collect();
    let tables: Vec<Vec<BlockId>> = (0..case.batch)
        .map(|seq| {
            (seq * blocks_each..(seq + 1) * blocks_each)
                .map(BlockId)
                .collect()
        })
        .collect();
    let mut logits = Vec::new();
    let now = clock();
    for (prompt, blocks) in prompts.iter().zip(&tables) {
        backend.forward(&[chunk(prompt, 0, blocks)], &mut logits)?;
    }
    let prefilled = now();
    for step in 0..case.steps {
        let token = [7];
        let chunks: Vec<Chunk<'_>> = tables
            .iter()
            .map(|blocks| chunk(&token, case.context + step, blocks))
            .collect();
        backend.forward(&chunks, &mut logits)?;
    }
    let decoded = now() - prefilled;
    Ok(Speed {
        prefill: f64::from(case.batch * case.context) / prefilled.as_secs_f64(),
        decode: f64::from(case.batch * case.steps) / decoded.as_secs_f64(),
        hash: logits.iter().fold(0, |hash: u64, value| {
            hash.rotate_left(5) ^ u64::from(value.to_bits())
        }),
    })
}

fn chunk<'a>(tokens: &'a [u32], start: u32, blocks: &'a [BlockId]) -> Chunk<'a> {
    Chunk {
        tokens,
        start,
        blocks,
        logits: Logits::Last,
    }
}

/// The figures of a server's engine under load.
#[derive(Clone, Copy, Debug)]
pub struct UnderLoad {
    /// Number of requests served.
    pub requests: usize,
    /// Tokens generated per second.
    pub tokens: f64,
    /// Average number of sequences in a step.
    pub sequences: f64,
    /// Share of the engine's time with sequences in which none could go on before a decision of the driver.
    pub waited: f64,
    /// Share of the engine's time with sequences in which it handed its events to the driver.
    pub reported: f64,
    /// Share of the sequences' turns that were skipped because a block was missing.
    pub sat_out: f64,
    /// Share of the whole time in which the engine made no step.
    pub idle: f64,
    /// Average time of a step.
    pub step: Duration,
}

/// Measures the default server under `clients` streaming clients in a closed loop, for `requests`
/// requests.
///
/// # Errors
/// If a request fails, or a part of the server has failed.
pub async fn under_load(clients: usize, requests: usize) -> Result<UnderLoad> {
    let serving = Serving::start(|_| {}).await?;
    let body = |client: usize| streamed_chat(&format!("Count from {client} to {}.", client + 20));
    let load = under_load_of(&serving, (clients, requests), body).await?;
    serving.server.stop().await?;
    Ok(load)
}

/// Measures a server, of which the first engine counts, under clients with such bodies.
///
/// # Errors
/// If a request fails.
pub async fn under_load_of(
    serving: &Serving,
    (clients, requests): (usize, usize),
    body: impl Fn(usize) -> Value,
) -> Result<UnderLoad> {
    let engines = serving.server.engines();
    let stats = engines.first().context("no engine")?;
    let stats = Arc::clone(&stats.1);
    // What was done before does not count.
    let before = Counts::of(&stats);
    let now = clock();
    let load = LoadGenerator::start(serving.client, clients, body);
    let served = load.served(requests).await?;
    let took = now();
    serving.idle().await?;
    let [steps, generated, sat_out, busy, waiting, reporting] = Counts::of(&stats).since(&before);
    let time = busy + waiting + reporting;
    ensure!(steps > 0.0, "no step was made");
    Ok(UnderLoad {
        requests: served,
        tokens: generated / took.as_secs_f64(),
        sequences: generated / steps,
        waited: waiting / time,
        reported: reporting / time,
        sat_out: sat_out / (generated + sat_out),
        idle: 1.0 - busy / 1e9 / took.as_secs_f64(),
        step: Duration::from_secs_f64(busy / 1e9 / steps),
    })
}

/// Counts of an engine: steps, generated tokens, turns that were sat out, nanoseconds of steps, of waiting and of
/// reporting.
struct Counts([u64; 6]);

impl Counts {
    fn of(stats: &EngineStats) -> Self {
        let counts = [
            &stats.steps,
            &stats.generated_tokens,
            &stats.sat_out,
            &stats.busy_nanos,
            &stats.waiting_nanos,
            &stats.reporting_nanos,
        ];
        Self(counts.map(Counter::get))
    }

    #[expect(clippy::cast_precision_loss, reason = "for a report")]
    fn since(&self, before: &Self) -> [f64; 6] {
        std::array::from_fn(|place| (self.0[place] - before.0[place]) as f64)
    }
}
