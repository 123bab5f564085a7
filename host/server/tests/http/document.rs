//! The OpenAPI document, as it is served and as the repository has it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

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
