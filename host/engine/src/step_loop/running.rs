//! A sequence in a slot.

use std::error::Error as _;

use pointsman_events::{BlockCopy, BlockId, HostBlockId, Progress, RetryClass, SequenceRef};
use pointsman_executor::contract::{Event, Start};
use pointsman_executor::delivery::{LikelyToken, StopReason, TokenLogprob};
use pointsman_executor::job::JobState;
use pointsman_executor::shares::Need;
use pointsman_executor::text::Detokenizer;

use super::LoopModel;
use crate::backend::{Chunk, Logits, SwapTicket, TokenChoice};
use crate::embedding::direction;
use crate::sample::{Logprobs, Sampler, Tokens};
use pointsman_text::{FormError, FormMatcher, ModelText};

/// A sequence in a slot, its block table, and the progress of its KV.
#[derive(Debug)]
pub(super) struct RunningSequence {
    id: SequenceRef,
    /// The place of its model among those of the loop.
    model: usize,
    /// Tokens to have in KV before the first one generated here.
    prompt_tokens: usize,
    sequence: JobState,
    /// The form that its answer has to have, as far as it has come; absent: any.
    form: Option<FormMatcher>,
    /// The block table.
    blocks: Vec<BlockId>,
    /// Tokens, from the start, whose KV is in `blocks`.
    in_kv: usize,
    /// The way of that KV back from host memory.
    copy_back: CopyBack,
    /// Tokens that may still be generated.
    output_tokens_left: u32,
    /// The sequence's last step.
    last_step: u64,
}

/// The way of a sequence's KV back from host memory.
#[derive(Debug)]
pub(super) enum CopyBack {
    /// These copies are to be made.
    Due(Vec<BlockCopy>),
    /// They are under way.
    Copying(SwapTicket),
    /// All of it is here.
    Here,
}

/// A sequence's part in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The sequence's place among those that run.
    pub(super) idx: usize,
    /// Tokens to compute.
    pub(super) tokens: usize,
    pub(super) logits: Logits,
}

/// A turn's outcome.
#[derive(Debug)]
pub(super) enum TurnOutcome {
    GoesOn,
    Finished(StopReason),
    /// The prompt is embedded.
    Embedded(Vec<f32>),
    Failed(RetryClass, String),
}

// === impl RunningSequence: before a step ===

impl RunningSequence {
    /// Puts a sequence of the model at place `model` into a slot after `steps` steps.
    pub(super) fn new(start: Start, model: usize, steps: u64) -> Self {
        let id = start.order.sequence;
        let output_tokens_left = start.output_tokens_left();
        let Start {
            order, sequence, ..
        } = start;
        let prompt_tokens = sequence.tokens.len();
        Self {
            id,
            model,
            prompt_tokens,
            sequence,
            form: None,
            blocks: order.blocks,
            // The last token always needs a pass: the first new one is chosen by its logits.
            in_kv: (order.cached_tokens as usize).min(prompt_tokens.saturating_sub(1)),
            copy_back: match order.copies.is_empty() {
                true => CopyBack::Here,
                false => CopyBack::Due(order.copies),
            },
            output_tokens_left,
            last_step: steps,
        }
    }

    /// Gets ready to keep the answer to its form, if it is to have one.
    pub(super) fn begin_form(&mut self, model: &ModelText) -> Result<(), FormError> {
        let form = self.sequence.job.form.as_ref();
        let begun = form.map(|form| model.begin_form(form, self.sequence.generated()));
        self.form = begun.transpose()?;
        Ok(())
    }

    pub(super) fn id(&self) -> SequenceRef {
        self.id
    }

    /// The place of the sequence's model among those of the loop.
    pub(super) fn model(&self) -> usize {
        self.model
    }

    /// True if the sequence has all of its KV, as far as it was computed.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.copy_back, CopyBack::Here)
    }

    pub(super) fn copy_back(&mut self) -> &mut CopyBack {
        &mut self.copy_back
    }

    /// The copies by which the sequence's KV gets into these host blocks, one for each block of its
    /// table, and the tokens that are there then.
    pub(super) fn copies_to(
        &self,
        host_blocks: &[HostBlockId],
        tokens_per_block: usize,
    ) -> (Vec<BlockCopy>, usize) {
        let used = self.in_kv.div_ceil(tokens_per_block);
        let copies = host_blocks.iter().zip(&self.blocks).take(used);
        let copies = copies.map(|(host, block)| BlockCopy {
            host: *host,
            block: *block,
        });
        let copies: Vec<BlockCopy> = copies.collect();
        let tokens = self.in_kv.min(copies.len() * tokens_per_block);
        (copies, tokens)
    }

    pub(super) fn grant(&mut self, blocks: &[BlockId]) {
        self.blocks.extend_from_slice(blocks);
    }

    pub(super) fn need(&self, tokens_per_block: usize) -> Need {
        let room = match self.copy_back {
            CopyBack::Here => (self.blocks.len() * tokens_per_block).saturating_sub(self.in_kv),
            CopyBack::Due(_) | CopyBack::Copying(_) => 0,
        };
        Need {
            request: self.id.request,
            is_prompt: self.in_kv < self.prompt_tokens,
            tokens: room.min(self.sequence.tokens.len() - self.in_kv),
            last_step: self.last_step,
        }
    }

    /// Makes the turn of the sequence at place `idx`, with `tokens` tokens.
    pub(super) fn turn(&self, idx: usize, tokens: usize, model: &LoopModel) -> Turn {
        let is_last = self.in_kv + tokens == self.sequence.tokens.len();
        let is_to_embed = self.sequence.job.is_to_embed();
        let takes_any = self.form.is_none() && self.sequence.job.logprobs.is_none();
        let logits = match is_last {
            true if is_to_embed => Logits::Hidden,
            true if takes_any && model.can_choose() => Logits::Kept,
            true => Logits::Last,
            false => Logits::None,
        };
        Turn {
            idx,
            tokens,
            logits,
        }
    }

    /// The choice of the next token.
    pub(super) fn choice(&self) -> TokenChoice<'_> {
        choice(&self.sequence)
    }

    pub(super) fn chunk(&self, turn: &Turn) -> Chunk<'_> {
        Chunk {
            tokens: &self.sequence.tokens[self.in_kv..self.in_kv + turn.tokens],
            start: count(self.in_kv),
            blocks: &self.blocks,
            logits: turn.logits,
        }
    }
}

// === impl RunningSequence: after a step ===

impl RunningSequence {
    /// Notes that step `step` has put the tokens of `turn` into KV.
    pub(super) fn computed(&mut self, turn: &Turn, step: u64) -> Progress {
        let prompt_left = self.prompt_tokens.saturating_sub(self.in_kv);
        self.in_kv += turn.tokens;
        self.last_step = step;
        Progress {
            request: self.id.request,
            prefilled: count(turn.tokens.min(prompt_left)),
            generated: 0,
        }
    }

    /// Chooses the next token by its row of logits.
    ///
    /// # Errors
    /// If none can be chosen.
    pub(super) fn choose(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
    ) -> Result<u32, (RetryClass, String)> {
        let TokenChoice { sampling, tokens } = choice(&self.sequence);
        let chosen = match &mut self.form {
            None => sampler.choose(logits, sampling, tokens),
            Some(form) => {
                let masked = form.mask(logits).map_err(broken_form)?;
                let chosen = sampler.choose(&masked, sampling, tokens);
                if let Some(token) = chosen {
                    form.accept(token).map_err(broken_form)?;
                }
                chosen
            }
        };
        a_token(chosen)
    }

    /// Notes the probability of a token that was chosen, if the client asks for it.
    pub(super) fn tell(&mut self, token: u32, logits: &[f32], model: &ModelText) {
        let Some(top) = self.sequence.job.logprobs else {
            return;
        };
        let is_end = !self.sequence.job.ignore_eos && model.eos().contains(&token);
        if is_end {
            return;
        }
        let logprobs = Logprobs::new(logits);
        let likely = |token| LikelyToken {
            bytes: model.token_bytes(token),
            logprob: logprobs.of(token),
        };
        self.sequence.unsent.logprobs.push(TokenLogprob {
            chosen: likely(token),
            top: logprobs.top(top).into_iter().map(likely).collect(),
        });
    }

    /// Appends a generated token, and its text to the text that is to be shown.
    pub(super) fn accept(&mut self, token: u32, model: &ModelText, context: usize) -> TurnOutcome {
        self.output_tokens_left -= 1;
        let room = context.saturating_sub(self.sequence.tokens.len() + 1);
        let is_complete = self.form.as_ref().is_some_and(FormMatcher::is_complete);
        let left = match is_complete {
            true => 0,
            false => room.min(self.output_tokens_left as usize),
        };
        match self.sequence.accept(token, left, model) {
            Ok(Some(_)) if is_complete => TurnOutcome::Finished(StopReason::Stop),
            Ok(Some(stop)) => TurnOutcome::Finished(stop),
            Ok(None) => TurnOutcome::GoesOn,
            Err(error) => {
                let cause = error.source().map(ToString::to_string);
                let why = format!("{error}: {}", cause.unwrap_or_default());
                TurnOutcome::Failed(RetryClass::Never, why)
            }
        }
    }

    /// Hands in the text that was generated, if there is any.
    pub(super) fn deliver_text(&mut self) {
        self.sequence.deliver_text();
    }
}

// === impl RunningSequence: its end ===

impl RunningSequence {
    pub(super) fn finish(mut self, stop: StopReason) -> Event {
        self.sequence.deliver(Some(stop));
        Event::Finished {
            sequence: self.id,
            stop,
        }
    }

    /// Ends with the embedding of the prompt.
    pub(super) fn finish_embedded(self, numbers: Vec<f32>) -> Event {
        self.sequence.deliver_embedding(numbers);
        Event::Finished {
            sequence: self.id,
            stop: StopReason::Stop,
        }
    }

    pub(super) fn fail(self, retry: RetryClass, why: String) -> Event {
        Event::Failed {
            sequence: self.id,
            retry,
            why,
            state: Some(Box::new(self.sequence)),
        }
    }

    /// Leaves, with the KV of `swapped_tokens` tokens in host memory.
    pub(super) fn leave(self, swapped_tokens: usize) -> Event {
        Event::Left {
            sequence: self.id,
            state: Box::new(self.sequence),
            swapped_tokens: count(swapped_tokens),
        }
    }
}

fn choice(sequence: &JobState) -> TokenChoice<'_> {
    TokenChoice {
        sampling: &sequence.job.sampling,
        tokens: Tokens {
            prompt: &sequence.job.prompt,
            generated: sequence.generated(),
        },
    }
}

/// The token that was chosen, or the end of a sequence for which none could be.
pub(super) fn a_token(chosen: Option<u32>) -> Result<u32, (RetryClass, String)> {
    let none = "no token has a logit that is a number";
    chosen.ok_or_else(|| (RetryClass::Elsewhere, none.to_owned()))
}

/// The outcome of a turn that has the hidden state of the whole prompt.
pub(super) fn embedded(hidden: &[f32]) -> TurnOutcome {
    match direction(hidden) {
        Some(numbers) => TurnOutcome::Embedded(numbers),
        None => {
            let why = "the hidden state has no direction: its numbers are 0, or none";
            TurnOutcome::Failed(RetryClass::Elsewhere, why.to_owned())
        }
    }
}

/// The end of a sequence whose form cannot be kept to any more.
fn broken_form(error: FormError) -> (RetryClass, String) {
    (
        RetryClass::Never,
        format!("the form of the answer: {error}"),
    )
}

/// Converts tokens to the machine's type.
fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("a context is shorter than 2^32 tokens")
}
