//! Files in requests: in prompts, and as forms.

use std::time::Duration;

use anyhow::{Result, ensure};
use pointsman_tests::backend::MockBackend;
use serde_json::json;

use super::{backend, executors_until, named, over, serving};

/// Asks a server with 3,200 tokens of KV memory about pictures of two megabytes, one after the other. It is asked for
/// its load once: what requests took must be free when they have ended.
#[tokio::test]
async fn a_picture_takes_no_more_room_than_a_page_of_text() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    mock.has_models("vllm", &["demo"]);
    mock.answers("/health", 200, "");
    mock.answers(
        "/metrics",
        200,
        "vllm:kv_cache_usage_perc 0\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"200\"} 1\n",
    );
    let mut config = backend("seeing", &mock)?;
    config.server.poll = Duration::from_secs(3600);
    let serving = serving([config]).await?;
    let client = serving.client;
    let list = executors_until(client, |_| true).await?;
    ensure!(named(&list, "seeing")["kind"] == "remote");
    for n in 0..6 {
        let picture = format!("iVBO{n}{}", "AAAA".repeat(500_000));
        let url = format!("data:image/png;base64,{picture}");
        let body = json!({"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": [
            {"type": "text", "text": "Which animal is it?"},
            {"type": "image_url", "image_url": {"url": url}},
        ]}]});
        let path = "/v1/chat/completions";
        let answer = client.raw(path, &[], body.to_string()).await?;
        ensure!(answer.status == 200, "{answer:?}");
    }
    let seen = mock.seen("/v1/chat/completions");
    ensure!(seen.len() == 6 && seen.iter().all(|seen| seen.body.len() > 2_000_000));
    // A text of as many bytes is the server's to refuse: its tokens are a guess.
    let text = client.chat(&"word ".repeat(20_000)).await?;
    ensure!(text.status == 200, "{text:?}");

    over(serving).await
}

#[tokio::test]
async fn a_form_goes_where_its_model_is() -> Result<()> {
    let path = "/v1/audio/transcriptions";
    let mut mocks = Vec::new();
    for model in ["hearing", "writing"] {
        let mock = MockBackend::start(&[model]).await?;
        mock.obeys(path, 200, "{\"text\": \"heard\"}");
        mocks.push(mock);
    }
    let backends = [backend("one", &mocks[0])?, backend("two", &mocks[1])?];
    let serving = serving(backends).await?;
    let form = |model: &str| {
        let field = "content-disposition: form-data; name=";
        let sound = "RIFF".repeat(300_000);
        format!(
            "--x\r\n{field}\"file\"; filename=\"a.wav\"\r\n\r\n{sound}\r\n\
             --x\r\n{field}\"model\"\r\n\r\n{model}\r\n--x--\r\n"
        )
    };
    let content_type = [("content-type", "multipart/form-data; boundary=x")];
    for (model, executor) in [("hearing", "one"), ("writing", "two")] {
        for _ in 0..3 {
            let form = form(model);
            let answer = serving.client.raw(path, &content_type, form).await?;
            ensure!(answer.status == 200, "{answer:?}");
            ensure!(answer.header("x-pointsman-executor") == executor, "{model}");
        }
    }
    for mock in &mocks {
        let seen = mock.seen(path);
        ensure!(seen.len() == 3 && seen[0].body.len() > 1_200_000);
    }
    let answer = serving.client.raw(path, &content_type, form("singing"));
    let answer = answer.await?;
    let told = answer.json()?["error"]["message"].to_string();
    ensure!(answer.status == 404 && told.contains("singing"), "{told}");
    over(serving).await
}
