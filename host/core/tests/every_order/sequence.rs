//! A request on an engine, which says one thing at a time about it.

use pointsman_core::{BlockId, Progress, SequenceRef, StartOrder};

use crate::digest::Digest;
use crate::event::Event;
use crate::world::TOKENS_PER_BLOCK;

/// A request on an engine.
#[derive(Clone)]
pub(crate) struct Sequence {
    pub(crate) of: SequenceRef,
    pub(crate) prompt_tokens: u32,
    pub(crate) prefilled: u32,
    pub(crate) generated: u32,
    pub(crate) output_tokens: u32,
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) has_host_blocks: bool,
    pub(crate) progress: At,
}

/// The stage of a sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// The engine was told, and has said nothing yet.
    Ordered,
    /// The engine has taken it up.
    Running,
    /// The engine was told to stop it.
    Leaving,
}

impl Sequence {
    /// A sequence that an engine was ordered to take up.
    pub(crate) fn new(order: &StartOrder) -> Self {
        Self {
            of: order.sequence,
            prompt_tokens: order.prompt_tokens,
            prefilled: order.cached_tokens,
            generated: 0,
            output_tokens: order.output_tokens_max,
            blocks: order.blocks.clone(),
            has_host_blocks: false,
            progress: At::Ordered,
        }
    }

    /// Makes one more token, the first together with the prompt.
    pub(crate) fn advance(&mut self) -> Progress {
        let prefilled = self.prompt_tokens - self.prefilled;
        self.prefilled = self.prompt_tokens;
        self.generated += 1;
        Progress {
            request: self.of.request,
            prefilled,
            generated: 1,
        }
    }

    /// The messages that the engine can send about the sequence.
    pub(crate) fn messages(&self, kind: u8) -> impl Iterator<Item = Event> + use<> {
        let tokens = self.prompt_tokens + self.generated;
        let has_blocks = tokens as usize <= self.blocks.len() * TOKENS_PER_BLOCK as usize;
        let is_done = self.generated == self.output_tokens;
        let message = match self.progress {
            At::Ordered => Some(Event::Starts(kind)),
            At::Running if is_done => Some(Event::Finishes(kind)),
            At::Running if has_blocks => Some(Event::Token(kind)),
            At::Running => None,
            At::Leaving => Some(Event::Leaves(kind)),
        };
        // It may have come to its end before the engine heard that it is to leave.
        let crossed = (self.progress == At::Leaving && is_done).then_some(Event::Finishes(kind));
        message.into_iter().chain(crossed)
    }

    /// Leading tokens whose KV is in host memory once the sequence has left.
    pub(crate) fn swapped_tokens(&self) -> u32 {
        if self.has_host_blocks {
            self.prefilled + self.generated.saturating_sub(1)
        } else {
            0
        }
    }

    pub(crate) fn add_to(&self, digest: &mut Digest) {
        digest.add(match self.progress {
            At::Ordered => 1,
            At::Running => 2,
            At::Leaving => 3,
        });
        digest.add(u64::from(self.of.executor.0));
        digest.add(u64::from(self.prompt_tokens));
        digest.add(u64::from(self.prefilled));
        digest.add(u64::from(self.generated));
        digest.add(u64::from(self.output_tokens));
        digest.add(self.blocks.len() as u64);
        digest.add(u64::from(self.has_host_blocks));
    }
}
