//! The shapes of answers, whole and streamed, and of failures.

use pointsman_core::{ExpiredWhy, FailedWhy, Outcome, RefusedWhy};
use pointsman_driver::message::{ByClass, Load};
use pointsman_executor::delivery::StopReason;
use pointsman_http::ServerPhase;
use serde_json::{Value, json};

use crate::client::{Client, post};
use crate::stage::Stage;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat(extra: &Value) -> Value {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]});
    extend(&mut body, extra);
    body
}

fn completion(extra: &Value) -> Value {
    let mut body = json!({"model": "demo", "prompt": "Once"});
    extend(&mut body, extra);
    body
}

fn extend(body: &mut Value, extra: &Value) {
    let more = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
}

/// `text` with its completion's id and time taken out, once they were found to be well formed.
fn anonymous(text: &str, prefix: &str) -> String {
    let field = |name: &str| {
        let from = text.find(name).unwrap() + name.len();
        let until = text[from..].find(['"', ',']).unwrap();
        &text[from..from + until]
    };
    let (id, created) = (field("\"id\":\""), field("\"created\":"));
    let hex = id.strip_prefix(prefix).unwrap();
    assert!(
        hex.len() == 24 && hex.chars().all(|c| c.is_ascii_hexdigit()),
        "{id}"
    );
    assert!(created.parse::<u64>().unwrap() > 1_700_000_000, "{created}");
    text.replace(id, "ID").replace(created, "0")
}

#[tokio::test]
async fn a_chat_is_answered_as_openai_does() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client.post(CHAT, &chat(&json!({}))).await;
    let played = stage.submitted().await;
    let prompt_tokens = played.submission().job.prompt.len();
    played.text("Hel", 2);
    played.text("", 1);
    played.text("lo", 1);
    played.finish(StopReason::Stop);
    let answer = client.answer().await;
    assert_eq!(answer.head.status, 200);
    assert_eq!(answer.head.header("content-type"), Some("application/json"));
    let total = prompt_tokens + 4;
    assert_eq!(
        anonymous(&answer.body, "chatcmpl-"),
        format!(
            r#"{{"id":"ID","object":"chat.completion","created":0,"model":"demo","choices":[{{"index":0,"message":{{"role":"assistant","content":"Hello","refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":4,"total_tokens":{total},"prompt_tokens_details":{{"cached_tokens":0}}}}}}"#
        )
    );
    stage.expect_silence();
}

#[tokio::test]
async fn a_completion_is_answered_as_openai_does() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client
        .post(TEXT, &completion(&json!({"prompt": [5, 6, 7]})))
        .await;
    let played = stage.submitted().await;
    played.text(" upon", 16);
    played.finish(StopReason::Length);
    let answer = client.answer().await;
    assert_eq!(
        anonymous(&answer.body, "cmpl-"),
        r#"{"id":"ID","object":"text_completion","created":0,"model":"demo","choices":[{"text":" upon","index":0,"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":16,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":0}}}"#
    );
}

/// A chunk of a stream of chat completions.
fn chat_chunk(choices: &str, usage: &str) -> String {
    format!(
        "data: {{\"id\":\"ID\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"demo\",\
         \"choices\":[{choices}]{usage}}}\n\n"
    )
}

fn delta(delta: &str, finish_reason: &str) -> String {
    format!(r#"{{"index":0,"delta":{{{delta}}},"logprobs":null,"finish_reason":{finish_reason}}}"#)
}

#[tokio::test]
async fn a_chat_streams_role_text_stop_usage_and_done() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    client.post(CHAT, &chat(&options)).await;
    let played = stage.submitted().await;
    let prompt_tokens = played.submission().job.prompt.len();
    played.text("Hel", 2);
    let head = client.head().await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("cache-control"), Some("no-cache"));
    let null = r#","usage":null"#;
    let role = chat_chunk(&delta(r#""role":"assistant","content":"""#, "null"), null);
    let text = |text: &str| chat_chunk(&delta(&format!(r#""content":"{text}""#), "null"), null);
    let first = client.chunk().await.unwrap();
    assert_eq!(anonymous(&first, "chatcmpl-"), role + &text("Hel"));
    played.text("lo", 1);
    let second = client.chunk().await.unwrap();
    assert_eq!(anonymous(&second, "chatcmpl-"), text("lo"));
    played.finish(StopReason::Stop);
    let total = prompt_tokens + 3;
    let usage = format!(
        r#","usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":3,"total_tokens":{total},"prompt_tokens_details":{{"cached_tokens":0}}}}"#
    );
    let last = client.chunk().await.unwrap();
    assert_eq!(
        anonymous(&last, "chatcmpl-"),
        chat_chunk(&delta("", r#""stop""#), null) + &chat_chunk("", &usage) + "data: [DONE]\n\n"
    );
    assert_eq!(client.chunk().await, None);
    stage.expect_silence();
}

#[tokio::test]
async fn a_completion_streams_text_and_stop() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client
        .post(TEXT, &completion(&json!({"stream": true})))
        .await;
    let played = stage.submitted().await;
    played.text(" upon", 2);
    played.finish(StopReason::Length);
    let chunk = |text: &str, finish_reason: &str| {
        format!(
            "data: {{\"id\":\"ID\",\"object\":\"text_completion\",\"created\":0,\"model\":\"demo\",\
             \"choices\":[{{\"text\":\"{text}\",\"index\":0,\"logprobs\":null,\
             \"finish_reason\":{finish_reason}}}]}}\n\n"
        )
    };
    assert_eq!(
        anonymous(&client.answer().await.body, "cmpl-"),
        chunk(" upon", "null") + &chunk("", "\"length\"") + "data: [DONE]\n\n"
    );
}

#[tokio::test]
async fn a_stream_without_text_still_has_its_shape() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client.post(CHAT, &chat(&json!({"stream": true}))).await;
    let played = stage.submitted().await;
    played.text("", 1);
    played.finish(StopReason::Stop);
    let role = chat_chunk(&delta(r#""role":"assistant","content":"""#, "null"), "");
    let stop = chat_chunk(&delta("", r#""stop""#), "");
    assert_eq!(
        anonymous(&client.answer().await.body, "chatcmpl-"),
        role + &stop + "data: [DONE]\n\n"
    );
}

#[tokio::test]
async fn what_comes_while_a_client_is_slow_is_sent_as_one_chunk() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    client.post(CHAT, &chat(&options)).await;
    let played = stage.submitted().await;
    for (text, tokens) in [("a", 1), ("b", 1), ("", 2), ("ä", 3)] {
        played.text(text, tokens);
    }
    played.finish(StopReason::Stop);
    client.head().await;
    let chunk = client.chunk().await.unwrap();
    assert_eq!(chunk.matches(r#""content":"abä""#).count(), 1, "{chunk}");
    assert_eq!(
        chunk.matches(r#""completion_tokens":7"#).count(),
        1,
        "{chunk}"
    );
    assert_eq!(client.chunk().await, None);
}

#[tokio::test]
async fn headers_tell_where_an_answer_began_and_who_decided() {
    let mut stage = Stage::open().await;
    for stream in [false, true] {
        let mut client = stage.client().await;
        client.post(CHAT, &chat(&json!({"stream": stream}))).await;
        let played = stage.submitted().await;
        played.placed("cpu0/demo", "first");
        played.placed("cpu1/demo", "more room\r\nx-evil: 1");
        played.text("Hi", 1);
        played.placed("cpu0/demo", "moved");
        let number = played.ticket().0.to_string();
        played.finish(StopReason::Stop);
        let head = client.answer().await.head;
        for (name, value) in [
            ("x-pointsman-request", &*number),
            ("x-pointsman-executor", "cpu1/demo"),
            ("x-pointsman-policy", "memory-aware"),
            ("x-pointsman-decision", "7.1"),
            ("x-pointsman-reason", "more room??x-evil: 1"),
        ] {
            assert_eq!(head.header(name), Some(value), "{name}, stream {stream}");
        }
    }
}

/// Each end without an answer, with its status, code and `Retry-After`.
fn failures() -> [(Outcome, u16, &'static str, Option<&'static str>); 12] {
    let (no_room, displaced, never_fits) = (
        RefusedWhy::NoRoom { retry_after: 3 },
        RefusedWhy::Displaced { retry_after: 2 },
        RefusedWhy::NeverFits {
            blocks_needed: 9,
            blocks_total: 4,
        },
    );
    let (deadline, wait) = (ExpiredWhy::Deadline, ExpiredWhy::Wait);
    let (refused, expired, failed) = (Outcome::Refused, Outcome::Expired, Outcome::Failed);
    let (attempts, nowhere) = (FailedWhy::AttemptsMax, FailedWhy::NowhereLeft);
    [
        (refused(no_room), 429, "no_room", Some("3")),
        (refused(displaced), 429, "displaced", Some("2")),
        (
            refused(RefusedWhy::Closed { retry_after: 1 }),
            503,
            "admission_closed",
            Some("1"),
        ),
        (refused(RefusedWhy::GaveUp), 503, "given_up", None),
        (refused(never_fits), 400, "never_fits", None),
        (
            refused(RefusedWhy::Unserved { retry_after: 4 }),
            503,
            "unserved",
            Some("4"),
        ),
        (expired(deadline), 503, "deadline_exceeded", Some("5")),
        (expired(wait), 503, "wait_exceeded", Some("5")),
        (Outcome::Cancelled, 503, "shutting_down", Some("5")),
        (
            failed(FailedWhy::NotRetryable),
            500,
            "executor_failed",
            None,
        ),
        (failed(attempts), 502, "attempts_exhausted", None),
        (failed(nowhere), 502, "nowhere_left", None),
    ]
}

#[tokio::test]
async fn a_client_that_is_refused_is_told_by_whom_and_why() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    let by_policy = "there is no room; try again in 3s (by policy `budget`: over its tokens)";
    for (policy, reason, message) in [
        ("budget", "over its tokens", by_policy),
        ("built-in", "built-in", "there is no room; try again in 3s"),
    ] {
        client.post(CHAT, &chat(&json!({}))).await;
        let played = stage.submitted().await;
        let ticket = played.ticket().0.to_string();
        played.refuse(RefusedWhy::NoRoom { retry_after: 3 }, policy, reason);
        let answer = client.answer().await;
        for (name, value) in [
            ("x-pointsman-request", &*ticket),
            ("x-pointsman-policy", policy),
            ("x-pointsman-decision", "7"),
            ("x-pointsman-reason", reason),
            ("retry-after", "3"),
        ] {
            assert_eq!(answer.head.header(name), Some(value), "{name}");
        }
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body["error"]["message"], message);
    }
}

#[tokio::test]
async fn a_failure_before_the_first_text_has_its_status() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    for (outcome, status, code, retry_after) in failures() {
        for stream in [false, true] {
            client.post(CHAT, &chat(&json!({"stream": stream}))).await;
            let played = stage.submitted().await;
            played.placed("cpu0/demo", "");
            played.text("", 1);
            played.end(outcome);
            let answer = client.answer().await;
            assert_eq!(answer.error(), (status, code.to_owned(), None));
            let head = answer.head;
            assert_eq!(head.header("retry-after"), retry_after, "{code}");
            assert_eq!(head.header("x-pointsman-executor"), Some("cpu0/demo"));
        }
    }
    stage.expect_silence();
}

#[tokio::test]
async fn a_failure_of_a_whole_answer_has_its_status_also_after_text() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client.post(CHAT, &chat(&json!({}))).await;
    let played = stage.submitted().await;
    played.text("half an", 2);
    played.end(Outcome::Failed(FailedWhy::NowhereLeft));
    let answer = client.answer().await;
    assert_eq!(answer.error(), (502, "nowhere_left".to_owned(), None));
    assert!(!answer.body.contains("half"));
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_and_without_done() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client.post(CHAT, &chat(&json!({"stream": true}))).await;
    let played = stage.submitted().await;
    played.text("Hel", 1);
    client.head().await;
    client.chunk().await.unwrap();
    played.text("lo", 1);
    played.end(Outcome::Failed(FailedWhy::NowhereLeft));
    let last = client.chunk().await.unwrap();
    let (text, error) = last.split_once("\n\n").unwrap();
    assert!(text.contains(r#""content":"lo""#), "{last}");
    assert_eq!(
        error,
        "data: {\"error\":{\"message\":\"every executor that may run it has failed it\",\"type\":\
         \"server_error\",\"param\":null,\"code\":\"nowhere_left\"}}\n\n"
    );
    assert_eq!(client.chunk().await, None);
    // The connection is as good as before.
    assert_eq!(client.get("/ready").await.head.status, 200);
    stage.expect_silence();
}

#[tokio::test]
async fn a_host_that_ends_without_a_word_is_told_as_shutting_down() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client.post(CHAT, &chat(&json!({}))).await;
    drop(stage.submitted().await);
    let answer = client.answer().await;
    assert_eq!(answer.error(), (503, "shutting_down".to_owned(), None));
    client.post(CHAT, &chat(&json!({"stream": true}))).await;
    stage.departed().await;
    let played = stage.submitted().await;
    played.text("Hi", 1);
    client.head().await;
    client.chunk().await.unwrap();
    drop(played);
    let error = client.chunk().await.unwrap();
    assert!(error.starts_with("data: {\"error\":"), "{error}");
    assert_eq!(client.chunk().await, None);
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    let model = r#"{"id":"demo","object":"model","created":1700000000,"owned_by":"pointsman","max_model_len":2048}"#;
    let list = client.get("/v1/models").await;
    assert_eq!(
        list.body,
        format!(r#"{{"object":"list","data":[{model}]}}"#)
    );
    let one = client.get("/v1/models/demo?verbose=1").await;
    assert_eq!(one.body, model);
    let none = client.get("/v1/models/gpt-4").await;
    assert_eq!(
        none.error(),
        (404, "model_not_found".to_owned(), Some("model".to_owned()))
    );
    assert!(none.body.contains("there are: demo"), "{}", none.body);
}

#[tokio::test]
async fn a_head_request_gets_the_head_of_the_answer() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    client
        .send("HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    let head = client.head().await;
    assert_eq!(head.status, 200);
    let length = head
        .header("content-length")
        .unwrap()
        .parse::<usize>()
        .unwrap();
    assert_eq!(client.get("/v1/models").await.body.len(), length);
}

#[tokio::test]
async fn an_unknown_path_or_method_is_told_what_there_is() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    let answer = client.get("/v1/images").await;
    assert_eq!(answer.error(), (404, "unknown_path".to_owned(), None));
    assert!(
        answer.body.contains("POST /v1/chat/completions"),
        "{}",
        answer.body
    );
    let answer = client.get(CHAT).await;
    assert_eq!(answer.error(), (405, "method_not_allowed".to_owned(), None));
    assert_eq!(answer.head.header("allow"), Some("POST"));
    client
        .send("DELETE /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    let answer = client.answer().await;
    assert_eq!(answer.head.status, 405);
    assert_eq!(answer.head.header("allow"), Some("GET, HEAD"));
}

#[tokio::test]
async fn health_is_whether_some_executor_is_up_and_life_whether_the_host_answers() {
    let mut stage = Stage::open().await;
    for (path, executors_up, status, body) in [
        ("/health", 1, 200, r#"{"status":"ok"}"#),
        (
            "/health",
            0,
            503,
            r#"{"status":"unhealthy","reason":"no executor is up"}"#,
        ),
        ("/live", 0, 200, r#"{"status":"live"}"#),
    ] {
        let mut client = stage.client().await;
        let load = Load {
            executors_up,
            ..Load::default()
        };
        let (answer, ()) = tokio::join!(client.get(path), stage.answer_one(&load, &[]));
        assert_eq!((answer.head.status, &*answer.body), (status, body));
    }
    stage.end_driver();
    for path in ["/health", "/live"] {
        let answer = stage.client().await.get(path).await;
        assert_eq!(answer.head.status, 503);
        let body = &answer.body;
        assert!(body.contains("the driver has ended"), "{body}");
    }
}

#[tokio::test]
async fn a_driver_that_does_not_answer_is_not_healthy() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client
        .send("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    let _unanswered = stage.question().await;
    tokio::time::pause();
    let answer = client.answer().await;
    assert_eq!(answer.head.status, 503);
    assert!(
        answer.body.contains("the driver does not answer"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn ready_is_whether_the_host_serves() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    stage.phase.send_replace(ServerPhase::Starting);
    let answer = client.get("/ready").await;
    assert_eq!(answer.head.status, 503);
    assert!(
        answer
            .body
            .starts_with(r#"{"status":"not ready","reason":"#),
        "{}",
        answer.body
    );
    client.post(CHAT, &chat(&json!({}))).await;
    let answer = client.answer().await;
    assert_eq!(answer.error(), (503, "starting".to_owned(), None));
    assert_eq!(answer.head.header("retry-after"), Some("1"));
    let mut client = stage.client().await;
    stage.phase.send_replace(ServerPhase::Serving);
    let answer = client.get("/ready").await;
    assert_eq!(
        (answer.head.status, &*answer.body),
        (200, r#"{"status":"ready"}"#)
    );
}

#[tokio::test]
async fn metrics_show_what_http_and_the_driver_say() {
    let mut stage = Stage::open().await;
    stage.metrics.executor_attached("cpu0/demo");
    let mut client = stage.client().await;
    client.post(CHAT, &chat(&json!({"stream": true}))).await;
    let played = stage.submitted().await;
    played.placed("cpu0/demo", "");
    played.text("Hi", 1);
    client.head().await;
    client.chunk().await.unwrap();
    played.text("!", 1);
    played.finish(StopReason::Stop);
    while client.chunk().await.is_some() {}
    client.get("/nowhere").await;
    let queued_by_class = ByClass {
        throughput: 3,
        ..ByClass::default()
    };
    let load = Load {
        queued_by_class,
        ..Load::default()
    };
    let (answer, ()) = tokio::join!(client.get("/metrics"), stage.answer(load, Vec::new()));
    assert_eq!(answer.head.status, 200);
    let kind = answer.head.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    for line in [
        r#"pointsman_http_responses_total{endpoint="chat_completions",status="200"} 1"#,
        r#"pointsman_http_responses_total{endpoint="unknown",status="404"} 1"#,
        r#"pointsman_time_to_first_token_seconds_count{model="demo",executor="cpu0/demo"} 1"#,
        r#"pointsman_inter_token_latency_seconds_count{model="demo",executor="cpu0/demo"} 1"#,
        r#"pointsman_queued_requests{class="throughput"} 3"#,
    ] {
        assert!(
            answer.body.lines().any(|found| found == line),
            "{line} in {}",
            answer.body
        );
    }
}

#[tokio::test]
async fn policies_are_shown_to_those_on_this_machine() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    let load = Load::default();
    let (answer, ()) = tokio::join!(
        client.get("/admin/policies"),
        stage.answer(load, Vec::new())
    );
    assert_eq!(answer.head.status, 200);
    assert!(answer.json()["policies"].is_array(), "{}", answer.body);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let mut stage = Stage::open().await;
    let mut client: Client = stage.client().await;
    let first = post(CHAT, &chat(&json!({"seed": 1})).to_string());
    let second = post(CHAT, &chat(&json!({"seed": 2})).to_string());
    client
        .send(first + &second + "GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    for (seed, text) in [(1, "one"), (2, "two")] {
        let played = stage.submitted().await;
        assert_eq!(played.submission().job.sampling.seed, seed);
        played.text(text, 1);
        played.finish(StopReason::Stop);
        let answer = client.answer().await;
        assert_eq!(answer.json()["choices"][0]["message"]["content"], text);
    }
    assert_eq!(client.answer().await.body, r#"{"status":"ready"}"#);
    stage.expect_silence();
}
