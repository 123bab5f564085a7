//! The prompt of a request, and its tokens.

use std::sync::Arc;

use pointsman_driver::catalog::ModelEntry;
use pointsman_executor::prompt::{ChatMessage, PromptEncoder, PromptError};
use tokio::sync::Semaphore;

use crate::error::{ApiError, quoted};

/// The text or tokens that an answer is to continue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Chat(Vec<ChatMessage>),
    Text(String),
    Tokens(Vec<u32>),
}

/// The most bytes of a prompt that is tokenised in place, which takes well under a millisecond.
/// Longer prompts have a thread of their own, so as not to hold up other connections.
const INLINE_BYTES_MAX: usize = 16 << 10;

// === impl Prompt ===

impl Prompt {
    /// The tokens of the prompt, at least one.
    ///
    /// # Cancellation
    /// A tokenisation that has begun goes on, and its tokens are dropped.
    pub(super) async fn into_tokens(
        self,
        model: &ModelEntry,
        tokenising: &Semaphore,
    ) -> Result<Vec<u32>, ApiError> {
        let tokens = if self.bytes() <= INLINE_BYTES_MAX {
            self.encode(&*model.text)?
        } else {
            let turn = tokenising.acquire().await;
            let _turn = turn.expect("the semaphore is never closed");
            let text = Arc::clone(&model.text);
            let encoded = tokio::task::spawn_blocking(move || self.encode(&*text)).await;
            encoded.map_err(|error| {
                tracing::error!(%error, "tokenising panicked");
                ApiError::Internal
            })??
        };
        if tokens.is_empty() {
            return Err(ApiError::field("prompt", "`prompt` has no tokens"));
        }
        Ok(tokens)
    }

    fn bytes(&self) -> usize {
        match self {
            Prompt::Chat(messages) => messages
                .iter()
                .map(|m| m.content.len() + m.role.len())
                .sum(),
            Prompt::Text(text) => text.len(),
            // There is nothing to tokenise.
            Prompt::Tokens(_) => 0,
        }
    }

    fn encode(self, text: &dyn PromptEncoder) -> Result<Vec<u32>, ApiError> {
        match self {
            Prompt::Chat(messages) => {
                let tokens = text.chat_prompt(&messages);
                tokens.map_err(|error| refused("messages", &error))
            }
            Prompt::Text(prompt) => text
                .encode(&prompt)
                .map_err(|error| refused("prompt", &error)),
            Prompt::Tokens(ids) => match ids.iter().position(|id| !text.has_token(*id)) {
                None => Ok(ids),
                Some(index) => {
                    let param = format!("prompt[{index}]");
                    let message = format!("`{param}`: the model has no token {}", ids[index]);
                    Err(ApiError::field(param, message))
                }
            },
        }
    }
}

/// The error of a prompt in the field `param` that has no tokens.
fn refused(param: &str, error: &PromptError) -> ApiError {
    if let PromptError::NoChatTemplate = error {
        return ApiError::field(param, "the model has no chat template; use /v1/completions");
    }
    if let PromptError::Refused(why) = error {
        let message = format!("the chat template refuses `{param}`: {}", quoted(why));
        return ApiError::field(param, message);
    }
    tracing::warn!(
        error = error as &dyn std::error::Error,
        "a prompt has no tokens"
    );
    if let PromptError::Template(_) = error {
        // Other messages may well pass, and the same ones never will.
        return ApiError::field(param, format!("the chat template fails on `{param}`"));
    }
    ApiError::Internal
}
