//! Requests that are understood, and the jobs that the driver gets of them.

use pointsman_config::{ApiKey, Config, Rights};
use pointsman_core::rows::RequestClass;
use pointsman_core::{Micros, SessionKey};
use pointsman_driver::message::Hints;
use pointsman_executor::job::{AnswerStart, Job, Penalties, Sampling};
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _};
use pointsman_notation::Secret;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::client::{Head, post, post_with};
use crate::stage::{Stage, TEXT};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXTS: &str = "/v1/completions";

/// The job that reaches the driver from a request that is understood.
pub(crate) async fn job(path: &str, body: &Value) -> Job {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client.post(path, body).await;
    let job = stage.submitted().await.submission().job.clone();
    (*job).clone()
}

#[tokio::test]
async fn a_request_that_says_little_gets_the_models_defaults() {
    let body = json!({"model": "demo", "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]});
    let got = job(CHAT, &body).await;
    let messages = [
        ChatMessage::new("system", "Be brief."),
        ChatMessage::new("user", "Hi"),
    ];
    let prompt = TEXT.chat_prompt(&messages, &[], u32::MAX).unwrap();
    let defaults = TEXT.defaults();
    let expected = Job {
        output_tokens_max: 2048 - u32::try_from(prompt.len()).unwrap(),
        prompt,
        answer_start: AnswerStart::Apart,
        answers: 1,
        sampling: Sampling {
            temperature: defaults.temperature,
            top_k: defaults.top_k,
            top_p: defaults.top_p,
            seed: got.sampling.seed,
            ..Sampling::NEUTRAL
        },
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: None,
        form: None,
        shown_tokens: Vec::new(),
        call: None,
    };
    assert_eq!(got, expected);
    let again = job(CHAT, &body).await;
    assert_ne!(got.sampling.seed, again.sampling.seed, "seeds are random");
}

#[tokio::test]
async fn a_request_that_says_much_is_taken_at_its_word() {
    let got = job(
        TEXTS,
        &json!({
            "model": "demo", "prompt": "Once", "temperature": 0, "top_p": 1, "top_k": 40,
            "seed": -1, "stop": ["\n", "###"], "max_tokens": 7, "ignore_eos": true,
            "logit_bias": {"7": -100, "5": 1.5}, "presence_penalty": 0.5, "frequency_penalty": -2,
            "repetition_penalty": 1.25, "min_p": 0.25, "logprobs": 3,
            // Neutral, harmless or unknown.
            "n": 1, "best_of": 1, "echo": false, "top_logprobs": 0,
            "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "something": "new",
        }),
    )
    .await;
    let expected = Job {
        prompt: TEXT.encode("Once", u32::MAX).unwrap(),
        answer_start: AnswerStart::WithinText,
        answers: 1,
        output_tokens_max: 7,
        sampling: Sampling {
            logit_bias: vec![(5, 1.5), (7, -100.0)],
            penalties: Penalties {
                repetition: 1.25,
                frequency: -2.0,
                presence: 0.5,
            },
            temperature: 0.0,
            min_p: 0.25,
            top_k: 40,
            top_p: 1.0,
            seed: u64::MAX,
        },
        stop: vec!["\n".to_owned(), "###".to_owned()],
        ignore_eos: true,
        logprobs: Some(3),
        form: None,
        shown_tokens: Vec::new(),
        call: None,
    };
    assert_eq!(got, expected);
}

#[tokio::test]
async fn a_completion_that_names_no_bound_gets_sixteen_tokens() {
    let got = job(
        TEXTS,
        &json!({"model": "demo", "prompt": [[5, 6]], "stop": "x"}),
    )
    .await;
    assert_eq!(got.output_tokens_max, 16);
    assert_eq!(got.prompt, [5, 6]);
    assert_eq!(got.answer_start, AnswerStart::WithinText);
    assert_eq!(got.stop, ["x"]);
}

#[tokio::test]
async fn either_name_of_the_bound_will_do() {
    for body in [
        json!({"max_tokens": 9}),
        json!({"max_completion_tokens": 9}),
        json!({"max_tokens": 9, "max_completion_tokens": 9}),
    ] {
        let mut chat = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]});
        chat.as_object_mut()
            .unwrap()
            .extend(body.as_object().unwrap().clone());
        assert_eq!(job(CHAT, &chat).await.output_tokens_max, 9, "{body}");
    }
}

/// Adds fields to a request that is good as it is; each addition is refused with `code`, naming
/// its field.
pub(crate) async fn expect_refused(path: &str, code: &str, additions: &[(&str, &str)]) {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    for (param, addition) in additions {
        let mut body = json!({"model": "demo"});
        let (name, good) = if path == CHAT {
            ("messages", json!([{"role": "user", "content": "Hi"}]))
        } else {
            ("prompt", json!("Once"))
        };
        body[name] = good;
        let addition: Value = serde_json::from_str(addition).unwrap();
        let more = addition.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        client.post(path, &body).await;
        let expected = (400, code.to_owned(), Some((*param).to_owned()));
        assert_eq!(client.answer().await.error(), expected);
    }
    stage.expect_silence();
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let code = "missing_required_parameter";
    let chat = [
        ("model", r#"{"model": null}"#),
        ("messages", r#"{"messages": null}"#),
    ];
    expect_refused(CHAT, code, &chat).await;
    expect_refused(TEXTS, code, &[("prompt", r#"{"prompt": null}"#)]).await;
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let additions = [
        ("model", r#"{"model": 5}"#),
        ("messages", r#"{"messages": []}"#),
        (
            "messages[0].role",
            r#"{"messages": [{"role": "oracle", "content": "x"}]}"#,
        ),
        (
            "messages[0].tool_call_id",
            r#"{"messages": [{"role": "tool", "content": "x"}]}"#,
        ),
        ("tools", r#"{"tools": {}}"#),
        ("tools[0]", r#"{"tools": [{"type": "function"}]}"#),
        ("tool_choice", r#"{"tool_choice": "required"}"#),
        // The demo model knows none.
        (
            "tools",
            r#"{"tools": [{"type": "function", "function": {"name": "f"}}]}"#,
        ),
        ("temperature", r#"{"temperature": "hot"}"#),
        ("temperature", r#"{"temperature": 2.1}"#),
        ("temperature", r#"{"temperature": -0.1}"#),
        ("top_p", r#"{"top_p": 0}"#),
        ("top_p", r#"{"top_p": 1.01}"#),
        ("top_k", r#"{"top_k": -2}"#),
        ("seed", r#"{"seed": 1.5}"#),
        ("stop", r#"{"stop": ["a", ""]}"#),
        ("stop", r#"{"stop": 5}"#),
        ("stop", r#"{"stop": [1]}"#),
        ("stream", r#"{"stream": "yes"}"#),
        (
            "stream_options",
            r#"{"stream_options": {"include_usage": true}}"#,
        ),
        (
            "stream_options",
            r#"{"stream": true, "stream_options": true}"#,
        ),
        (
            "stream_options.include_usage",
            r#"{"stream": true, "stream_options": {"include_usage": 1}}"#,
        ),
        ("max_tokens", r#"{"max_tokens": 0}"#),
        ("max_tokens", r#"{"max_tokens": 1e-3}"#),
        (
            "max_completion_tokens",
            r#"{"max_tokens": 1, "max_completion_tokens": 2}"#,
        ),
        ("pointsman", r#"{"pointsman": "urgent"}"#),
        ("pointsman.prioritty", r#"{"pointsman": {"prioritty": 1}}"#),
        (
            "pointsman.executors",
            r#"{"pointsman": {"executors": ["gpu"]}}"#,
        ),
    ];
    expect_refused(CHAT, "invalid_value", &additions).await;
    let additions = [
        ("prompt", r#"{"prompt": ""}"#),
        ("prompt[0]", r#"{"prompt": ["a", 1]}"#),
        ("n", r#"{"n": 65}"#),
        ("prompt[1]", r#"{"prompt": [5, 4000000000]}"#),
    ];
    expect_refused(TEXTS, "invalid_value", &additions).await;
}

#[tokio::test]
async fn what_does_not_fit_the_context_is_refused() {
    let code = "context_length_exceeded";
    expect_refused(CHAT, code, &[("messages", r#"{"max_tokens": 2048}"#)]).await;
    // Long enough to be tokenised on a thread of its own.
    let long = json!({"prompt": "word ".repeat(10_000)}).to_string();
    expect_refused(TEXTS, code, &[("prompt", &long)]).await;
}

#[tokio::test]
async fn what_is_not_built_is_refused_by_name() {
    let additions = [
        ("best_of", r#"{"best_of": 2}"#),
        ("functions", r#"{"functions": [{}]}"#),
        ("echo", r#"{"echo": true}"#),
        ("modalities", r#"{"modalities": ["text", "audio"]}"#),
        ("audio", r#"{"audio": {"voice": "x"}}"#),
        ("reasoning_effort", r#"{"reasoning_effort": "high"}"#),
        ("min_tokens", r#"{"min_tokens": 1}"#),
        ("add_special_tokens", r#"{"add_special_tokens": true}"#),
        ("skip_special_tokens", r#"{"skip_special_tokens": false}"#),
    ];
    expect_refused(CHAT, "unsupported_parameter", &additions).await;
    let additions = [
        ("best_of", r#"{"best_of": 2}"#),
        ("echo", r#"{"echo": true}"#),
        ("suffix", r#"{"suffix": "end"}"#),
        ("skip_special_tokens", r#"{"skip_special_tokens": false}"#),
        ("truncate_prompt_tokens", r#"{"truncate_prompt_tokens": 5}"#),
    ];
    expect_refused(TEXTS, "unsupported_parameter", &additions).await;
}

#[tokio::test]
async fn what_is_neutral_is_accepted() {
    let body = json!({
        "model": "demo", "messages": [{"role": "user", "content": "Hi"}], "n": 1,
        "logprobs": false, "top_logprobs": 0, "tools": [], "tool_choice": "auto",
        "parallel_tool_calls": true, "response_format": {"type": "text"}, "modalities": ["text"],
        "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "store": false,
        "temperature": null, "stop": null, "stream_options": null, "pointsman": null,
        "add_special_tokens": false, "skip_special_tokens": true,
    });
    assert_eq!(
        job(CHAT, &body).await.sampling.temperature.to_bits(),
        TEXT.defaults().temperature.to_bits()
    );
}

/// Tests what programs send of themselves, in each of the forms that OpenAI's API defines.
#[tokio::test]
async fn what_changes_nothing_is_taken_everywhere() {
    let shared = json!({
        "model": "demo", "seed": 1, "user": "u-1", "safety_identifier": "s-1",
        "metadata": {"run": "7", "tags": "a"}, "service_tier": "flex", "store": true,
        "parallel_tool_calls": false, "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "prediction": {"type": "content", "content": "Once upon"}, "frequency_penalty": 0,
        "presence_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": null, "n": 1,
        "stream": true, "stream_options": {"include_usage": true, "include_obfuscation": true},
    });
    for (path, name, prompt) in [
        (CHAT, "messages", json!([{"role": "user", "content": "Hi"}])),
        (TEXTS, "prompt", json!("Once")),
    ] {
        let plain = json!({"model": "demo", "seed": 1, name: prompt});
        let mut full = shared.clone();
        full[name] = plain[name].clone();
        full["logprobs"] = json!(false);
        assert_eq!(job(path, &full).await, job(path, &plain).await, "{path}");
    }
    // Programs send the answers that they got back as they came.
    let chat = |answer: Value| json!({"model": "demo", "seed": 1, "messages": [answer]});
    let plain = json!({"role": "assistant", "content": "Yes."});
    let full = json!({
        "role": "assistant", "content": "Yes.", "refusal": null, "tool_calls": [],
        "function_call": null, "audio": null, "annotations": [], "reasoning_content": null,
    });
    assert_eq!(job(CHAT, &chat(full)).await, job(CHAT, &chat(plain)).await);
}

#[tokio::test]
async fn a_model_that_is_not_there_is_told_which_are() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    client
        .post(CHAT, &json!({"model": "gpt-4", "messages": []}))
        .await;
    let answer = client.answer().await;
    let expected = (404, "model_not_found".to_owned(), Some("model".to_owned()));
    assert_eq!(answer.error(), expected);
    assert!(
        answer
            .body
            .contains("there is no model `gpt-4`; there are: demo")
    );
    stage.expect_silence();
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_told_where_it_goes_wrong() {
    let mut stage = Stage::open().await;
    let mut client = stage.client().await;
    for (body, why) in [
        (
            "",
            "the body is not JSON: EOF while parsing a value at line 1 column 0",
        ),
        (
            "{\"model\": }",
            "the body is not JSON: expected value at line 1 column 11",
        ),
        ("[1]", "the body has to be a JSON object, not a list"),
        (
            "{} {}",
            "the body is not JSON: trailing characters at line 1 column 4",
        ),
    ] {
        client.send(post(CHAT, body)).await;
        let answer = client.answer().await;
        assert_eq!(answer.error(), (400, "invalid_body".to_owned(), None));
        assert_eq!(answer.json()["error"]["message"], why);
    }
    let deep = "[".repeat(100_000);
    client.send(post(CHAT, &deep)).await;
    assert_eq!(client.answer().await.head.status, 400);
    client
        .send("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n")
        .await;
    client.send(b"\"\xff\xfe\"").await;
    let answer = client.answer().await;
    assert_eq!(
        answer.json()["error"]["message"],
        "the body is not UTF-8 at byte 1"
    );
    stage.expect_silence();
}

#[tokio::test]
async fn hints_reach_the_driver_from_headers_and_body() {
    let mut stage = Stage::with(|config| config.hints.label_keys = vec!["team".to_owned()]).await;
    let mut client = stage.client().await;
    let lines = "x-pointsman-priority: 3\r\nx-pointsman-labels: team=a\r\n\
                 X-Pointsman-May-Wait: false\r\n";
    let body = json!({
        "model": "demo", "prompt": "Once",
        "pointsman": {"session": "s", "class": "throughput", "deadline_ms": 1500,
                      "executors": ["cpu1/demo"], "priority": 3},
    });
    client
        .send(post_with(TEXTS, lines, &body.to_string()))
        .await;
    let played = stage.submitted().await;
    let hints = &played.submission().hints;
    let session = hints.session;
    assert!(session.is_some_and(|key| key != SessionKey(0)));
    let expected = Hints {
        session,
        priority: 3,
        class: RequestClass::Throughput,
        deadline: Some(Micros(1_500_000)),
        labels: vec!["team=a".to_owned()],
        allowed: Some(vec!["cpu1/demo".to_owned()]),
        may_wait: false,
        ..Hints::default()
    };
    assert_eq!(*hints, expected);
    assert_eq!(played.submission().tenant, "default");
    assert_eq!(played.submission().model.as_deref(), Some("demo"));
}

fn with_keys(config: &mut Config) {
    let key = |text: &str, tenant: &str| ApiKey {
        sha256: Sha256::digest(text).into(),
        rights: Rights::of_tenant(tenant),
    };
    config.keys = vec![key("sk-one", "one"), key("sk-two", "two")];
    config.admin.key = Some(Secret::new("root".to_owned()));
    config.http.metrics_public = false;
}

#[tokio::test]
async fn with_keys_only_their_holders_are_served() {
    let mut stage = Stage::with(with_keys).await;
    let body = json!({"model": "demo", "prompt": "Once"}).to_string();
    for lines in [
        "",
        "authorization: Bearer sk-three\r\n",
        "authorization: Basic sk-one\r\n",
    ] {
        let mut client = stage.client().await;
        client.send(post_with(TEXTS, lines, &body)).await;
        let answer = client.answer().await;
        assert_eq!(answer.error(), (401, "invalid_api_key".to_owned(), None));
        let challenge = answer.head.header("www-authenticate");
        assert_eq!(challenge, Some("Bearer realm=\"pointsman\""));
    }
    stage.expect_silence();
    let mut client = stage.client().await;
    client
        .send(post_with(TEXTS, "authorization: Bearer sk-two\r\n", &body))
        .await;
    assert_eq!(stage.submitted().await.submission().tenant, "two");
}

#[tokio::test]
async fn keys_guard_all_but_health_readiness_and_the_document() {
    let stage = Stage::with(with_keys).await;
    let mut client = stage.client().await;
    for (path, authorization, status) in [
        ("/ready", "", 200),
        ("/openapi.json", "", 200),
        ("/v1/models", "", 401),
        ("/v1/models", "authorization: Bearer sk-one\r\n", 200),
        ("/metrics", "", 401),
        ("/admin/policies", "", 401),
        ("/admin/policies", "authorization: Bearer sk-one\r\n", 401),
    ] {
        client
            .send(format!(
                "GET {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n"
            ))
            .await;
        let answer = client.answer().await;
        assert_eq!(answer.head.status, status, "{path} {authorization}");
    }
}

/// The answer to a question of a page, which the browser sends with these header lines.
async fn ask(stage: &Stage, line: &str, lines: &str) -> Head {
    let mut client = stage.client().await;
    client.send(format!("{line} HTTP/1.1\r\n{lines}\r\n")).await;
    client.head().await
}

#[tokio::test]
async fn without_keys_pages_of_other_sites_are_no_clients_of_this_machine() {
    let stage = Stage::open().await;
    for path in [
        "/v1/models",
        "/metrics",
        "/monitor",
        "/monitor/data",
        "/admin",
    ] {
        let line = format!("GET {path}");
        for lines in [
            // A name of the page's site, made to mean this machine.
            "host: evil.example\r\n",
            "host: localhost\r\norigin: https://evil.example\r\n",
        ] {
            let head = ask(&stage, &line, lines).await;
            assert_eq!(head.status, 403, "{path} {lines}");
            assert_eq!(head.header("access-control-allow-origin"), None);
        }
    }
    let head = ask(&stage, "GET /ready", "host: evil.example\r\n").await;
    assert_eq!(head.status, 200);
    let own = "host: localhost:1\r\norigin: http://localhost:1\r\n";
    assert_eq!(ask(&stage, "GET /v1/models", own).await.status, 200);
    // A form of another site needs no permission of the browser.
    let form = "host: localhost\r\norigin: https://evil.example\r\ncontent-length: 0\r\n";
    let head = ask(&stage, "POST /v1/completions", form).await;
    assert_eq!(head.status, 403);
}

#[tokio::test]
async fn a_page_whose_origin_is_configured_is_a_client_and_no_operator() {
    let origin = "https://chat.example";
    let stage = Stage::with(|config| config.http.cors_origins = vec![origin.parse().unwrap()]);
    let stage = stage.await;
    let page = format!("host: localhost\r\norigin: {origin}\r\n");
    let head = ask(&stage, "GET /v1/models", &page).await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("access-control-allow-origin"), Some(origin));
    assert_eq!(head.header("vary"), Some("origin"));
    for operators in ["GET /monitor", "GET /admin"] {
        let head = ask(&stage, operators, &page).await;
        assert_eq!(head.status, 403, "{operators}");
        assert_eq!(head.header("access-control-allow-origin"), None);
    }
    let question = "access-control-request-method: POST\r\n\
                    access-control-request-headers: authorization,x-pointsman-session\r\n";
    let head = ask(
        &stage,
        "OPTIONS /v1/completions",
        &format!("{page}{question}"),
    )
    .await;
    assert_eq!(head.status, 204);
    for (name, value) in [
        ("access-control-allow-origin", origin),
        ("access-control-allow-methods", "POST"),
        (
            "access-control-allow-headers",
            "authorization,x-pointsman-session",
        ),
    ] {
        assert_eq!(head.header(name), Some(value), "{name}");
    }
    let other = page.replace("chat", "evil");
    for (line, lines) in [
        ("OPTIONS /v1/completions", format!("{other}{question}")),
        ("OPTIONS /admin/eject", format!("{page}{question}")),
        ("OPTIONS /v1/completions", page),
    ] {
        let head = ask(&stage, line, &lines).await;
        assert_eq!(head.status, 405, "{line} {lines}");
    }
}
