//! Spans and metrics for a collector, as OTLP over HTTP with JSON.
//!
//! [`Telemetry::start`] runs two tasks: one sends the requests that have ended, as the driver's `spans` tell
//! them, one sends what `/metrics` shows. Without telemetry neither is there. `names` has every name that
//! goes out, `otlp` the messages, `spans` and `metrics` make them, `collector` sends them.
//!
//! # Bounds
//! The driver's queue, and a batch of `BATCH_MAX` requests. A batch is tried `TRIES` times. What finds no
//! room, or is not taken then, is dropped and counted. At the end of the host everything has
//! [`FLUSH`](Telemetry::finish) to go out.
//!
//! # Not here
//! The choice of the requests that are told of, and the putting together of their spans
//! (`pointsman-driver`); W3C's headers (`pointsman-executor`). Prompts, answers and keys: nothing here has
//! any, but for the collector's own.

#![forbid(unsafe_code)]

mod collector;
mod metrics;
mod names;
mod otlp;
mod spans;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use pointsman_driver::catalog::Catalog;
use pointsman_driver::clock::SystemClock;
use pointsman_driver::message::DriverHandle;
use pointsman_driver::metrics::{Metrics, TracedOutcome};
use pointsman_driver::spans::RequestSpan;
use pointsman_executor::server::ServerUrl;
use pointsman_remote::client::Connections;
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinHandle};
use tokio::time::{Instant, timeout, timeout_at};

use collector::{Collector, Sent};
use otlp::Resource;

/// The most requests of a batch.
const BATCH_MAX: usize = 256;
/// The number of times that a batch is tried to be sent.
const TRIES: u32 = 5;
/// The pause after the first try that failed; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that a collector may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The time for what is left when the host ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The collector, and what it gets.
#[derive(Clone, PartialEq)]
pub struct TelemetrySettings {
    /// The collector's address, without the paths of OTLP.
    pub endpoint: ServerUrl,
    /// Headers of each message, such as a key.
    pub headers: HeaderMap,
    /// The name of this host among others.
    pub service_name: String,
    /// The share of requests without a trace that is recorded, from 0 to 1.
    pub sample_ratio: f64,
    /// The longest time for which a request that has ended waits for others.
    pub spans_every: Duration,
    /// The time between two exports of metrics.
    pub metrics_every: Duration,
    /// The longest time for a message and its answer.
    pub timeout: Duration,
}

/// The parts of the host of which a collector is told.
#[derive(Debug)]
pub struct Told {
    /// The connections by which the collector is reached.
    pub connections: Connections,
    /// The clock of the driver.
    pub clock: SystemClock,
    /// The address at which clients are answered.
    pub addr: SocketAddr,
    /// The requests that have ended.
    pub spans: mpsc::Receiver<RequestSpan>,
    pub metrics: Arc<Metrics>,
    pub driver: DriverHandle,
    pub catalog: watch::Receiver<Arc<Catalog>>,
}

/// The tasks that tell a collector.
#[derive(Debug)]
pub struct Telemetry {
    spans: JoinHandle<()>,
    metrics: JoinHandle<()>,
    /// Dropped, what is left goes out: each message is tried once more.
    stop: watch::Sender<()>,
}

/// The task for spans.
struct SpanExporter {
    // Immutable.
    collector: Collector,
    encoder: spans::SpanEncoder,
    metrics: Arc<Metrics>,
    every: Duration,
    // Owned.
    ended: mpsc::Receiver<RequestSpan>,
    stopped: watch::Receiver<()>,
}

/// The task for metrics.
struct MetricExporter {
    collector: Collector,
    resource: Arc<Resource>,
    metrics: Arc<Metrics>,
    driver: DriverHandle,
    catalog: watch::Receiver<Arc<Catalog>>,
    clock: SystemClock,
    every: Duration,
}

// === impl Telemetry ===

impl Telemetry {
    /// Starts to tell the collector. Call it on a runtime.
    #[must_use]
    pub fn start(settings: &TelemetrySettings, told: Told) -> Self {
        let collector = |path| Collector::new(told.connections.clone(), settings, path);
        let resource = Arc::new(Resource::new(&settings.service_name));
        let (stop, stopped) = watch::channel(());
        let spans = SpanExporter {
            collector: collector(collector::TRACES),
            encoder: spans::SpanEncoder {
                resource: Arc::clone(&resource),
                addr: told.addr,
                clock: told.clock,
            },
            metrics: Arc::clone(&told.metrics),
            every: settings.spans_every,
            ended: told.spans,
            stopped: stopped.clone(),
        };
        let metrics = MetricExporter {
            collector: collector(collector::METRICS),
            resource,
            metrics: told.metrics,
            driver: told.driver,
            catalog: told.catalog,
            clock: told.clock,
            every: settings.metrics_every,
        };
        Self {
            spans: task::spawn(spans.run()),
            metrics: task::spawn(metrics.run(stopped)),
            stop,
        }
    }

    /// Sends what is left, once the driver has ended, for a bounded time.
    pub async fn finish(self) {
        drop(self.stop);
        let (mut spans, mut metrics) = (self.spans, self.metrics);
        let finished = async {
            // A task that panicked has said so.
            drop((&mut spans).await);
            drop((&mut metrics).await);
        };
        if timeout(FLUSH, finished).await.is_err() {
            tracing::warn!("the collector did not take everything before the host's end");
            spans.abort();
            metrics.abort();
        }
    }
}

// === impl SpanExporter ===

impl SpanExporter {
    async fn run(mut self) {
        loop {
            let batch = self.batch().await;
            if batch.is_empty() {
                return;
            }
            self.export(&batch).await;
        }
    }

    /// The next requests that have ended; none: the driver has ended.
    async fn batch(&mut self) -> Vec<RequestSpan> {
        let mut batch = Vec::new();
        let mut came = self.ended.recv_many(&mut batch, BATCH_MAX).await;
        let due = Instant::now() + self.every;
        while came > 0 && batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            let more = timeout_at(due, self.ended.recv_many(&mut batch, room));
            came = more.await.unwrap_or(0);
        }
        batch
    }

    async fn export(&mut self, batch: &[RequestSpan]) {
        let message = self.encoder.encode(batch);
        let requests = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let mut pause = PAUSE;
        for left in (0..TRIES).rev() {
            match self.collector.send(message.clone()).await {
                Sent::Taken { refused } => {
                    let refused = refused.min(requests);
                    self.metrics.traced(TracedOutcome::Refused, refused);
                    let exported = requests - refused;
                    return self.metrics.traced(TracedOutcome::Exported, exported);
                }
                Sent::Refused => return self.metrics.traced(TracedOutcome::Refused, requests),
                Sent::Failed { .. } if left == 0 || self.stopped.has_changed().is_err() => break,
                Sent::Failed { retry_after } => {
                    let pausing = retry_after.unwrap_or(pause).min(PAUSE_MAX);
                    // The host's end cuts it short: there is time for one more try.
                    drop(timeout(pausing, self.stopped.changed()).await);
                    pause *= 2;
                }
            }
        }
        self.metrics.traced(TracedOutcome::Dropped, requests);
    }
}

// === impl MetricExporter ===

impl MetricExporter {
    /// Sends the metrics again and again, and a last time when the host ends.
    async fn run(mut self, mut stopped: watch::Receiver<()>) {
        loop {
            // Nothing ever changes: it is over when the sender is gone.
            let is_over = timeout(self.every, stopped.changed()).await.is_ok();
            self.export().await;
            if is_over {
                return;
            }
        }
    }

    /// Sends the metrics once. They are sent again anyway, so that a try that fails is not made again.
    async fn export(&mut self) {
        let catalog = Arc::clone(&self.catalog.borrow());
        let text = self.metrics.gather(&self.driver, &catalog).await;
        let described = self.metrics.described();
        let message = metrics::encode((&text, described), &self.resource, self.clock);
        let outcome = match self.collector.send(message).await {
            Sent::Taken { .. } => TracedOutcome::Exported,
            Sent::Refused => TracedOutcome::Refused,
            Sent::Failed { .. } => TracedOutcome::Dropped,
        };
        self.metrics.metrics_exported(outcome);
    }
}

impl fmt::Debug for TelemetrySettings {
    /// Writes no header: one of them may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetrySettings")
            .field("endpoint", &self.endpoint)
            .field("headers", &self.headers.len())
            .field("service_name", &self.service_name)
            .field("sample_ratio", &self.sample_ratio)
            .field("spans_every", &self.spans_every)
            .field("metrics_every", &self.metrics_every)
            .field("timeout", &self.timeout)
            .finish()
    }
}
