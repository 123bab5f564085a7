//! Paths that only servers elsewhere answer, and servers that operators add.

use anyhow::{Result, ensure};
use hyper::Method;
use pointsman_config::{ApiKey, Config, ModelPattern, Rights, UsableModels};
use pointsman_driver::provider::{ExecutorConfig, ModelConfig, ModelSource};
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{chat, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{backend, begun, executors_until, named, over, serving, serving_with};

#[tokio::test]
async fn a_path_that_no_engine_answers_goes_to_a_server_of_the_model() -> Result<()> {
    let (one, two) = (
        MockBackend::start(&["a"]).await?,
        MockBackend::start(&["b"]).await?,
    );
    let serving = serving([backend("one", &one)?, backend("two", &two)?]).await?;
    let paths = [
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/rerank",
        "/tokenize",
        "/detokenize",
        "/v2/anything?x=1",
    ];
    for path in paths {
        for (model, executor, mock) in [("a", "one", &one), ("b", "two", &two)] {
            let body =
                json!({"model": model, "input": ["some text"], "pointsman": {"priority": 1}});
            let answer = serving.client.raw(path, &[], body.to_string()).await?;
            ensure!(answer.status == 200, "{path}: {:?}", answer.json());
            ensure!(answer.header("x-pointsman-executor") == executor, "{path}");
            let seen = mock.seen(path.split('?').next().unwrap_or(path));
            ensure!(
                seen.len() == 1 && seen[0].line.contains(path),
                "{path}: {seen:?}"
            );
        }
    }
    let unknown = json!({"model": "c", "input": "text"});
    let answer = serving.client.post("/v1/embeddings", &unknown).await?;
    ensure!(answer.status == 404, "{:?}", answer.json());
    // A body that is no JSON goes to any server, as does a request without one.
    one.does(Conduct::Status(404, &[]));
    two.does(Conduct::Status(404, &[]));
    let form = "--x\r\ncontent-disposition: form-data; name=model\r\n\r\nwhisper\r\n--x--";
    let answer = serving
        .client
        .raw("/v1/audio/transcriptions", &[], form)
        .await?;
    ensure!(answer.status == 404 && answer.json()?["error"]["message"] == "mock 404");
    let path = "/v1/audio/transcriptions";
    let seen = [one.seen(path), two.seen(path)].concat();
    ensure!(
        seen.len() == 1 && seen[0].body == form.as_bytes(),
        "{seen:?}"
    );
    one.answers("/version", 200, "{\"version\": \"1\"}");
    two.answers("/version", 200, "{\"version\": \"1\"}");
    let answer = serving.client.unchecked(Method::GET, "/version").await?;
    ensure!(answer.json()?["version"] == "1");
    // What is for operators is never passed on.
    for path in ["/admin/unknown", "/monitor/unknown"] {
        ensure!(serving.client.unchecked(Method::GET, path).await?.status == 404);
    }
    over(serving).await
}

#[tokio::test]
async fn a_target_that_is_no_path_goes_to_no_server() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let one = backend("one", &mock)?;
    let serving = serving_with([one], |config| config.core.degraded_after = 1).await?;
    let mut socket = TcpStream::connect(serving.server.addr()).await?;
    let request = b"OPTIONS * HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n";
    socket.write_all(request).await?;
    let mut said = String::new();
    socket.read_to_string(&mut said).await?;
    ensure!(said.starts_with("HTTP/1.1 404 "), "{said}");
    let list = executors_until(serving.client, |_| true).await?;
    ensure!(named(&list, "one")["health"] == "up", "{list:?}");
    over(serving).await
}

/// The header with a key that may use the model `open` alone.
const KEY: (&str, &str) = ("authorization", "Bearer sk-open");
const FORM: &str = "multipart/form-data; boundary=x";

fn with_key_for_open(config: &mut Config) {
    config.keys.push(ApiKey {
        sha256: Sha256::digest("sk-open").into(),
        rights: Rights {
            models: UsableModels::Listed(vec![ModelPattern::Name("open".to_owned())]),
            ..Rights::of_tenant("default")
        },
    });
}

/// A form that names these models.
fn form_of(models: &[&str]) -> String {
    let field = "content-disposition: form-data; name=\"model\"";
    let part = |name: &&str| format!("--x\r\n{field}\r\n\r\n{name}\r\n");
    models.iter().map(part).collect::<String>() + "--x--\r\n"
}

/// A server of two models is there, for the holder of a key for one of them, only for requests that surely name that one.
#[tokio::test]
async fn a_model_that_a_key_may_not_use_is_not_asked_for_in_words_that_only_servers_read()
-> Result<()> {
    let mock = MockBackend::start(&["open", "hidden"]).await?;
    let serving = serving_with([backend("both", &mock)?], with_key_for_open).await?;
    let client = serving.client.for_others();
    let more: Vec<String> = (0..1024).map(|n| format!("\"x{n}\": 0")).collect();
    let hidden = [
        ("application/json", "{}".to_owned()),
        (
            "application/json",
            format!("{{\"model\": \"hidden\", {}}}", more.join(",")),
        ),
        (
            "application/json",
            "\u{feff}{\"model\": \"hidden\"}".to_owned(),
        ),
        (
            "application/json",
            "{\"model\": \"hidden\", \"x\": NaN}".to_owned(),
        ),
        (FORM, form_of(&["open", "hidden"])),
    ];
    for path in ["/v1/messages", "/v1/responses", "/v1/audio/transcriptions"] {
        for (content_type, body) in &hidden {
            let headers = [KEY, ("content-type", content_type)];
            let answer = client.raw(path, &headers, body.clone()).await?;
            ensure!(answer.status == 404, "{path} {body:.40}: {answer:?}");
        }
        let answer = client.raw(path, &[KEY], "{\"model\": \"open\"}").await?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
    }
    // Some servers make no difference between small and large letters.
    let mut both = chat("hello");
    both["model"] = json!("open");
    both["Model"] = json!("hidden");
    for path in ["/v1/messages", "/v1/chat/completions"] {
        let answer = client.raw(path, &[KEY], both.to_string()).await?;
        let told = answer.json()?["error"]["message"].to_string();
        ensure!(
            answer.status == 400 && told.contains("`Model`"),
            "{path}: {told}"
        );
    }
    ensure!(mock.seen("/v1/messages").len() == 1 && mock.seen("/v1/chat/completions").is_empty());
    over(serving).await
}

#[tokio::test]
async fn a_form_by_a_key_with_models_waits_for_a_server_that_has_no_others() -> Result<()> {
    const PATH: &str = "/v1/audio/transcriptions";
    let (both, alone) = (
        MockBackend::start(&["open", "hidden"]).await?,
        MockBackend::start(&["open"]).await?,
    );
    let mut one = backend("alone", &alone)?;
    one.server.slots = Some(1);
    let serving = serving_with([backend("both", &both)?, one], with_key_for_open).await?;
    let client = serving.client.for_others();
    let mut body = streamed_chat("hello");
    body["model"] = json!("open");
    body["pointsman"] = json!({"executors": ["alone"]});
    let stream = begun(client.with_key("sk-open"), &alone, &body).await?;
    let headers = [KEY, ("content-type", FORM)];
    let form = form_of(&["open", "hidden"]);
    let waits = tokio::spawn(async move { client.raw(PATH, &headers, form).await });
    serving.load_until(|load| load.queued == 1).await?;
    alone.does(Conduct::Answers(1));
    alone.allow(1);
    ensure!(stream.finish().await?.done);
    let answer = waits.await??;
    ensure!(
        answer.header("x-pointsman-executor") == "alone",
        "{answer:?}"
    );
    ensure!(both.seen(PATH).is_empty());
    over(serving).await
}

#[tokio::test]
async fn without_a_server_elsewhere_a_path_is_unknown() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let body = json!({"model": "demo", "query": "text"});
    let answer = serving.client.post("/v1/rerank", &body).await?;
    ensure!(answer.status == 404);
    let told = answer.json()?["error"]["message"].to_string();
    ensure!(told.contains("servers elsewhere only"), "{told}");
    ensure!(serving.client.raw("/v1/unknown", &[], "{}").await?.status == 404);
    over(serving).await
}

#[tokio::test]
async fn a_model_that_only_engines_serve_is_not_passed_on() -> Result<()> {
    let mock = MockBackend::start(&["other"]).await?;
    let serving = serving_with([backend("elsewhere", &mock)?], |config| {
        config.local.models = vec![ModelConfig::new("demo", ModelSource::Embedded)];
        config.local.executors = vec![ExecutorConfig::new("demo")];
    });
    let serving = serving.await?;
    let body = json!({"model": "demo", "query": "text"});
    let answer = serving.client.post("/v1/rerank", &body).await?;
    ensure!(answer.status == 404, "{:?}", answer.json());
    ensure!(mock.seen("/v1/rerank").is_empty());
    over(serving).await
}

#[tokio::test]
async fn embeddings_of_a_model_come_from_engines_where_one_serves_it() -> Result<()> {
    let mock = MockBackend::start(&["demo", "other"]).await?;
    let serving = serving_with([backend("elsewhere", &mock)?], |config| {
        config.local.models = vec![ModelConfig::new("demo", ModelSource::Embedded)];
        config.local.executors = vec![ExecutorConfig::new("demo")];
    });
    let serving = serving.await?;
    let client = serving.client;
    executors_until(client, |list| {
        named(list, "elsewhere")["models"] == json!(["demo", "other"])
    })
    .await?;
    let body = |model: &str| json!({"model": model, "input": "text"});
    for _ in 0..5 {
        let answer = client.post("/v1/embeddings", &body("demo")).await?;
        ensure!(answer.status == 200, "{:?}", answer.json());
        ensure!(answer.header("x-pointsman-executor") == "cpu0/demo");
    }
    ensure!(mock.seen("/v1/embeddings").is_empty());
    let other = client.post("/v1/embeddings", &body("other")).await?;
    ensure!(other.header("x-pointsman-executor") == "elsewhere");
    // Whoever names the server gets its numbers.
    let mut named_there = body("demo");
    named_there["pointsman"] = json!({"executors": ["elsewhere"]});
    let answer = client.post("/v1/embeddings", &named_there).await?;
    ensure!(answer.header("x-pointsman-executor") == "elsewhere");
    ensure!(mock.seen("/v1/embeddings").len() == 2);
    over(serving).await
}

#[tokio::test]
async fn operators_add_and_remove_servers_while_requests_run() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let mock = MockBackend::start(&["demo", "other"]).await?;
    let order = json!({"url": mock.url(), "executor": "added", "slots": 5, "group": 3,
        "poll-ms": 50, "software": "openai", "key": "theirs"});
    let answer = client.post("/admin/executors", &order).await?;
    ensure!(answer.status == 201, "{:?}", answer.json());
    let list = executors_until(client, |list| {
        named(list, "added")["models"] == json!(["demo", "other"])
    });
    let list = list.await?;
    let added = named(&list, "added");
    ensure!(added["slots_total"] == 5 && added["group"] == 3, "{added}");
    let mut body = chat("hello");
    body["model"] = json!("other");
    let answer = client.post("/v1/chat/completions", &body).await?;
    ensure!(answer.header("x-pointsman-executor") == "added");
    let seen = mock.seen("/v1/chat/completions");
    ensure!(seen[0].headers["authorization"] == "Bearer theirs");
    // The same name again, and what cannot be used.
    ensure!(client.post("/admin/executors", &order).await?.status == 409);
    for (field, value) in [
        ("url", json!("gpu1")),
        ("software", json!("vlm")),
        ("poll-ms", json!(1)),
        ("device", json!("cpu0")),
        ("unknown", json!(1)),
    ] {
        let mut order = order.clone();
        order[field] = value;
        let answer = client.post("/admin/executors", &order).await?;
        ensure!(answer.status == 400, "{field}: {:?}", answer.json());
        let param = answer.json()?["error"]["param"].clone();
        ensure!(param == field, "{field}: {param}");
    }
    // What runs there runs on, and nothing new goes there.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let stream = begun(client, &mock, &streamed).await?;
    ensure!(client.delete("/admin/executors/added").await?.status == 202);
    ensure!(client.post("/v1/chat/completions", &body).await?.status == 404);
    mock.allow(1);
    let rest = stream.finish().await?;
    ensure!(rest.done && rest.error.is_none(), "{rest:?}");
    executors_until(client, |list| named(list, "added").is_null()).await?;
    // It may come again by the same name.
    ensure!(client.post("/admin/executors", &order).await?.status == 201);
    over(serving).await
}
