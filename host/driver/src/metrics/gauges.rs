//! The states that are set when somebody asks for the metrics: loads, executors, models, engines.

use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_core::rows::RequestClass;
use pointsman_metrics::{Builder, Family};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;

use super::{EngineTotals, raise, whole};
use crate::message::{ByClass, Load};
use crate::operator::{DeviceRow, Overview};

#[derive(Debug)]
pub(super) struct LoadMetrics {
    inflight: Gauge,
    queued: Family<1, Gauge>,
    parked: Family<1, Gauge>,
    slots: Gauge,
    slots_used: Gauge,
}

/// The KV blocks of each device that tells of them.
#[derive(Debug)]
pub(super) struct KvMetrics {
    blocks: Family<1, Gauge>,
    blocks_used: Family<1, Gauge>,
    blocks_cached: Family<1, Gauge>,
    host_blocks: Family<1, Gauge>,
    host_blocks_used: Family<1, Gauge>,
    bytes: Family<1, Gauge>,
    bytes_used: Family<1, Gauge>,
}

/// The loads of single executors and models.
#[derive(Debug)]
pub(super) struct FleetMetrics {
    slots: Family<1, Gauge>,
    slots_used: Family<1, Gauge>,
    queued: Family<2, Gauge>,
    models: Family<2, Gauge>,
}

#[derive(Debug)]
pub(super) struct EngineMetrics {
    steps: Family<1, Counter>,
    tokens: Family<2, Counter>,
    busy: Family<1, Counter<f64, AtomicU64>>,
    sat_out: Family<1, Counter>,
}

// === impl LoadMetrics ===

impl LoadMetrics {
    pub(super) fn new(to: &mut Builder<'_>) -> Self {
        Self {
            inflight: to.gauge("inflight_requests", "Requests without an outcome"),
            queued: to.gauges("queued_requests", "Requests in the queue", ["class"]),
            parked: to.gauges("parked_requests", "Requests outside the queue", ["class"]),
            slots: to.gauge("slots", "Slots there are"),
            slots_used: to.gauge("slots_used", "Slots in use"),
        }
    }

    pub(super) fn set(&self, load: &Load) {
        self.inflight.set(whole(load.live));
        by_class(&self.queued, load.queued_by_class);
        by_class(&self.parked, load.parked_by_class);
        self.slots.set(whole(load.slots_total));
        self.slots_used.set(whole(load.slots_used));
    }
}

fn by_class(family: &Family<1, Gauge>, counts: ByClass) {
    let of = |class: RequestClass| family.with([class.as_str()]);
    of(RequestClass::LatencyCritical).set(whole(counts.latency_critical));
    of(RequestClass::Throughput).set(whole(counts.throughput));
}

// === impl KvMetrics ===

impl KvMetrics {
    pub(super) fn new(to: &mut Builder<'_>) -> Self {
        let mut of = |name, help| to.gauges(name, help, ["device"]);
        Self {
            blocks: of("kv_blocks", "KV blocks of a device"),
            blocks_used: of(
                "kv_blocks_used",
                "KV blocks that sequences hold, each once however many share it",
            ),
            blocks_cached: of(
                "kv_blocks_cached",
                "KV blocks that no sequence holds and that hold the beginning of a prompt",
            ),
            host_blocks: of(
                "kv_host_blocks",
                "Blocks of host memory to which what evicted sequences hold can be moved",
            ),
            host_blocks_used: of(
                "kv_host_blocks_used",
                "Blocks of host memory that evicted sequences have",
            ),
            bytes: of("kv_bytes", "Bytes of the KV blocks of a device"),
            bytes_used: of(
                "kv_bytes_used",
                "Bytes of the KV blocks that sequences hold",
            ),
        }
    }

    /// Sets what the devices tell. One that does not has no series.
    pub(super) fn set(&self, devices: &[DeviceRow]) {
        for family in [
            &self.blocks,
            &self.blocks_used,
            &self.blocks_cached,
            &self.host_blocks,
            &self.host_blocks_used,
            &self.bytes,
            &self.bytes_used,
        ] {
            family.clear();
        }
        for row in devices {
            self.set_device(row);
        }
    }

    fn set_device(&self, row: &DeviceRow) {
        let device = [row.name.as_str()];
        if row.host_blocks_total > 0 {
            let used = row.host_blocks_total.saturating_sub(row.host_blocks_free);
            self.host_blocks
                .with(device)
                .set(whole(row.host_blocks_total));
            self.host_blocks_used.with(device).set(whole(used));
        }
        let Some(blocks) = row.blocks else {
            return;
        };
        let idle = blocks.free.saturating_add(blocks.cached);
        let used = blocks.total.saturating_sub(idle);
        self.blocks.with(device).set(whole(blocks.total));
        self.blocks_used.with(device).set(whole(used));
        self.blocks_cached.with(device).set(whole(blocks.cached));
        if let Some(bytes) = blocks.bytes {
            let of = |count: u32| whole(u64::from(count).saturating_mul(bytes));
            self.bytes.with(device).set(of(blocks.total));
            self.bytes_used.with(device).set(of(used));
        }
    }
}

// === impl FleetMetrics ===

impl FleetMetrics {
    pub(super) fn new(to: &mut Builder<'_>) -> Self {
        Self {
            slots: to.gauges("executor_slots", "Slots of an executor", ["executor"]),
            slots_used: to.gauges(
                "executor_slots_used",
                "Slots of an executor in use",
                ["executor"],
            ),
            queued: to.gauges(
                "executor_queued_requests",
                "Requests in the queue of an executor",
                ["executor", "class"],
            ),
            models: to.gauges(
                "model_requests",
                "Requests of a model that have a place on an executor, or wait for one",
                ["model", "state"],
            ),
        }
    }

    pub(super) fn set(&self, overview: &Overview) {
        let shown = overview.executors.iter();
        let shown = shown.map(|row| (row.name.as_str(), row.slots_total, &row.load));
        let further = overview.further.iter();
        let further = further.map(|row| (row.name.as_str(), row.slots_total, &row.load));
        let executors: Vec<_> = shown.chain(further).collect();
        let slots = executors.iter();
        let slots = slots.map(|(name, slots_total, _)| ([*name], whole(*slots_total)));
        self.slots.replace(slots);
        let slots_used = executors.iter();
        let slots_used = slots_used.map(|(name, _, load)| ([*name], whole(load.slots_used)));
        self.slots_used.replace(slots_used);
        let queued = executors.iter().flat_map(|(name, _, load)| {
            let of = |class: RequestClass, count: u32| ([*name, class.as_str()], whole(count));
            [
                of(RequestClass::LatencyCritical, load.queued_critical),
                of(RequestClass::Throughput, load.queued_throughput),
            ]
        });
        self.queued.replace(queued);
        let requests = overview.models.iter().flat_map(|row| {
            let of = |state, count: u32| ([row.name.as_str(), state], whole(count));
            [of("running", row.running), of("waiting", row.waiting)]
        });
        self.models.replace(requests);
    }
}

// === impl EngineMetrics ===

impl EngineMetrics {
    pub(super) fn new(to: &mut Builder<'_>) -> Self {
        Self {
            steps: to.counters("engine_steps", "Steps an engine made", ["executor"]),
            tokens: to.counters(
                "engine_tokens",
                "Tokens an engine read or generated",
                ["executor", "phase"],
            ),
            busy: to.family(
                ("engine_busy", Some(Unit::Seconds)),
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

    pub(super) fn set(&self, executor: &str, totals: EngineTotals) {
        raise(&self.steps.with([executor]), totals.steps);
        let tokens = |phase| self.tokens.with([executor, phase]);
        raise(&tokens("prefill"), totals.prefill_tokens);
        raise(&tokens("decode"), totals.decode_tokens);
        raise(&self.sat_out.with([executor]), totals.sat_out);
        let busy = self.busy.with([executor]);
        busy.inner()
            .store(totals.busy.as_secs_f64().to_bits(), Ordering::Relaxed);
    }

    /// Drops the series of an executor that is gone.
    pub(super) fn forget_executor(&self, executor: &str) {
        self.steps.forget("executor", executor);
        self.tokens.forget("executor", executor);
        self.busy.forget("executor", executor);
        self.sat_out.forget("executor", executor);
    }
}
