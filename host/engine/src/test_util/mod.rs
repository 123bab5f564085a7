//! The common parts of the engine's tests: a backend without a model, the answer of a sequence that
//! is alone, and engines as executors under test.
#![expect(
    clippy::unwrap_used,
    clippy::missing_errors_doc,
    missing_docs,
    missing_debug_implementations,
    reason = "helpers of tests"
)]

pub mod schedules;
pub mod scripted;
pub mod stepped;
pub mod subjects;
pub mod texts;

use std::sync::{Arc, OnceLock};

use crate::backend::{Backend, Chunk, KvShape, Logits};
use crate::cpu::{CpuBackend, Processors};
use crate::embedding::direction;
use crate::sample::{Sampler, Tokens};
use pointsman_events::BlockId;
use pointsman_executor::job::Job;
use pointsman_executor::test_util::{WholeAnswer, answer_alone};
use pointsman_model::host::HostModel;
use pointsman_model::test_util::models;
use pointsman_text::ModelText;

pub fn demo_text() -> Arc<ModelText> {
    static TEXT: OnceLock<Arc<ModelText>> = OnceLock::new();
    let load = || Arc::new(ModelText::load(&models::demo_files()).unwrap());
    Arc::clone(TEXT.get_or_init(load))
}

/// Returns the logits of a model after a few tokens.
pub fn logits(model: Arc<HostModel>) -> Vec<f32> {
    logits_on(Processors::of_caller(), model)
}

/// Returns the logits of a model after a few tokens, computed on `processors`.
pub fn logits_on(processors: Processors, model: Arc<HostModel>) -> Vec<f32> {
    let shape = KvShape {
        tokens_per_block: 8,
        blocks_total: 1,
    };
    let mut backend = CpuBackend::new(model, shape, processors);
    last_row(&mut backend, &[3, 1, 4, 1, 5])
}

/// Runs `tokens` as one chunk in all blocks of `backend`'s pool, and returns the logits after the last.
pub fn last_row(backend: &mut dyn Backend, tokens: &[u32]) -> Vec<f32> {
    let blocks: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
    let mut logits = Vec::new();
    let chunk = Chunk {
        tokens,
        start: 0,
        blocks: &blocks,
        logits: Logits::Last,
    };
    backend.forward(&[chunk], &mut logits).unwrap();
    logits
}

/// The size of the number that is farthest from zero.
pub fn largest(numbers: impl Iterator<Item = f32>) -> f32 {
    numbers.map(f32::abs).fold(0.0, f32::max)
}

/// Returns the answer to `job`, in the first blocks of `backend`'s pool.
pub fn solo(backend: &mut dyn Backend, text: &ModelText, job: &Job) -> WholeAnswer {
    let blocks: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
    let mut computed = 0;
    let mut logits = Vec::new();
    if job.is_to_embed() {
        return WholeAnswer::embedded(embedded_alone(backend, &job.prompt, &blocks));
    }
    answer_alone(job, text, backend.context_tokens(), |tokens| {
        let chunk = Chunk {
            tokens: &tokens[computed..],
            start: u32::try_from(computed).unwrap(),
            blocks: &blocks,
            logits: Logits::Last,
        };
        backend.forward(&[chunk], &mut logits).unwrap();
        computed = tokens.len();
        let known = &logits[..text.vocab_size().min(logits.len())];
        let (prompt, generated) = tokens.split_at(job.prompt.len());
        let tokens = Tokens { prompt, generated };
        let form = job.form.as_ref();
        let form = form.map(|form| text.begin_form(form, generated).unwrap());
        let masked = form.map(|mut form| form.mask(known).unwrap());
        let known = masked.as_deref().unwrap_or(known);
        Sampler::default()
            .choose(known, &job.sampling, tokens)
            .unwrap()
    })
}

/// Returns the embedding of a prompt that is alone, computed at once.
fn embedded_alone(backend: &mut dyn Backend, prompt: &[u32], blocks: &[BlockId]) -> Vec<f32> {
    let chunk = Chunk {
        tokens: prompt,
        start: 0,
        blocks,
        logits: Logits::Hidden,
    };
    let (mut logits, mut hidden) = (Vec::new(), Vec::new());
    backend.forward(&[chunk], &mut logits).unwrap();
    backend.hidden(&mut hidden).unwrap();
    direction(&hidden).unwrap()
}
