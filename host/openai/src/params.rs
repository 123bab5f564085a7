//! The parameters of a request: bounds and transfer. And the fields that are not built.

use pointsman_executor::job::Sampling;
use pointsman_executor::prompt::GenerationDefaults;
use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, Properties, mismatch, object, read};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::envelope::UsageField;
use super::form::AskedForm;
use super::{CompletionKind, form, sampling};

/// The parameters of a request.
#[derive(Debug, PartialEq)]
pub(super) struct Params {
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    /// Most tokens to generate; absent: the client names no bound.
    pub(super) tokens_max: Option<u32>,
    pub(super) ignore_eos: bool,
    /// Number of the likeliest tokens that are told with each token; absent: no probabilities.
    pub(super) logprobs: Option<u32>,
    pub(super) form: Option<AskedForm>,
    /// Choices of each prompt, at least one.
    pub(super) choices: u32,
    pub(super) transfer: Transfer,
}

/// The way in which an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    Whole,
    Streamed(UsageChunk),
}

/// The chunk at a stream's end that tells its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageChunk {
    Sent,
    Omitted,
}

const CHOICES_MAX: u32 = 64;
const STOPS_MAX: usize = 16;
const STOP_CHARS_MAX: usize = 1024;

/// Fields that are not built, each with the JSON values that change nothing.
pub(super) type Unbuilt = &'static [(&'static str, &'static [&'static str])];

/// Fields that would change the answer if they were built, each with the JSON values that change
/// nothing. OpenAI's first, then the fields that vLLM adds and its users send.
const UNBUILT: Unbuilt = &[
    ("best_of", &["1"]),
    ("prompt_logprobs", &[]),
    ("echo", &["false"]),
    ("suffix", &[r#""""#]),
    ("functions", &["[]"]),
    ("function_call", &[r#""none""#, r#""auto""#]),
    ("modalities", &[r#"["text"]"#]),
    ("audio", &[]),
    ("web_search_options", &[]),
    ("reasoning_effort", &[r#""none""#]),
    ("verbosity", &[r#""medium""#]),
    ("min_tokens", &["0"]),
    ("stop_token_ids", &["[]"]),
    ("bad_words", &["[]"]),
    ("allowed_token_ids", &[]),
    ("include_stop_str_in_output", &["false"]),
    ("add_generation_prompt", &["true"]),
    ("continue_final_message", &["false"]),
    ("chat_template", &[]),
    ("chat_template_kwargs", &["{}"]),
    ("use_beam_search", &["false"]),
    ("skip_special_tokens", &["true"]),
    ("spaces_between_special_tokens", &["true"]),
    ("truncate_prompt_tokens", &[]),
];

/// Fields that completions have built and chats have not.
const UNBUILT_IN_CHATS: Unbuilt = &[("add_special_tokens", &["false"])];

/// Fields that are taken with any value: none of them changes the answer.
const WITHOUT_EFFECT: [(&str, &str); 8] = [
    ("user", NOT_READ),
    ("safety_identifier", NOT_READ),
    ("metadata", NOT_READ),
    ("service_tier", NOT_READ),
    (
        "store",
        "Taken, and nothing is stored: answers are kept nowhere.",
    ),
    ("prediction", NOT_READ),
    ("prompt_cache_key", NOT_READ),
    ("prompt_cache_retention", NOT_READ),
];

const NOT_READ: &str = "Taken, and changes nothing.";

/// The schemas of [`WITHOUT_EFFECT`].
pub(super) fn properties_without_effect() -> Properties {
    let properties = WITHOUT_EFFECT.iter();
    let properties = properties.map(|(param, about)| (*param, json!({"description": about})));
    properties.collect()
}

/// The schemas of the fields that are not built in completions of this kind.
pub(super) fn unbuilt_properties(kind: CompletionKind) -> Properties {
    unbuilt(kind).map(properties_of).concat()
}

/// The schemas of fields that are not built.
pub(super) fn properties_of(unbuilt: Unbuilt) -> Properties {
    let properties = unbuilt.iter().map(|(param, neutral)| {
        let neutral: Vec<Value> = neutral.iter().map(|neutral| parsed(neutral)).collect();
        (
            *param,
            json!({"description": "Not built.", "enum": neutral}),
        )
    });
    properties.collect()
}

/// Refuses fields that are not built in completions of this kind and would change the answer.
pub(super) fn refuse_unbuilt(
    fields: &mut Fields<'_>,
    kind: CompletionKind,
) -> Result<(), ApiError> {
    for table in unbuilt(kind) {
        refuse(fields, table)?;
    }
    Ok(())
}

/// The tables of fields that are not built in completions of this kind.
fn unbuilt(kind: CompletionKind) -> [Unbuilt; 2] {
    match kind {
        CompletionKind::Chat => [UNBUILT, UNBUILT_IN_CHATS],
        CompletionKind::Text => [UNBUILT, &[]],
    }
}

/// Refuses those of these fields that would change the answer.
pub(super) fn refuse(fields: &mut Fields<'_>, unbuilt: Unbuilt) -> Result<(), ApiError> {
    for (param, neutral) in unbuilt {
        let Some(value) = fields.take(param) else {
            continue;
        };
        if !neutral.iter().any(|neutral| is_same(value, neutral)) {
            return Err(ApiError::Unbuilt { param, neutral });
        }
    }
    Ok(())
}

/// The most bytes of a value that is compared with those that change nothing, all of which are short.
const NEUTRAL_BYTES_MAX: usize = 256;

/// Compares a value with a JSON text; 0.0 is 0.
fn is_same(value: &RawValue, neutral: &str) -> bool {
    if value.get().len() > NEUTRAL_BYTES_MAX {
        return false;
    }
    let (value, neutral) = (read(value).unwrap_or(Value::Null), parsed(neutral));
    value == neutral || value.is_number() && value.as_f64() == neutral.as_f64()
}

fn parsed(neutral: &str) -> Value {
    serde_json::from_str(neutral).expect("the table holds JSON")
}

// === impl UsageChunk ===

impl UsageChunk {
    /// The field `usage` of the chunks before the last one.
    pub(super) fn field(self) -> UsageField {
        match self {
            UsageChunk::Sent => UsageField::Later,
            UsageChunk::Omitted => UsageField::Absent,
        }
    }
}

// === impl Params ===

impl Params {
    /// The schemas of the fields that [`Self::take`] takes.
    pub(super) fn properties() -> Properties {
        let stop = json!({"type": "string", "minLength": 1, "maxLength": STOP_CHARS_MAX});
        let stops = json!({"type": "array", "items": stop, "maxItems": STOPS_MAX});
        let tokens_max = json!({"type": "integer", "minimum": 1, "maximum": u32::MAX});
        let include_usage = json!({
            "description": "A last chunk tells the tokens of the whole stream.",
            "type": "boolean",
        });
        let include_obfuscation = json!({"description": "Taken: nothing is padded."});
        let stream_options = object(
            &[],
            vec![
                ("include_usage", include_usage),
                ("include_obfuscation", include_obfuscation),
            ],
        );
        let own = vec![
            (
                "stop",
                json!({"description": "Texts before which the answer ends.", "anyOf": [stop, stops]}),
            ),
            (
                "n",
                json!({
                    "description": "Choices, each a request of its own that the prompt's tokens count for.",
                    "type": "integer", "minimum": 1, "maximum": CHOICES_MAX,
                }),
            ),
            ("max_tokens", tokens_max.clone()),
            ("max_completion_tokens", tokens_max),
            (
                "ignore_eos",
                json!({"type": "boolean", "description": "Goes on to the bound on tokens."}),
            ),
            (
                "stream",
                json!({"type": "boolean", "description": "Sends the answer as server-sent events."}),
            ),
            ("stream_options", stream_options.to_value()),
        ];
        [sampling::properties(), form::properties(), own].concat()
    }

    pub(super) fn take(
        fields: &mut Fields<'_>,
        kind: CompletionKind,
        defaults: &GenerationDefaults,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            sampling: sampling::take(fields, defaults)?,
            stop: stop(fields)?,
            tokens_max: tokens_max(fields)?,
            ignore_eos: flag(fields, "ignore_eos")?,
            logprobs: sampling::take_logprobs(fields, kind)?,
            form: form::take(fields)?,
            choices: fields.take_integer("n", &(1..=CHOICES_MAX))?.unwrap_or(1),
            transfer: transfer(fields)?,
        })
    }
}

fn stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(value) = fields.take("stop") else {
        return Ok(Vec::new());
    };
    let alone = read(value).map(|text| vec![text]);
    let texts = alone.or_else(|| {
        let list: Vec<&RawValue> = read(value)?;
        let listed = list.into_iter().take(STOPS_MAX + 1);
        listed.map(read::<String>).collect()
    });
    let fits = |texts: &Vec<String>| {
        let text_fits = |text: &String| (1..=STOP_CHARS_MAX).contains(&text.chars().count());
        texts.len() <= STOPS_MAX && texts.iter().all(text_fits)
    };
    texts.filter(fits).ok_or_else(|| {
        let wanted =
            format!("a text or up to {STOPS_MAX} texts, each of 1 to {STOP_CHARS_MAX} characters");
        mismatch("stop".to_owned(), &wanted, value)
    })
}

fn tokens_max(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let mut bound = |name| fields.take_as(name, "an integer of at least 1", |n: &u32| *n >= 1);
    match (bound("max_tokens")?, bound("max_completion_tokens")?) {
        (Some(old), Some(new)) if old != new => Err(ApiError::field(
            "max_completion_tokens",
            "`max_completion_tokens` and `max_tokens` differ; give one of them",
        )),
        (old, new) => Ok(new.or(old)),
    }
}

fn transfer(fields: &mut Fields<'_>) -> Result<Transfer, ApiError> {
    let streamed = flag(fields, "stream")?;
    let options = fields.take("stream_options").map(|given| {
        let named = |name: &str| format!("stream_options.{name}");
        let options = Fields::of(given, named)?;
        options.ok_or_else(|| mismatch("stream_options".to_owned(), "an object", given))
    });
    match (streamed, options.transpose()?) {
        (false, None) => Ok(Transfer::Whole),
        (false, Some(_)) => Err(ApiError::field(
            "stream_options",
            "`stream_options` needs `stream` to be true",
        )),
        (true, None) => Ok(Transfer::Streamed(UsageChunk::Omitted)),
        (true, Some(mut options)) => Ok(Transfer::Streamed(
            if flag(&mut options, "include_usage")? {
                UsageChunk::Sent
            } else {
                UsageChunk::Omitted
            },
        )),
    }
}

pub(super) fn flag(fields: &mut Fields<'_>, name: &str) -> Result<bool, ApiError> {
    let flag = fields.take_as(name, "true or false", |_| true)?;
    Ok(flag.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [CompletionKind; 2] = [CompletionKind::Chat, CompletionKind::Text];

    fn check(kind: CompletionKind, body: &str) -> Result<(), ApiError> {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        refuse_unbuilt(&mut fields, kind)
    }

    #[test]
    fn no_field_without_effect_is_refused() {
        for (param, _) in WITHOUT_EFFECT {
            for value in ["null", "true", "1.5", "\"text\"", "[{}]", "{\"a\": [1]}"] {
                let body = format!("{{\"{param}\": {value}}}");
                for kind in KINDS {
                    assert_eq!(check(kind, &body), Ok(()), "{body}");
                }
            }
        }
    }

    #[test]
    fn every_field_that_is_not_built_says_what_it_may_be() {
        for kind in KINDS {
            for (param, neutral) in unbuilt(kind).concat() {
                for value in neutral {
                    let body = format!("{{\"{param}\": {value}}}");
                    assert_eq!(check(kind, &body), Ok(()), "{body}");
                }
                let body = format!("{{\"{param}\": \"something else\"}}");
                let error = check(kind, &body).unwrap_err();
                assert_eq!(error, ApiError::Unbuilt { param, neutral });
            }
        }
        let error = ApiError::Unbuilt {
            param: "best_of",
            neutral: &["1"],
        };
        assert_eq!(
            error.to_string(),
            "`best_of` is not built; leave it out or at 1"
        );
    }

    #[test]
    fn special_tokens_are_as_they_are_asked_for_or_refused() {
        let refused = |kind, field: &str| match check(kind, &format!("{{{field}}}")) {
            Err(ApiError::Unbuilt { param, .. }) => Some(param),
            other => {
                assert_eq!(other, Ok(()), "{field}");
                None
            }
        };
        let (add, skip) = ("add_special_tokens", "skip_special_tokens");
        for (field, in_chats, in_texts) in [
            (r#""add_special_tokens": true"#, Some(add), None),
            (r#""add_special_tokens": false"#, None, None),
            (r#""skip_special_tokens": true"#, None, None),
            (r#""skip_special_tokens": false"#, Some(skip), Some(skip)),
        ] {
            assert_eq!(refused(CompletionKind::Chat, field), in_chats, "{field}");
            assert_eq!(refused(CompletionKind::Text, field), in_texts, "{field}");
        }
    }
}
