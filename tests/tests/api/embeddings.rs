//! Embeddings over HTTP, by the engine of the demo model.

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::{Client, chat};
use pointsman_tests::serving::Serving;
use serde::Deserialize;
use serde_json::{Value, json};

const PATH: &str = "/v1/embeddings";

/// An embedding that numpy computed from the weights: `host/engine/tests/embeddings/make.py`.
#[derive(Deserialize)]
struct Golden {
    text: String,
    tokens: Vec<u32>,
    embedding: Vec<f64>,
}

fn golden() -> Result<Vec<Golden>> {
    let json = include_str!("../../../host/engine/tests/embeddings/golden.json");
    Ok(serde_json::from_str(json)?)
}

/// The embeddings of an answer, as they are written.
async fn embed(client: Client, body: Value) -> Result<Vec<Value>> {
    let answer = client.post(PATH, &body).await?;
    ensure!(answer.status == 200, "{:?}", answer.json());
    let data = answer.json()?["data"].take();
    let list = data.as_array().context("no list")?;
    Ok(list.iter().map(|one| one["embedding"].clone()).collect())
}

async fn embed_one(client: Client, input: impl Into<Value>) -> Result<Value> {
    let embeddings = embed(client, of(input.into())).await?;
    ensure!(embeddings.len() == 1, "{} embeddings", embeddings.len());
    Ok(embeddings[0].clone())
}

fn of(input: Value) -> Value {
    json!({"model": "demo", "input": input})
}

fn numbers(embedding: &Value) -> Result<Vec<f64>> {
    let list = embedding.as_array().context("no numbers")?.iter();
    list.map(|it| it.as_f64().context("no number")).collect()
}

#[tokio::test]
async fn embeddings_are_those_of_the_script_in_openais_shape() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let golden = golden()?;
    let texts: Vec<&str> = golden.iter().map(|case| &*case.text).collect();
    let answer = serving.client.post(PATH, &of(json!(texts))).await?;
    ensure!(answer.header("x-pointsman-executor") == "cpu0/demo");
    let body = answer.json()?;
    let tokens: usize = golden.iter().map(|case| case.tokens.len()).sum();
    ensure!(body["usage"] == json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    ensure!(body["object"] == "list" && body["model"] == "demo");
    let data = body["data"].as_array().context("no list")?;
    ensure!(data.len() == golden.len());
    for (index, (found, case)) in data.iter().zip(&golden).enumerate() {
        ensure!(found["object"] == "embedding" && found["index"] == index);
        let found = numbers(&found["embedding"])?;
        let differences = found
            .iter()
            .zip(&case.embedding)
            .map(|(a, b)| (a - b).abs());
        let furthest = differences.fold(0.0, f64::max);
        ensure!(
            furthest < 1e-5 && found.len() == 192,
            "{}: {furthest}",
            case.text
        );
        let squares: f64 = found.iter().map(|number| number * number).sum();
        ensure!((squares - 1.0).abs() < 1e-5, "{squares}");
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn an_input_is_embedded_the_same_alone_in_a_list_as_tokens_and_beside_chats() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let golden = golden()?;
    let texts: Vec<&str> = golden.iter().map(|case| &*case.text).collect();
    let mut alone = Vec::new();
    for text in &texts {
        alone.push(embed_one(client, *text).await?);
    }
    // Prompts that are cached by now, beside sequences that generate.
    let beside = tokio::spawn(async move {
        let body = chat("What comes after four?");
        client.post("/v1/chat/completions", &body).await
    });
    let together = embed(client, of(json!(texts))).await?;
    ensure!(beside.await??.status == 200);
    ensure!(together == alone);
    let tokens: Vec<&[u32]> = golden.iter().map(|case| &*case.tokens).collect();
    ensure!(embed(client, of(json!(tokens))).await? == alone);
    ensure!(embed_one(client, json!(tokens[0])).await? == alone[0]);
    // More than are in hand at once, in their order.
    let many: Vec<&str> = texts.iter().copied().cycle().take(150).collect();
    let many = embed(client, of(json!(many))).await?;
    let expected = alone.iter().cycle().take(150);
    ensure!(many.len() == 150 && many.iter().eq(expected));
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn numbers_are_sent_in_base64_to_whoever_asks_for_it() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let numbers: Vec<f32> = serde_json::from_value(embed_one(client, "Hello!").await?)?;
    let mut body = of(json!("Hello!"));
    body["encoding_format"] = json!("base64");
    let text = embed(client, body).await?[0].clone();
    let bytes = decoded(text.as_str().context("no text")?);
    let (words, _) = bytes.as_chunks::<4>();
    let found: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    ensure!(found == numbers);
    serving.idle().await?;
    serving.server.stop().await
}

/// The bytes of base64, without its padding.
fn decoded(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let letters = text.trim_end_matches('=').bytes();
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::new());
    for letter in letters {
        bits = bits << 6 | u32::from(value(letter));
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.extend(u8::try_from(bits >> held & 0xff));
        }
    }
    bytes
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused_by_name() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let too_long: Vec<u32> = vec![5; 2049];
    let too_many = vec!["a"; 2049];
    for (change, status, said) in [
        (json!({"dimensions": 64}), 400, "`dimensions`"),
        (json!({"normalize": false}), 400, "`normalize`"),
        (json!({"encoding_format": "int8"}), 400, "`encoding_format`"),
        (json!({"input": null}), 400, "`input`"),
        (json!({"input": ""}), 400, "`input` has no tokens"),
        (json!({"input": ["a", 5]}), 400, "`input[0]`"),
        (json!({"input": [5, 70_000]}), 400, "`input[1]`"),
        (json!({"input": too_long}), 400, "2048 tokens"),
        (json!({"input": too_many}), 400, "2049 prompts"),
        (json!({"model": "other"}), 404, "other"),
        (
            json!({"pointsman": {"executors": ["elsewhere"]}}),
            400,
            "elsewhere",
        ),
    ] {
        let mut body = of(json!("Hello!"));
        for (name, value) in change.as_object().context("no object")? {
            body[name] = value.clone();
        }
        let answer = client.post(PATH, &body).await?;
        let told = answer.json()?["error"]["message"].to_string();
        ensure!(
            answer.status == status && told.contains(said),
            "{body}: {told}"
        );
    }
    // A prompt as long as the context has no room for a token more, and needs none.
    embed_one(client, json!(vec![5; 2048])).await?;
    let mut body = of(json!("Hello!"));
    (body["normalize"], body["dimensions"]) = (json!(true), Value::Null);
    embed(client, body).await?;
    serving.idle().await?;
    serving.server.stop().await
}
