//! What a client wants generated, and how far that has come.
//!
//! A [`Job`] never changes. A [`Sequence`] is its state: an executor owns it while it runs there
//! and hands it back when it leaves, so that another can take it up without the client noticing.
//!
//! # Not here
//! Where it runs and which blocks it has: that is the machine's, in each
//! [`pointsman_core::StartOrder`].

use std::sync::Arc;

use crate::delivery::{Piece, TextSink};
use crate::sample::Sampling;
use crate::text::stream::TextStream;

/// What a client wants generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Token ids of the prompt; never empty.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; at least 1.
    pub output_tokens_max: u32,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// Generation ends before the first of these texts would appear; none is empty.
    pub stop: Vec<String>,
    /// Go on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
}

/// A job under way.
#[derive(Debug)]
pub struct Sequence {
    /// What is wanted.
    pub job: Arc<Job>,
    /// Token ids: the prompt, then what was generated so far.
    pub tokens: Vec<u32>,
    /// Text held back: half a character, or the beginning of a stop text.
    pub text: TextStream,
    /// Generated and not handed in yet.
    pub unsent: Piece,
    /// Where the text goes.
    pub sink: TextSink,
}

impl Sequence {
    /// `job` at its beginning, its text going to `sink`.
    #[must_use]
    pub fn new(job: Arc<Job>, sink: TextSink) -> Self {
        Self {
            tokens: job.prompt.clone(),
            job,
            text: TextStream::default(),
            unsent: Piece::default(),
            sink,
        }
    }

    /// Token ids generated so far.
    #[must_use]
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.job.prompt.len()..]
    }
}
