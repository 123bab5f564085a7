//! Servers elsewhere that come and go with the configuration file and DNS, and a start that waits for them.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_server::config::{Config, Flags};
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Client, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

use super::{backend, executors_until, named, over};

/// The names of the executors.
fn names(list: &[Value]) -> Vec<&str> {
    let names = list.iter().filter_map(|executor| executor["name"].as_str());
    names.collect()
}

#[tokio::test]
async fn the_backends_of_the_file_are_those_that_it_has_now() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let (one, two) = (
        MockBackend::start(&["demo"]).await?,
        MockBackend::start(&["demo"]).await?,
    );
    let table = |name: &str, mock: &MockBackend, more: &str| {
        format!(
            "[[backends]]\nname = '{name}'\nurl = '{}'\npoll = '50ms'\n{more}\n",
            mock.url()
        )
    };
    fs::write(&path, table("one", &one, ""))?;
    let flags = Flags {
        config: Some(path.clone()),
        listen: Some("127.0.0.1:0".parse()?),
        ..Flags::default()
    };
    let loaded = Config::load(&flags)?;
    let serving = Serving::start(|config| {
        config.models.clear();
        config.executors.clear();
        config.backends = loaded.backends;
        config.flags = flags;
    });
    let serving = serving.await?;
    let client = serving.client;
    executors_until(client, |list| names(list) == ["one"]).await?;
    // A stream goes on at a server that the file has no more.
    one.does(Conduct::Steps(2));
    one.allow(1);
    let mut stream = client.stream(&streamed_chat("hello")).await?;
    stream.first_text().await?;
    fs::write(&path, table("two", &two, "group = 7"))?;
    let moved = |list: &[Value]| {
        named(list, "two")["group"] == 7 && named(list, "one")["order"] == "remove"
    };
    executors_until(client, moved).await?;
    one.allow(1);
    ensure!(stream.finish().await?.done);
    executors_until(client, |list| names(list) == ["two"]).await?;
    // A file that is wrong changes nothing.
    fs::write(&path, "[[backends]]\nurl = 'nowhere'\n")?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let list = executors_until(client, |_| true).await?;
    ensure!(names(&list) == ["two"], "{list:?}");
    // Another address by the same name, and one more.
    let both = table("two", &one, "") + &table("three", &two, "");
    fs::write(&path, both)?;
    let both = |list: &[Value]| {
        let found = |name| named(list, name)["models"] == json!(["demo"]);
        found("two") && found("three") && named(list, "two")["group"] == 0
    };
    executors_until(client, both).await?;
    over(serving).await
}

#[tokio::test]
async fn a_name_is_looked_up() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let mut config = backend("service", &mock)?;
    let port = mock.addr().port();
    config.server.url = format!("http://localhost:{port}").parse()?;
    config.resolve = Some(Duration::from_millis(100));
    let serving = Serving::start(|server| {
        server.models.clear();
        server.executors.clear();
        server.backends = vec![config];
    });
    let serving = serving.await?;
    let name = format!("service/127.0.0.1:{port}");
    let found = |list: &[Value]| named(list, &name)["models"] == json!(["demo"]);
    executors_until(serving.client, found).await?;
    let answer = serving.client.chat("hello").await?;
    ensure!(answer.header("x-pointsman-executor") == name);
    over(serving).await
}

#[tokio::test]
async fn a_server_waits_for_as_many_executors_as_it_is_told() -> Result<()> {
    let free = std::net::TcpListener::bind("127.0.0.1:0")?;
    let listen = free.local_addr()?;
    let late = std::net::TcpListener::bind("127.0.0.1:0")?;
    let addr = late.local_addr()?;
    drop((free, late));
    let first = MockBackend::start(&["demo"]).await?;
    let (one, mut two) = (backend("one", &first)?, backend("two", &first)?);
    two.server.url = format!("http://{addr}").parse()?;
    let starting = tokio::spawn(Serving::start(move |config| {
        config.listen = listen;
        config.models.clear();
        config.executors.clear();
        config.backends = vec![one, two];
        config.ready_executors = 2;
    }));
    let client = Client::new(listen);
    // It has policies by then, and lacks one executor.
    let policies = async {
        loop {
            if let Ok(answer) = client.get("/admin/policies").await
                && answer.json()?["hooks"]["routing"]["policy"].is_string()
            {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), policies).await??;
    ensure!(client.get("/ready").await?.status == 503);
    ensure!(client.chat("hello").await?.status == 503);
    ensure!(!starting.is_finished());
    let _second = MockBackend::start_at(addr, &["demo"]).await?;
    let serving = starting.await?.context("not started")?;
    ensure!(client.get("/ready").await?.status == 200);
    ensure!(client.chat("hello").await?.text()? == "t0 t1 t2 ");
    over(serving).await
}
