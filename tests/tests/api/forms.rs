//! Answers in the form that a client asks for, over HTTP.

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::{Client, chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// A chat that is drawn at random, with these fields.
fn drawn(seed: u32, fields: Value) -> Value {
    let mut body = chat("Tell me about a fox.");
    body["temperature"] = json!(2);
    body["seed"] = json!(seed);
    body["max_tokens"] = json!(400);
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

/// The text of an answer that has ended by itself.
async fn text(client: Client, body: &Value) -> Result<String> {
    let answer = client.post("/v1/chat/completions", body).await?;
    let json = answer.json()?;
    ensure!(json["choices"][0]["finish_reason"] == "stop", "{json}");
    answer.text()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "animal": {"type": "string", "maxLength": 10},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        },
        "required": ["animal", "legs"],
        "additionalProperties": false,
    })
}

fn response_format() -> Value {
    let named = json!({"name": "animal", "strict": true, "schema": schema()});
    json!({"response_format": {"type": "json_schema", "json_schema": named}})
}

#[tokio::test]
async fn a_hot_model_answers_in_the_form_of_a_schema() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    for seed in 0..8 {
        for fields in [
            response_format(),
            json!({"guided_json": schema()}),
            json!({"structured_outputs": {"json": schema().to_string()}}),
        ] {
            let text = text(client, &drawn(seed, fields)).await?;
            let value: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
            ensure!(value["animal"].is_string(), "{text}");
            ensure!(
                value["legs"].as_u64().is_some_and(|legs| legs <= 8),
                "{text}"
            );
        }
    }
    serving.server.stop().await
}

#[tokio::test]
async fn answers_are_choices_matches_and_sentences() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    for seed in 0..8 {
        let choice = json!({"guided_choice": ["fox", "crow"]});
        let chosen = text(client, &drawn(seed, choice)).await?;
        ensure!(["fox", "crow"].contains(&&*chosen), "{chosen}");
        let regex = json!({"structured_outputs": {"regex": "[a-f]{3}[0-9]{2}"}});
        let matched = text(client, &drawn(seed, regex)).await?;
        let (letters, digits) = matched.split_at(3);
        ensure!(
            letters.bytes().all(|byte| (b'a'..=b'f').contains(&byte)),
            "{matched}"
        );
        ensure!(
            digits.len() == 2 && digits.parse::<u8>().is_ok(),
            "{matched}"
        );
        let grammar = json!({"guided_grammar": "start: \"<\" start \">\" | \"fox\""});
        let sentence = text(client, &drawn(seed, grammar)).await?;
        ensure!(sentence.trim_matches(['<', '>']) == "fox", "{sentence}");
    }
    serving.server.stop().await
}

#[tokio::test]
async fn an_answer_in_a_form_is_the_same_streamed_and_beside_others() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let body = drawn(3, response_format());
    let alone = text(client, &body).await?;
    let mut beside = tokio::task::JoinSet::new();
    for other in [
        response_format(),
        json!({}),
        json!({"guided_choice": ["a", "b"]}),
    ] {
        let other = drawn(9, other);
        beside.spawn(async move { client.post("/v1/chat/completions", &other).await });
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let streamed = client.stream(&streamed).await?.finish().await?;
    ensure!(streamed.text == alone, "{streamed:?} and {alone}");
    ensure!(
        streamed.finish_reason.as_deref() == Some("stop"),
        "{streamed:?}"
    );
    while let Some(answered) = beside.join_next().await {
        ensure!(answered??.status == 200);
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn what_no_answer_can_be_kept_to_is_refused_with_the_reason() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let impossible = json!({"type": "integer", "minimum": 5, "maximum": 4});
    let by_schema = |schema: Value| {
        let named = json!({"name": "x", "schema": schema});
        json!({"response_format": {"type": "json_schema", "json_schema": named}})
    };
    for (fields, param, why) in [
        (by_schema(impossible), "response_format", "nsatisfiable"),
        (
            by_schema(json!({"type": "thing"})),
            "response_format",
            "thing",
        ),
        (
            json!({"guided_regex": "("}),
            "guided_regex",
            "nothing that an answer can be kept to",
        ),
        (
            json!({"guided_regex": "a", "guided_choice": ["a"]}),
            "guided_choice",
            "ask for two forms",
        ),
    ] {
        let answer = client
            .post("/v1/chat/completions", &drawn(0, fields))
            .await?;
        ensure!(answer.status == 400, "{answer:?}");
        let error = &answer.json()?["error"];
        ensure!(error["param"] == param, "{error}");
        let message = error["message"].as_str().context("no message")?;
        ensure!(message.contains(why), "{message}");
    }
    serving.idle().await?;
    serving.server.stop().await
}
