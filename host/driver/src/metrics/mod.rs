//! The metrics for Prometheus: one registry, and a handle for each part that counts something.
//!
//! The fate of requests and decisions is folded from the machine's facts, nowhere else; HTTP adds
//! the facts that only HTTP can see, the reconciler its transactions. Mere states (loads, policies
//! in force, memory) are set when someone asks for `/metrics`.
//!
//! # Invariants
//! 1. Labels are names of the configuration and of policies, hooks and enums, never requests or
//!    sessions; and past a bound their series are counted together (`family::tests`).
//! 2. The same facts give the same text (`metrics::tests`).
//!
//! # Not here
//! The key that `/metrics` may need (`pointsman-http`).

mod builder;
mod facts;
mod family;
mod process;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pointsman_core::{Machine, Stamped};
use pointsman_journal::{JournalMonitor, JournalStats};
use pointsman_policy::{PolicyHost, PolicyStatus};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::message::Load;
use builder::Builder;
use facts::{FactMetrics, Texts};
use family::Family;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Characters of a digest that a label shows.
const DIGEST_PREFIX: usize = 12;

const FIRST_TOKEN_SECONDS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];
const INTER_TOKEN_SECONDS: [f64; 11] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];
const PAUSE_SECONDS: [f64; 11] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.1,
];

/// All metrics of the server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    facts: FactMetrics,
    labels_ignored: Counter,
    http: HttpMetrics,
    policies: PolicyMetrics,
    load: LoadMetrics,
    engines: EngineMetrics,
    journal: JournalMetrics,
    process: ProcessMetrics,
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
struct HttpMetrics {
    responses: Family<2, Counter>,
    first_token: Histogram,
    inter_token: Histogram,
}

#[derive(Debug)]
struct PolicyMetrics {
    transactions: Family<2, Counter>,
    pause: Histogram,
    in_force: Family<3, Gauge>,
}

#[derive(Debug)]
struct LoadMetrics {
    live: Gauge,
    queued: Gauge,
    parked: Gauge,
    slots: Gauge,
    slots_used: Gauge,
    blocks: Gauge,
    blocks_used: Gauge,
    blocks_cached: Gauge,
    bytes: Gauge,
    bytes_used: Gauge,
}

#[derive(Debug)]
struct EngineMetrics {
    steps: Family<1, Counter>,
    tokens: Family<2, Counter>,
    busy: Family<1, Counter<f64, AtomicU64>>,
    sat_out: Family<1, Counter>,
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
        let process = ProcessMetrics::new(&mut Builder {
            registry: &mut registry,
        });
        let mut to = Builder {
            registry: registry.sub_registry_with_prefix("pointsman"),
        };
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        to.registry
            .register("build", "This build", Info::new(version));
        Self {
            facts: FactMetrics::new(&mut to),
            labels_ignored: to.counter("labels_ignored", "Labels past the bound on labels"),
            http: HttpMetrics::new(&mut to),
            policies: PolicyMetrics::new(&mut to),
            load: LoadMetrics::new(&mut to),
            engines: EngineMetrics::new(&mut to),
            journal: JournalMetrics::new(&mut to),
            process,
            registry,
        }
    }
}

impl Metrics {
    /// Sets the time at which the process began, in seconds since 1970.
    pub fn started(&self, unix_seconds: u64) {
        self.process.started.set(whole(unix_seconds));
    }

    /// Folds in a fact of the machine. Call it once for each fact.
    pub fn fact(&self, stamped: &Stamped, machine: &Machine, policies: &PolicyHost) {
        self.facts.fact(stamped, Texts { machine, policies });
    }

    /// Counts a client's use of a label past the bound on labels.
    pub fn label_ignored(&self) {
        self.labels_ignored.inc();
    }

    /// Counts a response that began.
    pub fn http_response(&self, endpoint: &'static str, status: u16) {
        let labels = [endpoint, &status.to_string()];
        self.http.responses.with(labels).inc();
    }

    /// Notes the time from the reading of a request to the first token of its answer.
    pub fn time_to_first_token(&self, took: Duration) {
        self.http.first_token.observe(took.as_secs_f64());
    }

    /// Notes the time between two tokens of an answer.
    pub fn inter_token_latency(&self, took: Duration) {
        self.http.inter_token.observe(took.as_secs_f64());
    }

    /// Counts a commit of policies, which held the driver up for `pause`.
    pub fn policy_committed(&self, pause: Duration) {
        self.policies.pause.observe(pause.as_secs_f64());
        let committed = ["committed", "commit"];
        self.policies.transactions.with(committed).inc();
    }

    /// Counts a policy that was refused at `step`.
    pub fn policy_refused(&self, step: &str) {
        self.policies.transactions.with(["refused", step]).inc();
    }

    /// Sets the policies in force.
    pub fn policies_in_force(&self, policies: impl IntoIterator<Item = PolicyStatus>) {
        let in_force = &self.policies.in_force;
        in_force.clear();
        for policy in policies {
            let digest = policy.digest.to_string();
            let digest = digest.get(..DIGEST_PREFIX).unwrap_or(&digest);
            for hook in policy.in_force.iter() {
                let labels = [hook.as_str(), &policy.name, digest];
                in_force.with(labels).set(1);
            }
        }
    }

    /// Sets the numbers of live, queued and parked requests, of slots and of used blocks.
    pub fn load(&self, load: &Load) {
        self.load.live.set(whole(load.live));
        self.load.queued.set(whole(load.queued));
        self.load.parked.set(whole(load.parked));
        self.load.slots.set(whole(load.slots_total));
        self.load.slots_used.set(whole(load.slots_used));
        self.load.blocks.set(whole(load.blocks_total));
        self.load.blocks_used.set(whole(load.blocks_used));
        self.load.blocks_cached.set(whole(load.blocks_cached));
        self.load.bytes.set(whole(load.kv_bytes_total));
        self.load.bytes_used.set(whole(load.kv_bytes_used));
    }

    /// Sets the work of an engine so far.
    pub fn engine(&self, executor: &str, totals: EngineTotals) {
        let engines = &self.engines;
        raise(&engines.steps.with([executor]), totals.steps);
        raise(
            &engines.tokens.with([executor, "prefill"]),
            totals.prefill_tokens,
        );
        raise(
            &engines.tokens.with([executor, "decode"]),
            totals.decode_tokens,
        );
        raise(&engines.sat_out.with([executor]), totals.sat_out);
        let busy = engines.busy.with([executor]);
        busy.inner()
            .store(totals.busy.as_secs_f64().to_bits(), Ordering::Relaxed);
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
            first_token: to.times(
                "time_to_first_token",
                "From a request read to its first token written",
                FIRST_TOKEN_SECONDS,
            ),
            inter_token: to.times(
                "inter_token_latency",
                "From one token written to the next",
                INTER_TOKEN_SECONDS,
            ),
        }
    }
}

impl PolicyMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            transactions: to.counters(
                "policy_transactions",
                "Changes of the policies in force, made or refused, by the last step taken",
                ["outcome", "step"],
            ),
            pause: to.times(
                "policy_swap_pause",
                "For how long a swap held the driver up",
                PAUSE_SECONDS,
            ),
            in_force: to.gauges(
                "policy_in_force",
                "1 for each hook and the policy that holds it",
                ["hook", "policy", "digest"],
            ),
        }
    }
}

impl LoadMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            live: to.gauge("requests_live", "Requests without an outcome"),
            queued: to.gauge("requests_queued", "Requests in the queue"),
            parked: to.gauge("requests_parked", "Requests outside the queue"),
            slots: to.gauge("slots", "Slots there are"),
            slots_used: to.gauge("slots_used", "Slots in use"),
            blocks: to.gauge("kv_blocks", "KV blocks there are"),
            blocks_used: to.gauge(
                "kv_blocks_used",
                "KV blocks that sequences hold, each once however many share it",
            ),
            blocks_cached: to.gauge(
                "kv_blocks_cached",
                "KV blocks that no sequence holds and that hold the beginning of a prompt",
            ),
            bytes: to.gauge("kv_bytes", "Bytes of the KV blocks there are"),
            bytes_used: to.gauge(
                "kv_bytes_used",
                "Bytes of the KV blocks that sequences hold",
            ),
        }
    }
}

impl EngineMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            steps: to.counters("engine_steps", "Steps an engine made", ["executor"]),
            tokens: to.counters(
                "engine_tokens",
                "Tokens an engine read or generated",
                ["executor", "phase"],
            ),
            busy: to.measured(
                Unit::Seconds,
                "engine_busy",
                "Time an engine spent in steps",
                Family::new(["executor"], Counter::default),
            ),
            sat_out: to.counters(
                "engine_sat_out",
                "Turns of sequences that sat a step out",
                ["executor"],
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
                 it failed, refused since they were too long, or withheld since a round or a log was",
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
            ("withheld", stats.withheld),
        ] {
            raise(&self.entries.with([outcome]), count);
        }
        raise(&self.bytes, stats.bytes);
        raise(&self.files, stats.files);
        raise(&self.errors, stats.errors);
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
