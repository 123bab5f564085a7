//! Tokens chosen on a device are those that the engine's sampler chooses by the same rows.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fs;
use std::sync::Arc;

use fastrand::Rng;
use pointsman_cuda::CudaBackend;
use pointsman_cuda::emulation::{self, ThreadOrder};
use pointsman_engine::backend::{
    Backend, Chunk, KvShape, Logits, PossibleTokens, TokenChoice, TokenChooser as _,
};
use pointsman_engine::sample::{Sampler, Tokens};
use pointsman_events::BlockId;
use pointsman_executor::job::Sampling;
use pointsman_executor::test_util::random_sampling;
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_model::open::OpenModel;
use pointsman_model::test_util::models;
use serde_json::json;

const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 8,
};
/// Tokens of a vocabulary of which each of the 1,024 threads of a choice has several, and one of a model that people use.
const SEVERAL_EACH: u32 = 5_000;
const LARGE: u32 = 128_256;

/// A sequence with the parameters by which its next token is chosen.
struct Sequence {
    prompt: Vec<u32>,
    generated: Vec<u32>,
    sampling: Sampling,
}

fn backend() -> CudaBackend {
    backend_of(models::demo().open())
}

fn backend_of(model: &Arc<OpenModel>) -> CudaBackend {
    emulation::provide();
    CudaBackend::alone(model, SHAPE).unwrap()
}

/// A backend of a model of one layer with random weights and so many tokens.
fn backend_with_tokens(vocab_size: u32) -> CudaBackend {
    let config = models::config(
        json!({"head_dim": 16, "hidden_size": 64, "num_hidden_layers": 1,
        "vocab_size": vocab_size}),
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let files = ModelFiles::Dummy(Dummy::new(&path, 3));
    backend_of(&Arc::new(OpenModel::open(&files).unwrap()))
}

impl Sequence {
    fn random(rng: &mut Rng, vocab_size: u32) -> Self {
        let temperature = *rng.choice(&[0.0, 0.1, 0.7, 1.0, 2.0, 50.0]).unwrap();
        let mut ids = |count| -> Vec<u32> { (0..count).map(|_| rng.u32(..vocab_size)).collect() };
        let (prompt, generated) = (ids(6), ids(20));
        let any = random_sampling(rng);
        let plain = Sampling {
            top_p: any.top_p,
            ..Sampling::NEUTRAL
        };
        let fewer = Sampling {
            top_k: 0,
            min_p: 0.0,
            ..any.clone()
        };
        let sampling = rng.choice([any, plain, fewer, Sampling::NEUTRAL]).unwrap();
        Self {
            prompt,
            // Some come up more than once.
            generated: [generated.as_slice(), &generated[..7]].concat(),
            sampling: Sampling {
                temperature,
                seed: rng.u64(..),
                ..sampling
            },
        }
    }

    fn choice(&self) -> TokenChoice<'_> {
        TokenChoice {
            sampling: &self.sampling,
            tokens: Tokens {
                prompt: &self.prompt,
                generated: &self.generated,
            },
        }
    }

    fn chunk<'a>(&'a self, blocks: &'a [BlockId], logits: Logits) -> Chunk<'a> {
        Chunk {
            tokens: &self.prompt,
            start: 0,
            blocks,
            logits,
        }
    }
}

/// Ways to choose a token: with each bound of those that are kept, and with several.
fn ways() -> [Sampling; 7] {
    let few = |top_k| Sampling {
        top_k,
        ..Sampling::NEUTRAL
    };
    let share = |top_p| Sampling {
        top_p,
        ..Sampling::NEUTRAL
    };
    [
        Sampling::GREEDY,
        Sampling::NEUTRAL,
        few(40),
        share(0.95),
        Sampling {
            min_p: 0.05,
            ..Sampling::NEUTRAL
        },
        Sampling {
            top_p: 0.5,
            ..few(2_000)
        },
        Sampling {
            temperature: 50.0,
            ..share(0.999)
        },
    ]
}

/// The token that the sampler chooses by a row.
fn expected(row: &[f32], sequence: &Sequence, possible: PossibleTokens<'_>) -> Option<u32> {
    let mut row = row[..possible.count].to_vec();
    for id in possible.missing {
        row[*id as usize] = f32::NEG_INFINITY;
    }
    let TokenChoice { sampling, tokens } = sequence.choice();
    Sampler::default().choose(&row, sampling, tokens)
}

/// Compares the choices for these sequences, which are in one step.
fn compare(backend: &mut CudaBackend, sequences: &[Sequence], possible: PossibleTokens<'_>) {
    let blocks: Vec<[BlockId; 1]> = (0..8).map(|block| [BlockId(block)]).collect();
    let step = |logits| -> Vec<Chunk<'_>> {
        let all = sequences.iter().zip(&blocks);
        all.map(|(sequence, blocks)| sequence.chunk(blocks, logits))
            .collect()
    };
    let (mut rows, mut copied) = (Vec::new(), Vec::new());
    backend.forward(&step(Logits::Last), &mut rows).unwrap();
    let mut chunks = step(Logits::Kept);
    // One of them wants its row.
    chunks[0].logits = Logits::Last;
    backend.forward(&chunks, &mut copied).unwrap();
    let size = backend.vocab_size();
    assert_eq!(copied, rows[..size]);
    let choices: Vec<TokenChoice<'_>> = sequences[1..].iter().map(Sequence::choice).collect();
    let chosen = backend.choose(&choices, possible).unwrap();
    let rows = rows.chunks(size).skip(1);
    for ((sequence, row), token) in sequences[1..].iter().zip(rows).zip(chosen) {
        let expected = expected(row, sequence, possible);
        assert_eq!(token, expected, "{:?}", sequence.sampling);
        assert!(token.is_some());
    }
}

/// Compares choices in each of the ways, and in some at random, among tokens of which some are missing.
fn compare_ways(backend: &mut CudaBackend, rounds: usize) {
    let vocab_size = u32::try_from(backend.vocab_size()).unwrap();
    let mut rng = Rng::with_seed(u64::from(vocab_size));
    // Tables have rows behind the last token, too.
    let count = vocab_size - 17;
    for _ in 0..rounds {
        let missing: Vec<u32> = (0..200).map(|_| rng.u32(..count)).collect();
        let possible = PossibleTokens {
            count: count as usize,
            missing: &missing,
        };
        let mut sequences: Vec<Sequence> = (0..8)
            .map(|_| Sequence::random(&mut rng, vocab_size))
            .collect();
        compare(backend, &sequences, possible);
        for (sequence, way) in sequences[1..].iter_mut().zip(ways()) {
            sequence.sampling = Sampling {
                seed: rng.u64(..),
                ..way
            };
        }
        compare(backend, &sequences, possible);
    }
}

#[test]
fn tokens_are_those_of_the_sampler() {
    let mut backend = backend();
    let vocab_size = backend.vocab_size();
    let mut rng = Rng::with_seed(5);
    let rounds = if emulation::is_sanitized() { 6 } else { 40 };
    for round in 0..rounds {
        let count = if round % 2 == 0 { vocab_size } else { 600 };
        let missing: Vec<u32> = (0..round).map(|id| id * 13).collect();
        let possible = PossibleTokens {
            count,
            missing: &missing,
        };
        let vocab_size = u32::try_from(vocab_size).unwrap();
        let sequences: Vec<Sequence> = (0..6)
            .map(|_| Sequence::random(&mut rng, vocab_size))
            .collect();
        compare(&mut backend, &sequences, possible);
    }
}

#[test]
fn tokens_of_which_a_thread_has_several_are_those_of_the_sampler() {
    let rounds = if emulation::is_sanitized() { 1 } else { 6 };
    compare_ways(&mut backend_with_tokens(SEVERAL_EACH), rounds);
}

#[test]
fn tokens_of_a_large_vocabulary_are_those_of_the_sampler() {
    compare_ways(&mut backend_with_tokens(LARGE), 1);
}

#[test]
fn the_order_of_threads_changes_no_choice() {
    if emulation::is_on_device() {
        println!("skipped: a device runs its threads in an order of its own");
        return;
    }
    let emulated = emulation::alone();
    let mut backend = backend_with_tokens(SEVERAL_EACH);
    for order in ThreadOrder::OTHERS {
        emulated.set_order(order);
        compare_ways(&mut backend, 1);
    }
}

#[test]
fn what_top_k_leaves_out_stays_out_whatever_top_p_keeps() {
    let mut backend = backend();
    let mut rng = Rng::with_seed(6);
    let possible = PossibleTokens {
        count: 96,
        missing: &[],
    };
    for _ in 0..8 {
        let sequences = (0..8).map(|_| {
            let sequence = Sequence::random(&mut rng, 96);
            let sampling = Sampling {
                top_k: rng.u32(20..70),
                top_p: 0.98 + rng.f32() / 51.0,
                temperature: 50.0,
                seed: rng.u64(..),
                ..Sampling::NEUTRAL
            };
            Sequence {
                sampling,
                ..sequence
            }
        });
        compare(&mut backend, &sequences.collect::<Vec<_>>(), possible);
    }
}

#[test]
fn where_no_token_can_come_up_none_is_chosen() {
    let mut backend = backend();
    let sequence = Sequence::random(&mut Rng::with_seed(1), 300);
    let blocks = [BlockId(0)];
    let chunk = sequence.chunk(&blocks, Logits::Kept);
    backend.forward(&[chunk], &mut Vec::new()).unwrap();
    let nothing = PossibleTokens {
        count: 3,
        missing: &[0, 1, 2],
    };
    let chosen = backend.choose(&[sequence.choice()], nothing).unwrap();
    assert_eq!(chosen, [None]);
}

#[test]
fn a_choice_leaves_no_memory() {
    emulation::pass_sanitized(&[
        "tokens_are_those_of_the_sampler",
        "tokens_of_which_a_thread_has_several_are_those_of_the_sampler",
    ]);
}
