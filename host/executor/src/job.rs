//! A client's job, and the sequence that carries it out.
//!
//! A [`Job`] never changes. A [`JobState`] is its progress: an executor owns the sequence while it
//! runs there and hands it back when it leaves, so that another executor can go on without the
//! client noticing. One that an executor cannot hand back is [recovered](JobState::recover) as far
//! as its text was handed in.
//!
//! # Not here
//! The choice of a sequence's executor and blocks: the machine's, in each
//! [`pointsman_events::StartOrder`].

use std::mem;
use std::sync::Arc;

use crate::delivery::{
    Embedding, HandedIn, NextPiece, NotTaken, Origin, Piece, StopReason, TextSink,
};
use crate::form::AnswerForm;
use crate::relay::{BrokenStream, RemoteCall};
use crate::text::{DecodeError, Decoded, Detokenizer, TextStream};

/// A client's order for text, or for an embedding of its prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Token ids of the prompt; empty where only other servers can serve the request.
    pub prompt: Vec<u32>,
    /// The place at which the answer's text begins.
    pub answer_start: AnswerStart,
    /// Most tokens to generate; 0: none, the prompt is embedded.
    pub output_tokens_max: u32,
    /// Answers of as many tokens each, side by side; an engine gives one.
    pub answers: u32,
    /// The rule by which each token is chosen.
    pub sampling: Sampling,
    /// Stop strings: generation ends before the first of them would appear; none of them is empty.
    pub stop: Vec<String>,
    /// True if generation goes on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Number of the likeliest tokens that are told with each token, and their probabilities; absent: none,
    /// nor the token's own.
    pub logprobs: Option<u32>,
    /// The form that the answer is to have; absent: any.
    pub form: Option<AnswerForm>,
    /// Special tokens that are shown as they are written, for whoever reads the answer's calls of tools.
    pub shown_tokens: Vec<u32>,
    /// The request as it came; absent where no other server may serve it.
    pub call: Option<Arc<RemoteCall>>,
}

/// The place at which an answer's text begins. With vocabularies of `SentencePiece`'s kind a text has no space before
/// its first word, whatever its first token has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStart {
    /// A text of its own, as in a chat.
    Apart,
    /// The text of the prompt goes on.
    WithinText,
}

/// The rule by which each token is chosen; set by the client, or else by the model's defaults.
///
/// Its fields are in the order in which they are applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Numbers added to the logits of tokens, by their ids.
    pub logit_bias: Vec<(u32, f32)>,
    /// Numbers taken from the logits of tokens that came up before.
    pub penalties: Penalties,
    /// Divisor of the logits; 0 always takes the likeliest token.
    pub temperature: f32,
    /// Share of the likeliest token's probability that a token needs to be kept; 0 keeps all.
    pub min_p: f32,
    /// Number of the likeliest tokens that are kept; 0 keeps all.
    pub top_k: u32,
    /// Probability that the likeliest tokens must have together to be all that is kept; 1 keeps
    /// all.
    pub top_p: f32,
    /// The seed of the draws: the same seed gives the same answer.
    pub seed: u64,
}

/// The logits that tokens lose that came up before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divisor of a positive logit and factor of a negative one, of tokens in the prompt or the answer; 1
    /// changes none. Keskar et al., 2019.
    pub repetition: f32,
    /// Number taken from a token's logit for each time that it is in the answer; OpenAI's definition.
    pub frequency: f32,
    /// Number taken from the logit of each token in the answer; OpenAI's definition.
    pub presence: f32,
}

impl Penalties {
    /// No penalty.
    pub const NONE: Self = Self {
        repetition: 1.0,
        frequency: 0.0,
        presence: 0.0,
    };
}

impl Sampling {
    /// Tokens as often as the model says; with seed 0.
    pub const NEUTRAL: Self = Self {
        logit_bias: Vec::new(),
        penalties: Penalties::NONE,
        temperature: 1.0,
        min_p: 0.0,
        top_k: 0,
        top_p: 1.0,
        seed: 0,
    };

    /// Always the likeliest token.
    pub const GREEDY: Self = Self {
        logit_bias: Vec::new(),
        penalties: Penalties::NONE,
        temperature: 0.0,
        min_p: 0.0,
        top_k: 0,
        top_p: 1.0,
        seed: 0,
    };
}

/// A job under way.
#[derive(Debug)]
pub struct JobState {
    /// The client's order.
    pub job: Arc<Job>,
    /// Token ids: the prompt, then the tokens generated so far.
    pub tokens: Vec<u32>,
    /// Text held back: half a character, or the beginning of a stop string.
    pub text: TextStream,
    /// Text and tokens that were generated and not yet handed in.
    pub unsent: Piece,
    /// The client's end of the text.
    pub sink: TextSink,
    /// The stream of another server that it is to go on with; absent: none.
    pub broken: Option<Box<BrokenStream>>,
    /// Names of the executors with a longer context than the one that has just refused its prompt; absent: it was not
    /// refused.
    pub longer: Option<Vec<String>>,
}

/// A sequence that was taken from an executor.
#[derive(Debug)]
pub enum Recovered {
    /// All of its text was handed in.
    Finished(StopReason),
    /// Another executor can go on with it.
    GoesOn(Box<JobState>),
    /// A part of another server's response was handed in, which nobody else can go on with.
    Broken,
}

impl Job {
    /// Makes a job of a prompt whose tokens are chosen as the model says, with nothing else that a client may want.
    #[must_use]
    pub fn new(prompt: Vec<u32>, output_tokens_max: u32) -> Self {
        Self {
            prompt,
            answer_start: AnswerStart::Apart,
            output_tokens_max,
            answers: 1,
            sampling: Sampling::NEUTRAL,
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            form: None,
            shown_tokens: Vec::new(),
            call: None,
        }
    }

    /// True if nothing is generated, and the prompt is embedded.
    #[must_use]
    pub fn is_to_embed(&self) -> bool {
        self.output_tokens_max == 0
    }

    /// The state of the answer's text before its first token.
    fn first_text(&self, model: &dyn Detokenizer) -> Result<TextStream, DecodeError> {
        match self.answer_start {
            AnswerStart::Apart => Ok(TextStream::default()),
            AnswerStart::WithinText => TextStream::after(model, &self.prompt),
        }
    }

    /// Tokens of the prompt, at least 1; an estimate where the prompt is not tokenised.
    #[must_use]
    pub fn prompt_tokens(&self) -> u32 {
        let estimated = self.call.as_ref().map_or(0, |call| call.prompt_tokens);
        let tokens = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        if tokens > 0 { tokens } else { estimated.max(1) }
    }
}

impl JobState {
    /// Makes a sequence at the beginning of `job`, whose text goes to `sink`.
    #[must_use]
    pub fn new(job: Arc<Job>, sink: TextSink) -> Self {
        Self {
            tokens: job.prompt.clone(),
            job,
            text: TextStream::default(),
            unsent: Piece::default(),
            sink,
            broken: None,
            longer: None,
        }
    }

    /// Takes the sequence of `job` from an executor that is lost or has not handed it back, and
    /// which can hand in nothing more from now on. `sink` is any of the request's.
    #[must_use]
    pub fn recover(job: &Arc<Job>, sink: &TextSink) -> Recovered {
        let HandedIn {
            generated,
            text,
            unsent,
            stop,
            origin,
        } = sink.end_stay();
        if let Some(stop) = stop {
            return Recovered::Finished(stop);
        }
        if origin == Origin::Relayed {
            return Recovered::Broken;
        }
        Recovered::GoesOn(Box::new(Self {
            tokens: [&job.prompt[..], &generated].concat(),
            job: Arc::clone(job),
            text,
            unsent,
            sink: sink.clone(),
            broken: None,
            longer: None,
        }))
    }

    /// Begins the sequence's stay on an executor: nobody else can hand in text of its request from
    /// now on.
    pub fn begin_stay(&mut self) {
        let answer = HandedIn {
            generated: self.generated().to_vec(),
            text: self.text.clone(),
            unsent: self.unsent.clone(),
            stop: None,
            origin: match self.broken {
                Some(_) => Origin::Relayed,
                None => Origin::Generated,
            },
        };
        self.sink.begin_stay(answer);
    }

    /// Tokens of the answer that need not be generated again.
    #[must_use]
    pub fn tokens_kept(&self) -> u32 {
        let generated = u32::try_from(self.generated().len()).unwrap_or(u32::MAX);
        let broken = self.broken.as_ref();
        broken.map_or(generated, |broken| broken.tokens)
    }

    /// Token ids generated so far.
    #[must_use]
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.job.prompt.len()..]
    }

    /// Appends a generated token, after which `left` more may follow, and its text to the text that
    /// is to be handed in. Returns the reason why generation ends here, if it does.
    ///
    /// # Errors
    /// If the token cannot be decoded.
    pub fn accept(
        &mut self,
        token: u32,
        left: usize,
        model: &dyn Detokenizer,
    ) -> Result<Option<StopReason>, DecodeError> {
        if self.generated().is_empty() {
            self.text = self.job.first_text(model)?;
        }
        self.tokens.push(token);
        self.unsent.tokens += 1;
        let is_eos = !self.job.ignore_eos && model.eos().contains(&token);
        if !is_eos {
            let (text, stop) = (&mut self.text, &self.job.stop);
            let decoded = if self.job.shown_tokens.contains(&token) {
                text.push_special(model, stop, token)?
            } else {
                text.push(model, stop, token)?
            };
            if let Some(stop) = self.append(decoded) {
                return Ok(Some(stop));
            }
        }
        let end = match (is_eos, left) {
            (true, _) => StopReason::Stop,
            (false, 0) => StopReason::Length,
            (false, _) => return Ok(None),
        };
        let decoded = self.text.finish(model, &self.job.stop)?;
        Ok(Some(self.append(decoded).unwrap_or(end)))
    }

    /// Hands in the embedding of the prompt, with which the answer ends.
    pub fn deliver_embedding(&self, numbers: Vec<f32>) {
        self.sink.hand_in_embedding(Embedding(numbers));
    }

    /// Appends text to the text that is to be handed in; returns a reason if a stop string follows.
    fn append(&mut self, decoded: Decoded) -> Option<StopReason> {
        let (text, stop) = match decoded {
            Decoded::More(text) => (text, None),
            Decoded::Stopped(text) => (text, Some(StopReason::Stop)),
        };
        self.unsent.text.push_str(&text);
        stop
    }

    /// Hands in the unsent piece, if there is text.
    pub fn deliver_text(&mut self) {
        if !self.unsent.text.is_empty() {
            self.deliver(None);
        }
    }

    /// Hands in the unsent piece, with or without text, and the reason if generation ends with it.
    /// Nothing is lost where the client's channel has no room.
    pub fn deliver(&mut self, stop: Option<StopReason>) {
        let next = NextPiece {
            piece: mem::take(&mut self.unsent),
            generated: &self.tokens[self.job.prompt.len()..],
            text: &self.text,
            stop,
        };
        match self.sink.hand_in(next) {
            // The driver will hear of a client that has left, and say so.
            Ok(()) | Err(NotTaken::Gone) => {}
            Err(NotTaken::Full(piece)) => self.unsent = piece,
        }
    }
}
