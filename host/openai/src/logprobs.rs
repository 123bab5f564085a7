//! The probabilities of tokens, as chats and completions write them.

use std::collections::BTreeMap;

use pointsman_executor::delivery::{LikelyToken, TokenLogprob};
use schemars::JsonSchema;
use serde::Serialize;

/// The probabilities of the tokens of a chat's answer or chunk.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ChatToken {
    #[serde(flatten)]
    chosen: ChatCandidate,
    /// The likeliest tokens in its place.
    top_logprobs: Vec<ChatCandidate>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ChatCandidate {
    /// The token as text; what is no whole character is shown as U+FFFD.
    token: String,
    /// The natural logarithm of its probability.
    logprob: f64,
    bytes: Vec<u8>,
}

/// The probabilities of the tokens of a completion's answer or chunk.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    /// The likeliest tokens in the place of each.
    top_logprobs: Vec<BTreeMap<String, f64>>,
    /// Characters of the tokens before each.
    text_offset: Vec<usize>,
}

/// The tokens of a part of an answer, where the client asks for their probabilities.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) tokens: Vec<TokenLogprob>,
    /// Characters of the tokens of the parts before.
    pub(super) offset: usize,
}

/// The logarithm in the place of minus infinity, which JSON cannot write.
const LEAST: f64 = -9999.0;

impl Told {
    /// Takes all tokens; those that come next are after them.
    pub(super) fn take(&mut self) -> Self {
        let tokens = std::mem::take(&mut self.tokens);
        let offset = self.offset;
        self.offset += tokens
            .iter()
            .map(|token| chars(&token.chosen))
            .sum::<usize>();
        Self { tokens, offset }
    }

    /// The field of a chat; absent where there is no token.
    pub(super) fn of_chat(&self) -> Option<ChatLogprobs> {
        let content = self.tokens.iter().map(|token| ChatToken {
            chosen: candidate(&token.chosen),
            top_logprobs: token.top.iter().map(candidate).collect(),
        });
        let content: Vec<ChatToken> = content.collect();
        (!content.is_empty()).then_some(ChatLogprobs {
            content,
            refusal: None,
        })
    }

    /// The field of a completion; absent where there is no token.
    pub(super) fn of_text(&self) -> Option<TextLogprobs> {
        if self.tokens.is_empty() {
            return None;
        }
        let mut offset = self.offset;
        let mut logprobs = TextLogprobs {
            tokens: Vec::new(),
            token_logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            text_offset: Vec::new(),
        };
        for TokenLogprob { chosen, top } in &self.tokens {
            logprobs.tokens.push(text(chosen));
            logprobs.token_logprobs.push(logprob(chosen));
            let top = top.iter().map(|token| (text(token), logprob(token)));
            logprobs.top_logprobs.push(top.collect());
            logprobs.text_offset.push(offset);
            offset += chars(chosen);
        }
        Some(logprobs)
    }
}

fn candidate(token: &LikelyToken) -> ChatCandidate {
    ChatCandidate {
        token: text(token),
        logprob: logprob(token),
        bytes: token.bytes.clone(),
    }
}

fn logprob(token: &LikelyToken) -> f64 {
    token.logprob.max(LEAST)
}

fn text(token: &LikelyToken) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}

fn chars(token: &LikelyToken) -> usize {
    text(token).chars().count()
}
