//! The front of the server: the state of connections from the time on at which the sockets are open.
//!
//! Models may take long to come and to be loaded. Meanwhile those who run the server are told that it lives, and
//! clients when to come back. `connection` and `http2` hold their bounds by what is here, and `router` looks for the
//! [`App`] at each request: a connection that was opened before brings its later requests to it.
//!
//! # Invariants
//! Held by `host/server/tests/running/starting.rs`.
//! 1. Each request is answered from the time on at which the sockets are open
//!    (`probes_are_answered_and_signals_heard_while_a_model_is_fetched`).
//! 2. A connection from the time of loading is served afterwards
//!    (`a_connection_from_the_time_of_loading_is_served_afterwards`).

use std::sync::{Arc, OnceLock};

use hyper::body::{Body as _, Incoming};
use hyper::header;
use hyper::{Method, Request, StatusCode};
use pointsman_driver::metrics::Metrics;
use tokio::sync::watch;

use super::answer::{HttpAnswer as _, HttpReply};
use super::connection::CLOSE;
use super::error::ApiError;
use super::settings::HttpSettings;
use super::{App, ServerPhase, probes, router};

/// State that all connections share, also before models are loaded.
#[derive(Debug)]
pub struct Front {
    // Immutable.
    pub(super) settings: Arc<HttpSettings>,
    // Owned.
    /// Absent: models are being loaded.
    app: OnceLock<Arc<App>>,
    // Owned by others.
    pub(super) phase: watch::Receiver<ServerPhase>,
    pub(super) metrics: Arc<Metrics>,
}

impl Front {
    /// The front of a server whose models are still to be loaded.
    #[must_use]
    pub fn new(
        settings: HttpSettings,
        phase: watch::Receiver<ServerPhase>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            settings: Arc::new(settings),
            app: OnceLock::new(),
            phase,
            metrics,
        }
    }

    /// Has `app` answer each request from now on.
    ///
    /// # Panics
    /// If another one does so already.
    pub fn open(&self, app: App) {
        let opened = self.app.set(Arc::new(app));
        opened.expect("a front is opened once");
    }

    /// The state behind the front; absent: models are being loaded.
    pub(super) fn app(&self) -> Option<&Arc<App>> {
        self.app.get()
    }

    /// The phase that the server is in now.
    pub(super) fn phase(&self) -> ServerPhase {
        *self.phase.borrow()
    }

    /// Answers a request while models are being loaded, whoever sends it: there is nothing yet that needs a key.
    pub(super) fn answer_while_loading(&self, request: &Request<Incoming>) -> HttpReply {
        let probe = match *request.method() {
            Method::GET | Method::HEAD => probes::while_loading(request.uri().path()),
            _ => None,
        };
        let (endpoint, mut reply) = match probe {
            Some((endpoint, probe)) => (endpoint, probe.into_reply(StatusCode::OK)),
            None => {
                let error = ApiError::Starting {
                    why: probes::LOADING,
                    retry_after: self.settings.retry_after_secs,
                };
                ("unknown", error.into_reply())
            }
        };
        if !request.body().is_end_stream() {
            // Nobody reads it, as in `router`.
            reply.headers_mut().insert(header::CONNECTION, CLOSE);
        }
        router::count(&self.metrics, endpoint, &reply);
        reply
    }
}
