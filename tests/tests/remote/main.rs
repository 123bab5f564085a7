//! Servers elsewhere as executors, over HTTP.

mod beside;
mod bodies;
mod continuation;
mod described;
mod failures;
mod files;
mod lateness;
mod llama_cpp;
mod pages;
mod passing;
mod paths;
mod pointsmen;
mod prompts;
mod residency;
mod rights;
mod room;
mod roster;
mod secure;
mod sessions;
mod unresolved;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pointsman_config::{BackendConfig, Config, Flags};
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Client, Stream};
use pointsman_tests::serving::{Serving, backend_at};
use serde_json::Value;

/// A backend of the configuration, asked often.
fn backend(name: &str, mock: &MockBackend) -> Result<BackendConfig> {
    backend_at(name, mock.addr())
}

/// The backends in a configuration of this text.
fn backends_of(text: &str) -> Result<Vec<BackendConfig>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    fs::write(&path, text)?;
    let flags = Flags {
        config: Some(path),
        ..Flags::default()
    };
    Ok(Config::load(&flags)?.backends)
}

/// Starts two servers that have the model `demo`.
async fn two_servers() -> Result<[MockBackend; 2]> {
    let start = || MockBackend::start(&["demo"]);
    Ok([start().await?, start().await?])
}

/// A server with these backends and no engine, once all of them are found.
async fn serving<const N: usize>(backends: [BackendConfig; N]) -> Result<Serving> {
    serving_with(backends, |_| ()).await
}

async fn serving_with<const N: usize>(
    backends: [BackendConfig; N],
    tune: impl FnOnce(&mut Config),
) -> Result<Serving> {
    let serving = Serving::start(|config| {
        config.local.models = Vec::new();
        config.local.executors = Vec::new();
        config.backends = backends.to_vec();
        tune(config);
    });
    let serving = serving.await?;
    let found = |executor: &Value| {
        let models = executor["models"].as_array();
        executor["kind"] != "remote" || models.is_some_and(|models| !models.is_empty())
    };
    executors_until(serving.client, |list| list.iter().all(found)).await?;
    Ok(serving)
}

/// A stream of two tokens of which this server has sent the first; it sends the other once it is allowed to.
async fn begun(client: Client, mock: &MockBackend, body: &Value) -> Result<Stream> {
    mock.does(Conduct::Steps(2));
    mock.allow(1);
    let mut stream = client.stream(body).await?;
    stream.first_text().await?;
    Ok(stream)
}

/// Waits until the executors are as wanted, and returns them.
async fn executors_until(client: Client, wanted: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
    let mut last = Value::Null;
    for _ in 0..20_000 {
        last = client.get("/admin/executors").await?.json()?;
        let list = last["executors"].as_array().context("no list")?;
        if wanted(list) {
            return Ok(list.clone());
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    bail!("the executors stay {last}")
}

/// The executor of this name in a list.
fn named<'a>(list: &'a [Value], name: &str) -> &'a Value {
    let mut list = list.iter();
    list.find(|executor| executor["name"] == name)
        .unwrap_or(&Value::Null)
}

/// Ends a test: nothing has stayed, and the server stops.
async fn over(serving: Serving) -> Result<()> {
    serving.idle().await?;
    serving.server.stop().await
}
