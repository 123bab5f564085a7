//! The choice of tokens as clients ask for it, over HTTP.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use pointsman_tests::client::{Client, chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// A greedy chat that goes on for so many tokens.
fn endless(tokens: u32, more: Value) -> Value {
    let mut body = chat("Say token five times.");
    let own = json!({"max_tokens": tokens, "ignore_eos": true, "logprobs": true});
    for fields in [own, more] {
        let fields = fields.as_object().cloned().unwrap_or_default();
        body.as_object_mut()
            .into_iter()
            .for_each(|body| body.extend(fields.clone()));
    }
    body
}

/// The tokens of an answer, as text.
async fn tokens(client: Client, body: &Value) -> Result<Vec<String>> {
    let answer = client.post("/v1/chat/completions", body).await?.json()?;
    let told = answer["choices"][0]["logprobs"]["content"].as_array();
    let told = told.context("no probabilities")?.iter();
    let tokens = told.map(|token| token["token"].as_str().map(str::to_owned));
    tokens.collect::<Option<_>>().context("a token has no text")
}

/// Different tokens among these.
fn different(tokens: &[String]) -> usize {
    tokens.iter().collect::<BTreeSet<_>>().len()
}

#[tokio::test]
async fn penalties_keep_an_answer_from_saying_the_same_again() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let plain = tokens(client, &endless(80, json!({}))).await?;
    for penalty in [
        json!({"frequency_penalty": 2}),
        json!({"presence_penalty": 2}),
        json!({"repetition_penalty": 3}),
    ] {
        let varied = tokens(client, &endless(80, penalty.clone())).await?;
        ensure!(
            different(&varied) > different(&plain),
            "{penalty}: {varied:?} and {plain:?}"
        );
    }
    serving.server.stop().await
}

#[tokio::test]
async fn bias_forbids_a_token_or_has_nothing_else_come_up() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let plain = tokens(client, &endless(20, json!({}))).await?;
    let forced = json!({"logit_bias": {"300": 100}});
    let forced = tokens(client, &endless(20, forced)).await?;
    ensure!(different(&forced) == 1, "{forced:?}");
    ensure!(plain.contains(&forced[0]), "{plain:?}");
    let forbidden = json!({"logit_bias": {"300": -100}});
    let without = tokens(client, &endless(20, forbidden)).await?;
    ensure!(!without.contains(&forced[0]), "{without:?}");
    serving.server.stop().await
}

#[tokio::test]
async fn an_answer_under_penalties_is_the_same_streamed_alone_or_beside_others() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let more = json!({
        "temperature": 1.2, "seed": 7, "frequency_penalty": 0.7, "presence_penalty": 0.4,
        "repetition_penalty": 1.2, "min_p": 0.02, "top_logprobs": 2, "logit_bias": {"5": 3, "9": -2},
    });
    let body = endless(60, more);
    let alone = tokens(client, &body).await?;
    let mut beside = tokio::task::JoinSet::new();
    for seed in 0..4 {
        let mut body = body.clone();
        body["seed"] = json!(if seed < 2 { 7 } else { seed });
        beside.spawn(async move { anyhow::Ok((seed, tokens(client, &body).await?)) });
    }
    while let Some(answered) = beside.join_next().await {
        let (seed, answer) = answered??;
        ensure!((answer == alone) == (seed < 2), "{seed}: {answer:?}");
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let text = client.stream(&streamed).await?.finish().await?.text;
    let shown = alone.iter().filter(|token| !token.starts_with("<|"));
    let shown: String = shown.map(String::as_str).collect();
    ensure!(text == shown, "{text}");
    serving.idle().await?;
    serving.server.stop().await
}
