//! The benchmark `cuda`: models of random weights on a CUDA device, or on several together, alone and under a whole
//! server.

pub mod peer;
pub mod results;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pointsman_core::BlockId;
use pointsman_cuda::ceilings::Ceilings;
use pointsman_cuda::{CudaDevices, kv_bytes_per_token, weight_bytes};
use pointsman_driver::provider::{ModelConfig, ModelSource};
use pointsman_engine::backend::{Backend, Chunk, KvShape, Logits, PossibleTokens, TokenChoice};
use pointsman_engine::sample::Tokens;
use pointsman_executor::job::Sampling;
use pointsman_local::DeviceConfig;
use pointsman_model::config::{Head, LlamaConfig};
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_model::open::OpenModel;
use pointsman_model::split::Rank;
use serde_json::json;

use crate::clock::clock;
use crate::served::{Served, ServedLoad, served};

/// Tokens in a block.
const TOKENS_PER_BLOCK: u32 = 16;
/// Steps of a case that are not counted, and those of which the median counts.
const STEPS: (usize, usize) = (4, 24);
/// Seed of the weights.
const SEED: u64 = 1;

/// The architecture of a model.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// The name in tables.
    pub name: &'static str,
    hidden: u32,
    inner: u32,
    layers: u32,
    heads: u32,
    head_dim: u32,
    /// Tokens that it knows.
    vocab: u32,
    is_tied: bool,
}

/// Tokens that Llama 3 knows.
const LLAMA_3_VOCAB: u32 = 128_256;

/// A model for trying the benchmark.
pub const TINY: Architecture = Architecture {
    name: "tiny",
    hidden: 128,
    inner: 64,
    layers: 1,
    heads: 8,
    head_dim: 16,
    vocab: LLAMA_3_VOCAB,
    is_tied: true,
};

/// A model of 7 million parameters, which processors compute in some hundred milliseconds where a prompt has as many
/// tokens.
pub const SMALL: Architecture = Architecture {
    name: "7M",
    hidden: 256,
    inner: 704,
    layers: 8,
    heads: 8,
    head_dim: 32,
    vocab: 512,
    is_tied: true,
};

/// Llama 3.2 1B and Llama 3.1 8B.
pub const ARCHITECTURES: [Architecture; 2] = [
    Architecture {
        name: "1B",
        hidden: 2048,
        inner: 8192,
        layers: 16,
        heads: 32,
        head_dim: 64,
        vocab: LLAMA_3_VOCAB,
        is_tied: true,
    },
    Architecture {
        name: "8B",
        hidden: 4096,
        inner: 14336,
        layers: 32,
        heads: 32,
        head_dim: 128,
        vocab: LLAMA_3_VOCAB,
        is_tied: false,
    },
];

/// A case: so many sequences with so many tokens each, of which `new` are computed in a step.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of sequences.
    pub batch: u32,
    /// Tokens that a sequence has before the step.
    pub context: u32,
    /// Tokens of each that the step computes.
    pub new: u32,
}

/// A model on a device, or on several together, with its KV pool.
pub struct OnDevices {
    backend: Box<dyn Backend>,
    /// The part of the model that the first device has, which is the largest.
    part: OpenModel,
}

impl std::fmt::Debug for OnDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnDevices").finish_non_exhaustive()
    }
}

/// The words of the benchmark where these devices cannot be used; absent: they can.
#[must_use]
pub fn nothing_measured(ordinals: &[usize]) -> Option<String> {
    let none = CudaDevices::probe(ordinals).err()?;
    Some(format!("Nothing was measured: {none}"))
}

impl Architecture {
    /// Writes the model's `config.json` into a folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": 8, "head_dim": self.head_dim, "vocab_size": self.vocab,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
            "tie_word_embeddings": self.is_tied, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        });
        let path = folder.join(format!("{}.json", self.name));
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

impl OnDevices {
    /// Puts a model of random weights on CUDA devices, with room for `tokens` tokens of KV.
    ///
    /// # Errors
    /// If a device has no room for it, or it cannot be split over them.
    pub fn new(ordinals: &[usize], config: &Path, tokens: u32) -> Result<Self> {
        let files = ModelFiles::Dummy(Dummy::new(config, SEED));
        let model = Arc::new(OpenModel::open(&files)?);
        let shape = KvShape {
            tokens_per_block: TOKENS_PER_BLOCK,
            blocks_total: tokens.div_ceil(TOKENS_PER_BLOCK),
        };
        let blocks = shape.blocks(kv_bytes_per_token(model.config()));
        let devices = CudaDevices::new(ordinals, blocks)?;
        let first = Rank {
            index: 0,
            count: ordinals.len(),
        };
        let part = model.part(first)?;
        let backend = devices.load(model, shape, &mut |_| ())?;
        Ok(Self { backend, part })
    }

    /// The median time of a step, from the tokens to the next ones: the likeliest, or drawn.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&mut self, case: Case, sampling: &Sampling) -> Result<Duration> {
        let each = (case.context + case.new).div_ceil(TOKENS_PER_BLOCK);
        let tables: Vec<Vec<BlockId>> = (0..case.batch)
            .map(|seq| (seq * each..(seq + 1) * each).map(BlockId).collect())
            .collect();
        let tokens: Vec<u32> = (0..case.new).map(|idx| idx * 7 % 1000).collect();
        let chunks: Vec<Chunk<'_>> = tables
            .iter()
            .map(|blocks| Chunk {
                tokens: &tokens,
                start: case.context,
                blocks,
                logits: Logits::Kept,
            })
            .collect();
        let choice = TokenChoice {
            sampling,
            tokens: Tokens {
                prompt: &[],
                generated: &[],
            },
        };
        let choices = vec![choice; chunks.len()];
        let possible = PossibleTokens {
            count: self.backend.vocab_size(),
            missing: &[],
        };
        let mut times = Vec::new();
        for _ in 0..STEPS.0 + STEPS.1 {
            let now = clock();
            self.backend.forward(&chunks, &mut Vec::new())?;
            let chooser = self.backend.chooser().context("tokens are chosen there")?;
            chooser.choose(&choices, possible)?;
            times.push(now());
        }
        let counted = &mut times[STEPS.0..];
        counted.sort_unstable();
        Ok(counted[counted.len() / 2])
    }

    /// The least time that a step can take: that in which all it needs is read from memory, or in which its
    /// products are computed, whichever is longer; of several devices on the first, without the sums.
    #[must_use]
    pub fn least(&self, case: Case, ceilings: &Ceilings) -> Duration {
        let config = self.part.config();
        let (batch, new) = (f64::from(case.batch), f64::from(case.new));
        let read = self.weights_read() + self.kv_read(case);
        let matrices = (config.layers * layer_numbers(config)) as f64;
        let head = (config.vocab_size * config.hidden_size) as f64;
        // Each token sees those before it, half of the new ones on average.
        let seen = f64::from(case.context) + new / 2.0;
        let attention = 2.0 * (config.layers * config.q_size()) as f64 * seen;
        let operations = 2.0 * batch * (new * (matrices + attention) + head);
        let bandwidth = ceilings.read.max(ceilings.copied);
        Duration::from_secs_f64((read / bandwidth).max(operations / ceilings.operations))
    }

    /// Bytes of weights that a step reads: all but the table of embeddings, of which it reads rows.
    fn weights_read(&self) -> f64 {
        let config = self.part.config();
        let table = match config.head {
            Head::Tied => 0,
            Head::Own => config.vocab_size * config.hidden_size * 2,
        };
        (weight_bytes(&self.part) - table as u64) as f64
    }

    fn kv_read(&self, case: Case) -> f64 {
        let tokens = u64::from(case.batch) * u64::from(case.context + case.new);
        (tokens * kv_bytes_per_token(self.part.config())) as f64
    }
}

/// Numbers in the matrices of a layer.
fn layer_numbers(config: &LlamaConfig) -> usize {
    let attention = config.hidden_size * (config.qkv_size() + config.q_size());
    attention + 3 * config.hidden_size * config.intermediate_size
}

/// Measures a server that has the model of a `config.json`, of random weights, on these devices together.
///
/// # Errors
/// As [`served`].
pub async fn served_on(ordinals: &[usize], config: &Path, load: ServedLoad) -> Result<Served> {
    let name = config.file_stem().and_then(|stem| stem.to_str());
    let source = ModelSource::Dummy {
        config: config.to_owned(),
        seed: SEED,
    };
    let model = ModelConfig::new(name.context("a model has a name")?, source);
    served(model, DeviceConfig::with_cuda("gpu0", ordinals), load).await
}
