//! A whole server on this machine, with the demo model, the default policies, and a policy folder.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pointsman_config::{BackendConfig, Config, Flags};
use pointsman_driver::message::Load;
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms};
use pointsman_lifecycle::report::ReconcilerReport;
use pointsman_server::serve::{Server, Surroundings};
use serde_json::Value;
use tempfile::TempDir;

use crate::PATIENCE;
use crate::client::Client;

/// A server and its policy folder, which is removed with it.
#[derive(Debug)]
pub struct Serving {
    /// A client of the server.
    pub client: Client,
    pub server: Server,
    folder: TempDir,
}

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

impl Serving {
    /// Starts a server. `tune` may change its configuration, which is the default one with a free
    /// port and a policy folder of its own, looked at often.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn start(tune: impl FnOnce(&mut Config)) -> Result<Self> {
        Self::start_with(tune, Surroundings::default()).await
    }

    /// Starts a server in these surroundings, as [`Self::start`] does.
    ///
    /// # Errors
    /// As there.
    pub async fn start_with(
        tune: impl FnOnce(&mut Config),
        surroundings: impl Into<Surroundings>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let flags = Flags {
            listen: Some("127.0.0.1:0".parse()?),
            ..Flags::default()
        };
        let mut config = Config::load(&flags)?;
        config.policies.folder = Some(folder.path().to_owned());
        config.policies.settle = Duration::from_millis(20);
        config.policies.poll = Duration::from_millis(200);
        config.drain = Duration::from_secs(5);
        tune(&mut config);
        let server = Server::start_with(config, surroundings.into()).await?;
        Ok(Self {
            client: Client::new(server.addr()),
            server,
            folder,
        })
    }

    /// The path of a file in the policy folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a file into the policy folder as a careful operator does: writes it beside its place
    /// and renames it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn drop_in(&self, name: &str, content: &[u8]) -> Result<()> {
        let beside = self.path(&format!(".{name}.new"));
        fs::write(&beside, content)?;
        fs::rename(&beside, self.path(name)).context("not renamed")
    }

    /// Has the policy `name` decide from now on: a component that `cargo xtask policies` made, with
    /// settings as lines of TOML.
    ///
    /// # Errors
    /// If the component is missing, or the policy does not come into force.
    pub async fn decide_by(&self, name: &str, made: &str, settings: &str) -> Result<()> {
        if !settings.is_empty() {
            let sidecar = format!("[settings]\n{settings}\n");
            self.drop_in(&format!("{name}.toml"), sidecar.as_bytes())?;
        }
        self.drop_in(&format!("{name}.wasm"), &component(made)?)?;
        self.report_until(|report| holds(report, name)).await?;
        Ok(())
    }

    /// Waits until the server has no request in hand.
    ///
    /// # Errors
    /// If something stays, with what it is.
    pub async fn idle(&self) -> Result<Load> {
        let idle = |load: &Load| load.live == 0 && load.slots_used == 0 && load.blocks_used == 0;
        self.load_until(idle).await
    }

    /// Waits until the server has no request in hand. Servers elsewhere may have told of blocks, which
    /// are not ours.
    ///
    /// # Errors
    /// If something stays, with what it is.
    pub async fn idle_but_for_blocks(&self) -> Result<Load> {
        self.load_until(|load| load.live == 0 && load.slots_used == 0)
            .await
    }

    /// The server as a backend of another's configuration.
    ///
    /// # Errors
    /// Never, for an address that a server listens on.
    pub fn as_backend(&self) -> Result<BackendConfig> {
        let url = format!("http://{}", self.server.addr());
        Ok(BackendConfig::new(url.parse()?))
    }

    /// Waits until `wanted` is true of the load.
    ///
    /// # Errors
    /// If it does not become true, with the last load.
    pub async fn load_until(&self, wanted: impl Fn(&Load) -> bool) -> Result<Load> {
        let mut last = Load::default();
        let looked = tokio::time::timeout(PATIENCE, async {
            loop {
                last = self.server.driver().load().await.context("no driver")?;
                if wanted(&last) {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        match looked.await {
            Ok(looked) => looked.map(|()| last),
            Err(_) => bail!("the load stays {last:?}"),
        }
    }

    /// Waits until the reconciler's report is as wanted.
    ///
    /// # Errors
    /// If it does not get so, with what it is.
    pub async fn report_until(
        &self,
        wanted: impl Fn(&ReconcilerReport) -> bool,
    ) -> Result<Arc<ReconcilerReport>> {
        let mut reports = self.server.reports();
        let waited = tokio::time::timeout(PATIENCE, reports.wait_for(|report| wanted(report)));
        if let Ok(report) = waited.await {
            return Ok(Arc::clone(&*report?));
        }
        bail!("the report stays {:#?}", self.server.reports().borrow())
    }
}

/// Has the demo model served by executors of these names, on these terms.
pub fn serve_demo<const N: usize>(config: &mut Config, executors: [(&str, ExecutorTerms); N]) {
    let executors = executors.map(|(name, terms)| ExecutorConfig {
        name: Some(name.to_owned()),
        terms,
        ..ExecutorConfig::new("demo")
    });
    config.local.executors = executors.to_vec();
}

/// A server elsewhere as a backend of the configuration, asked often.
///
/// # Errors
/// Never, for an address that a server listens on.
pub fn backend_at(name: &str, addr: SocketAddr) -> Result<BackendConfig> {
    let mut backend = BackendConfig::new(format!("http://{addr}").parse()?);
    backend.server.name = Some(name.to_owned());
    backend.server.poll = Duration::from_millis(50);
    Ok(backend)
}

/// Gives a policy of the configuration its settings, an object.
pub fn set(config: &mut Config, policy: &str, settings: &Value) {
    let settings = settings.as_object().cloned().unwrap_or_default();
    let settings = (policy.to_owned(), settings);
    config.policies.settings.push(settings);
}

/// The file beside a policy that gives it these settings, an object.
///
/// # Errors
/// If they cannot be written in TOML.
pub fn sidecar(settings: &Value) -> Result<String> {
    let settings: toml::Table = serde_json::from_value(settings.clone())?;
    let mut file = toml::Table::new();
    file.insert("settings".to_owned(), settings.into());
    Ok(toml::to_string(&file)?)
}

/// True if the policy known as `name` holds a hook.
#[must_use]
pub fn holds(report: &ReconcilerReport, name: &str) -> bool {
    let mut policies = report.policies.iter();
    policies.any(|policy| policy.name == name && !policy.held.is_empty())
}

/// Reads the component of a policy that `cargo xtask policies` made.
///
/// # Errors
/// If the component is missing.
pub fn component(name: &str) -> Result<Vec<u8>> {
    let path = pointsman_testkit::component::component_path(name);
    fs::read(&path).with_context(|| format!("{}: run `cargo xtask policies`", path.display()))
}

/// Cargo's target folder, where `cargo xtask` puts what tests need.
#[must_use]
pub fn target() -> PathBuf {
    let component = pointsman_testkit::component::component_path("any");
    component
        .ancestors()
        .nth(2)
        .map(PathBuf::from)
        .unwrap_or_default()
}
