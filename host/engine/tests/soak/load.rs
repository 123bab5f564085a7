//! The load of a soak: orders of clients, drawn from a list with their answers, and what goes wrong meanwhile.

use std::sync::Arc;

use fastrand::Rng;
use pointsman_core::{BlockCopy, BlockHash, PromptBlocks};
use pointsman_engine::model::backend::{
    Backend, Chunk, DeviceError, SwapDirection, SwapTicket, SwapWait, TokenChooser,
};
use pointsman_engine::test_util::{demo_text, solo};
use pointsman_executor::job::Job;
use pointsman_executor::test_util::{WholeAnswer, random_job};

use crate::host::LOST;

/// Token ids of prompts are below this.
pub(crate) const VOCAB_SIZE: u32 = 96;
/// Prompts with a beginning of their own, which many orders share.
const BEGINNINGS: usize = 8;
const BEGINNING_TOKENS: usize = 44;
/// Orders for each model.
const ORDERS: usize = 60;

/// An order of a client, and its answer.
#[derive(Clone)]
pub(crate) struct Order {
    /// The place of its model.
    pub(crate) model: usize,
    pub(crate) job: Arc<Job>,
    pub(crate) alone: Arc<WholeAnswer>,
}

/// Makes orders to models, whose answers come from a backend of each.
pub(crate) fn orders(rng: &mut Rng, alone: &mut [Box<dyn Backend>]) -> Vec<Order> {
    let mut some = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.u32(0..VOCAB_SIZE)).collect() };
    let beginnings: Vec<Vec<u32>> = (0..BEGINNINGS).map(|_| some(BEGINNING_TOKENS)).collect();
    let mut orders = Vec::new();
    for (model, backend) in alone.iter_mut().enumerate() {
        for _ in 0..ORDERS {
            let job = order(rng, &beginnings);
            let alone = Arc::new(solo(&mut **backend, &demo_text(), &job));
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
pub(crate) struct Mortal {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) steps_left: u32,
}

impl Backend for Mortal {
    fn vocab_size(&self) -> usize {
        self.backend.vocab_size()
    }

    fn tokens_per_block(&self) -> u32 {
        self.backend.tokens_per_block()
    }

    fn blocks_total(&self) -> u32 {
        self.backend.blocks_total()
    }

    fn context_tokens(&self) -> u32 {
        self.backend.context_tokens()
    }

    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.steps_left = self.steps_left.saturating_sub(1);
        if self.steps_left == 0 {
            return Err(DeviceError(LOST.into()));
        }
        self.backend.forward(chunks, logits)
    }

    fn hidden_size(&self) -> usize {
        self.backend.hidden_size()
    }

    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.backend.hidden(hidden)
    }

    fn chooser(&mut self) -> Option<&mut dyn TokenChooser> {
        self.backend.chooser()
    }

    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        self.backend.swap(direction, copies)
    }

    fn swapped(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        self.backend.swapped(wait)
    }
}
