//! Completions: the prompt read, and the shape of answers.

use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, mismatch, read};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::envelope::{Choice, FinishReason};
use super::inflow::Ending;
use super::logprobs::{TextLogprobs, Told};
use super::prompt::Prompt;

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

pub(super) fn choice<'a>(
    index: u32,
    text: &'a str,
    told: &Told,
    end: Option<Ending>,
) -> TextChoice<'a> {
    TextChoice {
        text,
        index,
        logprobs: told.of_text(),
        finish_reason: end.map(FinishReason::from),
    }
}

/// The schema of [`prompts`].
pub(super) fn prompt_schema() -> Value {
    prompt_schema_of(PROMPTS_MAX)
}

/// The schema of as many prompts.
pub(super) fn prompt_schema_of(prompts_max: usize) -> Value {
    let text = json!({"type": "string"});
    let token = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let tokens = json!({"type": "array", "items": token, "minItems": 1});
    let either = json!({"anyOf": [text, tokens]});
    let several = json!({"type": "array", "items": either, "minItems": 1, "maxItems": prompts_max});
    json!({
        "description": "A text, or token ids; or a list of these, each with an answer of its own.",
        "anyOf": [text, tokens, several],
    })
}

/// The field that says whether the tokenizer puts its tokens around texts.
const ADD_SPECIAL_TOKENS: &str = "add_special_tokens";

/// The schema of [`ADD_SPECIAL_TOKENS`], which [`prompts`] takes.
pub(super) fn special_tokens_property() -> (&'static str, Value) {
    let about =
        "False: the tokenizer puts no tokens around a text, which has its special tokens already.";
    (
        ADD_SPECIAL_TOKENS,
        json!({"description": about, "type": "boolean"}),
    )
}

/// The most prompts of a request.
const PROMPTS_MAX: usize = 64;

/// Reads the prompts of a request, one at least: a text, token ids, or a list of texts and lists of token
/// ids.
pub(super) fn prompts(fields: &mut Fields<'_>) -> Result<Vec<Prompt>, ApiError> {
    let special: Option<bool> = fields.take_as(ADD_SPECIAL_TOKENS, "true or false", |_| true)?;
    let prompts = prompts_of(fields, "prompt", PROMPTS_MAX)?;
    Ok(match special {
        Some(false) => prompts.into_iter().map(Prompt::bare).collect(),
        Some(true) | None => prompts,
    })
}

/// Reads the prompts in the field `param`, as many at most.
pub(super) fn prompts_of(
    fields: &mut Fields<'_>,
    param: &'static str,
    prompts_max: usize,
) -> Result<Vec<Prompt>, ApiError> {
    let given = fields.take(param).ok_or(ApiError::Missing(param))?;
    if let Some(prompt) = one_prompt(given) {
        return Ok(vec![prompt]);
    }
    let list: Vec<&RawValue> = read(given).unwrap_or_default();
    if list.is_empty() || !list.iter().all(|item| item.get().starts_with(['"', '['])) {
        return Err(no_prompt(param, given));
    }
    if list.len() > prompts_max {
        let found = list.len();
        let message = format!("`{param}` holds {found} prompts, and may hold {prompts_max}");
        return Err(ApiError::field(param, message));
    }
    let prompts = list.into_iter().enumerate();
    let prompts = prompts.map(|(index, item)| {
        one_prompt(item).ok_or_else(|| no_prompt(&format!("{param}[{index}]"), item))
    });
    prompts.collect()
}

/// A text or token ids, if `prompt` is that.
fn one_prompt(prompt: &RawValue) -> Option<Prompt> {
    let ids = read(prompt).filter(|ids: &Vec<u32>| !ids.is_empty());
    let ids = ids.map(Prompt::Tokens);
    ids.or_else(|| read(prompt).map(Prompt::Text))
}

/// The error of what is neither a text nor a list of token ids.
fn no_prompt(at: &str, value: &RawValue) -> ApiError {
    let items: Vec<&RawValue> = read(value).unwrap_or_default();
    let mut items = items.into_iter().enumerate();
    match items.find(|(_, item)| read::<u32>(item).is_none()) {
        Some((index, item)) => mismatch(format!("{at}[{index}]"), "a token id", item),
        None => {
            let wanted = "a text or a list of token ids";
            mismatch(at.to_owned(), wanted, value)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(prompt: Value) -> Result<Vec<Prompt>, String> {
        let body = json!({ "prompt": prompt }).to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        prompts(&mut fields).map_err(|error| error.to_string())
    }

    #[test]
    fn a_prompt_is_a_text_or_tokens_also_in_a_list() {
        for text in [json!("a b"), json!(["a b"])] {
            assert_eq!(read(text), Ok(vec![Prompt::Text("a b".to_owned())]));
        }
        for ids in [json!([1, 2]), json!([[1, 2]])] {
            assert_eq!(read(ids), Ok(vec![Prompt::Tokens(vec![1, 2])]));
        }
        let several = vec![Prompt::Text("a".to_owned()), Prompt::Tokens(vec![3])];
        assert_eq!(read(json!(["a", [3]])), Ok(several));
        assert_eq!(
            read(json!(vec!["a"; PROMPTS_MAX])).unwrap().len(),
            PROMPTS_MAX
        );
    }

    #[test]
    fn special_tokens_around_texts_may_be_left_out() {
        let read = |special: Value| {
            let body = json!({"prompt": ["a", [3]], "add_special_tokens": special}).to_string();
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            prompts(&mut fields).map_err(|error| error.to_string())
        };
        let (a, tokens) = (|| "a".to_owned(), || Prompt::Tokens(vec![3]));
        let with = Ok(vec![Prompt::Text(a()), tokens()]);
        assert_eq!(read(json!(true)), with);
        assert_eq!(read(Value::Null), with);
        let without = Ok(vec![Prompt::BareText(a()), tokens()]);
        assert_eq!(read(json!(false)), without);
        let why = "`add_special_tokens` has to be true or false, not 1";
        assert_eq!(read(json!(1)), Err(why.to_owned()));
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
                "`prompt[0]` has to be a text or a list of token ids, not an empty list",
            ),
            (json!([1, -1]), "`prompt[1]` has to be a token id, not -1"),
            (json!([null]), "`prompt[0]` has to be a token id, not null"),
            (
                json!(["a", ["b"]]),
                "`prompt[1][0]` has to be a token id, not the text `b`",
            ),
            (
                json!(["a", 1]),
                "`prompt[0]` has to be a token id, not the text `a`",
            ),
            (
                json!(vec!["a"; PROMPTS_MAX + 1]),
                "`prompt` holds 65 prompts, and may hold 64",
            ),
        ] {
            assert_eq!(read(prompt), Err(why.to_owned()));
        }
    }
}
