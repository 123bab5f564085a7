//! The JSON around every answer and chunk, which chat completions and completions share.

use pointsman_executor::delivery::StopReason;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::chat::ChunkChoice;
use super::completions::TextChoice;
use super::inflow::{Ending, WholeText};
use super::logprobs::Told;
use super::tools::AnswerPart;
use super::{CompletionKind, chat, completions};

/// The fields that every part of one answer repeats.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) kind: CompletionKind,
    pub(super) id: String,
    /// The time of the submission, in seconds since 1970.
    pub(super) created: u64,
    /// The model that answers, or that was asked for while nothing was placed.
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
}

/// Tokens that were read and generated.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: u32,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
}

/// Tokens of the prompt, by what was to be done for them.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct PromptTokens {
    /// Leading tokens that the executor had already.
    cached_tokens: u32,
}

/// Tokens that an answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    /// Leading tokens of the prompt that the executor had already.
    pub(super) cached: u32,
    pub(super) generated: u32,
}

/// The field `usage` of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum UsageField {
    Absent,
    /// The value `null`: a later chunk has the usage.
    Later,
    /// The answer took so many tokens.
    Whole(Tokens),
}

/// A choice of an answer.
pub(super) trait Choice: Serialize {
    /// The field `object` of the answer around it.
    const OBJECT: &'static str;
}

/// The reason why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum FinishReason {
    Stop,
    Length,
    /// The answer ends with calls of tools.
    ToolCalls,
}

/// A whole answer, or a chunk of a streamed one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{C}")]
pub(super) struct Object<'a, C: Choice> {
    /// Also understood by `/admin/decisions`.
    id: &'a str,
    #[schemars(schema_with = "object_schema::<C>")]
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    model: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

fn object_schema<C: Choice>(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "const": C::OBJECT})
}

// === impl FinishReason ===

impl From<Ending> for FinishReason {
    fn from(end: Ending) -> Self {
        match (end.stop, end.has_called) {
            (StopReason::Stop, true) => FinishReason::ToolCalls,
            (StopReason::Stop, false) => FinishReason::Stop,
            (StopReason::Length, _) => FinishReason::Length,
        }
    }
}

// === impl Envelope ===

impl Envelope {
    /// The JSON of a whole answer, with its choices in order.
    pub(super) fn whole(&self, answers: &[WholeText], tokens: Tokens) -> Vec<u8> {
        let usage = UsageField::Whole(tokens);
        let bytes: usize = answers.iter().map(|answer| answer.text.len()).sum();
        let mut json = Vec::with_capacity(bytes + 512);
        let answers = (0..).zip(answers);
        match self.kind {
            CompletionKind::Chat => {
                let ids = |choice, number| self.call_id(choice, number);
                let choices = answers.map(|(index, answer)| chat::whole(index, answer, &ids));
                self.write(&mut json, &choices.collect::<Vec<_>>(), usage);
            }
            CompletionKind::Text => {
                let choices = answers.map(|(index, answer)| {
                    completions::choice(index, &answer.text, &answer.told, Some(answer.end))
                });
                self.write(&mut json, &choices.collect::<Vec<_>>(), usage);
            }
        }
        json
    }

    /// Writes the event before the first text of a choice, if there is one.
    pub(super) fn write_opening(&self, to: &mut Vec<u8>, index: u32, usage: UsageField) {
        match self.kind {
            CompletionKind::Chat => self.write_event(to, &[chat::opening(index)], usage),
            CompletionKind::Text => (),
        }
    }

    /// Writes a part of a choice, with the probabilities of its tokens.
    pub(super) fn write_part(
        &self,
        to: &mut Vec<u8>,
        (index, part, told): (u32, &AnswerPart, &Told),
        usage: UsageField,
    ) {
        match (self.kind, part) {
            (CompletionKind::Chat, _) => {
                let ids = |choice, number| self.call_id(choice, number);
                self.write_event(to, &[chat::delta(index, part, told, &ids)], usage);
            }
            (CompletionKind::Text, AnswerPart::Text(text)) => {
                self.write_event(to, &[completions::choice(index, text, told, None)], usage);
            }
            // Completions have no tools.
            (CompletionKind::Text, AnswerPart::CallBegins(..) | AnswerPart::Arguments(..)) => {}
        }
    }

    /// The id of a call: nine letters and digits, which is what the strictest chat templates take.
    fn call_id(&self, choice: u32, number: u32) -> String {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let digest = Sha256::digest(format!("{} {choice} {number}", self.id));
        let digits = digest.iter().take(9);
        let digits = digits.map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()]));
        digits.collect()
    }

    /// Writes the end of a choice, with the probabilities of tokens that have no text.
    pub(super) fn write_stop(
        &self,
        to: &mut Vec<u8>,
        (index, end, told): (u32, Ending, &Told),
        usage: UsageField,
    ) {
        match self.kind {
            CompletionKind::Chat => self.write_event(to, &[chat::stop(index, end, told)], usage),
            CompletionKind::Text => {
                let choice = completions::choice(index, "", told, Some(end));
                self.write_event(to, &[choice], usage);
            }
        }
    }

    /// Writes the chunk with the tokens of the whole stream.
    pub(super) fn write_usage(&self, to: &mut Vec<u8>, tokens: Tokens) {
        let usage = UsageField::Whole(tokens);
        match self.kind {
            CompletionKind::Chat => self.write_event::<ChunkChoice<'_>>(to, &[], usage),
            CompletionKind::Text => self.write_event::<TextChoice<'_>>(to, &[], usage),
        }
    }

    fn write_event<C: Choice>(&self, to: &mut Vec<u8>, choices: &[C], usage: UsageField) {
        to.extend_from_slice(b"data: ");
        self.write(to, choices, usage);
        to.extend_from_slice(b"\n\n");
    }

    fn write<C: Choice>(&self, to: &mut Vec<u8>, choices: &[C], usage: UsageField) {
        let usage = match usage {
            UsageField::Absent => None,
            UsageField::Later => Some(None),
            UsageField::Whole(Tokens { cached, generated }) => Some(Some(Usage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens: generated,
                total_tokens: self.prompt_tokens + generated as usize,
                prompt_tokens_details: PromptTokens {
                    cached_tokens: cached,
                },
            })),
        };
        let object = Object {
            id: &self.id,
            object: C::OBJECT,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        };
        serde_json::to_writer(to, &object).expect("texts and numbers can be written as JSON");
    }
}
