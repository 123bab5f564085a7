//! Steps of an emulated device that are recorded, and then launched at once.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::ops::Range;

use pointsman_cuda::CudaBackend;
use pointsman_cuda::emulation::{self, Alone, Launches, ThreadOrder};
use pointsman_engine::backend::{
    Backend as _, Chunk, KvShape, Logits, PossibleTokens, TokenChoice, TokenChooser as _,
};
use pointsman_engine::sample::Tokens;
use pointsman_events::BlockId;
use pointsman_executor::job::Sampling;
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::json;

const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 16,
};
/// Tokens of a sequence before its last two, with which it fills its block.
const PROMPT: usize = 14;
/// The launches of a step that was recorded.
const ONE_LAUNCH: Launches = Launches {
    alone: 0,
    records: 1,
};

/// A sequence that has a block.
struct Sequence {
    tokens: Vec<u32>,
    block: [BlockId; 1],
}

fn sequences(count: u32) -> Vec<Sequence> {
    let sequences = (0..count).map(|index| Sequence {
        tokens: (0..16).map(|place| (index * 7 + place * 3) % 90).collect(),
        block: [BlockId(index)],
    });
    sequences.collect()
}

impl Sequence {
    fn chunk(&self, tokens: Range<usize>, logits: Logits) -> Chunk<'_> {
        Chunk {
            start: u32::try_from(tokens.start).unwrap(),
            tokens: &self.tokens[tokens],
            blocks: &self.block,
            logits,
        }
    }
}

/// The chunks of a step in which each sequence has the token at a position.
fn decode(sequences: &[Sequence], position: usize) -> Vec<Chunk<'_>> {
    let chunks = sequences
        .iter()
        .map(|sequence| sequence.chunk(position..position + 1, Logits::Last));
    chunks.collect()
}

fn backend() -> CudaBackend {
    let config = models::config(json!({"head_dim": 16, "num_hidden_layers": 1}));
    let model = models::load(&config, &models::tensors(&config, 7), Dtype::BF16);
    CudaBackend::alone(model.open(), SHAPE).unwrap()
}

/// A backend that has computed all but the last two tokens of sequences.
fn backend_with(sequences: &[Sequence]) -> CudaBackend {
    let mut backend = backend();
    let prompts = sequences
        .iter()
        .map(|sequence| sequence.chunk(0..PROMPT, Logits::None));
    let prompts: Vec<Chunk<'_>> = prompts.collect();
    backend.forward(&prompts, &mut Vec::new()).unwrap();
    backend
}

/// The rows of a step, and its launches.
fn step(
    emulated: &Alone,
    backend: &mut CudaBackend,
    chunks: &[Chunk<'_>],
) -> (Vec<Vec<f32>>, Launches) {
    let before = emulated.launches();
    let mut logits = Vec::new();
    backend.forward(chunks, &mut logits).unwrap();
    let after = emulated.launches();
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let rows = logits.chunks(backend.vocab_size()).map(<[f32]>::to_vec);
    let launches = Launches {
        alone: after.alone - before.alone,
        records: after.records - before.records,
    };
    (rows.collect(), launches)
}

/// The rows of sequences at a position, each computed alone.
fn alone(
    emulated: &Alone,
    backend: &mut CudaBackend,
    sequences: &[Sequence],
    position: usize,
) -> Vec<Vec<f32>> {
    let chunks = decode(sequences, position).into_iter();
    chunks
        .flat_map(|chunk| step(emulated, backend, &[chunk]).0)
        .collect()
}

#[test]
fn the_third_step_of_a_shape_is_one_launch() {
    let emulated = emulation::alone();
    let mut backend = backend();
    let sequences = sequences(1);
    let chunks = decode(&sequences, 0);
    let (row, first) = step(&emulated, &mut backend, &chunks);
    assert!(first.alone > 1 && first.records == 0, "{first:?}");
    // The second is recorded, and what was recorded is launched.
    for _ in 0..3 {
        let again = step(&emulated, &mut backend, &chunks);
        assert_eq!(again, (row.clone(), ONE_LAUNCH));
    }
}

#[test]
fn steps_of_about_as_many_sequences_are_one_launch_with_the_rows_of_solo_runs() {
    let emulated = emulation::alone();
    let sequences = sequences(16);
    let mut solo = backend_with(&sequences);
    let expected =
        [PROMPT, PROMPT + 1].map(|position| alone(&emulated, &mut solo, &sequences, position));
    let mut together = backend_with(&sequences);
    for _ in 0..2 {
        step(&emulated, &mut together, &decode(&sequences, PROMPT));
    }
    for (count, order) in (9..=16).zip(ThreadOrder::OTHERS.into_iter().cycle()) {
        // Rows that fill a step up write to one place.
        emulated.set_order(order);
        let chunks = decode(&sequences[..count], PROMPT);
        let (rows, launches) = step(&emulated, &mut together, &chunks);
        assert_eq!(rows, expected[0][..count], "{count} sequences");
        assert_eq!(launches, ONE_LAUNCH, "{count} sequences");
    }
    // Nothing is left of the rows that filled the steps up.
    let (rows, _) = step(&emulated, &mut together, &decode(&sequences, PROMPT + 1));
    assert_eq!(rows, expected[1]);
    // Behind full blocks there is no room for any.
    let chunks = decode(&sequences[..9], PROMPT + 1);
    let (rows, launches) = step(&emulated, &mut together, &chunks);
    assert_eq!(rows, expected[1][..9]);
    assert_eq!(launches.records, 0);
}

#[test]
fn tokens_are_chosen_for_sequences_and_not_for_what_fills_a_step_up() {
    let emulated = emulation::alone();
    let sequences = sequences(5);
    let mut solo = backend_with(&sequences);
    let expected = alone(&emulated, &mut solo, &sequences, PROMPT);
    let mut together = backend_with(&sequences);
    let mut chunks = decode(&sequences, PROMPT);
    for chunk in &mut chunks[1..] {
        chunk.logits = Logits::Kept;
    }
    let (rows, _) = step(&emulated, &mut together, &chunks);
    assert_eq!(rows, expected[..1]);
    let sampling = Sampling::GREEDY;
    let choice = TokenChoice {
        sampling: &sampling,
        tokens: Tokens {
            prompt: &[],
            generated: &[],
        },
    };
    let possible = PossibleTokens {
        count: together.vocab_size(),
        missing: &[],
    };
    let chosen = together.choose(&[choice; 4], possible).unwrap();
    let likeliest = expected[1..].iter().map(|row| {
        let tokens = (0_u32..).zip(row);
        tokens.max_by(|a, b| a.1.total_cmp(b.1)).map(|best| best.0)
    });
    assert_eq!(chosen, likeliest.collect::<Vec<_>>());
}

#[test]
fn a_record_that_is_used_outlives_shapes_that_come_once() {
    let emulated = emulation::alone();
    let mut backend = backend();
    let sequences = sequences(12);
    // No step takes memory after this one.
    step(&emulated, &mut backend, &decode(&sequences, 0));
    let used = decode(&sequences[..1], 0);
    for _ in 0..2 {
        step(&emulated, &mut backend, &used);
    }
    let mut others = 0;
    for count in 2..=12 {
        // A step is not filled up where not all logits are wanted.
        for wanted in 0..count {
            let mut chunks = decode(&sequences[..count], 0);
            for chunk in &mut chunks[wanted..] {
                chunk.logits = Logits::None;
            }
            let (_, launches) = step(&emulated, &mut backend, &chunks);
            assert_eq!(launches.records, 0, "{wanted} of {count}");
            others += 1;
            let (_, launches) = step(&emulated, &mut backend, &used);
            assert_eq!(launches, ONE_LAUNCH, "after {others} others");
        }
    }
    // More than are remembered.
    assert!(others > 64, "{others}");
}
