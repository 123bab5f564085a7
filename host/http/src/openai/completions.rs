//! Completions: the prompt read, and the shape of answers.

use pointsman_executor::delivery::StopReason;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::envelope::{Choice, FinishReason};
use super::logprobs::{TextLogprobs, Told};
use super::prompt::Prompt;
use crate::error::ApiError;
use crate::fields::{Fields, mismatch, read};

/// The choice of a whole answer or of a chunk.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Completion", inline)]
pub(super) struct TextChoice<'a> {
    text: &'a str,
    index: u32,
    logprobs: Option<TextLogprobs>,
    /// Absent in chunks before the last.
    finish_reason: Option<FinishReason>,
}

impl Choice for TextChoice<'_> {
    const OBJECT: &'static str = "text_completion";
}

pub(super) fn choice<'a>(text: &'a str, told: &Told, stop: Option<StopReason>) -> TextChoice<'a> {
    TextChoice {
        text,
        index: 0,
        logprobs: told.of_text(),
        finish_reason: stop.map(FinishReason::from),
    }
}

/// The schema of [`prompt`].
pub(super) fn prompt_schema() -> Value {
    let text = json!({"type": "string"});
    let token = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let tokens = json!({"type": "array", "items": token, "minItems": 1});
    let only =
        |schema: &Value| json!({"type": "array", "items": schema, "minItems": 1, "maxItems": 1});
    let alone = [only(&text), only(&tokens)];
    json!({
        "description": "A text, or token ids; also alone in a list.",
        "anyOf": [text, tokens, alone[0], alone[1]],
    })
}

/// Reads the prompt of a request: a text, a list of one text, token ids, or a list of one list of
/// token ids.
pub(super) fn prompt(fields: &mut Fields<'_>) -> Result<Prompt, ApiError> {
    let given = fields.take("prompt").ok_or(ApiError::Missing("prompt"))?;
    if let Some(prompt) = one_prompt(given) {
        return Ok(prompt);
    }
    let list: Vec<&RawValue> = read(given).unwrap_or_default();
    let is_prompt = |item: &&RawValue| item.get().starts_with(['"', '[']);
    match *list {
        [only] if is_prompt(&only) => one_prompt(only).ok_or_else(|| no_prompt(only)),
        _ if list.iter().any(is_prompt) => Err(several(list.len())),
        _ => Err(no_prompt(given)),
    }
}

/// A text or token ids, if `prompt` is that.
fn one_prompt(prompt: &RawValue) -> Option<Prompt> {
    let ids = read(prompt).filter(|ids: &Vec<u32>| !ids.is_empty());
    let ids = ids.map(Prompt::Tokens);
    ids.or_else(|| read(prompt).map(Prompt::Text))
}

/// The error of what is neither a text nor a list of token ids.
fn no_prompt(value: &RawValue) -> ApiError {
    let items: Vec<&RawValue> = read(value).unwrap_or_default();
    let mut items = items.into_iter().enumerate();
    match items.find(|(_, item)| read::<u32>(item).is_none()) {
        Some((index, item)) => mismatch(format!("prompt[{index}]"), "a token id", item),
        None => {
            let wanted = "a text or a list of token ids";
            mismatch("prompt".to_owned(), wanted, value)
        }
    }
}

fn several(prompts: usize) -> ApiError {
    let message = format!(
        "`prompt` holds {prompts} prompts; several in one request are not built: send a request \
         for each"
    );
    ApiError::field("prompt", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(prompt: Value) -> Result<Prompt, String> {
        let body = json!({ "prompt": prompt }).to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        super::prompt(&mut fields).map_err(|error| error.to_string())
    }

    #[test]
    fn a_prompt_is_a_text_or_tokens_also_alone_in_a_list() {
        for text in [json!("a b"), json!(["a b"])] {
            assert_eq!(read(text), Ok(Prompt::Text("a b".to_owned())));
        }
        for ids in [json!([1, 2]), json!([[1, 2]])] {
            assert_eq!(read(ids), Ok(Prompt::Tokens(vec![1, 2])));
        }
    }

    #[test]
    fn what_is_no_prompt_is_refused() {
        for (prompt, why) in [
            (Value::Null, "`prompt` is missing"),
            (
                json!(5),
                "`prompt` has to be a text or a list of token ids, not 5",
            ),
            (
                json!([]),
                "`prompt` has to be a text or a list of token ids, not an empty list",
            ),
            (
                json!([[]]),
                "`prompt` has to be a text or a list of token ids, not an empty list",
            ),
            (json!([1, -1]), "`prompt[1]` has to be a token id, not -1"),
            (json!([null]), "`prompt[0]` has to be a token id, not null"),
            (
                json!(["a", "b"]),
                "`prompt` holds 2 prompts; several in one request are not built: send a request for each",
            ),
            (
                json!([[1], [2], [3]]),
                "`prompt` holds 3 prompts; several in one request are not built: send a request for each",
            ),
        ] {
            assert_eq!(read(prompt), Err(why.to_owned()));
        }
    }
}
