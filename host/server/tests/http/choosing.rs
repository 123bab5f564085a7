//! The choice of tokens and the form of answers, as requests ask for them.

use pointsman_executor::form::AnswerForm;
use serde_json::{Value, json};

use crate::requests::{CHAT, TEXTS, expect_refused, job};

#[tokio::test]
async fn a_form_is_asked_for_as_openai_or_vllm_does() {
    let schema = r#"{"type":"object","properties":{"b":{},"a":{}}}"#;
    let as_value: Value = serde_json::from_str(schema).unwrap();
    let by_schema = json!({"name": "x", "strict": true, "schema": as_value});
    let of_schema = || AnswerForm::JsonSchema(as_value.to_string());
    for (asked, form) in [
        (json!({"response_format": {"type": "text"}}), None),
        (
            json!({"response_format": {"type": "json_object"}}),
            Some(AnswerForm::JsonObject),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": by_schema}}),
            Some(of_schema()),
        ),
        (json!({"guided_json": as_value}), Some(of_schema())),
        (
            json!({"guided_json": as_value.to_string()}),
            Some(of_schema()),
        ),
        (
            json!({"structured_outputs": {"json_object": true}}),
            Some(AnswerForm::JsonObject),
        ),
        (
            json!({"guided_choice": ["a", "b"]}),
            Some(AnswerForm::Choice(vec!["a".to_owned(), "b".to_owned()])),
        ),
    ] {
        let mut body = json!({"model": "demo", "prompt": "Once"});
        let more = asked.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        assert_eq!(job(TEXTS, &body).await.form, form, "{asked}");
    }
}

#[tokio::test]
async fn probabilities_are_asked_for_by_a_flag_and_a_number() {
    let chat = |asked: Value| {
        let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut()
            .unwrap()
            .extend(asked.as_object().unwrap().clone());
        body
    };
    for (asked, expected) in [
        (json!({}), None),
        (json!({"logprobs": true}), Some(0)),
        (json!({"logprobs": true, "top_logprobs": 20}), Some(20)),
        (json!({"logprobs": false, "top_logprobs": 0}), None),
    ] {
        assert_eq!(job(CHAT, &chat(asked)).await.logprobs, expected);
    }
    let text = json!({"model": "demo", "prompt": "Once", "logprobs": 0});
    assert_eq!(job(TEXTS, &text).await.logprobs, Some(0));
}

#[tokio::test]
async fn what_no_token_can_be_chosen_by_is_refused() {
    let additions = [
        ("min_p", r#"{"min_p": 1.5}"#),
        ("presence_penalty", r#"{"presence_penalty": 2.5}"#),
        ("frequency_penalty", r#"{"frequency_penalty": "much"}"#),
        ("repetition_penalty", r#"{"repetition_penalty": 0}"#),
        ("logit_bias", r#"{"logit_bias": {"5": 101}}"#),
        ("logit_bias", r#"{"logit_bias": {"five": 1}}"#),
        ("logit_bias", r#"{"logit_bias": [5]}"#),
        ("response_format", r#"{"response_format": "json"}"#),
        ("response_format", r#"{"response_format": {"type": "xml"}}"#),
        (
            "response_format.json_schema",
            r#"{"response_format": {"type": "json_schema"}}"#,
        ),
        (
            "response_format.json_schema.schema",
            r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}"#,
        ),
        ("structured_outputs", r#"{"structured_outputs": {}}"#),
        (
            "structured_outputs",
            r#"{"structured_outputs": {"regex": "a", "choice": ["a"]}}"#,
        ),
        ("guided_choice", r#"{"guided_choice": []}"#),
        ("guided_regex", r#"{"guided_regex": ""}"#),
        ("logprobs", r#"{"logprobs": 3}"#),
        ("top_logprobs", r#"{"top_logprobs": 3}"#),
        ("top_logprobs", r#"{"logprobs": true, "top_logprobs": 21}"#),
    ];
    expect_refused(CHAT, "invalid_value", &additions).await;
    let additions = [
        ("logprobs", r#"{"logprobs": 6}"#),
        ("logprobs", r#"{"logprobs": true}"#),
        ("top_logprobs", r#"{"top_logprobs": 1}"#),
    ];
    expect_refused(TEXTS, "invalid_value", &additions).await;
}
