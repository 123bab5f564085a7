//! The numbers that clients ask with, in the spans of their requests.

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::chat;
use pointsman_tests::otlp::MockCollector;
use pointsman_tests::serving::Serving;
use serde_json::json;

/// The kind of a request's own span.
const SERVER: u64 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_numbers_that_a_client_asks_with_are_told_and_its_texts_are_not() -> Result<()> {
    let collector = MockCollector::start().await?;
    let mut told = Ok(());
    let serving = Serving::start(|config| told = collector.told_by(config)).await?;
    told?;
    let mut body = chat("Hello");
    for (field, value) in [
        ("max_tokens", json!(5)),
        ("stream", json!(false)),
        ("top_p", json!(0.5)),
        ("seed", json!(7)),
        ("stop", json!(["zqx7"])),
        ("pointsman", json!({"session": "zqx7"})),
    ] {
        body[field] = value;
    }
    let answer = serving.client.post("/v1/chat/completions", &body).await?;
    ensure!(answer.status == 200, "{:?}", answer.json());
    let spans = collector.requests(1).await?;
    let mut all = spans.iter();
    let root = all.find(|span| span.kind == SERVER).context("no request")?;
    let mut below = spans.iter().filter(|span| span.parent == root.id);
    let place = below.find(|span| span.name != "queue");
    let place = place.context("no placement")?;
    for (key, value) in [
        ("gen_ai.request.max_tokens", json!(5)),
        ("gen_ai.request.seed", json!(7)),
        ("gen_ai.request.stream", json!(false)),
        ("gen_ai.request.temperature", json!(0.0)),
        ("gen_ai.request.top_p", json!(0.5)),
    ] {
        for span in [root, place] {
            ensure!(span.attributes.get(key) == Some(&value), "{key}: {span:#?}");
        }
    }
    for key in ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"] {
        ensure!(
            place.attributes.get(key) == root.attributes.get(key),
            "{place:#?}"
        );
        ensure!(place.attributes.contains_key(key), "{place:#?}");
    }
    let session = root.attributes.get("gen_ai.conversation.id");
    let session = session.and_then(|session| session.as_str());
    ensure!(session.is_some_and(|it| it.len() == 16), "{root:#?}");
    for span in &spans {
        ensure!(!span.json.to_string().contains("zqx7"), "{span:#?}");
    }
    serving.server.stop().await
}
