//! The server of llama.cpp itself, with the demo model: one by one, and as a router of several models.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hyper::Method;
use pointsman_tests::client::{Answer, Client, chat, streamed_chat};
use pointsman_tests::extras::{ClientScript, extra, free_address};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::{backend_at, executors_until, named, over, serving};

/// Requests that one server takes at once.
const SLOTS: usize = 2;

/// A server of llama.cpp, which ends with this.
struct LlamaServer {
    process: Child,
    client: Client,
}

impl LlamaServer {
    /// A server with the demo model. It goes on beyond the context, so that an answer may be endless.
    async fn start(folder: &Path) -> Result<Self> {
        Self::start_demo(folder, &["--context-shift"]).await
    }

    async fn start_demo(folder: &Path, args: &[&str]) -> Result<Self> {
        let model = folder.join("demo.gguf");
        let model = model.to_str().context("the path is not UTF-8")?;
        let demo = ["--model", model, "--alias", "demo"];
        Self::start_with(folder, &[&demo, args].concat()).await
    }

    async fn start_with(folder: &Path, args: &[&str]) -> Result<Self> {
        let addr = free_address()?;
        let (port, slots) = (addr.port().to_string(), SLOTS.to_string());
        let process = Command::new(folder.join("llama-server"))
            .args(["--host", "127.0.0.1", "--port", &port, "--parallel", &slots])
            .args([
                "--ctx-size",
                "2048",
                "--threads",
                "1",
                "--metrics",
                "--offline",
            ])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let process = process.context("run `cargo xtask test --with llama-cpp`")?;
        let client = Client::new(addr);
        let server = Self { process, client };
        server.until("/health", |_| true).await?;
        Ok(server)
    }

    fn addr(&self) -> SocketAddr {
        self.client.addr()
    }

    /// The answer of the server at a path.
    async fn says(&self, path: &str) -> Result<Value> {
        let got = self.client.unchecked(Method::GET, path).await?;
        ensure!(got.status.is_success(), "{path}: {}", got.status);
        got.json()
    }

    /// Waits until what the server says at a path is as wanted.
    async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = None;
        for _ in 0..6000 {
            match self.says(path).await {
                Ok(said) if wanted(&said) => return Ok(said),
                said => last = Some(said),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("{path} stays {last:?}")
    }
}

/// A server with the demo model behind one of ours, which has found its slots.
async fn front_of(llama: &LlamaServer) -> Result<Serving> {
    let front = serving([backend_at("llama", llama.addr())?]).await?;
    executors_until(front.client, |list| {
        named(list, "llama")["slots_total"] == SLOTS
    })
    .await?;
    Ok(front)
}

/// A request that is answered without end.
fn endless() -> Value {
    let mut body = streamed_chat("Tell me a story about a fox and an owl.");
    body["ignore_eos"] = true.into();
    body["max_tokens"] = json!(1_000_000);
    body
}

/// Asks a question, in the form of a whole answer, whose text is the demo model's.
async fn asked(client: Client, model: &str) -> Result<Answer> {
    let mut body = chat("What comes after four?");
    body["model"] = model.into();
    let got = client
        .raw("/v1/chat/completions", &[], body.to_string())
        .await?;
    let said = &got.json()?["choices"][0]["message"]["content"];
    ensure!(said == "Five comes after four.", "{}", got.text()?);
    Ok(got)
}

fn busy(slots: &Value) -> usize {
    let slots = slots.as_array().into_iter().flatten();
    slots.filter(|slot| slot["is_processing"] == true).count()
}

#[tokio::test]
async fn it_answers_as_the_engine_does_and_its_clients_are_content() -> Result<()> {
    let Some(folder) = extra("llama-cpp") else {
        return Ok(());
    };
    let llama = LlamaServer::start(&folder).await?;
    let front = front_of(&llama).await?;
    let list = executors_until(front.client, |_| true).await?;
    let found = named(&list, "llama");
    ensure!(
        found["models"] == json!(["demo"]) && found["health"] == "up",
        "{found}"
    );
    // The golden answers are those of the engine here, and of the checkpoint's own code.
    ClientScript::node().run(&front).await?;
    ClientScript::python_chats().run(&front).await?;
    if let Some(frameworks) = ClientScript::frameworks() {
        frameworks.run(&front).await?;
    }
    over(front).await
}

#[tokio::test]
async fn its_slots_are_filled_and_never_more_and_one_that_leaves_makes_room() -> Result<()> {
    let Some(folder) = extra("llama-cpp") else {
        return Ok(());
    };
    let llama = LlamaServer::start(&folder).await?;
    let front = front_of(&llama).await?;
    let client = front.client.for_others();
    let (mut first, mut second) = (
        client.stream(&endless()).await?,
        client.stream(&endless()).await?,
    );
    first.first_text().await?;
    second.first_text().await?;
    let third = tokio::spawn(asked(client, "demo"));
    front
        .load_until(|load| load.slots_used == 2 && load.queued == 1)
        .await?;
    ensure!(busy(&llama.says("/slots").await?) == SLOTS);
    // Nobody waits there: the one that waits does so here.
    let metrics = llama.client.unchecked(Method::GET, "/metrics").await?;
    let metrics = String::from_utf8(metrics.body)?;
    ensure!(
        metrics.contains("llamacpp:requests_deferred 0"),
        "{metrics}"
    );
    drop(first);
    ensure!(third.await??.status == 200);
    llama.until("/slots", |slots| busy(slots) == 1).await?;
    drop(second);
    llama.until("/slots", |slots| busy(slots) == 0).await?;
    over(front).await
}

#[tokio::test]
async fn killed_in_mid_stream_it_breaks_that_stream_only_and_others_go_elsewhere() -> Result<()> {
    let Some(folder) = extra("llama-cpp") else {
        return Ok(());
    };
    let (mut dies, lives) = (
        LlamaServer::start(&folder).await?,
        LlamaServer::start(&folder).await?,
    );
    let backends = [
        backend_at("dies", dies.addr())?,
        backend_at("lives", lives.addr())?,
    ];
    let front = serving(backends).await?;
    let client = front.client.for_others();
    let slots = |list: &[Value]| {
        let known = |name| named(list, name)["slots_total"] == SLOTS;
        known("dies") && known("lives")
    };
    executors_until(client, slots).await?;
    let mut streams = Vec::new();
    for _ in 0..2 * SLOTS {
        let mut stream = client.stream(&endless()).await?;
        stream.first_text().await?;
        streams.push(stream);
    }
    let waits = tokio::spawn(asked(client, "demo"));
    front.load_until(|load| load.queued == 1).await?;
    dies.process.kill().await?;
    let (mut broken, mut going) = (0, Vec::new());
    for stream in streams {
        if stream.headers["x-pointsman-executor"] == "dies" {
            let end = stream.finish().await?;
            ensure!(!end.done && end.error.is_some(), "{end:?}");
            broken += 1;
        } else {
            going.push(stream);
        }
    }
    ensure!(broken == SLOTS && going.len() == SLOTS);
    let gone = |list: &[Value]| named(list, "dies")["health"] != "up";
    executors_until(client, gone).await?;
    for mut stream in going {
        stream.first_text().await?;
    }
    let answered = waits.await??;
    ensure!(answered.status == 200 && answered.header("x-pointsman-executor") == "lives");
    over(front).await
}

#[tokio::test]
async fn a_server_that_sleeps_is_let_sleep_until_a_request_wakes_it() -> Result<()> {
    let Some(folder) = extra("llama-cpp") else {
        return Ok(());
    };
    let llama = LlamaServer::start_demo(&folder, &["--sleep-idle-seconds", "1"]).await?;
    let front = front_of(&llama).await?;
    ensure!(asked(front.client.for_others(), "demo").await?.status == 200);
    // Asked twenty times a second, it falls asleep, and stays so.
    llama
        .until("/props", |props| props["is_sleeping"] == true)
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(llama.says("/props").await?["is_sleeping"] == true);
    ensure!(asked(front.client.for_others(), "demo").await?.status == 200);
    over(front).await
}

#[tokio::test]
async fn a_router_loads_the_model_that_is_asked_for_in_the_place_of_another() -> Result<()> {
    let Some(folder) = extra("llama-cpp") else {
        return Ok(());
    };
    let models = tempfile::tempdir()?;
    for name in ["one.gguf", "two.gguf"] {
        fs::copy(folder.join("demo.gguf"), models.path().join(name))?;
    }
    let path = models.path().to_str().context("the path is not UTF-8")?;
    let args = ["--models-dir", path, "--no-models-autoload"];
    let llama = LlamaServer::start_with(&folder, &args).await?;
    let mut config = backend_at("router", llama.addr())?;
    config.terms.models_max = Some(1);
    let front = serving([config]).await?;
    for name in ["one", "two", "one"] {
        let got = asked(front.client.for_others(), name).await?;
        ensure!(got.status == 200, "{name}: {}", got.text()?);
        let listed = llama.says("/v1/models").await?;
        let models = listed["data"].as_array().context("no list")?;
        let loaded = models
            .iter()
            .filter(|model| model["status"]["value"] == "loaded");
        let loaded: Vec<&Value> = loaded.map(|model| &model["id"]).collect();
        ensure!(loaded == [name], "{listed}");
    }
    over(front).await
}
