//! Spans and metrics of a running server, as a collector gets them over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{BackendConfig, Config};
use pointsman_driver::clock;
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::exposition::{Sample, samples, total};
use pointsman_tests::log::Log;
use pointsman_tests::otlp::{ExportedSpan, MockCollector, attributes};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Kinds of spans.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
/// A millisecond, in ns.
const MS_NS: u64 = 1_000_000;
/// The code of a status of a span that failed.
const FAILED: u64 = 2;

/// A server whose models are those of these servers.
async fn before(
    mocks: &[&MockBackend],
    tune: impl FnOnce(&mut Config) -> Result<()>,
) -> Result<Serving> {
    let mut backends = Vec::new();
    for mock in mocks {
        backends.push(BackendConfig::new(mock.url().parse()?));
    }
    let mut tuned = Ok(());
    let serving = Serving::start(|config| {
        config.local.models = Vec::new();
        config.local.executors = Vec::new();
        config.ready_executors = u32::try_from(backends.len()).unwrap_or(u32::MAX);
        config.backends = backends;
        tuned = tune(config);
    });
    let serving = serving.await?;
    tuned.map(|()| serving)
}

/// A server with the demo model.
async fn demo(tune: impl FnOnce(&mut Config) -> Result<()>) -> Result<Serving> {
    let mut tuned = Ok(());
    let serving = Serving::start(|config| tuned = tune(config)).await?;
    tuned.map(|()| serving)
}

async fn ask(client: Client, headers: &[(&'static str, &str)], body: &Value) -> Result<Value> {
    let answer = client.raw(CHAT, headers, body.to_string()).await?;
    ensure!(answer.status == 200, "{:?}", answer.json());
    answer.json()
}

/// The span of the only request.
fn root(spans: &[ExportedSpan]) -> Result<&ExportedSpan> {
    let mut roots = spans.iter().filter(|span| span.kind == SERVER);
    let root = roots.next().context("no request")?;
    ensure!(roots.next().is_none(), "{spans:#?}");
    Ok(root)
}

/// The spans below a request's own that are placements, in their order.
fn placements<'a>(spans: &'a [ExportedSpan], root: &ExportedSpan) -> Vec<&'a ExportedSpan> {
    let below = spans.iter().filter(|span| span.parent == root.id);
    below.filter(|span| span.name != "queue").collect()
}

/// The newest `traceparent` that a server got with a chat.
fn told(mock: &MockBackend) -> Result<String> {
    let seen = mock.seen(CHAT);
    let headers = &seen.last().context("nothing arrived")?.headers;
    Ok(headers.get("traceparent").cloned().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_a_span_of_its_clients_trace_with_its_wait_and_its_place() -> Result<()> {
    let collector = MockCollector::start().await?;
    let serving = demo(|config| collector.told_by(config)).await?;
    let mut body = chat("Hello");
    body["max_tokens"] = json!(5);
    body["ignore_eos"] = json!(true);
    let headers = [("traceparent", PARENT), ("tracestate", "a=1")];
    let answer = ask(serving.client, &headers, &body).await?;
    let spans = collector.requests(1).await?;
    let root = root(&spans)?;
    ensure!(root.trace == TRACE && root.parent == "00f067aa0ba902b7");
    ensure!(root.name == "chat demo" && root.json["traceState"] == "a=1");
    // Sampled, and the parent is elsewhere.
    ensure!(root.json["flags"] == 0x301, "{}", root.json);
    ensure!(root.json["status"] == json!({}), "{}", root.json);
    ensure!(root.events() == ["pointsman.first_token"]);
    let usage = &answer["usage"];
    let id = answer["id"].as_str().context("no id")?;
    let ticket = u64::from_str_radix(&id[id.len() - 8..], 16)?;
    for (key, value) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("pointsman")),
        ("gen_ai.request.model", json!("demo")),
        ("gen_ai.response.model", json!("demo")),
        (
            "gen_ai.response.finish_reasons",
            json!([{"stringValue": "length"}]),
        ),
        ("gen_ai.usage.input_tokens", usage["prompt_tokens"].clone()),
        ("gen_ai.usage.output_tokens", json!(5)),
        ("server.address", json!("127.0.0.1")),
        ("server.port", json!(serving.server.addr().port())),
        ("pointsman.request", json!(ticket)),
        ("pointsman.tenant", json!("default")),
        ("pointsman.executor", json!("cpu0/demo")),
        ("pointsman.policy", json!("memory-aware")),
        ("pointsman.attempts", json!(1)),
        ("pointsman.outcome", json!("finished")),
    ] {
        ensure!(root.attributes.get(key) == Some(&value), "{key}: {root:#?}");
    }
    ensure!(!root.attributes.contains_key("error.type"));
    let (begin, end) = root.times()?;
    let first = &root.attributes["gen_ai.response.time_to_first_chunk"];
    let first = Duration::from_secs_f64(first.as_f64().context("no time")?);
    ensure!(first <= Duration::from_nanos(end - begin));

    let waits: Vec<_> = spans.iter().filter(|span| span.name == "queue").collect();
    let places = placements(&spans, root);
    let ([wait], [place]) = (&*waits, &*places) else {
        anyhow::bail!("{spans:#?}");
    };
    ensure!(wait.kind == INTERNAL && place.kind == INTERNAL && wait.parent == root.id);
    ensure!(wait.times()?.0 == begin && wait.times()?.1 == place.times()?.0);
    ensure!(place.trace == TRACE && place.name == "chat demo" && place.times()?.1 <= end);
    ensure!(place.attributes["pointsman.placement.end"] == "served");
    ensure!(place.attributes["pointsman.placement.output_tokens"] == 5);
    ensure!(place.events() == ["pointsman.started"], "{place:#?}");
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_is_told_the_span_of_its_placement_and_a_failed_one_says_why() -> Result<()> {
    let collector = MockCollector::start().await?;
    let mocks = [
        MockBackend::start(&["demo"]).await?,
        MockBackend::start(&["demo"]).await?,
    ];
    // Whichever is asked first.
    mocks[0].does(Conduct::Status(500, &[]));
    let serving = before(&[&mocks[0], &mocks[1]], |config| collector.told_by(config)).await?;
    let headers = [("traceparent", PARENT), ("tracestate", "a=1,b=2")];
    let mut count = 0;
    while mocks[0].seen(CHAT).is_empty() {
        // A session of its own each time, so that none goes where another went.
        let mut body = chat(&format!("Hello {count}"));
        body["pointsman"] = json!({"session": format!("{count}")});
        ask(serving.client, &headers, &body).await?;
        count += 1;
        ensure!(count < 100, "the first server is never asked");
    }
    let spans = collector.requests(count).await?;
    let failed_over = spans.iter().find(|span| {
        let attempts = span.attributes.get("pointsman.attempts");
        span.kind == SERVER && attempts == Some(&json!(2))
    });
    let root = failed_over.context("no second attempt")?;
    let places = placements(&spans, root);
    let [failed, served] = &*places else {
        anyhow::bail!("{places:#?}");
    };
    for (place, mock) in [(failed, &mocks[0]), (served, &mocks[1])] {
        ensure!(place.kind == CLIENT && place.name == "chat demo");
        ensure!(
            told(mock)? == format!("00-{TRACE}-{}-01", place.id),
            "{place:#?}"
        );
        let seen = mock.seen(CHAT);
        let state = seen.last().and_then(|seen| seen.headers.get("tracestate"));
        ensure!(state.is_some_and(|state| state == "a=1,b=2"));
        ensure!(place.attributes["server.address"] == "127.0.0.1");
        ensure!(place.attributes["server.port"] == mock.addr().port());
        ensure!(place.attributes["pointsman.executor"] == mock.addr().to_string());
    }
    ensure!(failed.attributes["error.type"] == "failed");
    ensure!(failed.json["status"]["code"] == FAILED);
    let why = failed.json["status"]["message"].as_str();
    ensure!(why.is_some_and(|why| why.contains("500")), "{why:?}");
    ensure!(served.attributes["pointsman.placement.end"] == "served");
    for span in [root, served] {
        ensure!(
            span.attributes["gen_ai.response.id"] == "mock-1",
            "{span:#?}"
        );
        let reasons = &span.attributes["gen_ai.response.finish_reasons"];
        ensure!(*reasons == json!([{"stringValue": "stop"}]), "{span:#?}");
    }
    // The client was served.
    ensure!(root.json["status"] == json!({}) && root.attributes["pointsman.outcome"] == "finished");
    // What the server told, and not what its bytes look like.
    ensure!(
        root.attributes["gen_ai.usage.input_tokens"] == 5,
        "{root:#?}"
    );
    ensure!(root.attributes["gen_ai.usage.cache_read.input_tokens"] == 4);
    ensure!(root.attributes["gen_ai.usage.output_tokens"] == 3);
    let waits = spans
        .iter()
        .filter(|it| it.name == "queue" && it.parent == root.id);
    ensure!(waits.count() == 2);
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_chooses_whether_its_trace_is_recorded() -> Result<()> {
    let collector = MockCollector::start().await?;
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = before(&[&mock], |config| collector.told_by(config)).await?;
    let (client, hello) = (serving.client, chat("Hello"));
    // Not recorded: the headers go on as they came.
    ask(client, &[("traceparent", UNSAMPLED)], &hello).await?;
    ensure!(told(&mock)? == UNSAMPLED, "{}", told(&mock)?);
    // A malformed one is none: the trace begins here, and its state is nobody's.
    let malformed = [("traceparent", "00-xyz-1-01"), ("tracestate", "a=1")];
    ask(client, &malformed, &hello).await?;
    let begun = told(&mock)?;
    let seen = mock.seen(CHAT);
    let last = seen.last().context("nothing arrived")?;
    ensure!(!last.headers.contains_key("tracestate"));
    let spans = collector.requests(1).await?;
    let root = root(&spans)?;
    ensure!(
        root.parent.is_empty() && root.json["flags"] == 0x103,
        "{root:#?}"
    );
    let place = placements(&spans, root)[0];
    ensure!(
        begun == format!("00-{}-{}-03", root.trace, place.id),
        "{begun}"
    );
    serving.server.stop().await?;
    ensure!(collector.requests(1).await?.len() == spans.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_requests_without_a_trace_a_share_is_recorded() -> Result<()> {
    let collector = MockCollector::start().await?;
    let mock = MockBackend::start(&["demo"]).await?;
    let mocks = [&mock];
    let serving = before(&mocks, |config| {
        let mut settings = collector.settings()?;
        settings.sample_ratio = 0.0;
        config.telemetry = Some(settings);
        Ok(())
    });
    let serving = serving.await?;
    ask(serving.client, &[], &chat("Hello")).await?;
    // The server elsewhere is told that the trace is not recorded.
    let first = told(&mock)?;
    ensure!(
        first.len() == PARENT.len() && first.ends_with("-02"),
        "{first}"
    );
    ask(serving.client, &[("traceparent", PARENT)], &chat("Hello")).await?;
    let spans = collector.requests(1).await?;
    ensure!(root(&spans)?.trace == TRACE);
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_collector_the_clients_headers_go_through_unchanged() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = before(&[&mock], |_| Ok(())).await?;
    for parent in [PARENT, UNSAMPLED, "00-xyz-1-01"] {
        let headers = [("traceparent", parent), ("tracestate", "a=1, b=2")];
        ask(serving.client, &headers, &chat("Hello")).await?;
        ensure!(told(&mock)? == parent);
        let seen = mock.seen(CHAT);
        let last = seen.last().context("nothing arrived")?;
        ensure!(
            last.headers
                .get("tracestate")
                .is_some_and(|it| it == "a=1, b=2")
        );
    }
    ask(serving.client, &[], &chat("Hello")).await?;
    ensure!(told(&mock)?.is_empty());
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_not_served_says_how_it_ended() -> Result<()> {
    let collector = MockCollector::start().await?;
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = before(&[&mock], |config| collector.told_by(config)).await?;
    // Nobody else could serve it.
    mock.does(Conduct::Status(500, &[]));
    let answer = serving.client.raw(CHAT, &[], chat("Hello").to_string());
    ensure!(answer.await?.status == 502);
    let spans = collector.requests(1).await?;
    let failed = root(&spans)?;
    ensure!(
        failed.attributes["error.type"] == "nowhere-left",
        "{failed:#?}"
    );
    ensure!(failed.attributes["pointsman.outcome"] == "failed");
    ensure!(failed.json["status"] == json!({"code": 2, "message": "nowhere-left"}));
    // A client that leaves is nobody's error.
    mock.does(Conduct::Steps(50));
    mock.allow(2);
    let mut stream = serving.client.stream(&streamed_chat("Hello")).await?;
    stream.first_text().await?;
    drop(stream);
    let spans = collector.requests(2).await?;
    let left = spans.iter().rfind(|span| span.kind == SERVER);
    let left = left.context("no request")?;
    ensure!(left.attributes["error.type"] == "cancelled", "{left:#?}");
    ensure!(left.json["status"] == json!({}));
    let places = placements(&spans, left);
    ensure!(places[0].attributes["pointsman.placement.end"] == "cut-off");
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_refused_at_the_door_is_a_span_of_its_clients_trace() -> Result<()> {
    let collector = MockCollector::start().await?;
    let serving = demo(|config| collector.told_by(config)).await?;
    let client = serving.client;
    let headers = [("traceparent", PARENT)];
    let cases = [
        (CHAT, "{", 400, "chat", "invalid_body"),
        (
            CHAT,
            r#"{"model": "nobody", "messages": []}"#,
            404,
            "chat",
            "model_not_found",
        ),
        (
            "/v1/embeddings",
            r#"{"model": "demo"}"#,
            400,
            "embeddings",
            "missing_required_parameter",
        ),
    ];
    for (at, (path, body, status, operation, code)) in cases.into_iter().enumerate() {
        let answer = client.raw(path, &headers, body.to_owned()).await?;
        ensure!(answer.status == status && answer.json()?["error"]["code"] == code);
        let spans = collector.requests(at + 1).await?;
        let span = spans.last().context("no span")?;
        ensure!(
            spans.len() == at + 1 && span.name == operation,
            "{spans:#?}"
        );
        ensure!(span.kind == SERVER && span.trace == TRACE && span.parent == "00f067aa0ba902b7");
        ensure!(span.json["status"] == json!({"code": FAILED, "message": code}));
        let (begin, end) = span.times()?;
        let now = clock::unix_millis();
        ensure!(begin <= end && end / MS_NS <= now && now - begin / MS_NS < 60_000);
        let told: Vec<&str> = span.attributes.keys().map(|key| &**key).collect();
        let expected = [
            "error.type",
            "gen_ai.operation.name",
            "gen_ai.provider.name",
            "http.response.status_code",
            "pointsman.outcome",
            "server.address",
            "server.port",
        ];
        ensure!(told == expected, "{told:?}");
        ensure!(span.attributes["error.type"] == code);
        ensure!(span.attributes["http.response.status_code"] == status);
        ensure!(span.attributes["pointsman.outcome"] == "refused");
    }
    // Neither one whose client does not want it recorded, nor a question of an operator.
    let unwanted = client.raw(CHAT, &[("traceparent", UNSAMPLED)], "{".to_owned());
    ensure!(unwanted.await?.status == 400);
    let operators = client.raw("/admin/route", &headers, "{".to_owned());
    ensure!(operators.await?.status == 400);
    serving.server.stop().await?;
    ensure!(collector.spans()?.len() == cases.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_dead_slow_or_confused_costs_clients_nothing() -> Result<()> {
    let log = Log::begin("warn")?;
    let dead = MockCollector::start().await?;
    let gone = dead.settings()?;
    drop(dead);
    let slow = MockCollector::start().await?;
    slow.server.does(Conduct::BytesThenNothing(Vec::new()));
    let confused = MockCollector::start().await?;
    confused
        .server
        .does(Conduct::Bytes(b"no HTTP\r\n\r\n".to_vec()));
    let unwilling = MockCollector::start().await?;
    unwilling.server.does(Conduct::Status(400, &[]));
    for (settings, fate) in [
        (gone, None),
        (slow.settings()?, None),
        (confused.settings()?, None),
        (unwilling.settings()?, Some("refused")),
    ] {
        let serving = demo(|config| {
            config.telemetry = Some(settings.clone());
            Ok(())
        });
        let serving = serving.await?;
        let mut body = chat("Hello");
        body["max_tokens"] = json!(2);
        for _ in 0..8 {
            ask(serving.client, &[], &body).await?;
        }
        serving.idle().await?;
        if let Some(fate) = fate {
            let labels = [("outcome", fate)];
            while total(
                &samples(serving.client).await?,
                "pointsman_traced_requests_total",
                &labels,
            ) < 8.0
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        // The end does not wait for the collector for long, however long its answers take.
        tokio::time::timeout(Duration::from_secs(30), serving.server.stop()).await??;
    }
    let text = log.text();
    let said = text
        .matches("the collector does not take what it is sent")
        .count();
    // Once for spans and once for metrics, of each collector but the slow one.
    ensure!((2..=8).contains(&said), "{said}: {text}");
    Ok(())
}

/// Checks that counters have the same points in both.
fn check_counters(exported: &BTreeMap<String, Value>, shown: &[Sample]) -> Result<()> {
    for (name, label) in [
        ("pointsman_requests_total", "model"),
        ("pointsman_output_tokens_total", "executor"),
        ("pointsman_requests_placed_total", "policy"),
    ] {
        let sum = &exported[name]["sum"];
        ensure!(sum["isMonotonic"] == true && sum["aggregationTemporality"] == 2);
        let points = sum["dataPoints"].as_array().context("no points")?;
        ensure!(!points.is_empty());
        for point in points {
            let labels = attributes(&point["attributes"])?;
            ensure!(labels.contains_key(label), "{labels:?}");
            let labels = labels.iter();
            let labels: Vec<(&str, &str)> = labels
                .map(|(name, value)| (&**name, value.as_str().unwrap_or_default()))
                .collect();
            let value = point["asDouble"].as_f64().context("no value")?;
            ensure!(
                value == total(shown, name, &labels),
                "{name} {labels:?} {value}"
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_tell_the_numbers_of_the_exposition_under_the_same_names() -> Result<()> {
    let collector = MockCollector::start().await?;
    let serving = demo(|config| collector.told_by(config)).await?;
    let client = serving.client;
    // All tokens of a stream may come in one piece, with no time between two of them.
    let between = |shown: &[Sample]| {
        let name = "pointsman_inter_token_latency_seconds_count";
        total(shown, name, &[])
    };
    while between(&samples(client).await?) == 0.0 {
        let stream = client.stream(&streamed_chat("Hello")).await?;
        stream.finish().await?;
    }
    for _ in 0..3 {
        ask(client, &[], &chat("Hello")).await?;
    }
    serving.idle().await?;
    collector.requests(4).await?;
    // What counts the exports themselves is there, too.
    let exports = |shown: &[Sample]| total(shown, "pointsman_metric_exports_total", &[]);
    let mut shown = samples(client).await?;
    while exports(&shown) == 0.0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        shown = samples(client).await?;
    }
    serving.server.stop().await?;
    let exported = collector.metrics()?;
    check_counters(&exported, &shown)?;
    for (own, conventional) in [
        (
            "pointsman_request_duration_seconds",
            "gen_ai.server.request.duration",
        ),
        (
            "pointsman_time_to_first_token_seconds",
            "gen_ai.server.time_to_first_token",
        ),
        (
            "pointsman_inter_token_latency_seconds",
            "gen_ai.server.time_per_output_token",
        ),
    ] {
        let count = total(&shown, &format!("{own}_count"), &[]);
        for name in [own, conventional] {
            let point = &exported[name]["histogram"]["dataPoints"][0];
            let told: f64 = point["count"].as_str().context("no count")?.parse()?;
            ensure!(told == count && told > 0.0, "{name}: {told} and {count}");
            ensure!(exported[name]["unit"] == "s");
            let list = |field: &str| point[field].as_array().map_or(0, Vec::len);
            ensure!(
                list("bucketCounts") == list("explicitBounds") + 1,
                "{point}"
            );
        }
    }
    let shown: BTreeSet<&str> = shown.iter().map(|sample| &*sample.name).collect();
    for name in exported.keys().filter(|name| !name.starts_with("gen_ai.")) {
        let is_shown = |ending: &str| shown.contains(&*format!("{name}{ending}"));
        ensure!(["", "_count"].into_iter().any(is_shown), "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_goes_out_when_the_host_ends() -> Result<()> {
    let collector = MockCollector::start().await?;
    let serving = demo(|config| {
        let mut settings = collector.settings()?;
        settings.spans_every = Duration::from_secs(3600);
        settings.metrics_every = Duration::from_secs(3600);
        settings.service_name = "left".to_owned();
        settings.headers.insert("x-key", "secret".parse()?);
        config.telemetry = Some(settings);
        Ok(())
    });
    let serving = serving.await?;
    for _ in 0..3 {
        ask(serving.client, &[], &chat("Hello")).await?;
    }
    ensure!(collector.spans()?.is_empty());
    serving.server.stop().await?;
    ensure!(collector.requests(3).await?.len() == 9);
    let requests = &collector.metrics()?["pointsman_requests_total"];
    ensure!(
        requests["sum"]["dataPoints"][0]["asDouble"] == 3.0,
        "{requests}"
    );
    for message in ["/v1/traces", "/v1/metrics"].map(|path| collector.messages(path)) {
        let [message] = &*message else {
            anyhow::bail!("{} messages", message.len());
        };
        let header = |name: &str| message.headers.get(name).map(String::as_str);
        ensure!(header("content-type") == Some("application/json"));
        ensure!(header("x-key") == Some("secret"));
        ensure!(header("user-agent").is_some_and(|it| it.starts_with("pointsman/")));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_name_that_goes_out_is_documented() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/docs/telemetry.md");
    let document = std::fs::read_to_string(path)?;
    let names = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/telemetry/src/names.rs");
    let names = std::fs::read_to_string(names)?;
    let mut known = 0;
    for name in names
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|it| it.contains('.'))
    {
        ensure!(document.contains(&format!("`{name}`")), "{name}");
        known += 1;
    }
    ensure!(known >= 30, "{known}");
    Ok(())
}
