//! The engine against the definition of a Llama model, computed in f64 as plainly as can be.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use pointsman_engine::backend::KvShape;
use pointsman_engine::backend::{Backend, Chunk, Logits};
use pointsman_engine::cpu::{CpuBackend, Processors};
use pointsman_events::BlockId;
use pointsman_model::config::{Extra, Head, LlamaConfig, Rotation};
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::Value;

use pointsman_model::test_util::models::Tensors;

const TOKENS: [u32; 20] = [
    3, 14, 15, 9, 26, 5, 3, 5, 8, 9, 7, 9, 32, 3, 8, 4, 6, 2, 6, 4,
];

/// A matrix of f64, row by row.
type Rows = Vec<Vec<f64>>;

struct Reference<'a> {
    config: LlamaConfig,
    tensors: &'a Tensors,
}

impl Reference<'_> {
    /// Computes the logits after every token.
    fn logits(&self, tokens: &[u32]) -> Rows {
        let embedding = self.matrix("model.embed_tokens");
        let embed = |token: &u32| embedding[usize::try_from(*token).unwrap()].clone();
        let mut hidden: Rows = tokens.iter().map(embed).collect();
        for layer in 0..self.config.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let normed = self.norm(&hidden, &name("input_layernorm"));
            add(&mut hidden, &self.attention(&normed, &name("self_attn")));
            let normed = self.norm(&hidden, &name("post_attention_layernorm"));
            add(&mut hidden, &self.mlp(&normed, &name("mlp")));
        }
        let normed = self.norm(&hidden, "model.norm");
        match self.config.head {
            Head::Tied => self.linear(&normed, "model.embed_tokens"),
            Head::Own => self.linear(&normed, "lm_head"),
        }
    }

    fn attention(&self, x: &Rows, name: &str) -> Rows {
        let project = |part: &str| self.linear(x, &format!("{name}.{part}_proj"));
        let (queries, keys, values) = (project("q"), project("k"), project("v"));
        let size = self.config.head_dim;
        let mut out = vec![Vec::new(); x.len()];
        for position in 0..x.len() {
            for head in 0..self.config.heads {
                let shared = head / (self.config.heads / self.config.kv_heads);
                let query = &queries[position][head * size..][..size];
                let query = self.normed_head(query, &format!("{name}.q_norm"));
                let query = self.turned(&query, position);
                let scores = (0..=position).map(|at| {
                    let key = &keys[at][shared * size..][..size];
                    let key = self.normed_head(key, &format!("{name}.k_norm"));
                    let key = self.turned(&key, at);
                    (dot(&query, &key) / (size as f64).sqrt()).exp()
                });
                let scores: Vec<f64> = scores.collect();
                let total: f64 = scores.iter().sum();
                out[position].extend((0..size).map(|i| {
                    let seen = scores.iter().zip(&values);
                    let terms = seen.map(|(score, value)| score * value[shared * size + i]);
                    terms.sum::<f64>() / total
                }));
            }
        }
        self.linear(&out, &format!("{name}.o_proj"))
    }

    fn normed_head(&self, head: &[f64], name: &str) -> Vec<f64> {
        match self.config.head_norms {
            Extra::Absent => head.to_vec(),
            Extra::Present => self.norm(&vec![head.to_vec()], name).swap_remove(0),
        }
    }

    fn turned(&self, head: &[f64], position: usize) -> Vec<f64> {
        let half = head.len() / 2;
        let Rotation {
            frequencies,
            amplitude,
        } = self.config.rope.rotation(head.len());
        let amplitude = f64::from(amplitude);
        let mut out = vec![0.0; head.len()];
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * f64::from(*frequency)).sin_cos();
            out[i] = (head[i] * cos - head[i + half] * sin) * amplitude;
            out[i + half] = (head[i + half] * cos + head[i] * sin) * amplitude;
        }
        out
    }

    fn mlp(&self, x: &Rows, name: &str) -> Rows {
        let mut gate = self.linear(x, &format!("{name}.gate_proj"));
        let up = self.linear(x, &format!("{name}.up_proj"));
        for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate = *gate / (1.0 + (-*gate).exp()) * up;
        }
        self.linear(&gate, &format!("{name}.down_proj"))
    }

    fn norm(&self, x: &Rows, name: &str) -> Rows {
        let weight = self.vector(&format!("{name}.weight")).unwrap();
        let norm = |row: &Vec<f64>| {
            let mean = dot(row, row) / row.len() as f64;
            let scale = 1.0 / (mean + f64::from(self.config.rms_norm_eps)).sqrt();
            row.iter()
                .zip(&weight)
                .map(|(x, weight)| x * scale * weight)
                .collect()
        };
        x.iter().map(norm).collect()
    }

    fn linear(&self, x: &Rows, name: &str) -> Rows {
        let weight = self.matrix(name);
        let bias = self.vector(&format!("{name}.bias"));
        let bias = bias.unwrap_or_else(|| vec![0.0; weight.len()]);
        let project = |row: &Vec<f64>| {
            let outs = weight.iter().zip(&bias);
            outs.map(|(weight, bias)| dot(weight, row) + bias).collect()
        };
        x.iter().map(project).collect()
    }

    fn matrix(&self, name: &str) -> Rows {
        let name = format!("{name}.weight");
        let cols = self.tensors[&name].shape[1];
        let values = self.vector(&name).unwrap();
        values.chunks(cols).map(<[f64]>::to_vec).collect()
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        let tensor = self.tensors.get(name)?;
        Some(tensor.values.iter().copied().map(f64::from).collect())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut Rows, what: &Rows) {
    for (to, what) in to.iter_mut().flatten().zip(what.iter().flatten()) {
        *to += what;
    }
}

/// Returns the engine's logits after the last token.
fn engine(config: &Value, tensors: &Tensors) -> Vec<f32> {
    let model = models::load(config, tensors, Dtype::BF16);
    let shape = KvShape {
        tokens_per_block: 6,
        blocks_total: 4,
    };
    let mut backend = CpuBackend::new(model, shape, Processors::of_caller());
    let blocks = [2, 0, 3, 1].map(BlockId);
    let mut logits = Vec::new();
    let chunk = Chunk {
        tokens: &TOKENS,
        start: 0,
        blocks: &blocks,
        logits: Logits::Last,
    };
    backend.forward(&[chunk], &mut logits).unwrap();
    logits
}

#[test]
fn models_of_every_shape_compute_what_a_llama_model_is_defined_to() {
    for (config, seed) in models::shapes().iter().zip(1..) {
        let tensors = models::tensors(config, seed);
        let found = engine(config, &tensors);
        let reference = Reference {
            config: LlamaConfig::parse(config.to_string().as_bytes()).unwrap(),
            tensors: &tensors,
        };
        let expected = reference.logits(&TOKENS).pop().unwrap();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-4, "{config}: {found} for {expected}");
        }
    }
}
