//! The load of a soak: orders of clients, drawn from a list with their answers, and what goes wrong meanwhile.

use std::sync::Arc;

use fastrand::Rng;
use pointsman_core::{BlockHash, PromptBlocks};
use pointsman_engine::backend::{Backend, DeviceError};
use pointsman_engine::test_util::stepped::Stepped;
use pointsman_executor::job::Job;
use pointsman_executor::test_util::random_job;

use crate::host::{Alone, LOST};

/// Token ids of prompts are below this.
pub(crate) const VOCAB_SIZE: u32 = 96;
/// Prompts with a beginning of their own, which many orders share.
const BEGINNINGS: usize = 8;
const BEGINNING_TOKENS: usize = 44;
/// Orders for each model.
const ORDERS: usize = 60;
/// Each such order asks for the probabilities of its tokens, which tell more of its rows of logits than its text.
const WITH_LOGPROBS: usize = 3;

/// An order of a client, and its answer.
#[derive(Clone)]
pub(crate) struct Order {
    /// The place of its model.
    pub(crate) model: usize,
    pub(crate) job: Arc<Job>,
    pub(crate) alone: Arc<Alone>,
}

/// Makes orders to models, whose answers come from a backend of each.
pub(crate) fn orders(rng: &mut Rng, alone: &mut [Box<dyn Backend>]) -> Vec<Order> {
    let mut some = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.u32(0..VOCAB_SIZE)).collect() };
    let beginnings: Vec<Vec<u32>> = (0..BEGINNINGS).map(|_| some(BEGINNING_TOKENS)).collect();
    let mut orders = Vec::new();
    for (model, backend) in alone.iter_mut().enumerate() {
        for number in 0..ORDERS {
            let mut job = order(rng, &beginnings);
            job.logprobs = number.is_multiple_of(WITH_LOGPROBS).then_some(2);
            let alone = Arc::new(Alone::new(&mut **backend, &job));
            orders.push(Order {
                model,
                job: Arc::new(job),
                alone,
            });
        }
    }
    orders
}

fn order(rng: &mut Rng, beginnings: &[Vec<u32>]) -> Job {
    let beginning = &beginnings[rng.usize(0..beginnings.len())];
    let shared = &beginning[..rng.usize(0..=beginning.len())];
    let own = rng.usize(1..=12);
    let mut job = random_job(rng, 1, 60);
    if rng.u8(0..8) == 0 {
        // Its prompt is embedded.
        job.output_tokens_max = 0;
    }
    job.prompt = shared.to_vec();
    job.prompt.extend((0..own).map(|_| rng.u32(0..VOCAB_SIZE)));
    job.sampling.logit_bias.retain(|(id, _)| *id < VOCAB_SIZE);
    job
}

/// The full blocks of a prompt. A hash stands for the text up to its block's end.
pub(crate) fn prompt_blocks(prompt: &[u32], tokens_per_block: u32) -> PromptBlocks {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mut next = |block: &[u32]| {
        for token in block {
            hash = (hash ^ u128::from(*token)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
        BlockHash(hash)
    };
    let full = prompt.chunks_exact(tokens_per_block as usize);
    PromptBlocks {
        tokens_per_block,
        hashes: full.map(&mut next).collect(),
    }
}

/// A backend whose device fails after a number of steps, drawn anew for each life.
pub(crate) fn mortal(backend: Box<dyn Backend>, mut steps_left: u32) -> Stepped {
    Stepped::new(backend, move || {
        steps_left = steps_left.saturating_sub(1);
        match steps_left {
            0 => Err(DeviceError(LOST.into())),
            1.. => Ok(()),
        }
    })
}
