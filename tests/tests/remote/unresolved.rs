//! A backend whose name has no address yet, and whose models are named.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{BackendConfig, Config};
use pointsman_core::Micros;
use pointsman_server::lookup::Lookup;
use pointsman_tests::PATIENCE;
use pointsman_tests::backend::MockBackend;
use pointsman_tests::client::Client;
use pointsman_tests::serving::Serving;
use serde_json::Value;

use super::{executors_until, named, over};

/// A name that gets an address later, of the backend `service`.
#[derive(Debug, Default)]
struct LateName {
    address: OnceLock<SocketAddr>,
    asked: AtomicUsize,
}

impl LateName {
    /// An address at which nobody listens.
    const URL: &str = "http://127.0.0.1:1";

    /// The name, and the way to look it up.
    fn new() -> (Arc<Self>, Lookup) {
        let name = Arc::new(Self::default());
        let its = Arc::clone(&name);
        let lookup = Lookup::new(move |_| {
            its.asked.fetch_add(1, Ordering::Relaxed);
            let known = its.address.get().map(|address| vec![*address]);
            async move { known.ok_or_else(|| Error::from(ErrorKind::NotFound)) }
        });
        (name, lookup)
    }

    /// Has the name stand for this server. Returns the executor's name.
    fn stands_for(&self, mock: &MockBackend) -> String {
        let address = self.address.get_or_init(|| mock.addr());
        format!("service/{address}")
    }

    /// Waits until the name has been looked up so many times more.
    async fn looked_up(&self, times: usize) -> Result<()> {
        let enough = self.asked.load(Ordering::Relaxed) + times;
        let asked = async {
            while self.asked.load(Ordering::Relaxed) < enough {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        asked.context("it is not looked up")
    }
}

fn service() -> Result<BackendConfig> {
    let mut service = BackendConfig::new(LateName::URL.parse()?);
    service.server.name = Some("service".to_owned());
    service.server.models = vec!["demo".to_owned()];
    service.server.poll = Duration::from_millis(50);
    service.resolve = Some(Duration::from_millis(100));
    Ok(service)
}

/// Has this backend serve all that is served.
fn serve(config: &mut Config, service: BackendConfig) {
    config.local.models.clear();
    config.local.executors.clear();
    config.backends = vec![service];
    config.core.unserved_max = Micros(60_000_000);
}

/// Waits until `GET path` is answered as wanted.
async fn until(client: Client, path: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
    let answered = async {
        loop {
            if let Ok(answer) = client.get(path).await
                && wanted(&answer.json()?)
            {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answered).await?
}

#[tokio::test]
async fn a_request_waits_for_the_first_address_of_a_server_whose_models_are_named() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let (name, lookup) = LateName::new();
    let service = service()?;
    let serving = Serving::start_with(|config| serve(config, service), lookup).await?;
    let client = serving.client;
    executors_until(client, |list| named(list, "service")["health"] == "down").await?;
    let waits = tokio::spawn(async move { client.chat("hello").await });
    serving.load_until(|load| load.live == 1).await?;
    let executor = name.stands_for(&mock);
    let answer = waits.await??;
    ensure!(answer.status == 200, "{:?}", answer.json());
    ensure!(answer.header("x-pointsman-executor") == executor);
    // The one that stood for the name goes.
    let is_alone = |list: &[Value]| list.len() == 1 && !named(list, &executor).is_null();
    executors_until(client, is_alone).await?;
    over(serving).await
}

#[tokio::test]
async fn a_start_that_waits_for_an_executor_does_not_take_a_name_for_one() -> Result<()> {
    let free = std::net::TcpListener::bind("127.0.0.1:0")?;
    let listen = free.local_addr()?;
    drop(free);
    let mock = MockBackend::start(&["demo"]).await?;
    let (name, lookup) = LateName::new();
    let service = service()?;
    let tune = move |config: &mut Config| {
        serve(config, service);
        config.listen = listen;
        config.ready_executors = 1;
    };
    let starting = tokio::spawn(Serving::start_with(tune, lookup));
    let client = Client::new(listen);
    let has_policies = |shown: &Value| shown["hooks"]["routing"]["policy"].is_string();
    until(client, "/admin/policies", has_policies).await?;
    let has_models = |shown: &Value| shown["data"][0]["id"] == "demo";
    until(client, "/v1/models", has_models).await?;
    name.looked_up(2).await?;
    ensure!(client.get("/ready").await?.status == 503);
    ensure!(!starting.is_finished());
    let executor = name.stands_for(&mock);
    let serving = starting.await??;
    let answer = client.chat("hello").await?;
    ensure!(answer.header("x-pointsman-executor") == executor);
    over(serving).await
}
