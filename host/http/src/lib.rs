//! The HTTP server: listeners, TLS, access, bodies, the table of routes and the OpenAPI document.
//!
//! [`Front`] is the state that all connections share from the first on, and [`App`] what is behind it once models are
//! loaded. [`HttpSettings`] has the bounds, and [`AccessRules`] the keys and rules, which may be replaced while the
//! server runs.
//! [`serve`] accepts, `tls` shakes hands where that is asked for, `connection` and `http2` run one client's
//! connection, and `router` finds the function for a request in the table of [`routes`], which each surface brings
//! its rows to. A function gets a [`Call`] and returns an [`HttpAnswer`](answer::HttpAnswer) or an
//! [`ApiError`]. [`openapi`] makes a document of the same table. Everything that decides or generates lies behind
//! [`DriverHandle`].
//!
//! # Bounds
//! A connection beyond `connections-max` is a spare one: it gets one answer, to a probe or that there
//! is no room, and closes. There are few spare ones, and a newer one takes the place of the oldest, so
//! that neither clients that stay nor clients that are silent keep probes from being answered.
//! `body`, `turns` and `connection` have bounds of their own, most of them of [`HttpSettings`]:
//!
//! | bound | default | beyond |
//! |---|---|---|
//! | `http.connections-max` | 4096 | 429, and the connection closes |
//! | `http.connection-requests-max`, requests of one connection | 10,000 | the connection closes behind its last answer |
//! | `http.requests-max` | 8192 | 429 |
//! | `http.body-max` | 32 MiB | 413 |
//! | `http.bodies-max`, all bodies together but the first 16 KiB of one at a time of each connection | 512 MiB | 429 |
//! | `http.reading-queue-max`, long requests that wait to be parsed and tokenised | 1024 | 429 |
//! | `http.read-timeout`, over a head, and again over a body, which has a second more for each 256 KiB that have come | 30 s | 408, or the connection closes |
//! | `tls.handshake-timeout`, over a handshake | 10 s | the connection closes |
//! | `http.write-timeout`, over bytes that a client leaves unread | 30 s | the connection closes |
//! | bytes and headers of a head | 64 KiB, 100 (HTTP/1.1) | 431 |
//! | `requests-per-minute`, `tokens-per-minute-max` and `concurrent-max` of a tenant | none | 429 |
//! | requests at once on a connection by HTTP/2 | 256 | wait at the client |
//! | fields of an object in a body | 1024 | 400 |
//!
//! # Cancellation
//! A client that leaves ends its connection's task. The future or body that holds the request's
//! ticket goes with the task, and dropping the ticket cancels the request wherever it is.
//!
//! # Invariants
//! Held by `host/server/tests/http`.
//! 1. Every task is in the one set of [`serve`], or in that of its connection by HTTP/2; none outlives it
//!    (`connections_end_with_the_server`).
//! 2. No request is submitted before the host is ready or once it drains
//!    (`a_draining_server_takes_nothing_new`).
//!
//! # Not here
//! OpenAI's API (`pointsman-openai`); the interface for operators and the monitor (`pointsman-admin`);
//! scheduling (`pointsman-driver`, and `pointsman-core` behind it); the sockets, the whole table, and the
//! making of [`HttpSettings`] and [`AccessRules`] from the configuration (`pointsman-server`).

#![forbid(unsafe_code)]

pub mod answer;
mod audit;
mod auth;
pub mod authorship;
mod body;
mod connection;
mod cors;
pub mod error;
pub mod fields;
mod front;
mod http2;
pub mod limits;
pub mod openapi;
mod probes;
mod rights;
mod router;
pub mod routes;
mod settings;
mod socket;
mod spares;
#[cfg(feature = "test-util")]
pub mod test_util;
mod tls;
pub mod trace;
mod turns;

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use pointsman_driver::catalog::Catalog;
use pointsman_driver::clock::SystemClock;
use pointsman_driver::fleet::Fleet;
use pointsman_driver::message::DriverHandle;
use pointsman_driver::metrics::Metrics;
use pointsman_driver::quota::Quotas;
use pointsman_driver::spans::SpanQueue;
use pointsman_lifecycle::order::OrderHandle;
use pointsman_lifecycle::report::ReconcilerReport;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};

use auth::Listener;
use body::{Bodies, Uncounted};
use connection::{EntryPoint, Seat};
use error::ApiError;
use routes::RouteTable;
use spares::Spares;
use turns::Turns;

pub use auth::{ApiKey, ApiKeys, Audience, DEFAULT_TENANT, RouteAccess};
pub use body::RequestBody;
pub use cors::{NoOrigin, Origins, PageOrigin};
pub use front::Front;
pub use rights::{KeyHolder, ModelPattern, NoModelPattern, Rights, UsableModels};
pub use router::Call;
pub use settings::{AccessRules, Claims, HEAD_START_MAX, HttpSettings, PrefixCache, UnnamedModel};
pub use tls::{Tls, TlsError, TlsSettings, Transport};

/// Phases of the server's life, which follow one another in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerPhase {
    /// Models are being loaded and policies put in force.
    Starting,
    /// Requests are served.
    Serving,
    /// Running requests go on, and nothing new is taken.
    Draining,
    /// Requests that still run are cut off.
    Ended,
}

/// The parts of the server that HTTP shows and does not own.
#[derive(Debug)]
pub struct Watched {
    /// The keys and rules in force.
    pub rules: watch::Receiver<Arc<AccessRules>>,
    /// The limits of tenants, and their use.
    pub quotas: Arc<Quotas>,
    /// The state of the policy folder.
    pub reconciler: watch::Receiver<Arc<ReconcilerReport>>,
    /// The handle for orders about policies.
    pub orders: OrderHandle,
    /// The clock of the driver.
    pub clock: SystemClock,
    /// The way of requests' spans to their exporter; absent: nobody is told of them.
    pub spans: Option<SpanQueue>,
}

/// A listener, with the clients that it is for.
#[derive(Debug)]
pub struct Endpoint {
    /// The listener.
    pub sockets: TcpListener,
    /// The clients that the listener is for.
    pub audience: Audience,
    /// The way in which their connections are secured.
    pub transport: Transport,
}

/// State that all connections share once models are loaded.
#[derive(Debug)]
pub struct App {
    // Immutable.
    /// The settings of HTTP.
    pub settings: Arc<HttpSettings>,
    /// The executors, to which operators add.
    pub fleet: Arc<Fleet>,
    catalog: watch::Receiver<Arc<Catalog>>,
    /// The way to the driver.
    pub driver: DriverHandle,
    /// Part of each completion's id, so that ids of two processes differ.
    pub origin: u64,
    routes: RouteTable,
    // Owned.
    bodies: Arc<Bodies>,
    turns: Turns,
    // Owned by others.
    phase: watch::Receiver<ServerPhase>,
    /// The server's metrics.
    pub metrics: Arc<Metrics>,
    /// The parts of the server that HTTP shows.
    pub watched: Watched,
}

/// Connections to a listener of the operators' own, which clients that use up theirs do not touch.
const OPERATORS_MAX: u32 = 64;

/// Waiting time after the machine had no file or memory for another socket.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The outcome of the last attempt to accept a client, as far as it depends on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastAccept {
    Succeeded,
    Failed,
}

// === impl App ===

impl App {
    /// The state of connections to `front` that are answered by `routes`, talk to `driver` and change `fleet`.
    #[must_use]
    pub fn new(
        front: &Front,
        routes: RouteTable,
        fleet: Arc<Fleet>,
        driver: DriverHandle,
        watched: Watched,
    ) -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let settings = Arc::clone(&front.settings);
        Self {
            bodies: Arc::new(Bodies::new(&settings)),
            turns: Turns::new(threads, &settings),
            settings,
            routes,
            catalog: fleet.catalog(),
            fleet,
            driver,
            origin: fastrand::u64(..),
            phase: front.phase.clone(),
            metrics: Arc::clone(&front.metrics),
            watched,
        }
    }

    /// The names that clients may use now.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.borrow())
    }

    /// The keys and rules that are in force now.
    fn rules(&self) -> Arc<AccessRules> {
        Arc::clone(&self.watched.rules.borrow())
    }

    /// The phase that the server is in now.
    #[must_use]
    pub fn phase(&self) -> ServerPhase {
        *self.phase.borrow()
    }

    /// The table of all routes.
    #[must_use]
    pub fn routes(&self) -> &RouteTable {
        &self.routes
    }

    /// Reads a body: a small one in place, which takes well under a millisecond, another in its turn.
    ///
    /// # Errors
    /// Those of `read`, and the one of a queue that is full.
    pub async fn read_in_turn<T: Send + 'static>(
        &self,
        body: RequestBody,
        read: impl FnOnce(RequestBody) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.turns.read(body, read).await
    }

    /// Refuses a request unless the server serves.
    ///
    /// # Errors
    /// The phase that the server is in.
    pub fn check_serving(&self) -> Result<(), ApiError> {
        match self.phase() {
            ServerPhase::Serving => Ok(()),
            ServerPhase::Starting => Err(ApiError::Starting {
                why: probes::PREPARING,
                retry_after: self.settings.retry_after_secs,
            }),
            ServerPhase::Draining | ServerPhase::Ended => Err(ApiError::draining()),
        }
    }

    /// Refuses a request for which the driver has no room, before work is done for it.
    ///
    /// # Errors
    /// The time after which to try again.
    pub fn check_hands(&self) -> Result<(), ApiError> {
        if self.driver.has_room() {
            return Ok(());
        }
        Err(ApiError::HandsFull {
            retry_after: self.settings.retry_after_secs,
        })
    }
}

/// Serves a listener until the phase is [`ServerPhase::Draining`], then lets running requests go on
/// until they are done or the phase is [`ServerPhase::Ended`].
///
/// # Errors
/// If the listener has no address.
///
/// # Cancellation
/// Dropping the future drops every connection.
pub async fn serve(endpoint: Endpoint, front: Arc<Front>) -> io::Result<()> {
    let Endpoint {
        sockets,
        audience,
        transport,
    } = endpoint;
    let listener = Listener::new(sockets.local_addr()?, audience);
    let places = match audience {
        Audience::Everybody | Audience::Clients => front.settings.connections_max,
        Audience::Operators => OPERATORS_MAX,
    };
    let places = usize::try_from(places).unwrap_or(Semaphore::MAX_PERMITS);
    let places = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
    let mut phase = front.phase.clone();
    let mut connections = JoinSet::new();
    let mut spares = Spares::default();
    let mut last = LastAccept::Succeeded;
    loop {
        // The end first, lest clients that keep coming put it off; then ended connections, which
        // make room.
        tokio::select! {
            biased;
            () = reached(&mut phase, ServerPhase::Draining) => break,
            Some(ended) = connections.join_next() => note(ended),
            (stream, peer) = accept(&sockets, &mut last) => {
                let (front, transport) = (Arc::clone(&front), transport.clone());
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    let entry = EntryPoint {
                        listener,
                        seat: Seat::Regular,
                        peer,
                        uncounted: Uncounted::default(),
                    };
                    connections.spawn(async move {
                        connection::run(stream, front, entry, transport).await;
                        drop(place);
                    });
                } else {
                    let entry = EntryPoint {
                        listener,
                        seat: Seat::Spare,
                        peer,
                        uncounted: Uncounted::default(),
                    };
                    let spare = connection::run(stream, front, entry, transport);
                    spares.add(connections.spawn(spare));
                }
            }
        }
    }
    drop(sockets);
    loop {
        tokio::select! {
            biased;
            () = reached(&mut phase, ServerPhase::Ended) => break,
            ended = connections.join_next() => match ended {
                Some(ended) => note(ended),
                None => break,
            },
        }
    }
    connections.shutdown().await;
    Ok(())
}

/// Accepts the next client. Returns its address, too.
///
/// # Cancellation
/// Nobody is lost, and `last` is right.
async fn accept(sockets: &TcpListener, last: &mut LastAccept) -> (TcpStream, SocketAddr) {
    loop {
        match sockets.accept().await {
            Ok((stream, peer)) => {
                *last = LastAccept::Succeeded;
                return (stream, canonical(peer));
            }
            Err(error) if is_of_one_client(error.kind()) => {
                tracing::debug!(%error, "a client left before it was accepted");
            }
            Err(error) => {
                // It is tried often, and fails each time until there is room.
                if mem::replace(last, LastAccept::Failed) == LastAccept::Succeeded {
                    tracing::warn!(%error, "no connection can be accepted for now");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// An address as its own family writes it: a listener of both has clients of IPv4 by addresses of IPv6.
fn canonical(peer: SocketAddr) -> SocketAddr {
    match peer.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, peer.port()),
        // A link-local one has a scope, too.
        IpAddr::V6(_) => peer,
    }
}

fn is_of_one_client(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused
    )
}

/// Waits for `phase`, or for the end of the phases' sender.
async fn reached(phases: &mut watch::Receiver<ServerPhase>, phase: ServerPhase) {
    // Nobody is left to announce the end: this is it.
    drop(phases.wait_for(|now| *now >= phase).await);
}

fn note(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_by_its_address_whatever_the_listener_makes_of_it() {
        for (peer, address) in [
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[fd00::1]:80", "[fd00::1]:80"),
            ("[fe80::1%2]:80", "[fe80::1%2]:80"),
        ] {
            assert_eq!(canonical(peer.parse().unwrap()).to_string(), address);
        }
    }
}
