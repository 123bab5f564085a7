//! Servers elsewhere that come and go with the configuration file and DNS, and a start that waits for them.

use std::fs;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, Flags};
use pointsman_server::lookup::Lookup;
use pointsman_tests::PATIENCE;
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Client, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{backend, begun, executors_until, named, over};

const CHAT: &str = "/v1/chat/completions";

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
    let serving = of_file(&path, Lookup::default()).await?;
    let client = serving.client;
    executors_until(client, |list| names(list) == ["one"]).await?;
    // A stream goes on at a server that the file has no more.
    let stream = begun(client, &one, &streamed_chat("hello")).await?;
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

/// A server with the backends of this file.
async fn of_file(path: &Path, lookup: Lookup) -> Result<Serving> {
    let flags = Flags {
        config: Some(path.to_owned()),
        listen: Some("127.0.0.1:0".parse()?),
        ..Flags::default()
    };
    let loaded = Config::load(&flags)?;
    let tune = |config: &mut Config| {
        config.local.models.clear();
        config.local.executors.clear();
        config.backends = loaded.backends;
        config.flags = flags;
    };
    let serving = Serving::start_with(tune, lookup).await?;
    let found = |list: &[Value]| list.iter().all(|one| one["models"] == json!(["demo"]));
    executors_until(serving.client, found).await?;
    Ok(serving)
}

/// A client that asks for the model again and again, until it is told to stop.
struct Asking {
    stop: Arc<AtomicBool>,
    asked: JoinHandle<Result<usize>>,
}

impl Asking {
    fn start(client: Client) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let asked = tokio::spawn(async move {
            let mut count = 0_usize;
            while !stopped.load(Ordering::Relaxed) {
                // Each is a conversation of its own, that goes wherever there is room.
                let answer = client.chat(&format!("hello {count}")).await?;
                ensure!(
                    answer.status == 200,
                    "{}: {}",
                    answer.status,
                    answer.text()?
                );
                count += 1;
            }
            Ok(count)
        });
        Self { stop, asked }
    }

    /// The number of answers, none of which was an error.
    async fn stop(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        self.asked.await?
    }
}

#[tokio::test]
async fn a_backend_that_is_edited_keeps_its_models_its_streams_and_what_waits() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let mock = MockBackend::start(&["demo"]).await?;
    let table = |more: &str| {
        let head = format!("[[backends]]\nname = 'one'\nurl = '{}'\n", mock.url());
        fs::write(&path, head + "poll = '50ms'\n" + more)
    };
    table("slots = 1")?;
    let serving = of_file(&path, Lookup::default()).await?;
    let client = serving.client;
    let stream = begun(client, &mock, &streamed_chat("hello")).await?;
    let waits = tokio::spawn(async move { client.chat("hello").await });
    serving.load_until(|load| load.live == 2).await?;

    // All that can be told of a backend, but its address.
    table(
        "slots = 2\ngroup = 7\nqueue = 3\nmodels-max = 4\nheaders = ['x-edited: yes']\nprompt-cache = 'off'",
    )?;
    let edited = |list: &[Value]| {
        let one = named(list, "one");
        one["group"] == 7 && one["slots_total"] == 2
    };
    let list = executors_until(client, edited).await?;
    let one = named(&list, "one");
    ensure!(
        one["order"] == Value::Null && one["models"] == json!(["demo"]),
        "{one}"
    );
    // The slot more is taken by what waited, while the stream is still read.
    mock.runs(2).await?;
    let models = client.get("/v1/models").await?.json()?;
    ensure!(models["data"][0]["id"] == "demo", "{models}");
    mock.allow(100);
    ensure!(stream.finish().await?.done);
    ensure!(waits.await??.status == 200);
    let seen = mock.seen("/v1/chat/completions");
    let headers = seen
        .iter()
        .map(|seen| seen.headers.contains_key("x-edited"));
    ensure!(headers.collect::<Vec<_>>() == [false, true], "{seen:?}");
    // Fewer slots count at once, too.
    table("slots = 1")?;
    executors_until(client, |list| named(list, "one")["slots_total"] == 1).await?;
    over(serving).await
}

#[tokio::test]
async fn a_backend_with_another_address_is_another_server_and_nobody_notices() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let (one, two) = (
        MockBackend::start(&["demo"]).await?,
        MockBackend::start(&["demo"]).await?,
    );
    // With a name of its own the executor stays, without one it is another.
    for name in ["name = 'same'\n", ""] {
        let table = |mock: &MockBackend| {
            let head = format!("[[backends]]\nurl = '{}'\n", mock.url());
            fs::write(&path, head + name + "poll = '50ms'\n")
        };
        one.does(Conduct::Answers(3));
        table(&one)?;
        let serving = of_file(&path, Lookup::default()).await?;
        let client = serving.client;
        one.does(Conduct::Steps(2));
        let asked = one.seen("/v1/chat/completions").len();
        let stream = tokio::spawn(async move {
            let mut stream = client.stream(&streamed_chat("hello")).await?;
            stream.first_text().await?;
            stream.finish().await
        });
        one.runs(1).await?;
        one.does(Conduct::Answers(3));
        let asking = Asking::start(client);
        one.heard("/v1/chat/completions", asked + 10).await?;
        let before = two.seen("/v1/chat/completions").len();
        table(&two)?;
        two.heard("/v1/chat/completions", before + 10).await?;
        ensure!(asking.stop().await? > 20);
        one.allow(2);
        ensure!(stream.await??.done, "it is read to its end where it began");
        executors_until(client, |list| list.len() == 1).await?;
        over(serving).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_name_is_looked_up() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let mut config = backend("service", &mock)?;
    let port = mock.addr().port();
    config.server.url = format!("http://localhost:{port}").parse()?;
    config.resolve = Some(Duration::from_millis(100));
    let serving = Serving::start(|server| {
        server.local.models.clear();
        server.local.executors.clear();
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

/// A name whose addresses change.
#[derive(Clone, Debug, Default)]
struct ChangingName(Arc<NameState>);

#[derive(Debug, Default)]
struct NameState {
    /// Locked for a moment at a time. Absent: nobody knows the name.
    addresses: Mutex<Option<Vec<SocketAddr>>>,
    asked: AtomicUsize,
}

impl ChangingName {
    const NAME: &str = "models.test:8000";

    fn stands_for(&self, mocks: &[&MockBackend]) {
        let addresses = mocks.iter().map(|mock| mock.addr()).collect();
        *self.addresses() = Some(addresses);
    }

    fn is_unknown(&self) {
        *self.addresses() = None;
    }

    fn addresses(&self) -> MutexGuard<'_, Option<Vec<SocketAddr>>> {
        let addresses = self.0.addresses.lock();
        addresses.unwrap_or_else(PoisonError::into_inner)
    }

    fn lookup(&self) -> Lookup {
        let name = self.clone();
        Lookup::new(move |asked| {
            let name = name.clone();
            async move {
                name.0.asked.fetch_add(1, Ordering::Relaxed);
                let known = name.addresses().clone().filter(|_| asked == Self::NAME);
                known.ok_or_else(|| Error::from(ErrorKind::NotFound))
            }
        })
    }

    /// Waits until the name has been looked up once more.
    async fn looked_up(&self) -> Result<()> {
        let before = self.0.asked.load(Ordering::Relaxed);
        let asked = async {
            while self.0.asked.load(Ordering::Relaxed) <= before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        asked.context("it is not looked up")
    }
}

#[tokio::test]
async fn the_servers_of_a_name_come_and_go_with_its_addresses_and_no_request_is_lost() -> Result<()>
{
    let [one, two, three] = [(), (), ()].map(|()| MockBackend::start(&["demo"]));
    let (one, two, three) = (one.await?, two.await?, three.await?);
    let name = ChangingName::default();
    name.stands_for(&[&one, &two]);
    let mut config = backend("service", &one)?;
    config.server.url = format!("http://{}", ChangingName::NAME).parse()?;
    config.resolve = Some(Duration::from_millis(100));
    let tune = |server: &mut Config| {
        server.local.models.clear();
        server.local.executors.clear();
        server.backends = vec![config];
    };
    let serving = Serving::start_with(tune, name.lookup()).await?;
    let client = serving.client;
    let executor = |mock: &MockBackend| format!("service/{}", mock.addr());
    let are = |list: &[Value], mocks: &[&MockBackend]| {
        let found = |mock: &&MockBackend| named(list, &executor(mock))["models"] == json!(["demo"]);
        list.len() == mocks.len() && mocks.iter().all(found)
    };
    executors_until(client, |list| are(list, &[&one, &two])).await?;
    // A stream, and clients who ask again and again.
    let mut body = streamed_chat("hello");
    body["pointsman"] = json!({"executors": [executor(&one)]});
    let stream = begun(client, &one, &body).await?;
    one.does(Conduct::Answers(3));
    let asking = [(), (), ()].map(|()| Asking::start(client));

    name.stands_for(&[&one, &two, &three]);
    executors_until(client, |list| are(list, &[&one, &two, &three])).await?;
    three.heard(CHAT, 5).await?;
    // What nobody can tell changes nothing.
    name.is_unknown();
    name.looked_up().await?;
    name.looked_up().await?;
    executors_until(client, |list| are(list, &[&one, &two, &three])).await?;

    name.stands_for(&[&two]);
    let drains =
        |list: &[Value]| named(list, &executor(&one))["order"] == "remove" && list.len() == 2;
    executors_until(client, drains).await?;
    let heard = (two.seen(CHAT).len(), three.seen(CHAT).len());
    two.heard(CHAT, heard.0 + 5).await?;
    ensure!(three.seen(CHAT).len() == heard.1, "it is asked still");
    one.allow(1);
    let streamed = stream.finish().await?;
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    executors_until(client, |list| are(list, &[&two])).await?;
    for asking in asking {
        ensure!(asking.stop().await? > 5);
    }
    over(serving).await
}

#[tokio::test]
async fn a_file_that_is_edited_while_a_name_is_unknown_keeps_its_servers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let mock = MockBackend::start(&["demo"]).await?;
    let name = ChangingName::default();
    name.stands_for(&[&mock]);
    let table = |more: &str| {
        let host = ChangingName::NAME;
        let head = format!("[[backends]]\nname = 'service'\nurl = 'http://{host}'\n");
        fs::write(&path, head + "resolve = '100ms'\n" + more)
    };
    table("")?;
    let serving = of_file(&path, name.lookup()).await?;
    let executor = format!("service/{}", mock.addr());
    name.is_unknown();
    name.looked_up().await?;
    table("group = 7")?;
    let edited = |list: &[Value]| named(list, &executor)["group"] == 7;
    let list = executors_until(serving.client, edited).await?;
    ensure!(named(&list, &executor)["order"] == Value::Null, "{list:?}");
    ensure!(serving.client.chat("hello").await?.status == 200);
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
        config.local.models.clear();
        config.local.executors.clear();
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
    tokio::time::timeout(PATIENCE, policies).await??;
    ensure!(client.get("/ready").await?.status == 503);
    ensure!(client.chat("hello").await?.status == 503);
    ensure!(!starting.is_finished());
    let _second = MockBackend::start_at(addr, &["demo"]).await?;
    let serving = starting.await?.context("not started")?;
    ensure!(client.get("/ready").await?.status == 200);
    ensure!(client.chat("hello").await?.text()? == "t0 t1 t2 ");
    over(serving).await
}
