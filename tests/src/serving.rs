//! A whole server on this machine, with the demo model and the default policies, and its folder.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pointsman_server::config::{Config, Flags};
use pointsman_server::driver::message::Load;
use pointsman_server::reload::report::KeeperReport;
use pointsman_server::serve::Server;
use tempfile::TempDir;

use crate::client::Client;

/// A server and its policy folder, which goes with it.
#[derive(Debug)]
pub struct Serving {
    /// To talk to it.
    pub client: Client,
    /// The server itself.
    pub server: Server,
    folder: TempDir,
}

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

impl Serving {
    /// Starts one. `tune` may change its configuration, which is the default but for a free port
    /// and a policy folder of its own that is looked at often.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(tune: impl FnOnce(&mut Config)) -> Result<Self> {
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
        let server = Server::start(config).await?;
        Ok(Self {
            client: Client::new(server.addr()),
            server,
            folder,
        })
    }

    /// A file in the policy folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a file into the policy folder as a careful operator does: written beside it, then
    /// renamed into it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn drop_in(&self, name: &str, content: &[u8]) -> Result<()> {
        let beside = self.path(&format!(".{name}.new"));
        fs::write(&beside, content)?;
        fs::rename(&beside, self.path(name)).context("not renamed")
    }

    /// Waits until nothing is in hand.
    ///
    /// # Errors
    /// If something stays, with what it is.
    pub async fn idle(&self) -> Result<Load> {
        let idle = |load: &Load| load.live == 0 && load.slots_used == 0 && load.blocks_used == 0;
        self.load_until(idle).await
    }

    /// Waits until the load is as wanted.
    ///
    /// # Errors
    /// If it does not get so, with what it is.
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

    /// Waits until the keeper's report is as wanted.
    ///
    /// # Errors
    /// If it does not get so, with what it is.
    pub async fn report_until(
        &self,
        wanted: impl Fn(&KeeperReport) -> bool,
    ) -> Result<Arc<KeeperReport>> {
        let mut reports = self.server.reports();
        let waited = tokio::time::timeout(PATIENCE, reports.wait_for(|report| wanted(report)));
        if let Ok(report) = waited.await {
            return Ok(Arc::clone(&*report?));
        }
        bail!("the report stays {:#?}", self.server.reports().borrow())
    }
}

/// Whether the policy known as `name` holds a hook.
#[must_use]
pub fn holds(report: &KeeperReport, name: &str) -> bool {
    let mut policies = report.policies.iter();
    policies.any(|policy| policy.name == name && !policy.held.is_empty())
}

/// The component of a policy, as `cargo xtask policies` left it.
///
/// # Errors
/// If it is not there.
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
