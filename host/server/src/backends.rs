//! Servers elsewhere as the configuration file and DNS have them: attached, described anew and removed while
//! the host runs.
//!
//! The file is read again when it has changed, for its `[[backends]]` alone, once two looks in a row have found it
//! the same: it may be being written. One that is wrong changes nothing and is logged; it is tried again at each
//! look, since files that it names may be missing yet. On SIGHUP the backends come without a look.
//!
//! A backend that resolves its host's name stands for a server at each address. One that is written differently
//! and keeps its name is described anew: its models stay known, and no request of it fails. Where names change,
//! those that come are heard before those go that alone serve a model. One that goes is withdrawn, and removed
//! once nothing runs there, unless an operator has it drain: where it is back before that, it is taken back.
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
    /// The edition of the file that was last read again; absent: none was.
    read: Option<FileEdition>,
    /// The edition that the last look found; absent: there was none.
    seen: Option<FileEdition>,
    /// The last edition that could not be used, and why, which is not logged again.
    unusable: Option<(FileEdition, String)>,
    /// Servers that could not be attached, and are not logged again.
    refused: BTreeMap<String, String>,
}

/// An edition of the configuration file, as a look at it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileEdition {
    changed: SystemTime,
    bytes: u64,
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
        seen: edition(config.flags.config.as_ref()),
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

/// The edition of the file at `path`; absent: there is none.
fn edition(path: Option<&PathBuf>) -> Option<FileEdition> {
    let found = std::fs::metadata(path?).ok()?;
    Some(FileEdition {
        changed: found.modified().ok()?,
        bytes: found.len(),
    })
}

// === impl Roster ===

impl Roster {
    /// Reads the file again if it has changed, and is as the look before found it: on a thread that may wait for other
    /// files and for DNS.
    async fn reread(&mut self) {
        let path = self.flags.config.clone();
        let found = edition(path.as_ref());
        let before = mem::replace(&mut self.seen, found);
        let Some(now) = found.filter(|_| found == before && found != self.read) else {
            return;
        };
        let flags = self.flags.clone();
        let Ok(loaded) = task::spawn_blocking(move || Config::load(&flags)).await else {
            // The host ends, or this panicked, which is told.
            return;
        };
        if edition(path.as_ref()) != found {
            // It is written just now. The looks that follow will find it.
            return;
        }
        match loaded {
            Ok(config) => {
                (self.read, self.unusable) = (found, None);
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
    use std::fs;
    use std::sync::mpsc;

    use tempfile::TempDir;
    use tokio::runtime::Builder;
    use tokio::time::timeout;

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
            read: None,
            seen: None,
            unusable: None,
            refused: BTreeMap::new(),
        }
    }

    /// A file with this text, in a folder of its own, and the roster that follows it.
    fn following(text: &str) -> (TempDir, PathBuf, Roster) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pointsman.toml");
        fs::write(&path, text).unwrap();
        let mut roster = roster(text);
        roster.flags.config = Some(path.clone());
        (folder, path, roster)
    }

    /// The executors that are to be there after another look at the file.
    async fn look(roster: &mut Roster) -> Vec<String> {
        roster.reread().await;
        roster.desired().into_keys().collect()
    }

    #[tokio::test]
    async fn a_file_that_is_being_written_is_not_used() {
        let one = "[[backends]]\nurl = 'http://one:80'\n";
        let (_folder, path, mut roster) = following(one);
        // Emptied, and not written yet.
        for text in ["", one, ""] {
            fs::write(&path, text).unwrap();
            assert_eq!(look(&mut roster).await, ["one:80"]);
        }
        let two = format!("{one}[[backends]]\nurl = 'http://two:80'\n");
        fs::write(&path, two).unwrap();
        assert_eq!(look(&mut roster).await, ["one:80"]);
        assert_eq!(look(&mut roster).await, ["one:80", "two:80"]);
        // It is meant so.
        fs::write(&path, "").unwrap();
        assert_eq!(look(&mut roster).await, ["one:80", "two:80"]);
        assert!(look(&mut roster).await.is_empty());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_used_yet_is_tried_until_it_can() {
        let one = "[[backends]]\nurl = 'http://one:80'\n";
        let (folder, path, mut roster) = following(one);
        let two = "[[backends]]\nurl = 'http://two:80'\nkey-file = 'two.key'\n";
        fs::write(&path, two).unwrap();
        for _ in 0..3 {
            assert_eq!(look(&mut roster).await, ["one:80"]);
        }
        let (_, why) = roster.unusable.clone().unwrap();
        assert!(why.contains("two.key"), "{why}");
        fs::write(folder.path().join("two.key"), "secret").unwrap();
        assert_eq!(look(&mut roster).await, ["two:80"]);
        assert_eq!(roster.unusable, None);
    }

    #[test]
    fn a_file_is_loaded_on_a_thread_that_may_wait() {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().max_blocking_threads(1).build();
        runtime.unwrap().block_on(async {
            let (_folder, path, mut roster) = following("");
            fs::write(&path, "[[backends]]\nurl = 'http://one:80'\n").unwrap();
            assert!(look(&mut roster).await.is_empty());
            // The only thread that may wait has something else to do.
            let (end, ended) = mpsc::channel::<()>();
            let other = task::spawn_blocking(move || ended.recv());
            let looked = timeout(Duration::ZERO, look(&mut roster)).await;
            assert!(looked.is_err(), "loaded on a thread of the runtime");
            drop(end);
            assert!(other.await.unwrap().is_err());
            assert_eq!(look(&mut roster).await, ["one:80"]);
        });
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
