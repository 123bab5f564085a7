//! The prompt of a request, and its tokens.
//!
//! # Bounds
//! Of a prompt that does not fit the model's context not much more is tokenised than the context
//! holds (`tests::a_prompt_that_cannot_fit_is_not_tokenised`, and
//! `tokenising_stops_past_the_tokens_asked_for` in `host/engine`).

use pointsman_executor::job::AnswerStart;
use pointsman_executor::prompt::{ChatMessage, PromptEncoder, PromptError};
use pointsman_executor::tools::{NoTools, Tool};
use pointsman_http::error::{ApiError, quoted};

use super::target::Target;

/// The means to read the prompts of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromptReader<'m> {
    pub(super) text: &'m dyn PromptEncoder,
    /// Longest sequence, in tokens.
    pub(super) context_tokens: u32,
}

/// The conversation that an answer is to continue, and the tools that it may call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Conversation {
    pub(super) messages: Vec<ChatMessage>,
    pub(super) tools: Vec<Tool>,
}

/// The text or tokens that an answer is to continue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Chat(Conversation),
    Text(String),
    /// A text around which the tokenizer is to put nothing.
    BareText(String),
    Tokens(Vec<u32>),
}

// === impl PromptReader ===

impl<'m> PromptReader<'m> {
    /// The means to read the prompts of a model for the engines that may answer, of the `allowed` executors; absent: none
    /// of this host's engines serves it. Where none of them may, prompts are read for any executor.
    pub(super) fn of(target: &'m Target<'_>, allowed: Option<&[String]>) -> Option<Self> {
        let model = &*target.model;
        let context_tokens = model.context_tokens?;
        let engines = target.engines(allowed);
        let contexts = engines.iter().filter_map(|name| model.contexts.get(name));
        // Of several models the shortest context counts, which may be less.
        let longest = contexts.max().map(|tokens| context_tokens.min(*tokens));
        Some(Self {
            text: model.text.as_deref()?,
            context_tokens: longest.unwrap_or(context_tokens),
        })
    }
}

// === impl Conversation ===

impl Conversation {
    /// Checks that a model whose chat template has no tools is told of no calls.
    fn check(&self, model: &dyn PromptEncoder) -> Result<(), ApiError> {
        let is_of_tools =
            |message: &ChatMessage| message.role == "tool" || !message.tool_calls.is_empty();
        let Some(index) = self.messages.iter().position(is_of_tools) else {
            return Ok(());
        };
        match model.call_syntax() {
            Err(NoTools::NotInTemplate) => {
                let param = format!("messages[{index}]");
                let message = format!("`{param}` is of tools: {}", NoTools::NotInTemplate);
                Err(ApiError::field(param, message))
            }
            Ok(_) | Err(NoTools::UnknownSyntax) => Ok(()),
        }
    }
}

// === impl Prompt ===

impl Prompt {
    /// The tokens of the prompt, at least one. A prompt that its bytes alone keep from fitting the
    /// model's context is refused untokenised; of others no more is tokenised than tells that.
    pub(super) fn into_tokens(self, model: PromptReader<'_>) -> Result<Vec<u32>, ApiError> {
        let param = self.param();
        self.into_tokens_of(param, model)
    }

    /// The same of a prompt that is in the field `param`.
    pub(super) fn into_tokens_of(
        self,
        param: &'static str,
        model: PromptReader<'_>,
    ) -> Result<Vec<u32>, ApiError> {
        let context_tokens = model.context_tokens;
        let too_long = |tokens_min| ApiError::PromptTooLong {
            param,
            context_tokens,
            tokens_min,
        };
        let beside = self.told_beside();
        let tokens_min = self.tokens_min(model.text);
        if tokens_min > usize::try_from(context_tokens).unwrap_or(usize::MAX) {
            return Err(too_long(tokens_min));
        }
        let tokens = match self {
            Prompt::Chat(chat) => {
                chat.check(model.text)?;
                model
                    .text
                    .chat_prompt(&chat.messages, &chat.tools, context_tokens)
            }
            Prompt::Text(text) => model.text.encode(&text, context_tokens),
            Prompt::BareText(text) => model.text.encode_bare(&text, context_tokens),
            Prompt::Tokens(ids) => return known(param, ids, model.text),
        };
        match tokens {
            Ok(tokens) if tokens.is_empty() => {
                Err(ApiError::field(param, format!("`{param}` has no tokens")))
            }
            Ok(tokens) => Ok(tokens),
            Err(PromptError::TooLong { tokens_min }) => Err(too_long(tokens_min)),
            Err(error) => Err(refused(param, beside, &error)),
        }
    }

    /// The place at which the text of an answer to it begins.
    pub(super) fn answer_start(&self) -> AnswerStart {
        match self {
            Prompt::Chat(_) => AnswerStart::Apart,
            Prompt::Text(_) | Prompt::BareText(_) | Prompt::Tokens(_) => AnswerStart::WithinText,
        }
    }

    /// The same prompt, with nothing around a text.
    pub(super) fn bare(self) -> Self {
        match self {
            Prompt::Text(text) => Prompt::BareText(text),
            as_it_is @ (Prompt::Chat(_) | Prompt::BareText(_) | Prompt::Tokens(_)) => as_it_is,
        }
    }

    fn param(&self) -> &'static str {
        match self {
            Prompt::Chat(_) => "messages",
            Prompt::Text(_) | Prompt::BareText(_) | Prompt::Tokens(_) => "prompt",
        }
    }

    /// The words for what a chat template is told beside the prompt's field.
    fn told_beside(&self) -> &'static str {
        match self {
            Prompt::Chat(chat) if !chat.tools.is_empty() => " with these `tools`",
            Prompt::Chat(_) | Prompt::Text(_) | Prompt::BareText(_) | Prompt::Tokens(_) => "",
        }
    }

    /// A number of tokens that the prompt has at least, told before it is tokenised: a message has
    /// one or more.
    fn tokens_min(&self, text: &dyn PromptEncoder) -> usize {
        let in_bytes = |bytes: usize| bytes.div_ceil(text.token_bytes_max());
        match self {
            Prompt::Chat(Conversation { messages, .. }) => {
                let bytes = messages
                    .iter()
                    .filter_map(|message| message.content.as_ref());
                in_bytes(bytes.map(String::len).sum()).max(messages.len())
            }
            Prompt::Text(prompt) | Prompt::BareText(prompt) => in_bytes(prompt.len()),
            // Nothing is to be tokenised, and the caller counts them.
            Prompt::Tokens(_) => 0,
        }
    }
}

/// The tokens `ids`, if the model has them all; there is one or more.
fn known(at: &str, ids: Vec<u32>, text: &dyn PromptEncoder) -> Result<Vec<u32>, ApiError> {
    match ids.iter().position(|id| !text.has_token(*id)) {
        None => Ok(ids),
        Some(index) => {
            let param = format!("{at}[{index}]");
            let message = format!("`{param}`: the model has no token {}", ids[index]);
            Err(ApiError::field(param, message))
        }
    }
}

/// The error of a prompt in the field `param` that has no tokens; `beside` are the words of [`Prompt::told_beside`].
fn refused(param: &str, beside: &str, error: &PromptError) -> ApiError {
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
    if let PromptError::Template(cause) = error {
        // Other messages may well pass, and the same ones never will.
        let cause = quoted(&cause.to_string());
        let message = format!("the chat template fails on `{param}`{beside}: {cause}");
        return ApiError::field(param, message);
    }
    ApiError::Internal
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use pointsman_executor::prompt::GenerationDefaults;

    use super::*;
    use pointsman_executor::form::AnswerForm;
    use pointsman_executor::tools::CallSyntax;

    /// Tokens of four bytes, or of one in a text that is dense. Those of a bare text are 1, and others 0.
    #[derive(Debug, Default)]
    struct FourBytes {
        /// Bytes of the longest text that was tokenised.
        longest: AtomicUsize,
    }

    impl PromptEncoder for FourBytes {
        fn encode(&self, text: &str, tokens_max: u32) -> Result<Vec<u32>, PromptError> {
            self.longest.fetch_max(text.len(), Ordering::Relaxed);
            let tokens_min = text.len();
            if text.contains("dense") && tokens_min > tokens_max as usize {
                return Err(PromptError::TooLong { tokens_min });
            }
            Ok(vec![0; text.len().div_ceil(4)])
        }

        fn encode_bare(&self, text: &str, tokens_max: u32) -> Result<Vec<u32>, PromptError> {
            let tokens = self.encode(text, tokens_max)?;
            Ok(vec![1; tokens.len()])
        }

        fn chat_prompt(
            &self,
            chat: &[ChatMessage],
            _: &[Tool],
            tokens_max: u32,
        ) -> Result<Vec<u32>, PromptError> {
            if chat.iter().any(|message| message.role == "unheard_of") {
                return Err(PromptError::Template("no such role\nat all".into()));
            }
            let texts = chat.iter().filter_map(|message| message.content.clone());
            self.encode(&texts.collect::<String>(), tokens_max)
        }

        fn call_syntax(&self) -> Result<CallSyntax, NoTools> {
            Err(NoTools::NotInTemplate)
        }

        fn takes_several_calls(&self) -> bool {
            panic!("nobody makes calls")
        }

        fn call_tokens(&self) -> &[u32] {
            &[]
        }

        fn token_bytes_max(&self) -> usize {
            4
        }

        fn has_token(&self, _: u32) -> bool {
            true
        }

        fn tokenizer_id(&self) -> [u8; 32] {
            [0; 32]
        }

        fn check_form(&self, _: &AnswerForm) -> Result<(), String> {
            Err("nobody asks for a form".to_owned())
        }

        fn defaults(&self) -> &GenerationDefaults {
            panic!("nobody asks for the defaults")
        }
    }

    #[test]
    fn a_prompt_that_cannot_fit_is_not_tokenised() {
        let encoder = Arc::new(FourBytes::default());
        let model = PromptReader {
            text: &*encoder,
            context_tokens: 100,
        };
        let text = |bytes| "x".repeat(bytes);
        let message = |bytes| ChatMessage::new("user", text(bytes));
        let chat = |messages| {
            Prompt::Chat(Conversation {
                messages,
                tools: Vec::new(),
            })
        };
        let too_long = |param, tokens_min| {
            Err(ApiError::PromptTooLong {
                param,
                context_tokens: 100,
                tokens_min,
            })
        };
        for (prompt, expected) in [
            (Prompt::Text(text(400)), Ok(100)),
            (Prompt::Text(text(401)), too_long("prompt", 101)),
            (Prompt::BareText(text(401)), too_long("prompt", 101)),
            (Prompt::Text(text(4 << 20)), too_long("prompt", 1 << 20)),
            (Prompt::Text("dense".repeat(60)), too_long("prompt", 300)),
            (chat(vec![message(200); 2]), Ok(100)),
            (chat(vec![message(201); 2]), too_long("messages", 101)),
            (chat(vec![message(0); 101]), too_long("messages", 101)),
            (Prompt::Tokens(vec![0; 101]), Ok(101)),
        ] {
            let tokens = prompt.into_tokens(model);
            assert_eq!(tokens.map(|tokens| tokens.len()), expected);
        }
        assert_eq!(encoder.longest.load(Ordering::Relaxed), 400);
    }

    #[test]
    fn a_template_that_fails_says_on_what_and_why() {
        let encoder = FourBytes::default();
        let tool = Tool {
            name: "roll".to_owned(),
            definition: "{}".to_owned(),
            parameters: "{}".to_owned(),
        };
        for (tools, on) in [
            (Vec::new(), "`messages`"),
            (vec![tool], "`messages` with these `tools`"),
        ] {
            let chat = Prompt::Chat(Conversation {
                messages: vec![ChatMessage::new("unheard_of", "Hi")],
                tools,
            });
            let refused = chat.into_tokens(PromptReader {
                text: &encoder,
                context_tokens: 100,
            });
            let message = format!("the chat template fails on {on}: no such role?at all");
            assert_eq!(refused, Err(ApiError::field("messages", message)));
        }
    }

    #[test]
    fn around_a_bare_text_the_tokenizer_puts_nothing() {
        let encoder = FourBytes::default();
        let tokens = |prompt: Prompt| {
            prompt.into_tokens(PromptReader {
                text: &encoder,
                context_tokens: 100,
            })
        };
        let prompt = || Prompt::Text("four".to_owned());
        assert_eq!(tokens(prompt()), Ok(vec![0]));
        assert_eq!(tokens(prompt().bare()), Ok(vec![1]));
        assert_eq!(tokens(Prompt::Tokens(vec![7]).bare()), Ok(vec![7]));
    }
}
