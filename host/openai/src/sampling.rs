//! The fields of a request that say how tokens are chosen, and which probabilities are told.

use std::collections::BTreeMap;

use pointsman_executor::job::{Penalties, Sampling};
use pointsman_executor::prompt::GenerationDefaults;
use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, Properties};
use serde::Deserialize;
use serde_json::json;

use super::CompletionKind;
use super::params::flag;

const BIASES_MAX: usize = 1024;
const BIAS_MAX: f32 = 100.0;
const REPETITION_MAX: f32 = 10.0;
/// The most tokens that a chat tells with each token, and that a completion does: OpenAI's numbers.
const CHAT_LOGPROBS_MAX: u32 = 20;
const TEXT_LOGPROBS_MAX: u32 = 5;

/// The schemas of the fields that [`take`] takes.
pub(super) fn properties() -> Properties {
    let of_the_model = "By default the model's own.";
    let penalty = json!({"type": "number", "minimum": -2, "maximum": 2});
    let bias = json!({"type": "number", "minimum": -BIAS_MAX, "maximum": BIAS_MAX});
    vec![
        (
            "logit_bias",
            json!({
                "description": "Numbers added to the logits of tokens, by their ids.",
                "type": "object", "maxProperties": BIASES_MAX,
                "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}, "additionalProperties": bias,
            }),
        ),
        ("presence_penalty", penalty.clone()),
        ("frequency_penalty", penalty),
        (
            "repetition_penalty",
            json!({
                "description": "Divisor of the logits of tokens that came up before. By default the model's own.",
                "type": "number", "exclusiveMinimum": 0, "maximum": REPETITION_MAX,
            }),
        ),
        (
            "min_p",
            json!({"type": "number", "minimum": 0, "maximum": 1, "description": of_the_model}),
        ),
        (
            "temperature",
            json!({"type": "number", "minimum": 0, "maximum": 2, "description": of_the_model}),
        ),
        (
            "top_p",
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": of_the_model}),
        ),
        (
            "top_k",
            json!({
                "description": "0 or -1: all tokens. By default the model's own.",
                "type": "integer", "minimum": -1, "maximum": u32::MAX,
            }),
        ),
        (
            "seed",
            json!({
                "description": "The same seed gives the same answer. By default a random one.",
                "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX,
            }),
        ),
    ]
}

/// Takes the fields that say how tokens are chosen.
pub(super) fn take(
    fields: &mut Fields<'_>,
    defaults: &GenerationDefaults,
) -> Result<Sampling, ApiError> {
    let temperature = fields.take_as("temperature", "a number from 0 to 2", |t| {
        (0.0..=2.0).contains(t)
    })?;
    let top_p = fields.take_as("top_p", "a number above 0, at most 1", |p| {
        *p > 0.0 && *p <= 1.0
    })?;
    let top_k = fields.take_as(
        "top_k",
        "an integer of at least 1, or 0 or -1 for all",
        |k| (-1..=i64::from(u32::MAX)).contains(k),
    )?;
    let seed = fields.take_as("seed", "an integer of 64 bits", |seed: &i128| {
        bits(*seed).is_some()
    })?;
    let min_p = fields.take_as("min_p", "a number from 0 to 1", |p| (0.0..=1.0).contains(p))?;
    Ok(Sampling {
        logit_bias: logit_bias(fields)?,
        penalties: penalties(fields, defaults)?,
        min_p: min_p.unwrap_or(defaults.min_p),
        temperature: temperature.unwrap_or(defaults.temperature),
        top_p: top_p.unwrap_or(defaults.top_p),
        top_k: top_k.map_or(defaults.top_k, |k| u32::try_from(k).unwrap_or(0)),
        // The one random number: the same request gives another answer each time.
        seed: seed.and_then(bits).unwrap_or_else(|| fastrand::u64(..)),
    })
}

/// The 64 bits of a number, with a sign or without one; absent: it has more.
fn bits(number: i128) -> Option<u64> {
    let negative = || i64::try_from(number).map(i64::cast_unsigned);
    u64::try_from(number).or_else(|_| negative()).ok()
}

fn penalties(
    fields: &mut Fields<'_>,
    defaults: &GenerationDefaults,
) -> Result<Penalties, ApiError> {
    let mut penalty = |name| {
        let given = fields.take_as(name, "a number from -2 to 2", |p| (-2.0..=2.0).contains(p));
        given.map(|given| given.unwrap_or(0.0))
    };
    let (presence, frequency) = (penalty("presence_penalty")?, penalty("frequency_penalty")?);
    let wanted = format!("a number above 0, at most {REPETITION_MAX}");
    let repetition = fields.take_as("repetition_penalty", &wanted, |p| {
        *p > 0.0 && *p <= REPETITION_MAX
    })?;
    Ok(Penalties {
        repetition: repetition.unwrap_or(defaults.repetition_penalty),
        frequency,
        presence,
    })
}

fn logit_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let wanted = format!(
        "an object with a number from -{BIAS_MAX} to {BIAS_MAX} for each of up to {BIASES_MAX} token ids"
    );
    let fits = |given: &BTreeMap<u32, f32>| {
        let in_range = |bias: &f32| (-BIAS_MAX..=BIAS_MAX).contains(bias);
        given.len() <= BIASES_MAX && given.values().all(in_range)
    };
    let given = fields.take_as("logit_bias", &wanted, fits)?;
    Ok(given.unwrap_or_default().into_iter().collect())
}

/// The schemas of the fields that ask for probabilities.
pub(super) fn logprobs_properties(kind: CompletionKind) -> Properties {
    let count = |max| json!({"type": "integer", "minimum": 0, "maximum": max});
    let (logprobs, top_max) = match kind {
        CompletionKind::Chat => (json!({"type": "boolean"}), CHAT_LOGPROBS_MAX),
        CompletionKind::Text => {
            let none = json!({"type": "boolean", "const": false});
            (json!({"anyOf": [count(TEXT_LOGPROBS_MAX), none]}), 0)
        }
    };
    vec![("logprobs", logprobs), ("top_logprobs", count(top_max))]
}

/// Takes the fields that ask for probabilities: the number of the likeliest tokens that are told with each
/// token.
pub(super) fn take_logprobs(
    fields: &mut Fields<'_>,
    kind: CompletionKind,
) -> Result<Option<u32>, ApiError> {
    match kind {
        CompletionKind::Chat => chat_logprobs(fields),
        CompletionKind::Text => text_logprobs(fields),
    }
}

fn chat_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let is_asked = flag(fields, "logprobs")?;
    let top = fields.take_integer("top_logprobs", &(0..=CHAT_LOGPROBS_MAX))?;
    match (is_asked, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field(
            "top_logprobs",
            "`top_logprobs` needs `logprobs` to be true",
        )),
    }
}

/// The field `logprobs` of a completion.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextLogprobs {
    Count(u32),
    Flag(bool),
}

fn text_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    // A chat's field: a completion says it all with `logprobs`.
    fields.take_integer("top_logprobs", &(0..=0))?;
    let wanted = format!("an integer from 0 to {TEXT_LOGPROBS_MAX}, or false");
    let fits = |asked: &TextLogprobs| match asked {
        TextLogprobs::Count(count) => *count <= TEXT_LOGPROBS_MAX,
        TextLogprobs::Flag(is_asked) => !is_asked,
    };
    let asked = fields.take_as("logprobs", &wanted, fits)?;
    Ok(asked.and_then(|asked| match asked {
        TextLogprobs::Count(count) => Some(count),
        TextLogprobs::Flag(_) => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_an_integer_of_64_bits_however_it_is_written() {
        let seed = |written: &str| {
            let body = format!(r#"{{"seed": {written}}}"#);
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            let taken = take(&mut fields, &GenerationDefaults::NEUTRAL);
            taken.map(|sampling| sampling.seed).ok()
        };
        for (written, number) in [
            ("42", 42),
            ("42.0", 42),
            ("4.2e1", 42),
            ("-1", u64::MAX),
            ("-1.0", u64::MAX),
            ("-9223372036854775808", 1 << 63),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(seed(written), Some(number), "{written}");
        }
        for written in [
            "1.5",
            "-9223372036854775809",
            "18446744073709551616",
            "1e300",
            "\"42\"",
            "true",
        ] {
            assert_eq!(seed(written), None, "{written}");
        }
    }
}
