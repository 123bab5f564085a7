//! Servers elsewhere that come and go with the configuration file and DNS, and a start that waits for them.

use std::fs;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{BackendConfig, Config, Flags};
use pointsman_server::lookup::Lookup;
use pointsman_tests::PATIENCE;
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{backend, begun, executors_until, named, over, two_servers};

const CHAT: &str = "/v1/chat/completions";

/// The names of the executors.
fn names(list: &[Value]) -> Vec<&str> {
    let names = list.iter().filter_map(|executor| executor["name"].as_str());
    names.collect()
}

/// A table of a backend, with more lines.
fn table(name: &str, mock: &MockBackend, more: &str) -> String {
    let url = mock.url();
    format!("[[backends]]\nname = '{name}'\nurl = '{url}'\npoll = '50ms'\n{more}\n")
}

/// The body of a chat that goes to this executor only.
fn only_to(executor: &str, mut body: Value) -> Value {
    body["pointsman"] = json!({"executors": [executor]});
    body
}

#[tokio::test]
async fn the_backends_of_the_file_are_those_that_it_has_now() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let [one, two] = two_servers().await?;
    fs::write(&path, table("one", &one, ""))?;
    let serving = of_file(&path, Lookup::default()).await?;
    let client = serving.client;
    executors_until(client, |list| names(list) == ["one"]).await?;
    // A stream goes on at a server that the file has no more.
    let stream = begun(client, &one, &streamed_chat("hello")).await?;
    fs::write(&path, table("two", &two, "group = 7"))?;
    let moved =
        |list: &[Value]| named(list, "two")["group"] == 7 && named(list, "one")["order"] == "drain";
    executors_until(client, moved).await?;
    one.allow(1);
    ensure!(stream.finish().await?.done);
    executors_until(client, |list| names(list) == ["two"]).await?;
    // A file that is wrong changes nothing.
    fs::write(&path, "[[backends]]\nurl = 'nowhere'\n")?;
    tokio::time::sleep(Duration::from_millis(2500)).await;
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

/// A server with the backends of this file, once their models are found.
async fn of_file(path: &Path, lookup: Lookup) -> Result<Serving> {
    of_config(read(path)?, lookup).await
}

/// The configuration in this file.
fn read(path: &Path) -> Result<Config> {
    let flags = Flags {
        config: Some(path.to_owned()),
        listen: Some("127.0.0.1:0".parse()?),
        ..Flags::default()
    };
    Ok(Config::load(&flags)?)
}

/// A server with the backends of a configuration that was read, once their models are found.
async fn of_config(read: Config, lookup: Lookup) -> Result<Serving> {
    let tune = |config: &mut Config| {
        config.local.models.clear();
        config.local.executors.clear();
        config.backends = read.backends;
        config.flags = read.flags;
    };
    let serving = Serving::start_with(tune, lookup).await?;
    let found = |list: &[Value]| list.iter().all(|one| one["models"] == json!(["demo"]));
    executors_until(serving.client, found).await?;
    Ok(serving)
}

#[tokio::test]
async fn a_file_that_is_edited_during_the_start_is_read_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let [one, two] = two_servers().await?;
    fs::write(&path, table("one", &one, ""))?;
    let config = read(&path)?;
    fs::write(&path, table("one", &one, "") + &table("two", &two, ""))?;
    let serving = of_config(config, Lookup::default()).await?;
    executors_until(serving.client, |list| names(list) == ["one", "two"]).await?;
    over(serving).await
}

#[tokio::test]
async fn a_reload_has_the_backends_that_it_has_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let [one, two] = two_servers().await?;
    fs::write(&path, table("one", &one, ""))?;
    let before = read(&path)?;
    let serving = of_config(before.clone(), Lookup::default()).await?;
    fs::write(&path, table("two", &two, ""))?;
    let after = read(&path)?;
    // Nobody finds it by looking.
    fs::remove_file(&path)?;
    let changed = serving.server.reload(&before, &after).await?;
    ensure!(changed.in_force.contains("backends"), "{changed:?}");
    executors_until(serving.client, |list| names(list) == ["two"]).await?;
    over(serving).await
}

#[tokio::test]
async fn an_operators_server_is_left_alone_under_the_name_of_a_former_backend() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pointsman.toml");
    let [former, theirs, other] = [(), (), ()].map(|()| MockBackend::start(&["demo"]));
    let (former, theirs, other) = (former.await?, theirs.await?, other.await?);
    let tables = |gpu1: &str, group: i32| {
        let gpu2 = table("gpu2", &other, &format!("group = {group}"));
        fs::write(&path, gpu1.to_owned() + &gpu2)
    };
    tables(&table("gpu1", &former, ""), 1)?;
    let serving = of_file(&path, Lookup::default()).await?;
    let client = serving.client;
    ensure!(client.delete("/admin/executors/gpu1").await?.status == 202);
    executors_until(client, |list| names(list) == ["gpu2"]).await?;
    let order = json!({"url": theirs.url(), "executor": "gpu1", "poll-ms": 50});
    ensure!(client.post("/admin/executors", &order).await?.status == 201);

    // The former backend is edited and goes from the file. That the other one follows shows that the file was read:
    // with the last edit all is done that the one before it asks for.
    let edited = table("gpu1", &former, "group = 7");
    for (gpu1, group) in [(&*edited, 2), ("", 3), ("", 4)] {
        tables(gpu1, group)?;
        executors_until(client, |list| named(list, "gpu2")["group"] == group).await?;
    }
    let is_heard = |list: &[Value]| named(list, "gpu1")["models"] == json!(["demo"]);
    let list = executors_until(client, is_heard).await?;
    let gpu1 = named(&list, "gpu1");
    ensure!(gpu1["order"].is_null() && gpu1["group"] == 0, "{gpu1}");
    let answer = client.post(CHAT, &only_to("gpu1", chat("hello"))).await?;
    ensure!(answer.text()? == "t0 t1 t2 ");
    ensure!(theirs.seen(CHAT).len() == 1 && former.seen(CHAT).is_empty());
    over(serving).await
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
    let [one, two] = two_servers().await?;
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

/// A name whose addresses change, of a backend `service`.
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

    /// A server whose one backend has this name.
    async fn serving(&self) -> Result<Serving> {
        let mut config = BackendConfig::new(format!("http://{}", Self::NAME).parse()?);
        config.server.name = Some("service".to_owned());
        config.server.poll = Duration::from_millis(50);
        config.resolve = Some(Duration::from_millis(100));
        let tune = |server: &mut Config| {
            server.local.models.clear();
            server.local.executors.clear();
            server.backends = vec![config];
        };
        Serving::start_with(tune, self.lookup()).await
    }

    /// The executor that a server is by this name.
    fn executor(mock: &MockBackend) -> String {
        format!("service/{}", mock.addr())
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
    let serving = name.serving().await?;
    let client = serving.client;
    let executor = ChangingName::executor;
    let are = |list: &[Value], mocks: &[&MockBackend]| {
        let found = |mock: &&MockBackend| named(list, &executor(mock))["models"] == json!(["demo"]);
        list.len() == mocks.len() && mocks.iter().all(found)
    };
    executors_until(client, |list| are(list, &[&one, &two])).await?;
    // A stream, and clients who ask again and again.
    let body = only_to(&executor(&one), streamed_chat("hello"));
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
        |list: &[Value]| named(list, &executor(&one))["order"] == "drain" && list.len() == 2;
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
async fn a_server_that_its_name_is_without_for_a_moment_is_taken_back_while_its_stream_runs()
-> Result<()> {
    let [one, two] = two_servers().await?;
    let name = ChangingName::default();
    name.stands_for(&[&one, &two]);
    let serving = name.serving().await?;
    let client = serving.client;
    let executor = ChangingName::executor(&one);
    let serves = |list: &[Value]| named(list, &executor)["models"] == json!(["demo"]);
    executors_until(client, serves).await?;
    let stream = begun(client, &one, &only_to(&executor, streamed_chat("hello"))).await?;
    one.does(Conduct::Answers(3));

    name.stands_for(&[&two]);
    let drains = |list: &[Value]| named(list, &executor)["order"] == "drain";
    executors_until(client, drains).await?;
    name.stands_for(&[&one, &two]);
    executors_until(client, |list| !drains(list) && serves(list)).await?;
    let answer = client
        .post(CHAT, &only_to(&executor, chat("again")))
        .await?;
    ensure!(answer.header("x-pointsman-executor") == executor);
    ensure!(answer.text()? == "t0 t1 t2 ");
    one.allow(1);
    let streamed = stream.finish().await?;
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    over(serving).await
}

#[tokio::test]
async fn an_operators_order_to_drain_outlasts_that_a_name_is_without_the_server() -> Result<()> {
    let [one, two] = two_servers().await?;
    let name = ChangingName::default();
    name.stands_for(&[&one, &two]);
    let serving = name.serving().await?;
    let client = serving.client;
    let executor = ChangingName::executor(&one);
    let serves = |list: &[Value]| named(list, &executor)["models"] == json!(["demo"]);
    let is_withdrawn = |list: &[Value]| named(list, &executor)["models"] == json!([]);
    executors_until(client, serves).await?;
    let stream = begun(client, &one, &only_to(&executor, streamed_chat("hello"))).await?;
    one.does(Conduct::Answers(3));
    let path = format!("/admin/executors/{}", executor.replace('/', "%2F"));
    let (drain, resume) = (format!("{path}/drain"), format!("{path}/resume"));

    name.stands_for(&[&two]);
    executors_until(client, is_withdrawn).await?;
    let refused = client.post(&resume, &json!({})).await?;
    ensure!(refused.status == 409);
    let refused = refused.json()?["error"]["message"].to_string();
    ensure!(
        refused.contains("is not in the configuration or DNS"),
        "{refused}"
    );
    ensure!(client.post(&drain, &json!({})).await?.status == 200);
    // Given while the name is without it, and then before.
    for _ in 0..2 {
        name.stands_for(&[&one, &two]);
        let list = executors_until(client, serves).await?;
        ensure!(named(&list, &executor)["order"] == "drain", "{list:?}");
        name.stands_for(&[&two]);
        executors_until(client, is_withdrawn).await?;
    }
    name.stands_for(&[&one, &two]);
    executors_until(client, serves).await?;
    // Where nothing runs, too.
    one.allow(1);
    ensure!(stream.finish().await?.done);
    executors_until(client, |list| named(list, &executor)["slots_used"] == 0).await?;
    name.stands_for(&[&two]);
    executors_until(client, is_withdrawn).await?;
    name.stands_for(&[&one, &two]);
    let list = executors_until(client, serves).await?;
    ensure!(named(&list, &executor)["order"] == "drain", "{list:?}");
    ensure!(client.post(&resume, &json!({})).await?.status == 200);
    let answer = client
        .post(CHAT, &only_to(&executor, chat("again")))
        .await?;
    ensure!(answer.text()? == "t0 t1 t2 ");
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
