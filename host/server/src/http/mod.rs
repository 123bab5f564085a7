//! HTTP: from sockets to the driver and back.
//!
//! [`serve`] accepts, `connection` runs one client's connection, `router` finds what is asked for,
//! `openai` understands requests and writes answers. Whatever decides or generates lies behind
//! [`DriverHandle`].
//!
//! # Bounds
//! Connections beyond `connections-max` wait unaccepted in the kernel's backlog: a client then
//! waits instead of being refused, and costs nothing. Bodies, heads, reads and writes have the
//! bounds of [`HttpConfig`].
//!
//! # Cancellation
//! A client that leaves ends its connection's task. With it goes the future or body that holds the
//! request's ticket, and dropping the ticket cancels the request wherever it is.
//!
//! # Invariants
//! Held by `tests/http`.
//! 1. Every task is in the one set of [`serve`]; none outlives it
//!    (`connections_end_with_the_server`).
//! 2. No request is submitted before the host is ready or once it drains
//!    (`a_draining_server_takes_nothing_new`).
//!
//! # Not here
//! Scheduling (`driver` and behind it), the text of prompts and answers (`pointsman-engine`).

mod admin;
mod auth;
mod body;
pub mod catalog;
mod connection;
mod error;
mod fields;
mod hints;
mod monitor;
mod openai;
mod router;
mod socket;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::Response;
use hyper::header::HeaderValue;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};

use crate::clock::Clock;
use crate::config::{Config, HintsConfig, HttpConfig};
use crate::driver::message::DriverHandle;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::reload::order::OrderHandle;
use crate::reload::report::ReconcilerReport;
pub use auth::Serves;
use auth::{Door, Keyring};
use catalog::Catalog;
use error::ApiError;
use openai::Events;
pub(crate) use openai::{Kind, try_body};

/// How far the host has come in its life. It only ever goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Models are being loaded, policies put in force.
    Starting,
    /// Requests are served.
    Serving,
    /// What runs goes on, nothing new is taken.
    Draining,
    /// What still runs is cut off.
    Ended,
}

/// What HTTP shows and does not own.
#[derive(Debug)]
pub struct Watched {
    /// How far the host has come.
    pub phase: watch::Receiver<Phase>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The report on the policy folder.
    pub reconciler: watch::Receiver<Arc<ReconcilerReport>>,
    /// The way to give orders about policies.
    pub orders: OrderHandle,
}

/// What every connection shares.
#[derive(Debug)]
pub struct App {
    // Immutable.
    fleet: Arc<Fleet>,
    catalog: watch::Receiver<Arc<Catalog>>,
    driver: DriverHandle,
    keys: Keyring,
    http: HttpConfig,
    hints: HintsConfig,
    /// Requests of which the driver remembers how they were decided.
    decisions_max: u32,
    /// For clients that found no room, in seconds.
    retry_after: u32,
    /// Tells this process's completion ids from those of others.
    origin: u64,
    clock: Clock,
    /// Requests that may wait.
    queue_max: u32,
    // Owned.
    monitor: monitor::Newest,
    /// Prompts that are tokenised at once, where that takes a thread.
    tokenising: Semaphore,
    // Owned by others.
    watched: Watched,
}

/// What is sent: all at once, or as it comes.
type Reply = Response<Either<Full<Bytes>, Events>>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Connections to a listener of the operators' own, which clients that use up theirs do not touch.
const OPERATORS_MAX: u32 = 64;

/// Waiting time after the machine had no file or memory for another socket.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

// === impl App ===

impl App {
    /// What connections need of `config`, and what they talk to.
    #[must_use]
    pub fn new(config: &Config, fleet: Arc<Fleet>, driver: DriverHandle, watched: Watched) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            catalog: fleet.catalog(),
            fleet,
            driver,
            keys: Keyring::new(config),
            http: config.http.clone(),
            hints: config.hints.clone(),
            decisions_max: config.admin.decisions_max,
            retry_after: config.core.retry_after_secs,
            origin: fastrand::u64(..),
            clock: Clock::start(),
            queue_max: config.core.queue_max,
            monitor: monitor::Newest::default(),
            tokenising: Semaphore::new(threads),
            watched,
        }
    }

    /// What clients may name now.
    fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.borrow())
    }

    fn phase(&self) -> Phase {
        *self.watched.phase.borrow()
    }

    /// Whether a request may be taken now.
    fn check_serving(&self) -> Result<(), ApiError> {
        match self.phase() {
            Phase::Serving => Ok(()),
            Phase::Starting => Err(ApiError::Starting {
                retry_after: self.retry_after,
            }),
            Phase::Draining | Phase::Ended => Err(ApiError::draining()),
        }
    }
}

/// Serves `listener` until the phase is [`Phase::Draining`], then lets what runs go on until it is
/// done or the phase is [`Phase::Ended`].
///
/// # Errors
/// If the listener has no address.
///
/// # Cancellation
/// Dropping the future drops every connection.
pub async fn serve(listener: TcpListener, serves: Serves, app: Arc<App>) -> io::Result<()> {
    let door = Door::of(listener.local_addr()?, serves);
    let places = match serves {
        Serves::Everything | Serves::Clients => app.http.connections_max,
        Serves::Operators => OPERATORS_MAX,
    };
    let places = usize::try_from(places).unwrap_or(Semaphore::MAX_PERMITS);
    let places = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
    let mut phase = app.watched.phase.clone();
    let mut connections = JoinSet::new();
    loop {
        // The end first, lest clients that keep coming put it off; then what makes room.
        tokio::select! {
            biased;
            () = reached(&mut phase, Phase::Draining) => break,
            Some(ended) = connections.join_next() => note(ended),
            (stream, place) = accept(&listener, &places) => {
                let app = Arc::clone(&app);
                connections.spawn(async move {
                    connection::run(stream, app, door).await;
                    drop(place);
                });
            }
        }
    }
    drop(listener);
    loop {
        tokio::select! {
            biased;
            () = reached(&mut phase, Phase::Ended) => break,
            ended = connections.join_next() => match ended {
                Some(ended) => note(ended),
                None => break,
            },
        }
    }
    connections.shutdown().await;
    Ok(())
}

/// The next client, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) if is_of_one_client(error.kind()) => {
                tracing::debug!(%error, "a client left before it was accepted");
            }
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted for now");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn is_of_one_client(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused
    )
}

/// Waits for `phase`, or for whoever announces phases to be gone.
async fn reached(phases: &mut watch::Receiver<Phase>, phase: Phase) {
    // Nobody left to announce the end: this is it.
    drop(phases.wait_for(|now| *now >= phase).await);
}

fn note(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task panicked");
    }
}
