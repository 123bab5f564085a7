//! The demo model's answers against those of the script that trained it, and the logits of a tiny model of each
//! family against those of transformers, both in f32.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fs;

use pointsman_engine::backend::KvShape;
use pointsman_engine::backend::{Backend, Chunk, Logits};
use pointsman_engine::cpu::{CpuBackend, Processors};
use pointsman_engine::embedding::direction;
use pointsman_events::BlockId;
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Golden {
    message: String,
    prompt_ids: Vec<u32>,
    /// The likeliest tokens after the prompt, with their logits.
    top_logits: Vec<(usize, f32)>,
    logits_l2: f64,
    /// The greedy answer.
    greedy_ids: Vec<u32>,
}

fn golden() -> Vec<Golden> {
    let json = fs::read(models::demo_folder().join("golden.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// `families/golden.json`.
#[derive(Deserialize)]
struct Families {
    tokens: Vec<u32>,
    /// Positions whose logits are given.
    positions: Vec<usize>,
    cases: Vec<Case>,
}

/// A tiny model of a family, as transformers writes it.
#[derive(Deserialize)]
struct Case {
    name: String,
    config: Value,
    logits: Vec<Vec<f32>>,
}

/// An embedding of `embeddings/golden.json`.
#[derive(Deserialize)]
struct Embedded {
    tokens: Vec<u32>,
    embedding: Vec<f32>,
}

#[test]
fn embeddings_are_those_of_numpy_however_the_prompt_was_cut() {
    let cases: Vec<Embedded> =
        serde_json::from_str(include_str!("embeddings/golden.json")).unwrap();
    let mut backend = backend();
    let blocks: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
    for case in cases {
        let mut rows = [1, case.tokens.len() - 1].map(|first| {
            let (before, after) = case.tokens.split_at(first);
            let chunk = |tokens, start, logits| Chunk {
                tokens,
                start,
                blocks: &blocks,
                logits,
            };
            let (mut logits, mut hidden) = (Vec::new(), Vec::new());
            let first = u32::try_from(first).unwrap();
            backend
                .forward(&[chunk(before, 0, Logits::None)], &mut logits)
                .unwrap();
            backend
                .forward(&[chunk(after, first, Logits::Hidden)], &mut logits)
                .unwrap();
            backend.hidden(&mut hidden).unwrap();
            assert!(logits.is_empty());
            direction(&hidden).unwrap()
        });
        let differences = rows[0]
            .iter()
            .zip(&case.embedding)
            .map(|(a, b)| (a - b).abs());
        assert!(differences.fold(0.0, f32::max) < 1e-5);
        assert_eq!(std::mem::take(&mut rows[0]), rows[1]);
    }
}

fn families() -> Families {
    serde_json::from_str(include_str!("families/golden.json")).unwrap()
}

fn backend() -> CpuBackend {
    let shape = KvShape {
        tokens_per_block: 16,
        blocks_total: 32,
    };
    CpuBackend::new(models::demo(), shape, Processors::of_caller())
}

fn after(backend: &mut CpuBackend, tokens: &[u32], start: usize) -> Vec<f32> {
    let blocks: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
    let chunk = Chunk {
        tokens,
        start: u32::try_from(start).unwrap(),
        blocks: &blocks,
        logits: Logits::Last,
    };
    let mut logits = Vec::new();
    backend.forward(&[chunk], &mut logits).unwrap();
    logits
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    u32::try_from(best.unwrap().0).unwrap()
}

#[test]
fn logits_after_the_prompts_are_those_of_the_script() {
    let mut backend = backend();
    for golden in golden() {
        let logits = after(&mut backend, &golden.prompt_ids, 0);
        for (token, expected) in golden.top_logits {
            let error = (logits[token] - expected).abs();
            assert!(
                error < 1e-4,
                "{}: token {token} off by {error}",
                golden.message
            );
        }
        let l2 = logits
            .iter()
            .map(|logit| f64::from(*logit).powi(2))
            .sum::<f64>()
            .sqrt();
        let error = (l2 - golden.logits_l2).abs();
        assert!(error < 1e-4, "{}: norm off by {error}", golden.message);
    }
}

#[test]
fn greedy_answers_are_those_of_the_script() {
    let mut backend = backend();
    let golden = golden();
    assert_eq!(golden.len(), 18);
    for golden in golden {
        let mut logits = after(&mut backend, &golden.prompt_ids, 0);
        let mut answer = Vec::new();
        while answer.len() < golden.greedy_ids.len() {
            let token = likeliest(&logits);
            let position = golden.prompt_ids.len() + answer.len();
            answer.push(token);
            logits = after(&mut backend, &[token], position);
        }
        assert_eq!(answer, golden.greedy_ids, "{}", golden.message);
    }
}

#[test]
fn logits_of_every_family_are_those_of_transformers() {
    let families = families();
    assert_eq!(families.cases.len(), 11);
    for case in families.cases {
        let tensors = models::tensors(&case.config, 0);
        let model = models::load(&case.config, &tensors, Dtype::F32);
        let shape = KvShape {
            tokens_per_block: 16,
            blocks_total: 3,
        };
        let mut backend = CpuBackend::new(model, shape, Processors::of_caller());
        for (position, expected) in families.positions.iter().zip(&case.logits) {
            let logits = after(&mut backend, &families.tokens[..=*position], 0);
            let differences = logits.iter().zip(expected).map(|(a, b)| (a - b).abs());
            let largest = differences.fold(0.0, f32::max);
            let name = &case.name;
            assert!(largest < 1e-4, "{name}: off by {largest} at {position}");
        }
    }
}
