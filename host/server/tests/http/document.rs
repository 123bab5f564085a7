//! The OpenAPI document, as it is served and as the repository has it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::client::Client;
use crate::stage::Stage;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");

#[tokio::test]
async fn the_document_in_the_repository_is_the_one_that_is_served() {
    let stage = Stage::open().await;
    let served = stage.client().await.get("/openapi.json").await;
    assert_eq!(served.head.status, 200);
    let kept = fs::read_to_string(KEPT).unwrap_or_default();
    let kept: Value = serde_json::from_str(&kept).unwrap_or_default();
    if kept != served.json() {
        let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openapi.json");
        fs::write(&fresh, &served.body).unwrap();
        let fresh = fresh.display();
        panic!(
            "host/docs/openapi.json is out of date; renew it: cp {fresh} host/docs/openapi.json"
        );
    }
}

#[tokio::test]
async fn a_path_that_is_not_there_is_told_those_that_are() {
    let stage = Stage::open().await;
    let mut client = stage.client().await;
    assert_eq!(
        told(&mut client, "/v1/images").await,
        "there is no /v1/images; there are: POST /v1/chat/completions, POST \
         /v1/completions, POST /v1/responses, POST /v1/messages, POST /v1/embeddings, POST \
         /v1/rerank, POST /tokenize, POST /detokenize, GET /v1/models, GET /v1/models/NAME, GET /live, GET /health, GET /ready, GET \
         /metrics, GET /openapi.json; for operators GET /admin, GET /monitor, GET /monitor/data"
    );
    let admin = told(&mut client, "/admin/executor").await;
    for part in [
        "there is no /admin/executor; there are: GET /admin, GET /admin/policies, ",
        "POST /admin/policies/NAME/mode, ",
        "GET and POST /admin/executors, GET and DELETE /admin/executors/NAME, ",
        "GET /admin/decisions?last=N, GET /admin/decisions/ID, ",
    ] {
        assert!(admin.contains(part), "{part} in {admin}");
    }
    assert!(!admin.contains("/health"), "{admin}");
}

/// The message to a client whose path is not there.
async fn told(client: &mut Client, path: &str) -> String {
    let answer = client.get(path).await;
    assert_eq!(answer.head.status, 404, "{path}");
    answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn the_document_names_the_keys_that_a_route_may_ask_for() {
    let stage = Stage::open().await;
    let document = stage.client().await.get("/openapi.json").await.json();
    for (method, path, security) in [
        ("get", "/openapi.json", json!([])),
        ("get", "/health", json!([])),
        ("post", "/v1/completions", json!([{"apiKey": []}, {}])),
        (
            "get",
            "/metrics",
            json!([{"apiKey": []}, {"adminKey": []}, {}]),
        ),
        (
            "delete",
            "/admin/executors/{name}",
            json!([{"adminKey": []}, {}]),
        ),
    ] {
        assert_eq!(
            document["paths"][path][method]["security"], security,
            "{path}"
        );
    }
}
