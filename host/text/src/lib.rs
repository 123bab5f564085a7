//! A model's text side: its tokenizer, its chat template, and what its makers suggest.
//!
//! [`ModelText`] is made once from the model's files and shared by HTTP tasks, which turn prompts
//! into tokens, and the engine's step loop, which turns tokens into text
//! ([`pointsman_executor::text`]). Where the files are is not known here: they are [`TextFiles`].
//!
//! # Invariants
//! 1. Prompts come out as transformers makes them: the engine's `tests/text.rs` compares the demo model's
//!    token ids.
//! 2. A text far beyond the tokens asked for is not tokenised whole
//!    (`tokenising_stops_past_the_tokens_asked_for` in the same file).
//! 3. No input makes a template run without end: fuel and recursion are limited
//!    (`a_template_that_runs_on_is_stopped` in `chat.rs`).
//!
//! # Not here
//! Roles and fields of OpenAI's messages (`pointsman-openai`); sampling, and the model itself
//! (`pointsman-engine`). A message whose text spells a special
//! token becomes that token, as everywhere in the field. Fuel bounds a template's time and not
//! its memory: the operator who chooses a model's folder is trusted that far.
//!
//! # Bounds
//! A tokenizer takes some hundred bytes for each byte of its text. It reads the beginning of a text
//! first, then twice as much, until there are too many tokens or the text has ended: the whole costs
//! at most twice what its last reading does. A tokenizer that drops characters, or makes one token of
//! many unknown ones, may have room for a longer text than
//! [`token_bytes_max`](PromptEncoder::token_bytes_max) says.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod around;
mod bytes;
mod calls;
mod chat;
mod date;
mod files;
mod form;
mod generation;
mod python_json;

use std::fmt;
use std::sync::{Arc, OnceLock};

use pointsman_executor::form::AnswerForm;
use pointsman_executor::prompt::{ChatMessage, GenerationDefaults, PromptEncoder, PromptError};
use pointsman_executor::text::{DecodeError, Detokenizer};
use pointsman_executor::tools::{CallSyntax, NoTools, Tool};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokenizers::Tokenizer;

pub use around::TokensAround;
use bytes::Spelling;
use calls::CallWriting;
use chat::{ChatTemplate, SpecialTokens, TemplateSource};
pub use files::{TextFiles, UnreadFile};
use form::Forms;
pub use form::{FormError, FormMatcher};
use generation::{EndsAndDefaults, GenerationFile};

/// A model's text side.
pub struct ModelText {
    tokenizer: Tokenizer,
    spelling: Spelling,
    /// The kind of each id, up to the largest that the tokenizer has.
    kinds: Vec<TokenKind>,
    /// Ids below the largest that the tokenizer lacks.
    missing: Vec<u32>,
    /// Bytes of the longest token, as the vocabulary writes it.
    token_bytes_max: usize,
    template: Option<ChatTemplate>,
    /// The template for conversations with tools; absent: there is none, or it is the same one.
    tool_template: Option<ChatTemplate>,
    calls: CallWriting,
    generation: EndsAndDefaults,
    tokenizer_id: [u8; 32],
    /// Made for the first request that asks for a form: that takes some milliseconds.
    forms: OnceLock<Result<Forms, FormError>>,
}

/// The kind of a token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Missing,
    /// A token that is shown to nobody.
    Special,
    Text,
}

/// An error in the files of a model's text side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file is there and cannot be read.
    #[error(transparent)]
    Read(#[from] UnreadFile),
    /// A file that every model must have is not there.
    #[error("{0} is missing")]
    Missing(String),
    /// A file is not JSON of the shape that its name promises.
    #[error("{file} cannot be understood")]
    Malformed {
        /// The path of the file.
        file: String,
        /// The parser's error, with its place.
        source: serde_json::Error,
    },
    /// The tokenizer is of no kind that is known here.
    #[error("{file} holds no tokenizer that can be used")]
    Tokenizer {
        /// The path of the file.
        file: String,
        /// The tokenizer library's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A chat template is not UTF-8.
    #[error("{file} is not UTF-8")]
    NotUtf8 {
        /// The path of the file.
        file: String,
        /// The place of the first wrong byte.
        source: std::str::Utf8Error,
    },
    /// The chat template cannot be compiled.
    #[error("the chat template of {file} cannot be compiled")]
    Template {
        /// The path of the file.
        file: String,
        /// The template library's error, with its line.
        source: minijinja::Error,
    },
}

/// Bytes for each token asked for in the part of a text that is tokenised first: more than a token of
/// any language has on average, so that nearly all prompts that fit are tokenised once.
const FIRST_BYTES_PER_TOKEN: usize = 8;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const GENERATION_CONFIG: &str = "generation_config.json";
const CONFIG: &str = "config.json";

/// The parts of `tokenizer_config.json` that count here.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<TemplateSource>,
    #[serde(flatten)]
    special: SpecialTokens,
    tokenizer_class: Option<String>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
}

/// Classes of transformers that add the tokens around texts that `tokenizer_config.json` asks for, whatever
/// `tokenizer.json` says.
const CLASSES_WITH_FLAGS: [&str; 4] = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
];

// === impl ModelText ===

impl ModelText {
    /// Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`,
    /// `chat_template.jinja`, `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// If `tokenizer.json` is missing, or a file cannot be read or understood.
    pub fn load(files: &dyn TextFiles) -> Result<Self, TextError> {
        let mut tokenizer = read_tokenizer(files)?;
        let config: TokenizerConfig = read_json(files, TOKENIZER_CONFIG)?.unwrap_or_default();
        if let Some(around) = config.around_texts(&tokenizer) {
            around.put_in(&mut tokenizer);
        }
        let templates = read_templates(files, config.chat_template, &config.special)?;
        let model: GenerationFile = read_json(files, CONFIG)?.unwrap_or_default();
        let generation: GenerationFile = read_json(files, GENERATION_CONFIG)?.unwrap_or_default();
        let eos_token = config.special.eos().and_then(|t| tokenizer.token_to_id(t));
        let kinds = token_kinds(&tokenizer);
        let missing = (0..).zip(&kinds).filter(|(_, k)| **k == TokenKind::Missing);
        Ok(Self {
            missing: missing.map(|(id, _)| id).collect(),
            token_bytes_max: token_bytes_max(&tokenizer),
            tokenizer_id: tokenizer_id(files, kinds.len())?,
            kinds,
            spelling: Spelling::of(&tokenizer),
            calls: templates.calls(&tokenizer),
            tokenizer,
            template: templates.chat,
            tool_template: templates.tools,
            generation: generation.merge(model, eos_token),
            forms: OnceLock::new(),
        })
    }

    /// Lets chat templates ask for the date: `now` gives seconds since 1970, UTC. Without a clock
    /// `strftime_now` is not defined, and templates that check for it fall back.
    #[must_use]
    pub fn with_clock(mut self, now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let now = Arc::new(now);
        let with_clock = |template: ChatTemplate| {
            let now = Arc::clone(&now);
            template.with_clock(move || now())
        };
        self.template = self.template.map(with_clock);
        self.tool_template = self.tool_template.map(with_clock);
        self
    }

    /// Tokenises longer and longer beginnings of `text`, up to the whole of it.
    fn tokenize(
        &self,
        text: &str,
        around: AroundText,
        tokens_max: u32,
    ) -> Result<Vec<u32>, PromptError> {
        let tokens_max = usize::try_from(tokens_max).unwrap_or(usize::MAX);
        let mut bytes = tokens_max.saturating_mul(FIRST_BYTES_PER_TOKEN);
        while bytes < text.len() {
            let beginning = &text[..text.floor_char_boundary(bytes)];
            let tokens = self.tokenize_whole(beginning, around)?.len();
            // The cut may have made a token for each byte of the one that it went through.
            let tokens_min = tokens.saturating_sub(self.token_bytes_max);
            if tokens_min > tokens_max {
                return Err(PromptError::TooLong { tokens_min });
            }
            bytes = bytes.saturating_mul(2).max(1);
        }
        self.tokenize_whole(text, around)
    }

    fn tokenize_whole(&self, text: &str, around: AroundText) -> Result<Vec<u32>, PromptError> {
        let encoding = self.tokenizer.encode_fast(text, around == AroundText::Add);
        let encoding = encoding.map_err(PromptError::Tokenizer)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// One above the largest token id that the tokenizer has. The model's rows of logits may be
    /// longer: ids beyond have no text.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    /// Begins an answer of this form, after the tokens of it that there are already.
    ///
    /// # Errors
    /// If the form is none, is too large, or does not allow these tokens.
    pub fn begin_form(
        &self,
        form: &AnswerForm,
        generated: &[u32],
    ) -> Result<FormMatcher, FormError> {
        self.forms()?.begin(form, generated)
    }

    fn forms(&self) -> Result<&Forms, FormError> {
        let forms = self.forms.get_or_init(|| Forms::new(self));
        forms.as_ref().map_err(Clone::clone)
    }

    /// The bytes of a token, special ones as they are written; none of an id without a token.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let token = self.tokenizer.id_to_token(id);
        token.map_or_else(Vec::new, |token| self.spelling.bytes(&token))
    }

    /// Token ids below [`Self::vocab_size`] that the tokenizer lacks; mostly none.
    #[must_use]
    pub fn missing_ids(&self) -> &[u32] {
        &self.missing
    }

    /// Returns true if the model can chat: [`PromptEncoder::chat_prompt`] needs the template.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }
}

impl PromptEncoder for ModelText {
    fn encode(&self, text: &str, tokens_max: u32) -> Result<Vec<u32>, PromptError> {
        self.tokenize(text, AroundText::Add, tokens_max)
    }

    fn encode_bare(&self, text: &str, tokens_max: u32) -> Result<Vec<u32>, PromptError> {
        self.tokenize(text, AroundText::InText, tokens_max)
    }

    fn chat_prompt(
        &self,
        messages: &[ChatMessage],
        tools: &[Tool],
        tokens_max: u32,
    ) -> Result<Vec<u32>, PromptError> {
        let for_tools = self.tool_template.as_ref().filter(|_| !tools.is_empty());
        let template = for_tools.or(self.template.as_ref());
        let template = template.ok_or(PromptError::NoChatTemplate)?;
        let rendered = template.render(messages, tools)?;
        self.tokenize(&rendered, AroundText::InText, tokens_max)
    }

    fn call_syntax(&self) -> Result<CallSyntax, NoTools> {
        self.calls.syntax
    }

    fn takes_several_calls(&self) -> bool {
        self.calls.takes_several
    }

    fn call_tokens(&self) -> &[u32] {
        &self.calls.tokens
    }

    fn token_bytes_max(&self) -> usize {
        self.token_bytes_max
    }

    fn has_token(&self, id: u32) -> bool {
        let kind = self.kinds.get(id as usize);
        kind.is_some_and(|kind| *kind != TokenKind::Missing)
    }

    fn tokenizer_id(&self) -> [u8; 32] {
        self.tokenizer_id
    }

    fn check_form(&self, form: &AnswerForm) -> Result<(), String> {
        let compiled = self.forms().and_then(|forms| forms.compiled(form));
        compiled.map(drop).map_err(|error| error.to_string())
    }

    fn defaults(&self) -> &GenerationDefaults {
        &self.generation.defaults
    }
}

impl Detokenizer for ModelText {
    fn decode(&self, ids: &[u32]) -> Result<String, DecodeError> {
        self.tokenizer.decode(ids, true).map_err(DecodeError)
    }

    fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&TokenKind::Special)
    }

    fn special_text(&self, id: u32) -> String {
        let token = self.tokenizer.id_to_token(id);
        token.filter(|_| self.is_special(id)).unwrap_or_default()
    }

    fn eos(&self) -> &[u32] {
        &self.generation.eos
    }
}

impl fmt::Debug for ModelText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelText")
            .field("vocab_size", &self.vocab_size())
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// The source of the tokens around every text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AroundText {
    /// The tokenizer adds them.
    Add,
    /// The text has those that it is to have.
    InText,
}

// === impl TokenizerConfig ===

impl TokenizerConfig {
    /// The tokens around every text, in the place of those of `tokenizer.json`; absent: those are right, or one that
    /// is asked for is not known.
    fn around_texts(&self, tokenizer: &Tokenizer) -> Option<TokensAround<'_>> {
        let class = self.tokenizer_class.as_deref()?;
        if !CLASSES_WITH_FLAGS.contains(&class) {
            return None;
        }
        let begins = self.add_bos_token.unwrap_or(true);
        let ends = self.add_eos_token.unwrap_or(false);
        let begin = with_id(self.special.bos().filter(|_| begins), tokenizer);
        let end = with_id(self.special.eos().filter(|_| ends), tokenizer);
        let are_known = begin.is_some() == begins && end.is_some() == ends;
        are_known.then_some(TokensAround { begin, end })
    }
}

/// A token with its id; absent: the tokenizer has none that is written so.
fn with_id<'t>(token: Option<&'t str>, tokenizer: &Tokenizer) -> Option<(u64, &'t str)> {
    let token = token?;
    let id = tokenizer.token_to_id(token)?;
    Some((id.into(), token))
}

// === Reading ===

/// The identity of the files that say how prompts are read, and of how many of their ids the model has.
fn tokenizer_id(files: &dyn TextFiles, ids: usize) -> Result<[u8; 32], TextError> {
    let mut hash = Sha256::new();
    hash.update((ids as u64).to_le_bytes());
    for name in [
        TOKENIZER,
        TOKENIZER_CONFIG,
        CHAT_TEMPLATE,
        GENERATION_CONFIG,
    ] {
        let content = files.read(name)?;
        let bytes = content.as_ref().map(|content| content.len() as u64);
        hash.update(bytes.unwrap_or(u64::MAX).to_le_bytes());
        hash.update(content.as_deref().unwrap_or_default());
    }
    Ok(hash.finalize().into())
}

fn read_json<T: DeserializeOwned>(
    files: &dyn TextFiles,
    name: &str,
) -> Result<Option<T>, TextError> {
    let Some(content) = files.read(name)? else {
        return Ok(None);
    };
    let parsed = serde_json::from_slice(&content).map_err(|source| TextError::Malformed {
        file: files.describe(name),
        source,
    })?;
    Ok(Some(parsed))
}

/// The number of tokens of which the model knows something.
#[derive(Default, Deserialize)]
struct ModelRows {
    vocab_size: Option<u32>,
}

fn read_tokenizer(files: &dyn TextFiles) -> Result<Tokenizer, TextError> {
    let file = files.describe(TOKENIZER);
    let Some(content) = files.read(TOKENIZER)? else {
        return Err(TextError::Missing(file));
    };
    let model: ModelRows = read_json(files, CONFIG)?.unwrap_or_default();
    let parsed = Tokenizer::from_bytes(&content).and_then(|all| {
        let added = all.get_added_tokens_decoder();
        match model.vocab_size {
            Some(rows) if added.keys().any(|id| *id >= rows) => {
                Tokenizer::from_bytes(without_tokens_from(rows, &content)?)
            }
            Some(_) | None => Ok(all),
        }
    });
    let usable = parsed.and_then(|mut tokenizer| {
        // Left over from training: no prompt is cut or filled up behind its client's back.
        tokenizer.with_padding(None).with_truncation(None)?;
        Ok(tokenizer)
    });
    usable.map_err(|source| TextError::Tokenizer { file, source })
}

/// A `tokenizer.json` without the added tokens of which the model has no row: those to fill up batches in training,
/// which no answer has. Their texts are plain texts then.
fn without_tokens_from(rows: u32, content: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut file: Value = serde_json::from_slice(content)?;
    if let Some(added) = file["added_tokens"].as_array_mut() {
        added.retain(|token| token["id"].as_u64().is_none_or(|id| id < u64::from(rows)));
    }
    serde_json::to_vec(&file)
}

/// The chat templates of a model.
struct Templates {
    chat: Option<ChatTemplate>,
    /// The one for conversations with tools, if that is another.
    tools: Option<ChatTemplate>,
}

impl Templates {
    /// The way in which the model writes calls of tools.
    fn calls(&self, tokenizer: &Tokenizer) -> CallWriting {
        let with_tools = self.tools.as_ref().or(self.chat.as_ref());
        let with_tools = with_tools.filter(|template| template.has_tools());
        CallWriting::of(with_tools, tokenizer)
    }
}

/// Reads the template in a file of its own, or else the tokenizer configuration's.
fn read_templates(
    files: &dyn TextFiles,
    configured: Option<TemplateSource>,
    special: &SpecialTokens,
) -> Result<Templates, TextError> {
    let (name, (chat, tools)) = match files.read(CHAT_TEMPLATE)? {
        Some(content) => {
            let text = std::str::from_utf8(&content).map_err(|source| TextError::NotUtf8 {
                file: files.describe(CHAT_TEMPLATE),
                source,
            })?;
            (CHAT_TEMPLATE, (Some(text.to_owned()), None))
        }
        None => {
            let sources = configured.map(TemplateSource::sources);
            (TOKENIZER_CONFIG, sources.unwrap_or_default())
        }
    };
    let compiled = |source: Option<String>| {
        let template = source.map(|source| ChatTemplate::compile(source, special));
        template.transpose().map_err(|source| TextError::Template {
            file: files.describe(name),
            source,
        })
    };
    Ok(Templates {
        chat: compiled(chat)?,
        tools: compiled(tools)?,
    })
}

/// Bytes of the longest token in the vocabulary. Vocabularies write no byte of a text in less than one.
fn token_bytes_max(tokenizer: &Tokenizer) -> usize {
    let vocabulary = tokenizer.get_vocab(true);
    let longest = vocabulary.into_keys().map(|token| token.len()).max();
    longest.unwrap_or(1).max(1)
}

fn token_kinds(tokenizer: &Tokenizer) -> Vec<TokenKind> {
    let vocabulary = tokenizer.get_vocab(true);
    let added = tokenizer.get_added_tokens_decoder();
    let size = vocabulary.values().max().map_or(0, |id| *id as usize + 1);
    let mut kinds = vec![TokenKind::Missing; size];
    #[expect(
        clippy::iter_over_hash_type,
        reason = "each id is written once, in any order"
    )]
    for id in vocabulary.values() {
        let is_special = added.get(id).is_some_and(|token| token.special);
        kinds[*id as usize] = if is_special {
            TokenKind::Special
        } else {
            TokenKind::Text
        };
    }
    kinds
}
