//! What the executor's tests share: a backend without a model, what a sequence answers when it is
//! alone, and a little host that keeps the books.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod books;
pub mod scripted;
pub mod solo;
pub mod subjects;
pub mod texts;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use fastrand::Rng;
use pointsman_core::{ExecutorId, Incarnation};
use pointsman_executor::job::Job;
use pointsman_executor::model::files::ModelFiles;
use pointsman_executor::sample::Sampling;
use pointsman_executor::text::ModelText;

pub const EXECUTOR: ExecutorId = ExecutorId(3);
pub const FIRST_LIFE: Incarnation = Incarnation(0);

pub const GREEDY: Sampling = Sampling {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    seed: 0,
};

pub fn demo_model() -> ModelFiles {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    ModelFiles::Folder(root.join("../../examples/demo-model"))
}

pub fn demo_text() -> Arc<ModelText> {
    static TEXT: OnceLock<Arc<ModelText>> = OnceLock::new();
    let load = || Arc::new(ModelText::load(&demo_model()).unwrap());
    Arc::clone(TEXT.get_or_init(load))
}

/// A greedy job without stop strings.
pub fn job(prompt: &[u32], output_tokens_max: u32) -> Job {
    Job {
        prompt: prompt.to_vec(),
        output_tokens_max,
        sampling: GREEDY,
        stop: Vec::new(),
        ignore_eos: false,
    }
}

/// Any sampling; half of them greedy.
pub fn random_sampling(rng: &mut Rng) -> Sampling {
    if rng.bool() {
        return GREEDY;
    }
    Sampling {
        temperature: 0.2 + rng.f32(),
        top_k: rng.u32(0..100),
        top_p: 0.5 + rng.f32() / 2.0,
        seed: rng.u64(..),
    }
}

/// Any job for the demo model's tokenizer, without stop strings.
pub fn random_job(rng: &mut Rng, prompt_max: usize, output_tokens_max: u32) -> Job {
    let prompt = (0..rng.usize(1..=prompt_max)).map(|_| rng.u32(0..1024));
    Job {
        prompt: prompt.collect(),
        output_tokens_max: rng.u32(1..=output_tokens_max),
        sampling: random_sampling(rng),
        stop: Vec::new(),
        ignore_eos: rng.u8(0..4) == 0,
    }
}
