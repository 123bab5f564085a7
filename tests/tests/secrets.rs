//! No key, prompt or answer is in any log, metric, dump, journal or view of operators.
//!
//! Everything secret that a server is given here contains [`MARK`]: keys, prompts, names of sessions, and what
//! programs send beside them, in requests that are served, refused and malformed. Afterwards everything
//! that the server wrote or showed is searched for it, and for words of the answers.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{ApiKey, BackendConfig, Config, JournalPlace, Rights, TelemetrySettings};
use pointsman_executor::prompt::PromptEncoder as _;
use pointsman_executor::server::ServerKey;
use pointsman_lifecycle::report::TransactionOutcome;
use pointsman_model::files::ModelFiles;
use pointsman_notation::Secret;
use pointsman_policy_cli::journal::{self, ExportArgs, JournalCommand};
use pointsman_tests::backend::{Conduct, MockBackend, Seen, coded, head, stream_head};
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::log::Log;
use pointsman_tests::otlp::MockCollector;
use pointsman_tests::serving::{Serving, component};
use pointsman_text::ModelText;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A part of everything secret.
const MARK: &str = "zqx7";
const KEY: &str = "zqx7-api-key";
const ADMIN_KEY: &str = "zqx7-admin-key";
const BACKEND_KEY: &str = "zqx7-backend-key";
/// A prompt whose tokens are looked for too.
const PROMPT: &str = "Tell zqx7-orchid-lantern a story.";

const CHAT: &str = "/v1/chat/completions";
const TEXTS: &str = "/v1/completions";

/// The servers beside the server: one that requests are passed on to, and a collector.
type Beside = (BackendConfig, TelemetrySettings);

/// Something that the server has written or shown, with its place.
struct Written {
    place: String,
    bytes: Vec<u8>,
}

fn tune(config: &mut Config, folder: &Path, (backend, telemetry): Beside) {
    config.backends = vec![backend];
    config.telemetry = Some(telemetry);
    config.keys = vec![ApiKey {
        sha256: Sha256::digest(KEY).into(),
        rights: Rights::of_tenant("default"),
    }];
    config.admin.key = Some(Secret::new(ADMIN_KEY.to_owned()));
    config.state_folder = Some(folder.join("state"));
    config.journal.place = JournalPlace::Folder(folder.join("journal"));
    config.hints.label_keys = vec!["team".to_owned()];
    config.patience.snapshot_every = 8;
}

// === Requests ===

/// The answers to requests that were served.
struct Answers {
    whole: Vec<String>,
    /// The pieces of one of them.
    pieces: Vec<String>,
}

/// Sends requests that are served.
async fn be_served(client: Client) -> Result<Answers> {
    let mut full = streamed_chat(PROMPT);
    full["messages"] = json!([
        {"role": "system", "content": "You are zqx7-system.", "name": "zqx7-name"},
        {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
        {"role": "assistant", "content": "Well, zqx7-earlier answer.", "tool_calls": [], "refusal": null},
        {"role": "user", "content": "Go on, zqx7-user."},
    ]);
    full["max_tokens"] = json!(60);
    full["ignore_eos"] = json!(true);
    full["stop"] = json!(["zqx7-stop"]);
    full["user"] = json!("zqx7-user-id");
    full["metadata"] = json!({"zqx7-key": "zqx7-value"});
    full["prompt_cache_key"] = json!("zqx7-cache-key");
    full["pointsman"] = json!({"session": "zqx7-session"});
    full["zqx7_unknown"] = json!({"zqx7-field": ["zqx7-item"]});
    let (mut stream, mut pieces) = (client.stream(&full).await?, Vec::new());
    while let Some(event) = stream.event().await?.filter(|event| event != "[DONE]") {
        let event: Value = serde_json::from_str(&event)?;
        let piece = event["choices"][0]["delta"]["content"].as_str();
        pieces.extend(piece.filter(|piece| !piece.is_empty()).map(str::to_owned));
    }
    let text = json!({
        "model": "demo", "prompt": "Once zqx7-text upon a time", "max_tokens": 40, "temperature": 0,
        "ignore_eos": true,
    });
    let completed = client.post(TEXTS, &text).await?.json()?;
    let completed = completed["choices"][0]["text"]
        .as_str()
        .context("no text")?;
    let whole = vec![
        client.chat(PROMPT).await?.text()?,
        pieces.concat(),
        completed.to_owned(),
    ];
    Ok(Answers { whole, pieces })
}

/// The server elsewhere, which asks for a key.
fn backend(elsewhere: &MockBackend) -> Result<BackendConfig> {
    let mut backend = BackendConfig::new(elsewhere.url().parse()?);
    backend.server.key = Some(ServerKey::new(BACKEND_KEY.to_owned()));
    Ok(backend)
}

/// Adds an executor whose server is sent secrets with each request, and has it serve one. Returns its path.
async fn be_added(operator: Client, elsewhere: &MockBackend) -> Result<&'static str> {
    let order = json!({
        "url": elsewhere.url(), "executor": "added", "key": "zqx7-added-key",
        "headers": ["x-zqx7-added: zqx7-header"], "poll-ms": 50,
    });
    let misspelt = json!({
        "url": elsewhere.url(), "kee": "zqx7-added-key", "header": ["x-zqx7-added: zqx7-header"],
    });
    let refused = operator.post("/admin/executors", &misspelt).await?;
    ensure!(refused.status == 400, "{:?}", refused.json());
    let added = operator.post("/admin/executors", &order).await?;
    ensure!(added.status == 201, "{:?}", added.json());
    let path = "/admin/executors/added";
    while operator.get(path).await?.json()?["models"] != json!(["elsewhere"]) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    elsewhere.does(Conduct::Answers(3));
    let mut body = chat(PROMPT);
    body["model"] = json!("elsewhere");
    body["pointsman"] = json!({"executors": ["added"]});
    let client = operator.with_key(KEY).for_others();
    let served = client.post(CHAT, &body).await?;
    ensure!(served.status == 200, "{:?}", served.json());
    for asked in ["/v1/models", CHAT] {
        let is_sent = |seen: &Seen| {
            let key = seen.headers.get("authorization");
            seen.headers.contains_key("x-zqx7-added")
                && key.is_some_and(|key| key.ends_with("zqx7-added-key"))
        };
        ensure!(elsewhere.seen(asked).iter().any(is_sent), "{asked}");
    }
    Ok(path)
}

/// Sends requests that a server elsewhere answers, turns back, fails, and breaks off.
async fn be_passed_on(client: Client, elsewhere: &MockBackend) -> Result<()> {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"zqx7-answer\"}}]}\n\n";
    let broken = format!("{}{}", stream_head(), coded(event));
    let whole = "{\"zqx7-answer\": 1}";
    let whole = head(200, &[("zqx7-header", "1")], whole.len()) + whole;
    let body = json!({"model": "elsewhere", "tools": ["zqx7-tool"], "stream": true,
        "messages": [{"role": "user", "content": PROMPT}], "zqx7-field": "zqx7-value"});
    for conduct in [
        Conduct::Answers(3),
        Conduct::Bytes(whole.into_bytes()),
        Conduct::Bytes(broken.into_bytes()),
        Conduct::Bytes(b"zqx7 is no HTTP\r\n\r\n".to_vec()),
        Conduct::Status(500, &[("zqx7-header", "1")]),
        Conduct::Status(422, &[]),
    ] {
        elsewhere.does(conduct);
        let key = format!("Bearer {KEY}");
        let headers = [("authorization", &*key), ("x-zqx7", "zqx7-header")];
        client.raw(CHAT, &headers, body.to_string()).await?;
    }
    // A path that nobody knows is asked there, too.
    elsewhere.does(Conduct::Status(404, &[]));
    let seen = elsewhere.seen(CHAT);
    let key = seen
        .last()
        .and_then(|seen| seen.headers.get("authorization"));
    ensure!(key.is_some_and(|key| key.ends_with(BACKEND_KEY)), "{key:?}");
    Ok(())
}

/// The bytes of a request with these header lines.
fn request(path: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Fields of a chat that are wrong, each alone.
fn wrong_fields() -> Vec<(&'static str, Value)> {
    let image = json!({"type": "image_url", "image_url": {"url": "zqx7-url"}});
    let tool = json!({"type": "function", "function": {"name": "zqx7-tool"}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "zqx7-schema"}});
    vec![
        (
            "messages",
            json!([{"role": "zqx7-role", "content": PROMPT}]),
        ),
        ("messages", json!([{"role": "user", "content": [image]}])),
        (
            "messages",
            json!([{"role": "user", "content": "zqx7 ".repeat(3000)}]),
        ),
        ("tools", json!([tool])),
        ("response_format", format),
        ("temperature", json!("zqx7-temperature")),
        ("stop", json!([""])),
        ("max_tokens", json!(1_000_000)),
        ("pointsman", json!({"session": ""})),
        ("pointsman", json!({"zqx7-hint": 1})),
        ("pointsman", json!({"executors": ["zqx7-executor"]})),
        ("pointsman", json!({"labels": {"zqx7-label": "zqx7"}})),
    ]
}

/// Requests that are refused, each with its status.
fn refused() -> Vec<(String, u16)> {
    let good = chat(PROMPT);
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body.to_string()
    };
    let keyed = format!("authorization: Bearer {KEY}\r\n");
    let by_key = [
        "authorization: Bearer zqx7-guess\r\n",
        "authorization: Basic zqx7-basic\r\n",
    ];
    let by_key = by_key.map(|lines| (request(CHAT, lines, &good.to_string()), 401));
    let malformed = [
        "{\"model\": \"demo\", \"messages\": [{zqx7-malformed",
        "zqx7 is no JSON",
        "{\"model\": \"demo\", \"prompt\": {\"zqx7\": 1}}",
    ];
    let malformed = malformed.map(|body| (request(TEXTS, &keyed, body), 400));
    let by_field = wrong_fields().into_iter();
    let by_field = by_field.map(|(field, value)| (request(CHAT, &keyed, &with(field, value)), 400));
    let by_header = ["x-pointsman-priority: zqx7", "x-pointsman-zqx7: 1"];
    let by_header = by_header.map(|line| {
        let lines = format!("{keyed}{line}\r\n");
        (request(CHAT, &lines, &good.to_string()), 400)
    });
    let admin_guess = "authorization: Bearer zqx7-admin-guess\r\n";
    let others = [
        (request("/v1/zqx7-path?key=zqx7-query", &keyed, "zqx7"), 404),
        (request("/admin/bind", admin_guess, "{}"), 401),
        (
            request(CHAT, &keyed, &with("model", json!("zqx7-model"))),
            404,
        ),
        ("zqx7 garbage\r\n\r\n".to_owned(), 400),
        (
            "GET /ready HTTP/1.1\r\nhost: x\r\nzqx7\0: 1\r\n\r\n".to_owned(),
            400,
        ),
    ];
    let few = by_key.into_iter().chain(malformed).chain(by_header);
    few.chain(others).chain(by_field).collect()
}

/// Sends requests that are refused, and one whose session is in a header.
async fn be_refused(addr: SocketAddr) -> Result<()> {
    let session = format!("authorization: Bearer {KEY}\r\nx-pointsman-session: zqx7-header\r\n");
    let taken = (request(CHAT, &session, &chat(PROMPT).to_string()), 200);
    for (bytes, status) in refused().into_iter().chain([taken]) {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(bytes.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        let is_expected = answer.starts_with(&format!("HTTP/1.1 {status} "));
        ensure!(is_expected, "{bytes:.200} is answered with {answer:.300}");
    }
    Ok(())
}

/// Leaves in the middle of an answer.
async fn leave(client: Client) -> Result<()> {
    let mut body = streamed_chat(PROMPT);
    body["ignore_eos"] = json!(true);
    client.stream(&body).await?.first_text().await?;
    Ok(())
}

/// Has a policy fault while it is asked about marked requests, and waits for the dump.
async fn fault(serving: &Serving) -> Result<()> {
    let load = LoadGenerator::start(serving.client.with_key(KEY), 4, |_| {
        let mut body = streamed_chat(PROMPT);
        body["max_tokens"] = json!(4);
        body["pointsman"] = json!({"session": "zqx7-session", "labels": {"team": "a"}});
        body
    });
    let sidecar = "[settings]\noutrage = 'trap'\ncalls = ['route']\ngood-calls = 100\n";
    serving.drop_in("bad.toml", sidecar.as_bytes())?;
    serving.drop_in("bad.wasm", &component("test/hostile")?)?;
    let rolled_back = serving.report_until(|report| {
        let mut made = report.transactions.iter();
        made.any(|it| matches!(it.outcome, TransactionOutcome::RolledBack { .. }))
    });
    rolled_back.await?;
    let operator = serving.client.with_key(ADMIN_KEY);
    while operator.get("/admin/dumps").await?.json()?["dumps"] == json!([]) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    load.stop().await?;
    Ok(())
}

// === Search ===

/// The paths of everything that operators and others can look at.
async fn paths(operator: Client) -> Result<Vec<String>> {
    let document = operator.get("/openapi.json").await?.json()?;
    let document = document["paths"].as_object().context("no paths")?;
    let is_read = |path: &&String| document[&**path]["get"].is_object();
    let read: Vec<&String> = document.keys().filter(is_read).collect();
    let mut paths: Vec<String> = Vec::new();
    for path in read {
        let (list, items, id) = match &**path {
            "/admin/executors/{name}" => ("/admin/executors", "executors", "name"),
            "/admin/decisions/{id}" => ("/admin/decisions", "decisions", "request"),
            "/admin/dumps/{number}" => ("/admin/dumps", "dumps", "number"),
            "/v1/models/{name}" | "/v1/models" => continue,
            plain => {
                ensure!(!plain.contains('{'), "{plain} is not looked at here");
                paths.push(plain.to_owned());
                continue;
            }
        };
        let listed = operator.get(list).await?.json()?;
        let listed = listed[items].as_array().context("no list")?;
        ensure!(!listed.is_empty(), "{list} is empty");
        for item in listed {
            let text = item[id].as_str().map(|text| text.replace('/', "%2F"));
            let id = text.unwrap_or_else(|| item[id].to_string());
            paths.push(format!("{list}/{id}"));
        }
    }
    Ok(paths)
}

/// Everything that the server shows.
async fn shown(operator: Client) -> Result<Vec<Written>> {
    let mut shown = Vec::new();
    for path in paths(operator).await? {
        let answer = operator.get(&path).await?;
        ensure!(answer.status.is_success(), "{path}: {}", answer.status);
        shown.push(Written {
            place: path,
            bytes: answer.body,
        });
    }
    let answer = operator.post("/admin/route", &chat(PROMPT)).await?;
    ensure!(answer.status.is_success(), "{:?}", answer.json());
    shown.push(Written {
        place: "/admin/route".to_owned(),
        bytes: answer.body,
    });
    Ok(shown)
}

/// Everything in the files of a folder.
fn filed(folder: &Path) -> Result<Vec<Written>> {
    let mut written = Vec::new();
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path)?;
                let place = path.display().to_string();
                written.push(Written { place, bytes });
            }
        }
    }
    Ok(written)
}

/// The journal in the form in which people read it.
fn exported(folder: &Path) -> Result<Written> {
    let mut bytes = Vec::new();
    let args = ExportArgs {
        journal: folder.to_owned(),
    };
    journal::journal(&JournalCommand::Export(args), &mut bytes)?;
    Ok(Written {
        place: "the exported journal".to_owned(),
        bytes,
    })
}

/// The texts that are written nowhere: the mark, also as a list of bytes, the tokens of the prompt, and words
/// of the answers.
fn needles(answers: &[String]) -> Result<Vec<String>> {
    let bytes: Vec<String> = MARK.bytes().map(|byte| byte.to_string()).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo-model");
    let text = ModelText::load(&ModelFiles::Folder(folder))?;
    let tokens = text.encode(PROMPT, u32::MAX)?;
    // The first and the last may be others in a conversation.
    let tokens: Vec<String> = tokens[2..10].iter().map(u32::to_string).collect();
    let mut needles = vec![MARK.to_owned(), "7a717837".to_owned()];
    for list in [bytes, tokens] {
        needles.extend([list.join(","), list.join(", ")]);
    }
    for answer in answers {
        let words: Vec<&str> = answer.split(' ').collect();
        ensure!(words.len() > 8, "a short answer: {answer}");
        needles.extend(words.windows(4).step_by(2).map(|words| words.join(" ")));
    }
    Ok(needles)
}

/// The most bytes between two pieces of an answer that are logged one by one.
const GAP_BYTES_MAX: usize = 600;
/// So many pieces in their order are no chance.
const PIECES: usize = 6;

/// True if `text` has a row of an answer's pieces, each as a value of its own.
fn has_row(text: &str, pieces: &[String]) -> bool {
    let next = |piece: &String, from: usize| {
        let rest = &text[from..];
        let forms = [format!("{piece:?}"), format!("={piece}")];
        let found = forms
            .iter()
            .filter_map(|form| Some(rest.find(form)? + form.len()));
        found.min()
    };
    let follows = |mut at: usize, rest: &[String]| {
        rest.iter().all(|piece| {
            let found = next(piece, at).filter(|found| *found < GAP_BYTES_MAX);
            found.is_some_and(|found| {
                at += found;
                true
            })
        })
    };
    pieces.windows(PIECES).any(|row| {
        let mut at = 0;
        while let Some(found) = next(&row[0], at) {
            at += found;
            if follows(at, &row[1..]) {
                return true;
            }
        }
        false
    })
}

fn search(written: &[Written], needles: &[String]) -> Result<()> {
    for Written { place, bytes } in written {
        let text = String::from_utf8_lossy(bytes);
        for needle in needles {
            if let Some(at) = text.find(&**needle) {
                let before: String = text[..at].chars().rev().take(200).collect();
                let before: String = before.chars().rev().collect();
                anyhow::bail!("{place} has `{needle}` behind: {before}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_prompt_or_answer_is_written_anywhere() -> Result<()> {
    let log = Log::begin("trace")?;
    let folder = tempfile::tempdir()?;
    let elsewhere = MockBackend::start(&["elsewhere"]).await?;
    let backend = backend(&elsewhere)?;
    let collector = MockCollector::start().await?;
    let beside = (backend, collector.settings()?);
    let serving = Serving::start(|config| tune(config, folder.path(), beside)).await?;
    let client = serving.client.with_key(KEY);
    let answers = be_served(client).await?;
    be_passed_on(client, &elsewhere).await?;
    be_refused(serving.server.addr()).await?;
    let operator = serving.client.with_key(ADMIN_KEY);
    let added = be_added(operator, &elsewhere).await?;
    leave(client).await?;
    fault(&serving).await?;
    serving.idle().await?;
    let mut written = shown(operator).await?;
    // What is kept of it for the next start is a secret, and its owner's alone.
    ensure!(operator.delete(added).await?.status == 202);
    serving.server.stop().await?;
    written.extend(filed(folder.path())?);
    written.push(exported(&folder.path().join("journal"))?);
    ensure!(!collector.spans()?.is_empty() && !collector.metrics()?.is_empty());
    for path in ["/v1/traces", "/v1/metrics"] {
        let messages = collector.messages(path).into_iter();
        written.extend(messages.map(|message| Written {
            place: format!("the collector's {path}"),
            bytes: message.body,
        }));
    }
    let log = log.text();
    for said in [
        "DEBUG",
        "TRACE",
        "request placed",
        "response begins",
        "policy rolled back",
    ] {
        ensure!(log.contains(said), "the log is not whole: {said}");
    }
    ensure!(answers.pieces.len() > 2 * PIECES, "{:?}", answers.pieces);
    ensure!(
        !has_row(&log, &answers.pieces),
        "the log has pieces of an answer"
    );
    let place = "the log".to_owned();
    written.push(Written {
        place,
        bytes: log.into_bytes(),
    });
    let places: Vec<&str> = written.iter().map(|it| &*it.place).collect();
    for place in [
        "/metrics",
        "/monitor/data",
        "/admin/decisions/",
        "/admin/dumps/",
        "/dumps/",
    ] {
        ensure!(
            places.iter().any(|it| it.contains(place)),
            "{place}: {places:?}"
        );
    }
    search(&written, &needles(&answers.whole)?)
}
