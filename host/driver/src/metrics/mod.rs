//! The metrics for Prometheus: one registry, and a handle for each part that counts something.
//!
//! The fate of requests and decisions is folded from the machine's facts, nowhere else; HTTP adds
//! the facts that only HTTP can see, the reconciler its transactions. Mere states (loads, policies
//! in force, memory) are set when someone asks for `/metrics`. `host/docs/metrics.md` lists all.
//!
//! # Invariants
//! 1. Labels are names of the configuration and of policies, hooks and enums, never requests or
//!    sessions; and past a bound their series are counted together (`pointsman_metrics`).
//! 2. The same facts give the same text (`metrics::tests`).
//! 3. An executor that is gone has no series, whatever is measured of it after that
//!    (`what_is_measured_of_an_executor_that_is_gone_makes_no_series`).
//!
//! # Not here
//! The key that `/metrics` may need (`pointsman-http`).

mod facts;
mod gather;
mod gauges;
mod labels;
mod policies;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pointsman_core::{Fact, Hook, Machine, Stamped};
use pointsman_journal::{JournalMonitor, JournalStats};
pub use pointsman_metrics::DescribedMetric;
pub(crate) use pointsman_metrics::SERIES_MAX;
use pointsman_metrics::{Builder, Family, process};
use pointsman_policy::{AnswerCost, PolicyHost, PolicyStatus, ShadowReport};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::lives::Life;
use crate::operator::{LoadRow, Overview};
use facts::FactMetrics;
pub(crate) use facts::Texts;
use gauges::{EngineMetrics, FleetMetrics, KvMetrics, LoadMetrics};
pub(crate) use labels::ending;
use policies::PolicyMetrics;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const FIRST_TOKEN_SECONDS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];
const INTER_TOKEN_SECONDS: [f64; 11] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];
const DECISION_SECONDS: [f64; 13] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1,
];
const PAUSE_SECONDS: [f64; 11] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.1,
];

/// All metrics of the server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    described: Vec<DescribedMetric>,
    decision: Histogram,
    facts: FactMetrics,
    labels_ignored: Counter,
    config_reloads: Family<1, Counter>,
    over_limit: Family<2, Counter>,
    http: HttpMetrics,
    policies: PolicyMetrics,
    load: LoadMetrics,
    kv: KvMetrics,
    fleet: FleetMetrics,
    engines: EngineMetrics,
    journal: JournalMetrics,
    telemetry: TelemetryMetrics,
    process: ProcessMetrics,
    /// The names of the executors there are. Behind a lock, since the driver knows them and others measure;
    /// held while a series of an executor is made, or all of one are dropped.
    attached: Mutex<BTreeSet<String>>,
}

#[derive(Debug)]
struct JournalMetrics {
    entries: Family<1, Counter>,
    bytes: Counter,
    files: Counter,
    errors: Counter,
    /// The journal's monitor, set once, when a journal begins, and read at each rendering.
    monitor: OnceLock<JournalMonitor>,
}

#[derive(Debug)]
struct TelemetryMetrics {
    traced: Family<1, Counter>,
    exports: Family<1, Counter>,
}

/// The fate of something that was meant for a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedOutcome {
    /// The collector has it.
    Exported,
    /// The collector did not want it.
    Refused,
    /// The collector did not get it, since it did not keep up or did not answer.
    Dropped,
}

#[derive(Debug)]
struct HttpMetrics {
    responses: Family<2, Counter>,
    first_token: Family<2, Histogram>,
    inter_token: Family<2, Histogram>,
}

/// The pace of one streamed answer, to be measured.
#[derive(Clone, Debug)]
pub struct StreamMetrics {
    /// The time from the reading of the request to the first token.
    pub first_token: Histogram,
    /// The times between two tokens.
    pub inter_token: Histogram,
}

#[derive(Debug)]
struct ProcessMetrics {
    resident: Gauge,
    started: Gauge,
}

/// The work of an engine since its start. The numbers only ever grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTotals {
    /// The number of steps made.
    pub steps: u64,
    /// Tokens of prompts read, including those read again after a preemption.
    pub prefill_tokens: u64,
    /// The number of tokens generated.
    pub decode_tokens: u64,
    /// Time spent in steps.
    pub busy: Duration,
    /// Turns of sequences that sat a step out for want of a block or of budget.
    pub sat_out: u64,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let mut described = Vec::new();
        let process = ProcessMetrics::new(&mut Builder {
            registry: &mut registry,
            prefix: "",
            described: &mut described,
        });
        let mut to = Builder {
            registry: registry.sub_registry_with_prefix("pointsman"),
            prefix: "pointsman_",
            described: &mut described,
        };
        to.info(
            "build",
            "This build",
            ("version", env!("CARGO_PKG_VERSION")),
        );
        Self {
            decision: to.times(
                "decision",
                "A turn of the driver: all decisions about what has arrived, carried out",
                DECISION_SECONDS,
            ),
            facts: FactMetrics::new(&mut to),
            labels_ignored: to.counter("labels_ignored", "Labels past the bound on labels"),
            config_reloads: to.counters(
                "config_reloads",
                "Times that the configuration was read again, and put in force (committed) or not (refused)",
                ["outcome"],
            ),
            over_limit: to.counters(
                "tenant_over_limit",
                "Requests that were refused since their tenant had used up a limit",
                ["tenant", "limit"],
            ),
            http: HttpMetrics::new(&mut to),
            policies: PolicyMetrics::new(&mut to),
            load: LoadMetrics::new(&mut to),
            kv: KvMetrics::new(&mut to),
            fleet: FleetMetrics::new(&mut to),
            engines: EngineMetrics::new(&mut to),
            journal: JournalMetrics::new(&mut to),
            telemetry: TelemetryMetrics::new(&mut to),
            process,
            attached: Mutex::default(),
            described,
            registry,
        }
    }
}

impl Metrics {
    /// Sets the time at which the process began, in seconds since 1970.
    pub fn started(&self, unix_seconds: u64) {
        self.process.started.set(whole(unix_seconds));
    }

    /// The metrics there are, as `host/docs/metrics.md` lists them.
    #[must_use]
    pub fn described(&self) -> &[DescribedMetric] {
        &self.described
    }

    /// Folds in a fact of the machine. Called once for each fact, with the life of its request before
    /// it.
    pub(crate) fn fact(
        &self,
        stamped: &Stamped,
        life: Option<Life>,
        (machine, policies): (&Machine, &PolicyHost),
    ) {
        let texts = Texts { machine, policies };
        self.facts.fact(stamped, life, texts);
        if let Fact::ExecutorAttached(executor, _) = stamped.fact {
            self.executor_attached(texts.executor(executor));
        }
        if let Fact::ExecutorDetached(executor) = stamped.fact {
            self.executor_detached(texts.executor(executor));
        }
    }

    /// Takes note of an executor that is there from now on. The driver does so for each.
    pub fn executor_attached(&self, executor: &str) {
        self.attached().insert(executor.to_owned());
    }

    /// Drops the series of an executor that is gone.
    fn executor_detached(&self, executor: &str) {
        let mut attached = self.attached();
        attached.remove(executor);
        self.facts.forget_executor(executor);
        self.engines.forget_executor(executor);
        self.http.first_token.forget("executor", executor);
        self.http.inter_token.forget("executor", executor);
    }

    fn attached(&self) -> MutexGuard<'_, BTreeSet<String>> {
        let attached = self.attached.lock();
        attached.unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the time that a turn of the driver took.
    pub(crate) fn decided(&self, took: Duration) {
        self.decision.observe(took.as_secs_f64());
    }

    /// Counts a client's use of a label past the bound on labels.
    pub fn label_ignored(&self) {
        self.labels_ignored.inc();
    }

    /// Counts a configuration that was read again and put in force.
    pub fn config_reloaded(&self) {
        self.config_reloads.with(["committed"]).inc();
    }

    /// Counts a configuration that was read again and could not be used.
    pub fn config_refused(&self) {
        self.config_reloads.with(["refused"]).inc();
    }

    /// Counts a request that was refused since its tenant had used up a limit, by the limit's key.
    pub fn over_limit(&self, tenant: &str, limit: &str) {
        self.over_limit.with([tenant, limit]).inc();
    }

    /// Counts a response that began.
    pub fn http_response(&self, endpoint: &'static str, status: u16) {
        let labels = [endpoint, &status.to_string()];
        self.http.responses.with(labels).inc();
    }

    /// The measures of a streamed answer of `model` by `executor`. Nobody sees those of one that is gone.
    #[must_use]
    pub fn stream(&self, model: &str, executor: &str) -> StreamMetrics {
        let attached = self.attached();
        if !attached.contains(executor) {
            return StreamMetrics {
                first_token: Histogram::new(FIRST_TOKEN_SECONDS),
                inter_token: Histogram::new(INTER_TOKEN_SECONDS),
            };
        }
        let labels = [model, executor];
        StreamMetrics {
            first_token: self.http.first_token.with(labels),
            inter_token: self.http.inter_token.with(labels),
        }
    }

    /// Counts an answer of a policy.
    pub(crate) fn policy_answered(&self, policy: &str, hook: Hook, cost: AnswerCost) {
        self.policies.answered(policy, hook, cost);
    }

    /// Counts a commit of policies, which held the driver up for `pause`.
    pub fn policy_committed(&self, pause: Duration) {
        self.policies.committed(pause);
    }

    /// Counts a policy that was refused at `step`.
    pub fn policy_refused(&self, step: &str) {
        self.policies.refused(step);
    }

    /// Sets the policies in force, and how far each policy counts.
    pub fn policies(&self, policies: &[PolicyStatus]) {
        self.policies.set(policies);
    }

    /// Sets the agreement of each shadow.
    pub fn shadows(&self, shadows: &[ShadowReport], policies: &[PolicyStatus]) {
        self.policies.set_shadows(shadows, policies);
    }

    /// Sets the requests in hand, the room they take, and the loads of models.
    pub fn overview(&self, overview: &Overview) {
        self.load.set(&overview.load);
        self.kv.set(&overview.devices);
        self.fleet.set(&overview.models);
        self.policies.set_quarantined(&overview.quarantined);
    }

    /// Sets the loads of executors.
    pub(crate) fn executors(&self, loads: &[LoadRow]) {
        self.fleet.set_executors(loads);
    }

    /// Sets the work of an engine so far, unless its executor is gone.
    pub fn engine(&self, executor: &str, totals: EngineTotals) {
        let attached = self.attached();
        if attached.contains(executor) {
            self.engines.set(executor, totals);
        }
    }

    /// Reads the journal's counters from `monitor` from now on.
    pub fn journal(&self, monitor: JournalMonitor) {
        // A second journal would be a second driver's.
        drop(self.journal.monitor.set(monitor));
    }

    /// The state of the journal; absent: none is written.
    #[must_use]
    pub fn journal_stats(&self) -> Option<JournalStats> {
        self.journal.monitor.get().map(JournalMonitor::stats)
    }

    /// Counts requests whose spans were meant for a collector.
    pub fn traced(&self, outcome: TracedOutcome, requests: u64) {
        let traced = self.telemetry.traced.with([outcome.as_str()]);
        traced.inc_by(requests);
    }

    /// Counts an export of all metrics to a collector.
    pub fn metrics_exported(&self, outcome: TracedOutcome) {
        self.telemetry.exports.with([outcome.as_str()]).inc();
    }

    /// Renders all metrics, as OpenMetrics text of [`CONTENT_TYPE`].
    ///
    /// # Panics
    /// Never: a write to a string cannot fail.
    #[must_use]
    pub fn render(&self) -> String {
        if let Some(bytes) = process::resident_bytes() {
            self.process.resident.set(bytes);
        }
        self.journal.read();
        let mut rendered = String::new();
        text::encode(&mut rendered, &self.registry).expect("a string takes everything");
        rendered
    }
}

/// Raises a counter to the value of another one that only grows.
fn raise(counter: &Counter, to: u64) {
    counter.inner().store(to, Ordering::Relaxed);
}

/// A count as a gauge shows it.
fn whole(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

// === impl the groups ===

impl HttpMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            responses: to.counters("http_responses", "Responses begun", ["endpoint", "status"]),
            first_token: to.times_by(
                "time_to_first_token",
                "From a request read to its first token, written where the answer is a stream",
                ["model", "executor"],
                || Histogram::new(FIRST_TOKEN_SECONDS),
            ),
            inter_token: to.times_by(
                "inter_token_latency",
                "From one token of a stream written to the next",
                ["model", "executor"],
                || Histogram::new(INTER_TOKEN_SECONDS),
            ),
        }
    }
}

impl JournalMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            entries: to.counters(
                "journal_entries",
                "Entries of the journal: written, dropped since the disk was too slow, lost since \
                 it failed, refused since they were too long, cut since their round was, or \
                 withheld since a log was",
                ["outcome"],
            ),
            bytes: to.measured(
                Unit::Bytes,
                "journal",
                "Bytes of the journal written",
                Counter::default(),
            ),
            files: to.counter("journal_files", "Files of the journal begun"),
            errors: to.counter(
                "journal_errors",
                "Failures to make, write or remove a file of the journal",
            ),
            monitor: OnceLock::new(),
        }
    }

    fn read(&self) {
        let Some(stats) = self.monitor.get().map(JournalMonitor::stats) else {
            return;
        };
        for (outcome, count) in [
            ("written", stats.written),
            ("dropped", stats.dropped),
            ("lost", stats.lost),
            ("refused", stats.refused),
            ("cut", stats.cut),
            ("withheld", stats.withheld),
        ] {
            raise(&self.entries.with([outcome]), count);
        }
        raise(&self.bytes, stats.bytes);
        raise(&self.files, stats.files);
        raise(&self.errors, stats.errors);
    }
}

impl TelemetryMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            traced: to.counters(
                "traced_requests",
                "Requests whose spans a collector has (exported), did not want (refused), or did not get (dropped)",
                ["outcome"],
            ),
            exports: to.counters(
                "metric_exports",
                "Exports of all metrics that a collector has (exported), did not want (refused), or did not get (dropped)",
                ["outcome"],
            ),
        }
    }
}

impl TracedOutcome {
    fn as_str(self) -> &'static str {
        match self {
            TracedOutcome::Exported => "exported",
            TracedOutcome::Refused => "refused",
            TracedOutcome::Dropped => "dropped",
        }
    }
}

impl ProcessMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            resident: to.measured(
                Unit::Bytes,
                "process_resident_memory",
                "Resident memory",
                Gauge::default(),
            ),
            started: to.measured(
                Unit::Seconds,
                "process_start_time",
                "When the process began, since 1970",
                Gauge::default(),
            ),
        }
    }
}
