//! What the engine does in a second: the benchmark `engine`.
//!
//! First the model alone, over its backend: prefill and decode at a batch size. Then a whole
//! server under a crowd, where its engine's own clocks tell how long it waited for decisions.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_core::BlockId;
use pointsman_engine::cpu::{CpuBackend, CpuModel, KvShape};
use pointsman_engine::model::backend::{Backend, Chunk, Logits};
use pointsman_engine::model::files::ModelFiles;

use crate::client::streamed_chat;
use crate::clock::clock;
use crate::crowd::Crowd;
use crate::serving::Serving;

/// What is measured of the model.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Sequences in a step.
    pub batch: u32,
    /// Tokens of each prompt.
    pub context: u32,
    /// Steps of decoding.
    pub steps: u32,
    /// Threads that compute.
    pub threads: NonZeroUsize,
}

/// What the model did.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Prompt tokens a second, one prompt after the other.
    pub prefill: f64,
    /// Generated tokens a second, all sequences together.
    pub decode: f64,
    /// Bits of the last logits, to see that two runs computed the same.
    pub hash: u64,
}

const TOKENS_PER_BLOCK: u32 = 16;

/// The demo model in the repository.
///
/// # Errors
/// If it cannot be loaded.
pub fn demo_model() -> Result<Arc<CpuModel>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo-model");
    Ok(Arc::new(CpuModel::load(&ModelFiles::Folder(folder))?))
}

/// Prefills and decodes.
///
/// # Errors
/// If the backend fails.
pub fn measure(model: &Arc<CpuModel>, case: Case) -> Result<Speed> {
    let blocks_each = (case.context + case.steps).div_ceil(TOKENS_PER_BLOCK);
    let shape = KvShape {
        tokens_per_block: TOKENS_PER_BLOCK,
        blocks_total: blocks_each * case.batch,
    };
    let mut backend = CpuBackend::new(Arc::clone(model), shape, case.threads)?;
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

/// What a server's engine did under a crowd.
#[derive(Clone, Copy, Debug)]
pub struct Crowded {
    /// Requests served.
    pub requests: usize,
    /// Tokens generated in a second.
    pub tokens: f64,
    /// Sequences in an average step, of those that could be.
    pub sequences: f64,
    /// Share of the engine's time with sequences in which it waited for the driver.
    pub waited: f64,
    /// Share of the turns of sequences that were sat out for lack of a block.
    pub sat_out: f64,
    /// Share of the whole time in which the engine made no step.
    pub idle: f64,
}

/// A closed loop of `clients` streaming clients on the default server, for `requests` requests.
///
/// # Errors
/// If a request fails.
pub async fn crowded(clients: usize, requests: usize) -> Result<Crowded> {
    let serving = Serving::start(|_| {}).await?;
    let engines = serving.server.engines();
    let stats = engines.first().context("no engine")?;
    let stats = Arc::clone(&stats.1);
    let now = clock();
    let crowd = Crowd::gather(serving.client, clients, |client| {
        streamed_chat(&format!("Count from {client} to {}.", client + 20))
    });
    let served = crowd.served(requests).await?;
    let took = now();
    serving.idle().await?;
    let busy = Duration::from_nanos(stats.busy_nanos.get());
    let waiting = Duration::from_nanos(stats.waiting_nanos.get());
    #[expect(clippy::cast_precision_loss, reason = "for a report")]
    let [steps, generated, sat_out] =
        [&stats.steps, &stats.generated_tokens, &stats.sat_out].map(|count| count.get() as f64);
    ensure!(steps > 0.0, "no step was made");
    Ok(Crowded {
        requests: served,
        tokens: generated / took.as_secs_f64(),
        sequences: generated / steps,
        waited: waiting.as_secs_f64() / (waiting + busy).as_secs_f64(),
        sat_out: sat_out / (generated + sat_out),
        idle: 1.0 - busy.as_secs_f64() / took.as_secs_f64(),
    })
}
