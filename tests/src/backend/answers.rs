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

fn usage(tokens: usize) -> Value {
    json!({"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens,
        "prompt_tokens_details": {"cached_tokens": 4}})
}

/// The last events of a stream.
pub(super) fn ending(kind: Kind, asked: &Value, tokens: usize) -> String {
    let mut events = event(&chunk(kind, asked, None));
    if asked["stream_options"]["include_usage"] == json!(true) {
        let mut last = chunk(kind, asked, None);
        last["choices"] = json!([]);
        last["usage"] = usage(tokens);
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
        "choices": [choice], "usage": usage(tokens), "from": "mock"})
}
