//! A whole server: models, machine, driver, policies and HTTP, put together and taken apart.
//!
//! # Shutdown
//! [`Server::stop`]: nothing new is taken; what is in hand goes on until the drain deadline; then
//! the driver ends what is left, HTTP says so to its clients, and every thread and task is joined.

mod threads;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use pointsman_admin::KeptExecutors;
use pointsman_component::PolicyEngine;
use pointsman_core::{Hook, Input, Machine, Micros};
use pointsman_driver::catalog::{Catalog, ExecutorEntry};
use pointsman_driver::clock::{self, SystemClock};
use pointsman_driver::fleet::Fleet;
use pointsman_driver::message::{DriverHandle, channels};
use pointsman_driver::metrics::Metrics;
use pointsman_driver::operator::Operator;
use pointsman_driver::port::{DriverPort, eject};
use pointsman_driver::provider::ServedModel;
use pointsman_driver::quota::Quotas;
use pointsman_driver::spans::{self, RequestSpan, SpanQueue, Spans};
use pointsman_driver::{Driver, Memory, thread};
use pointsman_executor::stats::EngineStats;
use pointsman_http::{AccessRules, App, Front, ServerPhase, Watched};
use pointsman_lifecycle::order::OrderHandle;
use pointsman_lifecycle::report::ReconcilerReport;
use pointsman_lifecycle::{ReconcilerHandle, ReconcilerSpec};
use pointsman_local::hub;
use pointsman_local::{Backends, LocalSettings};
use pointsman_notation::Time;
use pointsman_policy::{PolicyHost, Restarts};
use pointsman_remote::client::Connections;
use pointsman_state::State;
use pointsman_telemetry::{Telemetry, Told};
use tokio::sync::{mpsc, watch};
use tokio::task;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::advice::advice;
use crate::backends;
use crate::embedded;
use crate::journal;
use crate::listeners::{self, Listeners};
use crate::lookup::Lookup;
use crate::reload::{self, ChangedKeys};
use crate::remotes::{self, HostProvider};
use crate::routes;
use crate::settings::{access_rules, http_settings, tenant_limits};
use crate::state;
use pointsman_config::{BackendConfig, Config, WrittenKeys};
use threads::join;

/// Batches of executor events on their way to the driver.
const EVENTS_MAX: usize = 256;
/// The time within which servers elsewhere are expected to tell their models.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// The time that clients may take over the last words of a request that the drain deadline ended,
/// and then the threads over what they are doing.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server that serves.
#[derive(Debug)]
pub struct Server {
    // Immutable.
    addr: SocketAddr,
    /// The address for its clients, as a URL.
    url: String,
    admin_addr: Option<SocketAddr>,
    drain: Duration,
    driver: DriverHandle,
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    quotas: Arc<Quotas>,
    /// The keys of the configuration with which it was started.
    started: WrittenKeys,
    // Owned.
    rules: watch::Sender<Arc<AccessRules>>,
    /// The servers elsewhere that are to be there, as the configuration was last read on order.
    backends: watch::Sender<Vec<BackendConfig>>,
    // Lifecycle.
    phase: watch::Sender<ServerPhase>,
    http: task::JoinHandle<std::io::Result<()>>,
    reconciler: ReconcilerHandle,
    driver_thread: JoinHandle<()>,
    /// Writes the access log.
    access_log: task::JoinHandle<()>,
    /// Absent: nobody is told of spans and metrics.
    telemetry: Option<Telemetry>,
}

/// The things that a server finds where it runs, and that a test may have others in the place of.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The backends of engines.
    pub backends: Backends,
    /// The lookup of the names of servers elsewhere.
    pub lookup: Lookup,
}

/// The driver and what it drives.
struct Core {
    driver: DriverHandle,
    fleet: Arc<Fleet>,
    /// The connections to servers, by which a collector is reached, too.
    connections: Connections,
    thread: JoinHandle<()>,
    /// Writes the access log.
    access_log: task::JoinHandle<()>,
    /// The way of spans to the exporter; absent: nobody is told of them.
    span_queue: Option<SpanQueue>,
    /// Its other end.
    spans: Option<mpsc::Receiver<RequestSpan>>,
}

/// The things that the driver and the reconciler share.
struct Shared {
    clock: SystemClock,
    metrics: Arc<Metrics>,
    /// Wakes the reconciler, which the driver does.
    waker: Waker,
}

impl From<Backends> for Surroundings {
    fn from(backends: Backends) -> Self {
        Self {
            backends,
            ..Self::default()
        }
    }
}

impl From<Lookup> for Surroundings {
    fn from(lookup: Lookup) -> Self {
        Self {
            lookup,
            ..Self::default()
        }
    }
}

impl Server {
    /// Starts a server, and returns once it serves. Call it on a runtime.
    ///
    /// # Errors
    /// What keeps it from serving; nothing is left running then but what ends by itself.
    pub async fn start(config: Config) -> Result<Self> {
        Self::start_with(config, Surroundings::default()).await
    }

    /// Starts a server in these surroundings, as [`Self::start`] does.
    ///
    /// # Errors
    /// As there.
    pub async fn start_with(config: Config, surroundings: Surroundings) -> Result<Self> {
        let mut server = Self::begin(&config, surroundings).await?;
        server.make_ready(&config).await?;
        Ok(server)
    }

    /// Starts a server whose policies are still being made ready: probes are answered, and requests
    /// told so with 503. So they are before, while models are fetched and loaded. Call it on a runtime.
    ///
    /// # Cancellation
    /// Clients are answered no longer.
    pub(crate) async fn begin(config: &Config, surroundings: Surroundings) -> Result<Self> {
        let Surroundings { backends, lookup } = surroundings;
        let clock = SystemClock::start();
        let metrics = Arc::new(Metrics::default());
        metrics.started(clock::unix_seconds());
        let listeners = Listeners::bind(config).await?;
        let (addr, admin_addr) = listeners.addresses()?;
        let url = listeners::url(config, addr);
        let (phase, phases) = watch::channel(ServerPhase::Starting);
        let front = Front::new(http_settings(config), phases, Arc::clone(&metrics));
        let front = Arc::new(front);
        // Ends when `phase` is dropped, as it is if nothing comes of the start.
        let http = task::spawn(listeners.serve(Arc::clone(&front)));
        info!("listening on {url}, not serving yet: models are being loaded");
        let state = state::open(config)?;
        pointsman_local::check_kv(&config.local)?;
        let models = load(hub::fetched(&config.local).await?).await?;
        let (waker, woken) = pointsman_lifecycle::waker();
        let shared = Shared {
            clock,
            metrics: Arc::clone(&metrics),
            waker,
        };
        let mut core = start_core(config, (&models, backends), &shared)?;
        let backends = backends::start(config, lookup, &core.fleet)
            .await
            .context("backends")?;
        let kept = Arc::new(KeptExecutors::open(state.report().path.as_deref()));
        kept.restore(&core.fleet).await;
        let quotas = Arc::new(Quotas::default());
        quotas.set(tenant_limits(config));
        let (rules, rules_in_force) = watch::channel(Arc::new(access_rules(config)));
        let reconciler = start_reconciler(config, (&core.driver, state), &shared, woken)?;
        let watched = Watched {
            rules: rules_in_force,
            quotas: Arc::clone(&quotas),
            reconciler: reconciler.report.clone(),
            orders: reconciler.orders.clone(),
            clock,
            spans: core.span_queue.clone(),
        };
        let app = App::new(
            &front,
            routes::table(kept),
            Arc::clone(&core.fleet),
            core.driver.clone(),
            watched,
        );
        front.open(app);
        let telemetry = start_telemetry(config, &mut core, &shared, addr);
        info!("answering on {url}, not serving yet: policies are being made ready");
        Ok(Self {
            addr,
            url,
            admin_addr,
            drain: config.drain,
            driver: core.driver,
            fleet: core.fleet,
            metrics,
            quotas,
            started: config.written.clone(),
            rules,
            backends,
            phase,
            http,
            reconciler,
            driver_thread: core.thread,
            access_log: core.access_log,
            telemetry,
        })
    }

    /// Waits until the first policies are in force, and serves from then on.
    ///
    /// # Cancellation
    /// The server goes on answering that it is not ready.
    pub(crate) async fn make_ready(&mut self, config: &Config) -> Result<()> {
        let is_ready = self.reconciler.ready().await;
        ensure!(is_ready, "the reconciler has ended");
        check_defaults(&self.reconciler.report.borrow())?;
        self.executors_found(config).await;
        self.phase.send_replace(ServerPhase::Serving);
        self.announce(config);
        Ok(())
    }

    /// Waits until as many executors have models as the configuration wants, and for a moment until all
    /// have: a server elsewhere is asked first.
    async fn executors_found(&self, config: &Config) {
        let mut catalog = self.fleet.catalog();
        // One that stands for a name without an address is nobody yet, though its models are known.
        let names = config.backends.iter().filter(|it| it.resolve.is_some());
        let names: Vec<String> = names.map(|it| it.server.executor_name()).collect();
        let is_there = |it: &&ExecutorEntry| !names.contains(&it.name);
        let has_models = |it: &ExecutorEntry| !it.models.is_empty();
        let have = |catalog: &Arc<Catalog>| {
            let there = catalog.executors.iter().filter(is_there);
            there.filter(|it| has_models(it)).count()
        };
        let have_all = |catalog: &Arc<Catalog>| {
            let mut there = catalog.executors.iter().filter(is_there);
            there.all(has_models)
        };
        let all = catalog.wait_for(have_all);
        drop(timeout(FIRST_LOOK, all).await);
        let wanted = usize::try_from(config.ready_executors).unwrap_or(usize::MAX);
        let found = have(&catalog.borrow());
        if found < wanted {
            info!(found, wanted, "waiting for executors");
            // The fleet is there as long as the server is.
            drop(catalog.wait_for(|catalog| have(catalog) >= wanted).await);
        }
    }

    /// The address it listens at.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The address it listens at for operators, if that is one of its own.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// The way to its driver.
    #[must_use]
    pub fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    /// Its metrics.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The address for its clients, as a URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The most time that [`Self::stop`] takes.
    pub(crate) fn stops_within(&self) -> Duration {
        self.drain + LAST_WORDS * 8
    }

    /// The counters of its engines, each by its executor's name.
    #[must_use]
    pub fn engines(&self) -> Vec<(String, Arc<EngineStats>)> {
        self.fleet.catalog().borrow().engines.clone()
    }

    /// The reconciler's reports.
    #[must_use]
    pub fn reports(&self) -> watch::Receiver<Arc<ReconcilerReport>> {
        self.reconciler.report.clone()
    }

    /// The way to give orders about policies.
    #[must_use]
    pub fn orders(&self) -> &OrderHandle {
        &self.reconciler.orders
    }

    /// Puts every hook back on the embedded default, as an operator does in an emergency.
    pub(crate) async fn eject(&self) {
        let hooks = Hook::ALL.into_iter().collect();
        match eject(&self.driver, self.orders(), hooks).await {
            Ok(_) => warn!("every hook is with the embedded defaults; bind one again to undo it"),
            Err(error) => error!(%error, "policies not ejected"),
        }
    }

    /// Puts in force what differs between two configurations, as far as that can be done while the server
    /// runs. Returns the changed keys, and those in which the later one differs from the configuration of the start.
    ///
    /// # Errors
    /// If the driver has ended; then nothing is changed.
    pub async fn reload(&self, before: &Config, after: &Config) -> Result<ChangedKeys> {
        let terms = reload::tenant_terms(before, after);
        let told = self
            .driver
            .operate(|answer| Operator::Tenants(terms, answer))
            .await;
        told.context("the driver has ended")?;
        self.quotas.set(tenant_limits(after));
        self.rules.send_replace(Arc::new(access_rules(after)));
        self.backends.send_replace(after.backends.clone());
        Ok(ChangedKeys::between(before, after, &self.started))
    }

    /// The first lines an operator sees: what is served, who decides, and how to try it.
    fn announce(&self, config: &Config) {
        let report = self.reconciler.report.borrow();
        let holders = report.holders();
        let holders: Vec<String> = holders
            .map(|(hook, holder)| format!("{}: {holder}", hook.as_str()))
            .collect();
        let catalog = Arc::clone(&self.fleet.catalog().borrow());
        let models: Vec<&str> = catalog.models.iter().map(|model| &*model.name).collect();
        let url = self.url();
        info!(models = models.join(", "), "serving on {url}");
        info!(hooks = holders.join(", "), "policies in force");
        match &config.policies.folder {
            Some(folder) => info!(folder = %folder.display(), "policy folder watched"),
            None => info!("no policy folder; make ./policies.d and start again, or use --policies"),
        }
        if let Some(addr) = self.admin_addr {
            info!(
                "operators: {}/admin",
                listeners::operators_url(config, addr)
            );
        }
        for advice in advice(config, &report) {
            warn!("{advice}");
        }
        let model = models.first().unwrap_or(&"");
        let here = listeners::url_here(config, self.addr);
        info!(
            "try: curl {here}/v1/chat/completions -d '{{\"model\": \"{model}\", \"messages\": \
             [{{\"role\": \"user\", \"content\": \"Tell me a story about a fox and an owl.\"}}]}}'"
        );
    }

    /// Stops, as the module says.
    ///
    /// # Errors
    /// If a part of it had failed. All others have ended then, too.
    pub async fn stop(mut self) -> Result<()> {
        info!(drain_s = self.drain.as_secs(), "shutting down");
        self.phase.send_replace(ServerPhase::Draining);
        let ended = match timeout(self.drain, &mut self.http).await {
            Ok(ended) => ended,
            Err(_elapsed) => {
                warn!("drain deadline passed, ending what is left");
                self.driver.stop().await;
                match timeout(LAST_WORDS, &mut self.http).await {
                    Ok(ended) => ended,
                    Err(_elapsed) => {
                        self.phase.send_replace(ServerPhase::Ended);
                        (&mut self.http).await
                    }
                }
            }
        };
        let served = ended.context("HTTP panicked");
        let http = served.and_then(|served| Ok(served?));
        self.driver.stop().await;
        let (reconciler, driver) = (self.reconciler, self.driver_thread);
        let fleet = &self.fleet;
        let joined = async move {
            // A driver that does not end may still have an order about an executor.
            let engines = fleet.threads().await;
            let joining = task::spawn_blocking(move || {
                let reconciler = reconciler.join();
                let reconciler = reconciler.map_err(|_panic| anyhow!("the reconciler panicked"));
                reconciler.and(join(driver, engines))
            });
            joining.await.context("not joined").flatten()
        };
        let joined = timeout(LAST_WORDS, joined).await;
        let joined = joined.unwrap_or_else(|_elapsed| {
            // The driver, an engine, a policy's self-test or a file system takes too long.
            warn!("work in progress is cut off");
            Ok(())
        });
        // The lines that the driver has left: it has ended, unless something does not answer.
        drop(timeout(LAST_WORDS, self.access_log).await);
        if let Some(telemetry) = self.telemetry {
            telemetry.finish().await;
        }
        info!("stopped");
        http.and(joined)
    }
}

/// Loads the models, on a thread that may be busy for long.
async fn load(settings: LocalSettings) -> Result<Vec<ServedModel>> {
    let loading = task::spawn_blocking(move || pointsman_local::load_all(&settings));
    loading.await.context("loading panicked")?
}

fn start_core(
    config: &Config,
    (models, backends): (&[ServedModel], Backends),
    shared: &Shared,
) -> Result<Core> {
    let now = shared.clock.now();
    let mut machine = Machine::new(config.core.clone())?;
    set_tenants(&mut machine, now, config);
    let (events, events_inbox) = mpsc::channel(EVENTS_MAX);
    let reports = (backends, events.clone());
    let (local, running) =
        pointsman_local::start(&mut machine, now, (&config.local, models), reports)?;
    let connections = remotes::connections().context("connections to servers")?;
    let provider = HostProvider::new(local, connections.clone(), events);
    let policies = PolicyHost::new(config.patience).with_restarts(Restarts::Elsewhere);
    let recorder = journal::start(config)?;
    if let Some(recorder) = &recorder {
        shared.metrics.journal(recorder.monitor());
    }
    let memory = Memory {
        labels_max: config.hints.labels_max,
        decisions_max: config.admin.decisions_max,
        sessions_max: config.hints.sessions_max,
        session_idle_max: Micros(Time(config.hints.session_idle_max).as_micros()),
    };
    let (spans, ended) = config
        .telemetry
        .as_ref()
        .map(|told| spans::spans(told.sample_ratio, Arc::clone(&shared.metrics)))
        .unzip();
    let span_queue = spans.as_ref().map(Spans::queue);
    let driver = Driver::new(machine, policies, Arc::clone(&shared.metrics), memory);
    let mut driver = driver.with_spans(spans);
    driver.wakes(shared.waker.clone());
    for running in &running {
        driver.attach(running.executor, running.engine.commands.clone());
    }
    if let Some(recorder) = recorder {
        driver.record(now, Box::new(recorder));
    }
    let access_log = task::spawn(driver.log_access().write());
    let (handle, inbox) = channels(config.http.requests_max);
    let thread = thread::spawn(driver, shared.clock, inbox, events_inbox)?;
    let fleet = Fleet::of(Arc::new(provider), handle.clone(), running);
    Ok(Core {
        driver: handle,
        fleet: Arc::new(fleet),
        connections,
        thread,
        access_log,
        span_queue,
        spans: ended,
    })
}

/// Starts to tell the collector, if there is one.
fn start_telemetry(
    config: &Config,
    core: &mut Core,
    shared: &Shared,
    addr: SocketAddr,
) -> Option<Telemetry> {
    let (settings, spans) = config.telemetry.as_ref().zip(core.spans.take())?;
    let told = Told {
        connections: core.connections.clone(),
        clock: shared.clock,
        addr,
        spans,
        metrics: Arc::clone(&shared.metrics),
        driver: core.driver.clone(),
        catalog: core.fleet.catalog(),
    };
    info!(endpoint = %settings.endpoint, "spans and metrics go to a collector");
    Some(Telemetry::start(settings, told))
}

fn set_tenants(machine: &mut Machine, now: Micros, config: &Config) {
    for terms in config.tenants.iter().map(reload::terms) {
        let id = machine.intern(now, &terms.name);
        let input = Input::TenantSet(id, terms.weight, terms.tokens_per_minute);
        machine.handle(now, input);
    }
}

/// Starts the reconciler, which makes the first policies ready.
fn start_reconciler(
    config: &Config,
    (driver, state): (&DriverHandle, State),
    shared: &Shared,
    woken: Receiver<()>,
) -> Result<ReconcilerHandle> {
    let clock = shared.clock;
    let spec = ReconcilerSpec {
        settings: config.policies.clone(),
        bounds: config.core.bounds(),
        embedded: embedded::policies()?.to_vec(),
        engine: PolicyEngine::with_compiler(config.compiler.clone())?,
        clock: Arc::new(move || clock.now()),
        state,
        waker: shared.waker.clone(),
    };
    let port = DriverPort {
        driver: driver.clone(),
        metrics: Arc::clone(&shared.metrics),
    };
    pointsman_lifecycle::spawn(spec, woken, port).context("reconciler")
}

/// A default that does not start has wrong settings, which the operator wants to hear of now. A
/// file that is no policy does no harm: the defaults are in force.
pub(crate) fn check_defaults(report: &ReconcilerReport) -> Result<()> {
    for default in embedded::policies()? {
        let is_there = report
            .policies
            .iter()
            .any(|known| known.name == default.name);
        let mut refused = report.refused.iter();
        let refused = refused.find(|(name, _)| !is_there && name == default.name);
        if let Some((name, refusal)) = refused {
            bail!("policy {name} does not start: {}", refusal.why);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
