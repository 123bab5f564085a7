//! The JSON around every answer and chunk: what chat completions and completions share.

use serde::Serialize;

use super::inflow::Answer;
use super::{Kind, chat, completions};
use pointsman_executor::delivery::StopReason;

/// What every part of one answer repeats.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) kind: Kind,
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
}

/// Tokens that were read and generated.
#[derive(Clone, Copy, Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: u32,
    total_tokens: usize,
}

/// Field `usage` of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum UsageField {
    /// Not there.
    Absent,
    /// `null`: it comes in a later chunk.
    Later,
    /// So many tokens generated.
    Generated(u32),
}

#[derive(Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

// === impl Envelope ===

impl Envelope {
    /// A whole answer.
    pub(super) fn whole(&self, answer: &Answer, tokens: u32) -> Vec<u8> {
        let usage = UsageField::Generated(tokens);
        let mut json = Vec::with_capacity(answer.text.len() + 512);
        match self.kind {
            Kind::Chat => self.write(&mut json, chat::WHOLE, &[chat::whole(answer)], usage),
            Kind::Text => {
                let choice = completions::choice(&answer.text, Some(answer.stop));
                self.write(&mut json, completions::OBJECT, &[choice], usage);
            }
        }
        json
    }

    /// What comes before the first text of a stream, if something does.
    pub(super) fn write_opening(&self, to: &mut Vec<u8>, usage: UsageField) {
        match self.kind {
            Kind::Chat => self.write_event(to, chat::CHUNK, &[chat::opening()], usage),
            Kind::Text => (),
        }
    }

    /// More text of a stream.
    pub(super) fn write_text(&self, to: &mut Vec<u8>, text: &str, usage: UsageField) {
        match self.kind {
            Kind::Chat => self.write_event(to, chat::CHUNK, &[chat::delta(text)], usage),
            Kind::Text => {
                let choice = completions::choice(text, None);
                self.write_event(to, completions::OBJECT, &[choice], usage);
            }
        }
    }

    /// The end of a stream's text.
    pub(super) fn write_stop(&self, to: &mut Vec<u8>, stop: StopReason, usage: UsageField) {
        match self.kind {
            Kind::Chat => self.write_event(to, chat::CHUNK, &[chat::stop(stop)], usage),
            Kind::Text => {
                let choice = completions::choice("", Some(stop));
                self.write_event(to, completions::OBJECT, &[choice], usage);
            }
        }
    }

    /// The chunk with the tokens of the whole stream.
    pub(super) fn write_usage(&self, to: &mut Vec<u8>, tokens: u32) {
        let object = match self.kind {
            Kind::Chat => chat::CHUNK,
            Kind::Text => completions::OBJECT,
        };
        self.write_event(to, object, &[(); 0], UsageField::Generated(tokens));
    }

    fn write_event<C: Serialize>(
        &self,
        to: &mut Vec<u8>,
        object: &'static str,
        choices: &[C],
        usage: UsageField,
    ) {
        to.extend_from_slice(b"data: ");
        self.write(to, object, choices, usage);
        to.extend_from_slice(b"\n\n");
    }

    fn write<C: Serialize>(
        &self,
        to: &mut Vec<u8>,
        object: &'static str,
        choices: &[C],
        usage: UsageField,
    ) {
        let usage = match usage {
            UsageField::Absent => None,
            UsageField::Later => Some(None),
            UsageField::Generated(completion_tokens) => Some(Some(Usage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens,
                total_tokens: self.prompt_tokens + completion_tokens as usize,
            })),
        };
        let object = Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        };
        serde_json::to_writer(to, &object).expect("texts and numbers can be written as JSON");
    }
}

/// OpenAI's word for why an answer ended.
pub(super) fn finish_reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Stop => "stop",
        StopReason::Length => "length",
    }
}
