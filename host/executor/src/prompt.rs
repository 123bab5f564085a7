//! Prompts to tokens: a model's text side, for the server that understands requests.
//!
//! # Not here
//! Tokens to text ([`crate::text`]), roles and fields of OpenAI's messages (the server), a
//! tokenizer and chat templates (the engine).

use std::error::Error;
use std::fmt::Debug;

use serde::Serialize;

use crate::form::AnswerForm;
use crate::tools::{CallSyntax, NoTools, Tool, ToolCall};

/// Makes tokens of prompts for one model, and knows its makers' suggestions.
pub trait PromptEncoder: Debug + Send + Sync {
    /// Returns the tokens of a plain text, with those that the tokenizer puts around every text.
    /// A little more than `tokens_max` may come out: the caller counts them.
    ///
    /// # Errors
    /// If the tokenizer fails, or stopped since there are far more than `tokens_max` tokens.
    fn encode(&self, text: &str, tokens_max: u32) -> Result<Vec<u32>, PromptError>;

    /// Returns the tokens of a plain text alone: [`Self::encode`] without those that the tokenizer puts around.
    ///
    /// # Errors
    /// If the tokenizer fails, or stopped since there are far more than `tokens_max` tokens.
    fn encode_bare(&self, text: &str, tokens_max: u32) -> Result<Vec<u32>, PromptError>;

    /// Returns the tokens of a conversation in the form that the model was trained on, up to where
    /// its answer begins, with the tools that it may call. A little more than `tokens_max` may come out:
    /// the caller counts them.
    ///
    /// # Errors
    /// If there is no chat template, the template refuses the messages or fails on them, or the
    /// tokenizer stopped since there are far more than `tokens_max` tokens.
    fn chat_prompt(
        &self,
        messages: &[ChatMessage],
        tools: &[Tool],
        tokens_max: u32,
    ) -> Result<Vec<u32>, PromptError>;

    /// The way in which the model writes calls of tools.
    ///
    /// # Errors
    /// The reason why it is told of no tools.
    fn call_syntax(&self) -> Result<CallSyntax, NoTools>;

    /// Returns true if a message of a conversation may have several calls of tools; otherwise an answer has one at most.
    fn takes_several_calls(&self) -> bool;

    /// Special tokens with which the model writes calls of tools: the answer's reader has to see them.
    fn call_tokens(&self) -> &[u32];

    /// Returns the most bytes of a text that become one token; at least 1. Longer texts than so many
    /// bytes for each token of a context are refused unread.
    fn token_bytes_max(&self) -> usize;

    /// Returns true for an id of a token that the model has.
    fn has_token(&self, id: u32) -> bool;

    /// The identity of everything that prompts are read by, a SHA-256: models with the same one make the
    /// same tokens of a prompt.
    fn tokenizer_id(&self) -> [u8; 32];

    /// Checks that an answer can be kept to a form.
    ///
    /// # Errors
    /// If it cannot; the text says why.
    fn check_form(&self, form: &AnswerForm) -> Result<(), String>;

    /// Suggestions of the model's makers, for requests that say nothing.
    fn defaults(&self) -> &GenerationDefaults;
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Role of the speaker: `system`, `user`, `assistant`, `tool`, or another that the template knows.
    pub role: String,
    /// Text of the message; absent: there are only calls, and templates are told none, or an empty text where they
    /// fail on none.
    pub content: Option<String>,
    /// Name of the speaker, for templates that tell several users apart; of a tool's result, its function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Calls of tools that the assistant made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call of which this is the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl ChatMessage {
    /// A message with a text alone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(content.into()),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }
}

/// Suggestions of the model's makers for [`Sampling`](crate::job::Sampling), used where a client
/// says nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationDefaults {
    /// Divisor of the logits; 0 where the likeliest token is to be taken.
    pub temperature: f32,
    /// Probability of the tokens that are kept; 1 keeps all.
    pub top_p: f32,
    /// Number of the tokens that are kept; 0 keeps all.
    pub top_k: u32,
    /// Share of the likeliest token's probability that a token needs to be kept; 0 keeps all.
    pub min_p: f32,
    /// Divisor of the logits of tokens that came up before; 1 changes none.
    pub repetition_penalty: f32,
}

impl GenerationDefaults {
    /// Tokens as often as the model says.
    pub const NEUTRAL: Self = Self {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
    };
}

/// The reason why a prompt has no tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The model has no chat template: it was not made to chat.
    #[error("the model has no chat template")]
    NoChatTemplate,
    /// The template refuses these messages, in its own words: the client's fault.
    #[error("the model's chat template refuses the messages: {0}")]
    Refused(String),
    /// The template failed on these messages.
    #[error("the model's chat template fails")]
    Template(#[source] Box<dyn Error + Send + Sync>),
    /// Tokenising stopped: the text has far more tokens than were asked for.
    #[error("the text has {tokens_min} tokens or more")]
    TooLong {
        /// Number of tokens in the part that was tokenised.
        tokens_min: usize,
    },
    /// The tokenizer failed on this text.
    #[error("the text cannot be tokenized")]
    Tokenizer(#[source] Box<dyn Error + Send + Sync>),
}
