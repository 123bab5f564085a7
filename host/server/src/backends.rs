//! Servers elsewhere as the configuration file and DNS have them: attached, described anew and removed while
//! the host runs.
//!
//! The file is read again when it has changed, for its `[[backends]]` alone; one that is wrong changes
//! nothing and is logged. A backend that resolves its host's name stands for a server at each address.
//! One that is written differently and keeps its name is described anew: its models stay known, and no
//! request of it fails. Where names change, those that come are heard before those go that alone serve a
//! model. One that goes is withdrawn, and removed once nothing runs there, unless an operator has it drain:
//! where it is back before that, it is taken back.
//!
//! # Not here
//! Servers that operators add and remove (`pointsman-admin`): they are left alone, under the name of a backend
//! that an operator has removed, too.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use pointsman_core::ExecutorId;
use pointsman_driver::catalog::{Catalog, ExecutorEntry};
use pointsman_driver::fleet::{AddError, Fleet, UpkeepError};
use pointsman_executor::server::ServerConfig;
use tokio::task;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::lookup::Lookup;
use pointsman_config::{BackendConfig, Config, Flags};

/// The time between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The time in which a server that was attached is heard, or others no longer stay for its sake.
const COMES_WITHIN: Duration = Duration::from_secs(10);

/// The servers that are to be there, and those that are.
struct Roster {
    // Immutable.
    flags: Flags,
    lookup: Lookup,
    // Owned.
    /// The backends of the configuration, each with the addresses that its name had last.
    wanted: Vec<Wanted>,
    /// The servers attached from here, by the executor's name.
    attached: BTreeMap<String, AttachedServer>,
    /// The servers attached of which no model is known yet, each with the end of the time for which others
    /// stay for their sake.
    coming: BTreeMap<String, Instant>,
    /// The change of the file with which it was last read again; absent: it was not.
    changed: Option<SystemTime>,
    /// Servers that could not be attached, and are not logged again.
    refused: BTreeMap<String, String>,
}

/// A server that was attached from here. An operator may have removed it since.
struct AttachedServer {
    /// The backend as the server was last described.
    backend: BackendConfig,
    executor: ExecutorId,
    is_withdrawn: bool,
}

/// A backend of the configuration.
struct Wanted {
    backend: BackendConfig,
    addresses: Vec<SocketAddr>,
    /// The time to look its name up; absent: it is not looked up.
    due: Option<Instant>,
}

/// Attaches the backends of `config`, and keeps them as its file and DNS have them until the host ends.
///
/// # Errors
/// If one of them cannot be attached.
pub(crate) async fn start(
    config: &Config,
    lookup: Lookup,
    fleet: &Arc<Fleet>,
) -> Result<(), AddError> {
    let mut roster = Roster {
        flags: config.flags.clone(),
        lookup,
        wanted: wanted(&config.backends),
        attached: BTreeMap::new(),
        coming: BTreeMap::new(),
        // It may have been edited since it was read: models were loaded meanwhile.
        changed: None,
        refused: BTreeMap::new(),
    };
    roster.resolve().await;
    for (name, backend) in roster.desired() {
        roster.attach(fleet, &name, &backend).await?;
    }
    let changes = config.flags.config.is_some() || roster.wanted.iter().any(|it| it.due.is_some());
    if changes {
        task::spawn(follow(roster, Arc::downgrade(fleet)));
    }
    Ok(())
}

/// Keeps the servers as they are to be, as long as there is a fleet.
async fn follow(mut roster: Roster, fleet: Weak<Fleet>) {
    loop {
        sleep(LOOK_EVERY).await;
        roster.reread();
        roster.resolve().await;
        let Some(fleet) = fleet.upgrade() else { return };
        roster.reconcile(&fleet).await;
    }
}

fn wanted(backends: &[BackendConfig]) -> Vec<Wanted> {
    let wanted = backends.iter().map(|backend| Wanted {
        backend: backend.clone(),
        addresses: Vec::new(),
        due: backend.resolve.map(|_| Instant::now()),
    });
    wanted.collect()
}

/// The models that an executor serves.
fn serves<'a>(catalog: &'a Catalog, name: &str) -> &'a [String] {
    let mut executors = catalog.executors.iter();
    let executor = executors.find(|executor| executor.name == name);
    executor.map_or(&[], |executor| &executor.models)
}

fn changed(path: Option<&PathBuf>) -> Option<SystemTime> {
    std::fs::metadata(path?).ok()?.modified().ok()
}

// === impl Roster ===

impl Roster {
    /// Reads the file again if it has changed.
    fn reread(&mut self) {
        let now = changed(self.flags.config.as_ref());
        if now == self.changed || now.is_none() {
            return;
        }
        self.changed = now;
        match Config::load(&self.flags) {
            Ok(config) => {
                let before = self.wanted.iter().map(|wanted| &wanted.backend);
                if !before.eq(&config.backends) {
                    info!(
                        backends = config.backends.len(),
                        "the backends of the configuration have changed"
                    );
                    self.want(&config.backends);
                }
            }
            Err(error) => warn!(%error, "the changed configuration is not used"),
        }
    }

    /// Wants these backends from now on. A name keeps the addresses that it had, until it is looked up.
    fn want(&mut self, backends: &[BackendConfig]) {
        let before = mem::replace(&mut self.wanted, wanted(backends));
        for wanted in &mut self.wanted {
            let host = wanted.backend.server.url.host_and_port();
            let is_known = |it: &&Wanted| {
                let same = it.backend.server.url.host_and_port() == host;
                same && !it.addresses.is_empty()
            };
            if let Some(known) = before.iter().find(is_known) {
                wanted.addresses.clone_from(&known.addresses);
            }
        }
    }

    /// Looks up the names whose time has come. One that cannot be looked up keeps its addresses.
    async fn resolve(&mut self) {
        for wanted in &mut self.wanted {
            let Some((due, every)) = wanted.due.zip(wanted.backend.resolve) else {
                continue;
            };
            let now = Instant::now();
            if due > now {
                continue;
            }
            wanted.due = Some(now + every);
            let host = wanted.backend.server.url.host_and_port();
            match self.lookup.addresses(&host).await {
                Ok(found) => wanted.addresses = found,
                Err(error) => warn!(host, %error, "a backend's name cannot be looked up"),
            }
        }
    }

    /// The servers that are to be there, by the executor's name.
    fn desired(&self) -> BTreeMap<String, BackendConfig> {
        let servers = self.wanted.iter().flat_map(Wanted::servers);
        servers
            .map(|backend| (backend.server.executor_name(), backend))
            .collect()
    }

    /// Describes anew, attaches and removes what differs. What comes does so before what goes.
    async fn reconcile(&mut self, fleet: &Arc<Fleet>) {
        let desired = self.desired();
        for (name, backend) in &desired {
            let attached = self.attached.get(name);
            if attached.is_some_and(|it| it.backend == *backend && !it.is_withdrawn) {
                continue;
            }
            // One of that name may still have requests to end: it is tried again.
            if let Err(error) = self.bring(fleet, name, backend).await
                && self.refused.get(name) != Some(&error)
            {
                info!(
                    executor = name,
                    error, "a backend is not as it is to be yet"
                );
                self.refused.insert(name.clone(), error);
            }
        }
        let catalog = fleet.catalog().borrow().clone();
        self.coming.retain(|name, until| {
            let is_here = self.attached.contains_key(name) && !serves(&catalog, name).is_empty();
            desired.contains_key(name) && !is_here && *until > Instant::now()
        });
        let gone = self.attached.keys();
        let gone = gone.filter(|name| !desired.contains_key(*name));
        let gone = gone.filter(|name| self.may_go(&catalog, &desired, name));
        for name in gone.cloned().collect::<Vec<_>>() {
            if let Some(attached) = self.attached.get_mut(&name) {
                attached.is_withdrawn = fleet.withdraw(attached.executor).await;
                if !attached.is_withdrawn {
                    self.attached.remove(&name);
                }
            }
        }
    }

    /// Has a server as it is to be: one that is attached is described anew or taken back, and keeps its models and
    /// requests. One that an operator has removed stays away until it is written differently, or DNS or the file
    /// has been without it.
    async fn bring(
        &mut self,
        fleet: &Arc<Fleet>,
        name: &str,
        backend: &BackendConfig,
    ) -> Result<(), String> {
        if let Some(attached) = self.attached.get_mut(name) {
            let is_edited = attached.backend != *backend;
            match attached.be(fleet, backend).await {
                Err(UpkeepError::Removed) if is_edited => {}
                Ok(()) | Err(UpkeepError::Removed) => {
                    attached.is_withdrawn = false;
                    self.refused.remove(name);
                    return Ok(());
                }
                Err(error @ (UpkeepError::Refused(_) | UpkeepError::Ended)) => {
                    return Err(error.to_string());
                }
            }
        }
        let attached = self.attach(fleet, name, backend).await;
        attached.map_err(|error| error.to_string())
    }

    /// True unless `name` alone serves a model, while others that came have not been heard yet.
    fn may_go(
        &self,
        catalog: &Catalog,
        desired: &BTreeMap<String, BackendConfig>,
        name: &str,
    ) -> bool {
        let stays = |executor: &&ExecutorEntry| {
            let theirs = &executor.name;
            !self.attached.contains_key(theirs) || desired.contains_key(theirs)
        };
        let mut models = serves(catalog, name).iter();
        let is_served = |model: &String| {
            let mut stay = catalog.executors.iter().filter(stays);
            stay.any(|executor| executor.models.contains(model))
        };
        self.coming.is_empty() || models.all(is_served)
    }

    async fn attach(
        &mut self,
        fleet: &Arc<Fleet>,
        name: &str,
        backend: &BackendConfig,
    ) -> Result<(), AddError> {
        let (server, terms) = (backend.server.clone(), backend.terms);
        let row = Arc::clone(fleet).connect(server, terms).await?;
        self.coming
            .insert(name.to_owned(), Instant::now() + COMES_WITHIN);
        let attached = AttachedServer {
            backend: backend.clone(),
            executor: row.load.id,
            is_withdrawn: false,
        };
        self.attached.insert(name.to_owned(), attached);
        self.refused.remove(name);
        Ok(())
    }
}

// === impl AttachedServer ===

impl AttachedServer {
    /// Has the server described as `backend` is, and taken back if it is withdrawn.
    async fn be(&mut self, fleet: &Fleet, backend: &BackendConfig) -> Result<(), UpkeepError> {
        if self.backend != *backend {
            let (server, terms) = (backend.server.clone(), backend.terms);
            fleet.configure(self.executor, server, terms).await?;
            self.backend = backend.clone();
        }
        if self.is_withdrawn {
            fleet.take_back(self.executor).await?;
            self.is_withdrawn = false;
        }
        Ok(())
    }
}

// === impl Wanted ===

impl Wanted {
    /// The servers that the backend stands for.
    fn servers(&self) -> Vec<BackendConfig> {
        if self.due.is_none() {
            return vec![self.backend.clone()];
        }
        let server = &self.backend.server;
        let name = server.executor_name();
        let at = |address: &SocketAddr| BackendConfig {
            server: ServerConfig {
                name: Some(format!("{name}/{address}")),
                url: server.url.at(*address),
                ..server.clone()
            },
            ..self.backend.clone()
        };
        self.addresses.iter().map(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The roster of a file with these backends.
    fn roster(backends: &str) -> Roster {
        let config = Config::of_text(backends).unwrap();
        Roster {
            flags: Flags::default(),
            lookup: Lookup::default(),
            wanted: wanted(&config.backends),
            attached: BTreeMap::new(),
            coming: BTreeMap::new(),
            changed: None,
            refused: BTreeMap::new(),
        }
    }

    #[test]
    fn a_name_stands_for_a_server_at_each_of_its_addresses() {
        let mut roster = roster(
            "[[backends]]\nurl = 'http://one:80'\n[[backends]]\nname = 'many'\nurl = 'http://svc:8000/v'\n\
             resolve = '5s'\ngroup = 3",
        );
        let names = |roster: &Roster| roster.desired().into_keys().collect::<Vec<_>>();
        assert_eq!(names(&roster), ["one:80"]);
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        roster.wanted[1].addresses = vec![address("10.0.0.1:8000"), address("[fd00::1]:8000")];
        let desired = roster.desired();
        let expected = [
            ("many/10.0.0.1:8000", "http://10.0.0.1:8000/v", 3),
            ("many/[fd00::1]:8000", "http://[fd00::1]:8000/v", 3),
            ("one:80", "http://one:80", 0),
        ];
        let found = desired.iter().map(|(name, backend)| {
            let url = backend.server.url.to_string();
            (name.as_str(), url, backend.terms.group)
        });
        let expected = expected.map(|(name, url, group)| (name, url.to_owned(), group));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_looked_up_keeps_its_addresses() {
        let mut roster =
            roster("[[backends]]\nurl = 'http://no.such.name.invalid:1'\nresolve = '5s'");
        roster.wanted[0].addresses = vec!["10.0.0.1:8000".parse().unwrap()];
        roster.resolve().await;
        assert_eq!(roster.desired().len(), 1);
        // Where its terms are written anew, too.
        let mut edited = roster.wanted[0].backend.clone();
        edited.terms.group = 3;
        roster.want(&[edited]);
        roster.resolve().await;
        let groups: Vec<_> = roster.desired().values().map(|it| it.terms.group).collect();
        assert_eq!(groups, [3]);
    }
}
