//! A model in a step loop: its backend, its text side and the logits of its last step.
//!
//! Several models take turns in the steps of one loop. A block is one sequence's, and so one model's, at
//! a time.

use std::fmt;
use std::slice::{ChunksExact, ChunksExactMut};
use std::sync::Arc;

use pointsman_events::{BlockCopy, ModelId};

use crate::backend::{
    Backend, Chunk, DeviceError, Logits, PossibleTokens, SwapDirection, SwapTicket, SwapWait,
    TokenChoice,
};
use pointsman_text::ModelText;

/// A model that an engine serves.
pub struct LoopModel {
    /// The model's id in the machine.
    pub model: ModelId,
    text: Arc<ModelText>,
    backend: Box<dyn Backend>,
    /// True if the device can choose tokens.
    chooses: bool,
    /// Rows of logits of the last step.
    logits: Vec<f32>,
    /// Tokens that the device chose in the last step.
    chosen: Vec<Option<u32>>,
    /// Hidden states of the last step.
    hidden: Vec<f32>,
}

/// The rows of logits and hidden states that a model made in a step, with what it takes to choose tokens.
pub(super) struct MadeRows<'a> {
    pub(super) text: &'a ModelText,
    /// Longest sequence, in tokens.
    pub(super) context_tokens: usize,
    /// Tokens that have text: the rows may be longer.
    known_tokens: usize,
    rows: ChunksExactMut<'a, f32>,
    chosen: std::slice::Iter<'a, Option<u32>>,
    hidden: ChunksExact<'a, f32>,
}

impl LoopModel {
    /// A model that has computed nothing yet.
    #[must_use]
    pub fn new(model: ModelId, text: Arc<ModelText>, mut backend: Box<dyn Backend>) -> Self {
        Self {
            model,
            text,
            chooses: backend.chooser().is_some(),
            backend,
            logits: Vec::new(),
            chosen: Vec::new(),
            hidden: Vec::new(),
        }
    }

    pub(super) fn tokens_per_block(&self) -> u32 {
        self.backend.tokens_per_block()
    }

    pub(super) fn text(&self) -> &ModelText {
        &self.text
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.backend.vocab_size()
    }

    /// Longest sequence, in tokens.
    pub(super) fn context_tokens(&self) -> usize {
        self.backend.context_tokens() as usize
    }

    /// Returns true if the device can choose tokens.
    pub(super) fn can_choose(&self) -> bool {
        self.chooses
    }

    /// Computes the model's part of a step; the device makes `choices` by the rows that it keeps.
    pub(super) fn forward(
        &mut self,
        chunks: &[Chunk<'_>],
        choices: &[TokenChoice<'_>],
    ) -> Result<(), DeviceError> {
        self.backend.forward(chunks, &mut self.logits)?;
        self.chosen.clear();
        let possible = PossibleTokens {
            count: self.known_tokens(),
            missing: self.text.missing_ids(),
        };
        if let (Some(chooser), false) = (self.backend.chooser(), choices.is_empty()) {
            self.chosen = chooser.choose(choices, possible)?;
        }
        if chunks.iter().any(|chunk| chunk.logits == Logits::Hidden) {
            self.backend.hidden(&mut self.hidden)?;
        }
        Ok(())
    }

    /// Number of tokens that have text, or are missing among those that have: rows may be longer.
    fn known_tokens(&self) -> usize {
        self.backend.vocab_size().min(self.text.vocab_size())
    }

    /// Begins to copy blocks; without any, there is nothing to wait for.
    pub(super) fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        match copies.is_empty() {
            true => Ok(SwapTicket::default()),
            false => self.backend.swap(direction, copies),
        }
    }

    /// The last swap that has come to its end.
    pub(super) fn swapped(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        self.backend.swapped(wait)
    }

    /// The rows of the last step.
    pub(super) fn made(&mut self) -> MadeRows<'_> {
        let (row_tokens, hidden_size) = (self.backend.vocab_size(), self.backend.hidden_size());
        MadeRows {
            context_tokens: self.context_tokens(),
            known_tokens: self.known_tokens(),
            text: &self.text,
            rows: self.logits.chunks_exact_mut(row_tokens),
            chosen: self.chosen.iter(),
            hidden: self.hidden.chunks_exact(hidden_size),
        }
    }
}

impl<'a> MadeRows<'a> {
    /// The next token that the device chose.
    pub(super) fn next_chosen(&mut self) -> Option<u32> {
        *self
            .chosen
            .next()
            .expect("a choice for each row that was kept")
    }

    /// The next hidden state.
    pub(super) fn next_hidden(&mut self) -> &'a [f32] {
        let hidden = self.hidden.next();
        hidden.expect("a hidden state for each chunk that wants one")
    }

    /// The next row, in which no token is possible that has no text.
    pub(super) fn next_row(&mut self) -> &'a [f32] {
        let row = self.rows.next();
        let row = row.expect("a row for each chunk that wants one");
        let row = &mut row[..self.known_tokens];
        for id in self.text.missing_ids() {
            if let Some(logit) = row.get_mut(*id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        row
    }
}

impl fmt::Debug for LoopModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopModel")
            .field("model", &self.model)
            .field("text", &self.text)
            .finish_non_exhaustive()
    }
}
