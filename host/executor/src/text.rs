//! Tokens to text, piece by piece: whole characters only, and nothing from a stop string on.
//!
//! A [`TextStream`] is the state of one sequence's text. It goes where the sequence goes, so that
//! an answer continued after a preemption reads on as if nothing had happened.
//!
//! # Invariants
//! Held by `tests/text.rs` of the engine, for random tokens and random cuts.
//! 1. The pieces together are the text of all tokens decoded at once, behind the prompt's where they go on with
//!    that, but for more than [`UNREAD_MAX`] tokens in a row that end within a character, and for characters that a
//!    tokenizer takes back: one that falls back to bytes breaks all bytes of a run where one is no UTF-8. What was shown
//!    stays, and what follows is decoded without it.
//! 2. A text ends where the first stop string begins, wherever it was cut. The first one is the
//!    one that ends first; among those that end together, the longest.
//! 3. The text held back is shorter than the longest stop string, plus [`UNREAD_MAX`] tokens.

use std::error::Error;

/// Decodes the token ids of a model. Implemented by the model's tokenizer.
pub trait Detokenizer {
    /// Returns the text of `ids` without special tokens. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// If the tokenizer cannot decode them.
    fn decode(&self, ids: &[u32]) -> Result<String, DecodeError>;

    /// Returns true for a token that is for the model only and has no text for people.
    fn is_special(&self, id: u32) -> bool;

    /// The text of a special token, as it is written; empty for any other.
    fn special_text(&self, id: u32) -> String;

    /// Tokens that end an answer, in ascending order.
    fn eos(&self) -> &[u32];
}

/// An error for tokens that have no text.
#[derive(Debug, thiserror::Error)]
#[error("the tokens cannot be decoded")]
pub struct DecodeError(#[source] pub Box<dyn Error + Send + Sync>);

/// The state of one sequence's text.
///
/// A token's text may depend on the tokens before it, as a leading space does, so some that were
/// decoded already are decoded again with those that follow.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    /// Tokens decoded before, then those still to be decoded.
    window: Vec<u32>,
    /// Number of tokens in `window` that were decoded before.
    read: usize,
    /// The text of those tokens.
    read_text: String,
    /// Text held back, in whole characters, that may be the beginning of a stop string.
    held: String,
}

/// Text that may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// Text after which more may follow.
    More(String),
    /// Text after which a stop string came: the last of the answer.
    Stopped(String),
}

/// Most tokens that are kept until the last of them ends with a whole character. A character takes
/// four at most; so many in a row that end within one are no text, and are shown as they are.
pub const UNREAD_MAX: usize = 64;

/// Most tokens of a prompt that are decoded again with an answer that goes on with its text: vLLM's number. A
/// character takes four at most.
const PROMPT_TOKENS: usize = 5;

impl TextStream {
    /// The state of a text that goes on with that of `prompt`: a space before its first word belongs to it. A prompt
    /// that ends within a character has no text to go on with.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the prompt's last tokens.
    pub fn after(model: &dyn Detokenizer, prompt: &[u32]) -> Result<Self, DecodeError> {
        let last = prompt.iter().rev().filter(|id| !model.is_special(**id));
        let mut window: Vec<u32> = last.take(PROMPT_TOKENS).copied().collect();
        window.reverse();
        while !window.is_empty() {
            let text = model.decode(&window)?;
            if !text.ends_with(char::REPLACEMENT_CHARACTER) {
                return Ok(Self {
                    read: window.len(),
                    read_text: text,
                    window,
                    held: String::new(),
                });
            }
            // It may be the middle of a character.
            window.remove(0);
        }
        Ok(Self::default())
    }

    /// Returns the text that `token` adds.
    ///
    /// # Errors
    /// If the tokenizer cannot decode it.
    pub fn push(
        &mut self,
        model: &dyn Detokenizer,
        stop: &[String],
        token: u32,
    ) -> Result<Decoded, DecodeError> {
        if model.is_special(token) {
            return Ok(Decoded::More(String::new()));
        }
        self.window.push(token);
        let text = model.decode(&self.window)?;
        let is_whole =
            text.len() > self.read_text.len() && !text.ends_with(char::REPLACEMENT_CHARACTER);
        if !is_whole && self.window.len() - self.read <= UNREAD_MAX {
            return Ok(Decoded::More(String::new()));
        }
        let added = self.added(model, &text)?;
        let rest = model.decode(&self.window[self.read..])?;
        // A space is no text where it comes first: without what is before it, it would seem not to have been read.
        if rest.is_empty() && self.window.len() <= UNREAD_MAX {
            self.read_text = text;
        } else {
            self.window.drain(..self.read);
            self.read_text = rest;
        }
        self.read = self.window.len();
        Ok(self.release(stop, &added))
    }

    /// Returns the text that a special token adds, which is shown as it is written.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the tokens before it.
    pub fn push_special(
        &mut self,
        model: &dyn Detokenizer,
        stop: &[String],
        token: u32,
    ) -> Result<Decoded, DecodeError> {
        let mut added = self.take_window(model)?;
        added.push_str(&model.special_text(token));
        Ok(self.release(stop, &added))
    }

    /// Returns the text that was held back, since no more tokens follow.
    ///
    /// # Errors
    /// If the tokenizer cannot decode it.
    pub fn finish(
        &mut self,
        model: &dyn Detokenizer,
        stop: &[String],
    ) -> Result<Decoded, DecodeError> {
        let added = self.take_window(model)?;
        Ok(match self.release(stop, &added) {
            Decoded::More(mut text) => {
                text.push_str(&std::mem::take(&mut self.held));
                Decoded::More(text)
            }
            stopped @ Decoded::Stopped(_) => stopped,
        })
    }

    /// Takes all tokens out of the window, and returns the text of those not decoded before.
    fn take_window(&mut self, model: &dyn Detokenizer) -> Result<String, DecodeError> {
        let text = model.decode(&self.window)?;
        let added = self.added(model, &text)?;
        self.window.clear();
        self.read = 0;
        self.read_text.clear();
        Ok(added)
    }

    /// Returns the part of `text`, decoded from the window, that was not decoded before.
    fn added(&self, model: &dyn Detokenizer, text: &str) -> Result<String, DecodeError> {
        match text.strip_prefix(&*self.read_text) {
            Some(added) => Ok(added.to_owned()),
            // Bytes that were text before are none with these.
            None => model.decode(&self.window[self.read..]),
        }
    }

    /// Appends `added` to the text held back, and returns as much as can be no part of a stop
    /// string.
    fn release(&mut self, stop: &[String], added: &str) -> Decoded {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(added);
        if let Some(start) = stop_start(&text, stop) {
            text.truncate(start);
            return Decoded::Stopped(text);
        }
        self.held = text.split_off(text.len() - possible_stop_bytes(&text, stop));
        Decoded::More(text)
    }
}

/// Returns the byte of `text` at which the stop string that ends first begins.
fn stop_start(text: &str, stop: &[String]) -> Option<usize> {
    let found = stop.iter().filter_map(|stop| {
        let start = text.find(stop)?;
        Some((start + stop.len(), start))
    });
    found.min().map(|(_, start)| start)
}

/// Counts the bytes at the end of `text` that may be the beginning of a stop string.
fn possible_stop_bytes(text: &str, stop: &[String]) -> usize {
    let longest = stop.iter().filter_map(|stop| {
        let begins =
            |bytes: &usize| stop.is_char_boundary(*bytes) && text.ends_with(&stop[..*bytes]);
        (1..stop.len()).rev().find(begins)
    });
    longest.max().unwrap_or(0)
}
