//! The contract as a suite of tests, and a scripted executor that passes the suite.
//!
//! A crate with an executor implements [`ExecutorUnderTest`] for it and writes
//! [`contract_suite!`](crate::contract_suite) in a test file. The [`TestHost`] plays the driver: it
//! checks every event against the contract and every answer against [`ExecutorUnderTest::alone`].
//! [`ScriptedExecutor`] is for tests of the driver's side.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod alone;
mod host;
mod scripted;
pub mod suite;

use fastrand::Rng;
use pointsman_events::{
    BlockId, DeviceId, ExecutorId, Incarnation, ModelId, RequestId, SequenceRef, StartOrder,
};

use crate::contract::{Command, Events, Start};
use crate::job::{AnswerStart, Job, JobState, Penalties, Sampling};

pub use alone::{WholeAnswer, answer_alone, first_stop};
pub use host::TestHost;
pub use scripted::ScriptedExecutor;

/// The id of an executor under test.
pub const EXECUTOR: ExecutorId = ExecutorId(3);
/// The life in which an executor under test begins.
pub const FIRST_LIFE: Incarnation = Incarnation(0);
/// Sequences that an executor under test runs at once.
pub const SLOTS: u32 = 4;
/// Token ids in the suite's prompts are below this.
pub const VOCAB_SIZE: u32 = 1024;

/// An executor under test: [`EXECUTOR`] in its [`FIRST_LIFE`], with [`SLOTS`] slots and no budget
/// set. Its contexts have 128 tokens or more.
pub trait ExecutorUnderTest {
    /// Sends a command.
    fn send(&mut self, command: Command);

    /// Returns the next events. Called only when some must come.
    fn events(&mut self) -> Events;

    /// Returns true if the executor works only inside [`Self::events`], so that a new budget holds
    /// at once.
    fn is_stepped(&self) -> bool;

    /// Returns true if the executor is a server elsewhere: its KV, its steps and their order are its own, the
    /// response goes through as it comes, and whoever comes back is answered anew. The [`TestHost`] reads what is
    /// relayed, and cases about blocks, budgets, orders and embeddings leave such an executor out.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Tokens in a KV block; of a server elsewhere: enough for any sequence.
    fn tokens_per_block(&self) -> u32;

    /// Blocks of the executor's device; they must hold 192 tokens or more.
    fn blocks_total(&self) -> u32;

    /// Blocks of the executor's host memory; 0: it cannot swap.
    fn host_blocks(&self) -> u32 {
        0
    }

    /// Returns the model of `job`; absent: the executor serves one.
    fn model(&self, _job: &Job) -> Option<ModelId> {
        None
    }

    /// Returns the answer to `job`, computed apart from the executor; of a server elsewhere: an id for each token, which
    /// nobody compares, and the whole body of its response as text.
    fn alone(&self, job: &Job) -> WholeAnswer;

    /// Prompts whose greedy answers end by the model's end of sequence within 60 tokens.
    fn prompts_that_end(&self) -> Vec<Vec<u32>>;
}

/// Returns the name of a request's sequence at an executor under test.
pub fn reference(request: RequestId) -> SequenceRef {
    SequenceRef {
        request,
        executor: EXECUTOR,
        incarnation: FIRST_LIFE,
    }
}

/// Returns the start of a sequence in `blocks`, of which nothing is in KV yet.
pub fn start(name: SequenceRef, sequence: JobState, blocks: Vec<BlockId>) -> Start {
    let count = |tokens: &[u32]| u32::try_from(tokens.len()).unwrap();
    let order = StartOrder {
        sequence: name,
        device: DeviceId(0),
        model: None,
        prompt_tokens: count(&sequence.tokens),
        cached_tokens: 0,
        output_tokens_max: sequence.job.output_tokens_max - count(sequence.generated()),
        blocks,
        copies: Vec::new(),
    };
    Start {
        order,
        sequence,
        trace: None,
    }
}

/// Returns a greedy job without stop strings.
pub fn job(prompt: &[u32], output_tokens_max: u32) -> Job {
    Job {
        sampling: Sampling::GREEDY,
        ..Job::new(prompt.to_vec(), output_tokens_max)
    }
}

/// Returns any sampling; half of the time [`Sampling::GREEDY`].
pub fn random_sampling(rng: &mut Rng) -> Sampling {
    if rng.bool() {
        return Sampling::GREEDY;
    }
    Sampling {
        logit_bias: random_bias(rng),
        penalties: Penalties {
            repetition: 1.0 + rng.f32() / 2.0,
            frequency: rng.f32() - 0.5,
            presence: rng.f32() - 0.5,
        },
        temperature: 0.2 + rng.f32(),
        min_p: rng.f32() / 10.0,
        top_k: rng.u32(0..100),
        top_p: 0.5 + rng.f32() / 2.0,
        seed: rng.u64(..),
    }
}

fn random_bias(rng: &mut Rng) -> Vec<(u32, f32)> {
    let mut biased = || (rng.u32(0..VOCAB_SIZE), rng.f32() * 4.0 - 2.0);
    (0..3).map(|_| biased()).collect()
}

/// Returns any job within the bounds, without stop strings.
pub fn random_job(rng: &mut Rng, prompt_max: usize, output_tokens_max: u32) -> Job {
    let prompt = (0..rng.usize(1..=prompt_max)).map(|_| rng.u32(0..VOCAB_SIZE));
    Job {
        prompt: prompt.collect(),
        answer_start: AnswerStart::Apart,
        answers: 1,
        output_tokens_max: rng.u32(1..=output_tokens_max),
        sampling: random_sampling(rng),
        stop: Vec::new(),
        ignore_eos: rng.u8(0..4) == 0,
        logprobs: None,
        form: None,
        shown_tokens: Vec::new(),
        call: None,
    }
}
