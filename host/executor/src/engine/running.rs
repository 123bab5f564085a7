//! A sequence in a slot.

use std::error::Error as _;
use std::mem;

use pointsman_core::{BlockId, Progress, RetryClass, SequenceRef};

use crate::contract::{Event, Start};
use crate::delivery::{NotTaken, StopReason};
use crate::job::Sequence;
use crate::model::backend::{Chunk, Logits};
use crate::sample::Sampler;
use crate::text::stream::Decoded;
use crate::text::{DecodeError, ModelText};

use super::batch::Need;

/// A sequence in a slot, its block table, and how far its KV has come.
#[derive(Debug)]
pub(super) struct Running {
    id: SequenceRef,
    /// Tokens to have in KV before the first one generated here.
    prompt_tokens: usize,
    sequence: Sequence,
    /// Its block table.
    blocks: Vec<BlockId>,
    /// Of its tokens, from the start, those whose KV is in its blocks.
    in_kv: usize,
    /// Tokens it may still generate.
    output_tokens_left: u32,
    /// The step it last was in.
    last_step: u64,
}

/// A sequence's part in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Where the sequence stands among those that run.
    pub(super) idx: usize,
    /// Tokens to compute.
    pub(super) tokens: usize,
    pub(super) logits: Logits,
}

/// What a step came to for a sequence.
#[derive(Debug)]
pub(super) enum Outcome {
    GoesOn,
    Finished(StopReason),
    Failed(RetryClass, String),
}

// === impl Running: before a step ===

impl Running {
    /// Taken up after `steps` steps.
    pub(super) fn new(start: Start, steps: u64) -> Self {
        let id = start.order.sequence;
        let output_tokens_left = output_tokens_left(&start);
        let Start { order, sequence } = start;
        let prompt_tokens = sequence.tokens.len();
        Self {
            id,
            prompt_tokens,
            sequence,
            blocks: order.blocks,
            // The last token always needs a pass: the first new one is chosen by its logits.
            in_kv: (order.cached_tokens as usize).min(prompt_tokens.saturating_sub(1)),
            output_tokens_left,
            last_step: steps,
        }
    }

    pub(super) fn id(&self) -> SequenceRef {
        self.id
    }

    pub(super) fn grant(&mut self, blocks: &[BlockId]) {
        self.blocks.extend_from_slice(blocks);
    }

    pub(super) fn need(&self, tokens_per_block: usize) -> Need {
        let room = (self.blocks.len() * tokens_per_block).saturating_sub(self.in_kv);
        Need {
            tokens: room.min(self.sequence.tokens.len() - self.in_kv),
            last_step: self.last_step,
        }
    }

    /// Its turn in a step as number `idx`, with `tokens` tokens.
    pub(super) fn turn(&self, idx: usize, tokens: usize) -> Turn {
        let is_last = self.in_kv + tokens == self.sequence.tokens.len();
        let logits = if is_last { Logits::Last } else { Logits::None };
        Turn {
            idx,
            tokens,
            logits,
        }
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

// === impl Running: after a step ===

impl Running {
    /// The tokens of `turn` are in KV, by step `step`.
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

    pub(super) fn choose(&self, sampler: &mut Sampler, logits: &[f32]) -> Option<u32> {
        let generated = self.sequence.generated().len();
        sampler.choose(logits, &self.sequence.job.sampling, generated)
    }

    /// Appends a generated token, and its text to what is to be shown.
    pub(super) fn accept(&mut self, token: u32, model: &ModelText, context: usize) -> Outcome {
        self.sequence.tokens.push(token);
        self.sequence.unsent.tokens += 1;
        self.output_tokens_left -= 1;
        let is_eos = !self.sequence.job.ignore_eos && model.eos().contains(&token);
        let is_full = self.output_tokens_left == 0 || self.sequence.tokens.len() >= context;
        let ends = match (is_eos, is_full) {
            (true, _) => Some(StopReason::Stop),
            (false, true) => Some(StopReason::Length),
            (false, false) => None,
        };
        let shown = (!is_eos).then_some(token);
        match self.append_text(shown, ends, model) {
            Ok(Some(stop)) => Outcome::Finished(stop),
            Ok(None) => Outcome::GoesOn,
            Err(error) => {
                let cause = error.source().map(ToString::to_string);
                let why = format!("{error}: {}", cause.unwrap_or_default());
                Outcome::Failed(RetryClass::Never, why)
            }
        }
    }

    /// Appends the text of `shown` and, if generation ends, what was held back. Returns why it
    /// ends: a stop string goes before `ends`.
    fn append_text(
        &mut self,
        shown: Option<u32>,
        ends: Option<StopReason>,
        model: &ModelText,
    ) -> Result<Option<StopReason>, DecodeError> {
        let Sequence {
            job, text, unsent, ..
        } = &mut self.sequence;
        let mut append = |decoded: Decoded| match decoded {
            Decoded::More(text) => {
                unsent.text.push_str(&text);
                None
            }
            Decoded::Stopped(text) => {
                unsent.text.push_str(&text);
                Some(StopReason::Stop)
            }
        };
        if let Some(token) = shown
            && let Some(stop) = append(text.push(model, &job.stop, token)?)
        {
            return Ok(Some(stop));
        }
        match ends {
            None => Ok(None),
            Some(_) => Ok(append(text.finish(model, &job.stop)?).or(ends)),
        }
    }

    /// Hands in what was generated, if there is text.
    pub(super) fn deliver_text(&mut self) {
        if !self.sequence.unsent.text.is_empty() {
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        let unsent = &mut self.sequence.unsent;
        match self.sequence.sink.text(mem::take(unsent)) {
            // The driver will hear of a client that has left, and say so.
            Ok(()) | Err(NotTaken::Gone) => {}
            Err(NotTaken::Full(piece)) => *unsent = piece,
        }
    }
}

// === impl Running: its end ===

impl Running {
    pub(super) fn finish(mut self, stop: StopReason) -> Event {
        self.deliver();
        Event::Finished {
            sequence: self.id,
            stop,
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

    pub(super) fn leave(self) -> Event {
        Event::Left {
            sequence: self.id,
            state: Box::new(self.sequence),
        }
    }
}

/// Tokens that a sequence may still generate, by what its client wants and the machine ordered.
pub(super) fn output_tokens_left(start: &Start) -> u32 {
    let wanted = start.sequence.job.output_tokens_max;
    let left = wanted.saturating_sub(count(start.sequence.generated().len()));
    left.min(start.order.output_tokens_max)
}

/// Tokens as the machine counts them.
fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("a context is shorter than 2^32 tokens")
}
