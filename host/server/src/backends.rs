//! Servers elsewhere as the configuration file and DNS have them: attached, described anew and removed while
//! the host runs.
//!
//! The file is read again when it has changed, for its `[[backends]]` alone, once two looks in a row have found it
//! the same: it may be being written. One that is wrong changes nothing and is logged; it is tried again at each
//! look, since files that it names may be missing yet. On SIGHUP the backends come without a look.
//!
//! A backend that resolves its host's name stands for a server at each address, and before there is one for a server
//! by that name if its models are named: requests for them wait. One that is written differently
//! and keeps its name is described anew: its models stay known, and no request of it fails. Where names change,
//! those that come are heard before those go that alone serve a model. One that goes is withdrawn, and removed
//! once nothing runs there, unless an operator has it drain: where it is back before that, it is taken back.
//!
//! # Not here
//! Servers that operators add and remove (`pointsman-admin`): they are left alone, under the name of a backend
//! that an operator has removed, too.

use std::collections::BTreeMap;
use std::fs;
use std::mem;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use pointsman_core::ExecutorId;
use pointsman_driver::catalog::{Catalog, ExecutorEntry};
use pointsman_driver::fleet::{AddError, Fleet, UpkeepError};
use pointsman_executor::server::ServerConfig;
use pointsman_files::FileStamp;
use tokio::sync::watch;
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
    /// The stamp of the file that was last read again; absent: none was.
    read: Option<FileStamp>,
    /// The stamp that the last look found; absent: there was no file.
    seen: Option<FileStamp>,
    /// The last file that could not be used, and why, which is not logged again.
    unusable: Option<(FileStamp, String)>,
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

/// Attaches the backends of `config`, and keeps them as its file and DNS have them until the host ends. Returns the
/// way to say what the backends are to be, once the file was read elsewhere.
///
/// # Errors
/// If one of them cannot be attached.
pub(crate) async fn start(
    config: &Config,
    lookup: Lookup,
    fleet: &Arc<Fleet>,
) -> Result<watch::Sender<Vec<BackendConfig>>, AddError> {
    let mut roster = Roster {
        flags: config.flags.clone(),
        lookup,
        wanted: wanted(&config.backends),
        attached: BTreeMap::new(),
        coming: BTreeMap::new(),
        // It may have been edited since it was read: models were loaded meanwhile.
        read: None,
        seen: stamp(config.flags.config.as_ref()),
        unusable: None,
        refused: BTreeMap::new(),
    };
    roster.resolve().await;
    for (name, backend) in roster.desired() {
        roster.attach(fleet, &name, &backend).await?;
    }
    let changes = config.flags.config.is_some() || roster.wanted.iter().any(|it| it.due.is_some());
    let (told, edits) = watch::channel(config.backends.clone());
    if changes {
        task::spawn(follow(roster, edits, Arc::downgrade(fleet)));
    }
    Ok(told)
}

/// Keeps the servers as they are to be, as long as there is a server with a fleet.
async fn follow(
    mut roster: Roster,
    mut edits: watch::Receiver<Vec<BackendConfig>>,
    fleet: Weak<Fleet>,
) {
    loop {
        // Biased towards an operator who waits for it. A look that is not taken is taken later.
        tokio::select! {
            biased;
            edited = edits.changed() => {
                if edited.is_err() {
                    return;
                }
                let backends = edits.borrow_and_update().clone();
                roster.edit(&backends);
                // The file may have changed since.
                roster.read = None;
            }
            () = sleep(LOOK_EVERY) => roster.reread().await,
        }
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

/// The stamp of the file at `path`; absent: there is none.
fn stamp(path: Option<&PathBuf>) -> Option<FileStamp> {
    let path = fs::canonicalize(path?).ok()?;
    let found = fs::metadata(&path).ok()?;
    Some(FileStamp::of(path, &found))
}

// === impl Roster ===

impl Roster {
    /// Reads the file again if it has changed, and is as the look before found it: on a thread that may wait for other
    /// files and for DNS.
    async fn reread(&mut self) {
        let path = self.flags.config.clone();
        let found = stamp(path.as_ref());
        let before = mem::replace(&mut self.seen, found.clone());
        let is_news = found == before && found != self.read;
        let Some(now) = found.filter(|_| is_news) else {
            return;
        };
        let flags = self.flags.clone();
        let Ok(loaded) = task::spawn_blocking(move || Config::load(&flags)).await else {
            // The host ends, or this panicked, which is told.
            return;
        };
        if stamp(path.as_ref()).as_ref() != Some(&now) {
            // It is written just now. The looks that follow will find it.
            return;
        }
        match loaded {
            Ok(config) => {
                (self.read, self.unusable) = (Some(now), None);
                self.edit(&config.backends);
            }
            Err(error) => {
                let unusable = Some((now, error.to_string()));
                if self.unusable != unusable {
                    warn!(%error, "the changed configuration is not used");
                    self.unusable = unusable;
                }
            }
        }
    }

    /// Wants the backends of a configuration that was read, if they differ.
    fn edit(&mut self, backends: &[BackendConfig]) {
        let before = self.wanted.iter().map(|wanted| &wanted.backend);
        if !before.eq(backends) {
            info!(
                backends = backends.len(),
                "the backends of the configuration have changed"
            );
            self.want(backends);
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
    /// The servers that the backend stands for. A name without an address is a server, too, where its models are named:
    /// one that does not answer yet, as requests for them know it.
    fn servers(&self) -> Vec<BackendConfig> {
        let server = &self.backend.server;
        let is_awaited = self.addresses.is_empty() && !server.models.is_empty();
        if self.due.is_none() || is_awaited {
            return vec![self.backend.clone()];
        }
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
mod tests;
