//! Keys with rights of their own: the models that they may use, and the priorities of their requests.

use pointsman_config::{ApiKey, Config, Rights, UnnamedModel, UsableModels};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::client::{Answer, post_with};
use crate::stage::Stage;

const CHAT: &str = "/v1/chat/completions";
const TEXTS: &str = "/v1/completions";

/// Gives `config` a key with these rights.
fn with_key(config: &mut Config, text: &str, rights: Rights) {
    config.keys.push(ApiKey {
        sha256: Sha256::digest(text).into(),
        rights,
    });
}

fn models(patterns: &[&str]) -> UsableModels {
    let patterns = patterns.iter().map(|text| text.parse().unwrap());
    UsableModels::Listed(patterns.collect())
}

fn rights(patterns: &[&str]) -> Rights {
    Rights {
        models: models(patterns),
        ..Rights::of_tenant("default")
    }
}

/// A server of three models, with a key for all and one for those whose names begin with `open`.
async fn stage() -> Stage {
    let stage = Stage::with(|config| {
        with_key(config, "sk-all", Rights::of_tenant("default"));
        with_key(config, "sk-open", rights(&["open*"]));
    })
    .await;
    stage.serve_models(&["open-1", "hidden", "open-2"]);
    stage
}

async fn get(stage: &Stage, key: &str, path: &str) -> Answer {
    let mut client = stage.client().await;
    client
        .send(format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"
        ))
        .await;
    client.answer().await
}

/// The answer to a request that is refused.
async fn refused(stage: &mut Stage, key: &str, path: &str, body: &Value) -> Answer {
    let mut client = stage.client().await;
    let key = format!("authorization: Bearer {key}\r\n");
    client.send(post_with(path, &key, &body.to_string())).await;
    let answer = client.answer().await;
    stage.expect_silence();
    answer
}

fn body(path: &str, model: &str) -> Value {
    if path == CHAT {
        json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]})
    } else {
        json!({"model": model, "prompt": "Once"})
    }
}

#[tokio::test]
async fn a_key_lists_the_models_that_it_may_use() {
    let stage = stage().await;
    for (key, expected) in [
        ("sk-all", vec!["open-1", "hidden", "open-2"]),
        ("sk-open", vec!["open-1", "open-2"]),
    ] {
        let list = get(&stage, key, "/v1/models").await.json();
        let data = list["data"].as_array().unwrap();
        let names: Vec<&str> = data.iter().map(|it| it["id"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{key}");
    }
    assert_eq!(
        get(&stage, "sk-all", "/v1/models/hidden").await.head.status,
        200
    );
    assert_eq!(
        get(&stage, "sk-open", "/v1/models/open-2")
            .await
            .head
            .status,
        200
    );
}

#[tokio::test]
async fn a_model_that_a_key_may_not_use_is_as_one_that_is_not_there() {
    let mut stage = stage().await;
    let expected = (404, "model_not_found".to_owned(), Some("model".to_owned()));
    for path in [CHAT, TEXTS] {
        let hidden = refused(&mut stage, "sk-open", path, &body(path, "hidden")).await;
        let absent = refused(&mut stage, "sk-open", path, &body(path, "absent")).await;
        assert_eq!(hidden.error(), expected, "{path}");
        assert_eq!(hidden.body.replace("hidden", "absent"), absent.body);
    }
    let hidden = get(&stage, "sk-open", "/v1/models/hidden").await;
    let absent = get(&stage, "sk-open", "/v1/models/absent").await;
    assert_eq!(hidden.error(), expected);
    assert_eq!(hidden.body.replace("hidden", "absent"), absent.body);
    // Neither do errors about executors tell.
    for hints in [
        json!({"executors": ["absent"]}),
        json!({"executors": ["cpu0/hidden"]}),
        json!({"device": "absent"}),
    ] {
        let mut body = body(TEXTS, "open-1");
        body["pointsman"] = hints.clone();
        let answer = refused(&mut stage, "sk-open", TEXTS, &body).await;
        assert_eq!(answer.head.status, 400);
        let without = answer.body.replace("no executor `cpu0/hidden`", "");
        assert!(!without.contains("hidden"), "{hints}: {}", answer.body);
    }
    // Who may use it is served.
    let mut client = stage.client().await;
    let key = "authorization: Bearer sk-all\r\n";
    let body = body(CHAT, "hidden").to_string();
    client.send(post_with(CHAT, key, &body)).await;
    let played = stage.submitted().await;
    assert_eq!(played.submission().model.as_deref(), Some("hidden"));
}

#[tokio::test]
async fn a_request_without_a_model_stays_with_those_that_its_key_may_use() {
    let mut stage = Stage::with(|config| {
        config.http.unnamed_model = UnnamedModel::Any;
        with_key(config, "sk-open", rights(&["open"]));
        with_key(config, "sk-none", rights(&["elsewhere"]));
    })
    .await;
    stage.serve_models(&["open", "hidden"]);
    let mut client = stage.client().await;
    let body = json!({"prompt": "Once"});
    let key = "authorization: Bearer sk-open\r\n";
    client.send(post_with(TEXTS, key, &body.to_string())).await;
    let played = stage.submitted().await;
    let allowed = played.submission().hints.allowed.clone();
    let expected = ["cpu0/open", "cpu1/open"].map(str::to_owned);
    assert_eq!(allowed, Some(expected.to_vec()));
    let answer = refused(&mut stage, "sk-none", TEXTS, &body).await;
    assert_eq!(answer.head.status, 400);
    assert!(!answer.body.contains("hidden"), "{}", answer.body);
}

#[tokio::test]
async fn a_key_has_a_priority_and_a_highest_one() {
    let key = |priority, priority_max| Rights {
        priority,
        priority_max,
        ..Rights::of_tenant("default")
    };
    let mut stage = Stage::with(|config| {
        with_key(config, "sk-high", key(40, 60));
        with_key(config, "sk-low", key(0, -5));
        with_key(config, "sk-free", key(0, i32::MAX));
        config.tenants[0].claims.priority_max = 70;
    })
    .await;
    for (key, claimed, expected) in [
        ("sk-high", None, Ok(40)),
        ("sk-high", Some(60), Ok(60)),
        ("sk-high", Some(-1), Ok(-1)),
        ("sk-high", Some(61), Err(60)),
        ("sk-low", None, Ok(-5)),
        ("sk-low", Some(0), Err(-5)),
        ("sk-free", None, Ok(0)),
        // The tenant's bound is the key's.
        ("sk-free", Some(70), Ok(70)),
        ("sk-free", Some(71), Err(70)),
    ] {
        let mut body = body(TEXTS, "demo");
        body["pointsman"] = json!({"priority": claimed});
        match expected {
            Ok(priority) => {
                let mut client = stage.client().await;
                let line = format!("authorization: Bearer {key}\r\n");
                client
                    .send(post_with(TEXTS, &line, &body.to_string()))
                    .await;
                let played = stage.submitted().await;
                assert_eq!(
                    played.submission().hints.priority,
                    priority,
                    "{key} {claimed:?}"
                );
                played.finish(pointsman_executor::delivery::StopReason::Stop);
                client.answer().await;
            }
            Err(bound) => {
                let answer = refused(&mut stage, key, TEXTS, &body).await;
                assert_eq!(answer.head.status, 400, "{key} {claimed:?}");
                let range = format!("from -100 to {bound}");
                assert!(answer.body.contains(&range), "{}", answer.body);
            }
        }
    }
}
