//! A server as a process: the signals that it obeys, the service manager that it tells, and its exit code.
//!
//! # Not here
//! The server itself ([`serve`](crate::serve)).

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task;
use tracing::{error, info, warn};

use crate::logging::LogFilter;
use crate::manager;
use crate::serve::{Server, Surroundings};
use crate::signals::{self, SignalOrder, Signals};
use pointsman_config::Config;

/// Files that a server has open besides its clients' connections: connections of operators and to servers elsewhere,
/// models, policies and the journal.
const OTHER_FILES: u64 = 256;

/// Serves until a signal comes, then stops. A second signal cuts that short.
///
/// # Errors
/// What keeps the server from serving, or what of it had failed.
pub fn run(mut config: Config, log: &LogFilter) -> Result<ExitCode> {
    raise_open_files(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("http")
        .build()?;
    let code = runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let mut server = tokio::select! {
            biased;
            // Nobody is served yet.
            () = signals.stop() => return Ok(ExitCode::SUCCESS),
            begun = Server::begin(&config, Surroundings::default()) => begun?,
        };
        if serves_before(&mut server, &mut signals, &config).await? {
            manager::ready(server.url());
            task::spawn(manager::keep_alive(server.driver().clone()));
            loop {
                match signals.next().await {
                    SignalOrder::Eject => server.eject().await,
                    SignalOrder::Reload => config = reload_for(&server, config, log).await,
                    SignalOrder::Stop => break,
                }
            }
        }
        manager::stopping(server.stops_within());
        // Biased towards the impatient.
        tokio::select! {
            biased;
            () = signals.stop() => Ok(signals::cut_short()),
            stopped = server.stop() => stopped.map(|()| ExitCode::SUCCESS),
        }
    });
    runtime.shutdown_background();
    code
}

/// Lets this process have as many files open as the system allows, and warns if that is too few for the connections of
/// `config`. The limit that counts without asking is often 1024, for the sake of programs that cannot deal with more.
fn raise_open_files(config: &Config) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "the limit of open files stays as it is");
    }
    let needed = u64::from(config.http.connections_max) + OTHER_FILES;
    let allowed = getrlimit(Resource::Nofile).current;
    if let Some(allowed) = allowed.filter(|allowed| *allowed < needed) {
        warn!(
            allowed,
            needed,
            "the system allows too few open files for http.connections-max: raise its limit, as by LimitNOFILE= in a unit \
             of systemd, or lower that"
        );
    }
}

/// Makes the server ready. Returns false if a signal that asks to stop came before that.
async fn serves_before(
    server: &mut Server,
    signals: &mut Signals,
    config: &Config,
) -> Result<bool> {
    tokio::select! {
        biased;
        () = signals.stop() => Ok(false),
        ready = server.make_ready(config) => ready.map(|()| true),
    }
}

/// Reads the configuration again and puts in force what can be. Returns the one in force.
async fn reload_for(server: &Server, before: Config, log: &LogFilter) -> Config {
    manager::reloading();
    let in_force = match reloaded(server, &before, log).await {
        Ok(after) => {
            server.metrics().config_reloaded();
            after
        }
        Err(error) => {
            server.metrics().config_refused();
            error!(
                error = format!("{error:#}"),
                "configuration not used: everything stays as it was"
            );
            before
        }
    };
    manager::ready(server.url());
    in_force
}

async fn reloaded(server: &Server, before: &Config, log: &LogFilter) -> Result<Config> {
    let after = Config::load(&before.flags)?;
    let changed = server.reload(before, &after).await?;
    log.set(&after.log)?;
    let listed = |keys: BTreeSet<String>| Vec::from_iter(keys).join(", ");
    info!(
        keys = after.keys.len(),
        tenants = after.tenants.len(),
        changed = listed(changed.in_force),
        "configuration read again, and in force"
    );
    if !changed.at_restart.is_empty() {
        let keys = listed(changed.at_restart);
        warn!(keys, "changed, and in force after a restart only");
    }
    Ok(after)
}
