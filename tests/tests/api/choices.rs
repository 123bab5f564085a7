//! Several choices and several prompts in one request, over HTTP.

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::{Answer, Client, chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// A drawn chat with this seed.
fn drawn(seed: u32) -> Value {
    let mut body = chat("Tell me about a fox.");
    body["temperature"] = json!(1.5);
    body["seed"] = json!(seed);
    body["max_tokens"] = json!(30);
    body
}

async fn ask(client: Client, body: &Value) -> Result<Answer> {
    client.post("/v1/chat/completions", body).await
}

/// The texts of an answer's choices, in order.
fn texts(answer: &Value) -> Result<Vec<String>> {
    let choices = answer["choices"].as_array().context("no choices")?;
    let texts = choices.iter().enumerate().map(|(index, choice)| {
        ensure!(choice["index"] == index, "{answer}");
        let text = [&choice["message"]["content"], &choice["text"]];
        let text = text.into_iter().find_map(Value::as_str);
        Ok(text.context("a choice without text")?.to_owned())
    });
    texts.collect()
}

fn tokens(answer: &Value, name: &str) -> Result<u64> {
    let tokens = answer["usage"][name].as_u64();
    tokens.with_context(|| format!("no {name}: {answer}"))
}

#[tokio::test]
async fn each_choice_is_the_answer_to_a_request_of_its_own() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let mut body = drawn(7);
    body["n"] = json!(3);
    let answer = ask(client, &body).await?.json()?;
    let choices = texts(&answer)?;
    let (mut alone, mut generated, mut prompt) = (Vec::new(), 0, 0);
    for seed in 7..10 {
        let answer = ask(client, &drawn(seed)).await?.json()?;
        alone.extend(texts(&answer)?);
        generated += tokens(&answer, "completion_tokens")?;
        prompt = tokens(&answer, "prompt_tokens")?;
    }
    ensure!(choices == alone, "{choices:?} and {alone:?}");
    ensure!(
        tokens(&answer, "completion_tokens")? == generated,
        "{answer}"
    );
    ensure!(tokens(&answer, "prompt_tokens")? == prompt, "{answer}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_stream_of_several_choices_has_the_text_and_the_end_of_each() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let mut body = drawn(4);
    body["n"] = json!(4);
    let whole = texts(&ask(client, &body).await?.json()?)?;
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = client.stream(&body).await?;
    let mut streamed = vec![(String::new(), 0); 4];
    let (mut last, mut done) = (Value::Null, false);
    while let Some(event) = stream.event().await? {
        if event == "[DONE]" {
            done = true;
            continue;
        }
        last = serde_json::from_str(&event)?;
        for choice in last["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().context("no index")?;
            let (text, ends) = &mut streamed[usize::try_from(index)?];
            text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            *ends += i32::from(choice["finish_reason"].is_string());
        }
    }
    let (texts, ends): (Vec<_>, Vec<_>) = streamed.into_iter().unzip();
    ensure!(texts == whole, "{texts:?} and {whole:?}");
    ensure!(ends == [1, 1, 1, 1] && done, "{ends:?}");
    ensure!(tokens(&last, "completion_tokens")? > 4, "{last}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn several_prompts_have_choices_of_their_own() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let body = |prompt: Value, n: u32| json!({"model": "demo", "prompt": prompt, "n": n, "max_tokens": 8, "temperature": 1, "seed": 5});
    let ask = async |body: Value| client.post("/v1/completions", &body).await?.json();
    let both = ask(body(json!(["One fox", [5, 6, 7]]), 2)).await?;
    let first = ask(body(json!("One fox"), 2)).await?;
    let second = ask(body(json!([5, 6, 7]), 2)).await?;
    let expected = [texts(&first)?, texts(&second)?].concat();
    ensure!(texts(&both)? == expected, "{both}");
    for name in ["prompt_tokens", "completion_tokens"] {
        let sum = tokens(&first, name)? + tokens(&second, name)?;
        ensure!(tokens(&both, name)? == sum, "{name}: {both}");
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_client_that_leaves_takes_all_its_choices_along() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let mut body = drawn(1);
    for (name, value) in [
        ("n", json!(4)),
        ("max_tokens", json!(1500)),
        ("ignore_eos", json!(true)),
    ] {
        body[name] = value;
    }
    body["stream"] = json!(true);
    let mut stream = client.stream(&body).await?;
    stream.first_text().await?;
    drop(stream);
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn more_choices_than_an_answer_may_have_are_refused() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let mut body = drawn(1);
    body["n"] = json!(0);
    let refused = ask(client, &body).await?;
    ensure!(refused.status == 400, "{refused:?}");
    ensure!(refused.json()?["error"]["param"] == "n", "{refused:?}");
    let body = json!({"model": "demo", "prompt": ["a", "b", "c"], "n": 30});
    let refused = client.post("/v1/completions", &body).await?;
    ensure!(refused.status == 400, "{refused:?}");
    let message = refused.json()?["error"]["message"].to_string();
    ensure!(
        message.contains("3 prompts with 30 choices each"),
        "{message}"
    );
    serving.idle().await?;
    serving.server.stop().await
}
