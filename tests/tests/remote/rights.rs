//! Keys for some models before servers that have others too, and answers that are looked at again.

use anyhow::{Context as _, Result, ensure};
use hyper::Method;
use pointsman_config::{ApiKey, Config, ModelPattern, Rights, TenantConfig, UsableModels};
use pointsman_driver::quota::TenantLimits;
use pointsman_tests::backend::MockBackend;
use pointsman_tests::serving::Serving;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{backend, over, serving_with};

const PATH: &str = "/v1/responses";

/// Gives `config` a key for these models alone.
fn with_key(config: &mut Config, key: &str, models: &[&str]) {
    let models = models.iter().map(|it| ModelPattern::Name((*it).to_owned()));
    config.keys.push(ApiKey {
        sha256: Sha256::digest(key).into(),
        rights: Rights {
            models: UsableModels::Listed(models.collect()),
            ..Rights::of_tenant("default")
        },
    });
}

#[tokio::test]
async fn a_path_that_may_name_a_model_leads_to_none_that_the_key_may_not_use() -> Result<()> {
    let mock = MockBackend::start(&["open", "hidden"]).await?;
    let serving = serving_with([backend("both", &mock)?], |config| {
        with_key(config, "sk-open", &["open"]);
        with_key(config, "sk-both", &["open", "hidden"]);
    });
    let serving = serving.await?;
    let client = serving.client.for_others();
    let of_open = ("authorization", "Bearer sk-open");
    let of_both = ("authorization", "Bearer sk-both");
    let body = json!({"model": "open", "input": "text"}).to_string();
    for path in [
        "/upstream/hidden/v1/chat/completions",
        "/props?model=hidden",
        "/v1/audio/speech?model=hidden",
        "/v1/images/generations?mod%65l=hidden",
    ] {
        let answer = client.raw(path, &[of_open], body.clone()).await?;
        ensure!(answer.status == 404, "{path}: {answer:?}");
        let seen = mock.seen(path.split('?').next().unwrap_or(path));
        ensure!(seen.is_empty(), "{path}");
        let answer = client.raw(path, &[of_both], body.clone()).await?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
    }
    // At these it is the body that counts.
    for path in [
        "/v1/audio/speech",
        "/v1/score",
        "/v1/messages/count_tokens?beta=true",
        "/v1/messages?beta=true",
        "/api/chat",
    ] {
        let answer = client.raw(path, &[of_open], body.clone()).await?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
    }
    over(serving).await
}

#[tokio::test]
async fn a_key_with_models_gets_its_own_response_back_from_a_server_that_has_others_too()
-> Result<()> {
    let both = MockBackend::start(&["open", "hidden"]).await?;
    let alone = MockBackend::start(&["open"]).await?;
    let apart = MockBackend::start(&["other"]).await?;
    let backends = [
        backend("both", &both)?,
        backend("alone", &alone)?,
        backend("apart", &apart)?,
    ];
    let serving = serving_with(backends, |config| {
        with_key(config, "sk-open", &["open"]);
        with_key(config, "sk-other", &["other"]);
        with_key(config, "sk-hidden", &["hidden"]);
    });
    let serving = serving.await?;
    let client = serving.client.for_others();
    let response = json!({"id": "resp_1", "object": "response", "output": []}).to_string();
    both.obeys(PATH, 200, &response);
    let held = format!("{PATH}/resp_1");
    let cancelled = format!("{held}/cancel");
    for mock in [&both, &alone, &apart] {
        mock.answers(&held, 200, "{}");
        mock.obeys(&cancelled, 200, "{}");
        mock.answers(&format!("{PATH}/resp_2"), 200, "{}");
    }
    let of_open = ("authorization", "Bearer sk-open");
    let first = json!({"model": "open", "input": "hello", "pointsman": {"executors": ["both"]}});
    let answer = client.raw(PATH, &[of_open], first.to_string()).await?;
    ensure!(answer.status == 200, "{answer:?}");
    let looks = async |key: &'static str, path: &str| -> Result<String> {
        let answer = client.with_key(key).unchecked(Method::GET, path).await?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
        Ok(answer.header("x-pointsman-executor").to_owned())
    };
    for _ in 0..3 {
        ensure!(looks("sk-open", &held).await? == "both");
    }
    let answer = client.raw(&cancelled, &[of_open], "{}").await?;
    ensure!(
        answer.header("x-pointsman-executor") == "both",
        "{answer:?}"
    );
    // It is nobody else's, and nothing else is there.
    ensure!(looks("sk-other", &held).await? == "apart");
    ensure!(looks("sk-open", &format!("{PATH}/resp_2")).await? == "alone");
    ensure!(both.seen(&held).len() == 3);
    // Where no server is the key's alone, nobody has an answer that is not known.
    let unknown = serving.client.for_others().with_key("sk-hidden");
    let unknown = unknown
        .unchecked(Method::GET, &format!("{PATH}/resp_2"))
        .await?;
    ensure!(unknown.status == 404, "{unknown:?}");
    over(serving).await
}

/// The tokens of this minute that the tenant has used.
async fn used(serving: &Serving) -> Result<u64> {
    serving.idle().await?;
    let listed = serving.client.get("/admin/tenants").await?.json()?;
    let used = listed["tenants"][0]["limits"]["tokens_per_minute_max"]["used"].as_u64();
    used.context("the tokens that were used")
}

#[tokio::test]
async fn a_response_is_paid_for_once_however_often_it_is_looked_at() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving_with([backend("one", &mock)?], |config| {
        config.tenants = vec![TenantConfig {
            limits: TenantLimits {
                tokens_per_minute_max: Some(100_000),
                ..TenantLimits::default()
            },
            ..TenantConfig::new("default")
        }];
    });
    let serving = serving.await?;
    let client = serving.client.for_others();
    let response = json!({"id": "resp_1", "object": "response", "output": [],
        "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}});
    let held = format!("{PATH}/resp_1");
    mock.obeys(PATH, 200, &response.to_string());
    mock.answers(&held, 200, &response.to_string());
    let first = json!({"model": "demo", "input": "hello"}).to_string();
    let answer = client.raw(PATH, &[], first).await?;
    ensure!(answer.status == 200, "{answer:?}");
    let paid = used(&serving).await?;
    ensure!(paid == 12, "{paid}");
    for _ in 0..2 {
        let answer = client.unchecked(Method::GET, &held).await?;
        ensure!(answer.status == 200, "{answer:?}");
        let after = used(&serving).await?;
        ensure!(after == paid, "{after}");
    }
    // Of one that is made in the background no usage is told: its prompt counts.
    let queued = json!({"id": "resp_2", "status": "queued", "usage": null});
    mock.obeys(PATH, 200, &queued.to_string());
    let later = json!({"model": "demo", "input": "hello", "background": true}).to_string();
    let answer = client.raw(PATH, &[], later).await?;
    ensure!(answer.status == 200, "{answer:?}");
    let after = used(&serving).await?;
    ensure!(after > paid, "{after}");
    over(serving).await
}
