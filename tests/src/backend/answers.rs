//! The answers of a mock server, as OpenAI's API has them.

use serde_json::{Value, json};

use super::Kind;

pub(super) fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

pub(super) fn chunk(kind: Kind, asked: &Value, token: Option<usize>) -> Value {
    let finish = token.is_none().then_some("stop");
    let text = token.map_or(String::new(), |token| format!("t{token} "));
    let choice = if kind == Kind::Chat {
        json!({"index": 0, "delta": {"content": text}, "logprobs": null, "finish_reason": finish})
    } else {
        json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish})
    };
    let object = if kind == Kind::Chat {
        "chat.completion.chunk"
    } else {
        "text_completion"
    };
    json!({"id": "mock-1", "object": object, "created": 1, "model": asked["model"],
        "choices": [choice], "from": "mock"})
}

/// The tokens of a prompt that an answer tells.
#[derive(Clone, Copy)]
pub(super) struct PromptTokens {
    pub(super) all: usize,
    pub(super) cached: usize,
}

/// The tokens that are told of any prompt.
pub(super) const ANY_PROMPT: PromptTokens = PromptTokens { all: 5, cached: 4 };

fn usage(prompt: PromptTokens, tokens: usize) -> Value {
    json!({"prompt_tokens": prompt.all, "completion_tokens": tokens, "total_tokens": prompt.all + tokens,
        "prompt_tokens_details": {"cached_tokens": prompt.cached}})
}

/// The last events of a stream.
pub(super) fn ending(kind: Kind, asked: &Value, prompt: PromptTokens, tokens: usize) -> String {
    let mut events = event(&chunk(kind, asked, None));
    if asked["stream_options"]["include_usage"] == json!(true) {
        let mut last = chunk(kind, asked, None);
        last["choices"] = json!([]);
        last["usage"] = usage(prompt, tokens);
        events.push_str(&event(&last));
    }
    events + "data: [DONE]\n\n"
}

pub(super) fn whole(kind: Kind, asked: &Value, tokens: usize) -> Value {
    let text: String = (0..tokens).map(|token| format!("t{token} ")).collect();
    let choice = if kind == Kind::Chat {
        json!({"index": 0, "message": {"role": "assistant", "content": text, "refusal": null},
            "logprobs": null, "finish_reason": "stop"})
    } else {
        json!({"index": 0, "text": text, "logprobs": null, "finish_reason": "stop"})
    };
    let object = if kind == Kind::Chat {
        "chat.completion"
    } else {
        "text_completion"
    };
    json!({"id": "mock-1", "object": object, "created": 1, "model": asked["model"],
        "choices": [choice], "usage": usage(ANY_PROMPT, tokens), "from": "mock"})
}
