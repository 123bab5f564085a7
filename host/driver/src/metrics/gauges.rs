//! The states that are set when somebody asks for the metrics: loads, executors, models, engines.

use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_core::rows::RequestClass;
use pointsman_metrics::{Builder, Family};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;

use super::{EngineTotals, raise, whole};
use crate::message::{ByClass, Load};
use crate::operator::{BlockCounts, DeviceRow, LoadRow, ModelRow};

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
        let of = |value: fn(&DeviceRow) -> Option<i64>| {
            let told = devices.iter();
            told.filter_map(move |row| Some(([row.name.as_str()], value(row)?)))
        };
        self.blocks
            .replace(of(|row| Some(whole(row.blocks?.total))));
        self.blocks_used
            .replace(of(|row| Some(whole(used(row.blocks?)))));
        self.blocks_cached
            .replace(of(|row| Some(whole(row.blocks?.cached))));
        self.host_blocks.replace(of(|row| {
            let total = row.host_blocks_total;
            (total > 0).then_some(whole(total))
        }));
        self.host_blocks_used.replace(of(|row| {
            let total = row.host_blocks_total;
            let used = total.saturating_sub(row.host_blocks_free);
            (total > 0).then_some(whole(used))
        }));
        self.bytes.replace(of(|row| {
            let blocks = row.blocks?;
            Some(whole(blocks.bytes?.saturating_mul(blocks.total.into())))
        }));
        self.bytes_used.replace(of(|row| {
            let blocks = row.blocks?;
            Some(whole(blocks.bytes?.saturating_mul(used(blocks).into())))
        }));
    }
}

/// The blocks that sequences hold.
fn used(blocks: BlockCounts) -> u32 {
    let idle = blocks.free.saturating_add(blocks.cached);
    blocks.total.saturating_sub(idle)
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

    /// Sets the requests of the models.
    pub(super) fn set(&self, models: &[ModelRow]) {
        let requests = models.iter().flat_map(|row| {
            let of = |state, count: u32| ([row.name.as_str(), state], whole(count));
            [of("running", row.running), of("waiting", row.waiting)]
        });
        self.models.replace(requests);
    }

    /// Sets the loads of the executors.
    pub(super) fn set_executors(&self, rows: &[LoadRow]) {
        let slots = rows.iter();
        let slots = slots.map(|row| ([row.name.as_str()], whole(row.slots_total)));
        self.slots.replace(slots);
        let slots_used = rows.iter();
        let slots_used = slots_used.map(|row| ([row.name.as_str()], whole(row.load.slots_used)));
        self.slots_used.replace(slots_used);
        let queued = rows.iter().flat_map(|row| {
            let of = |class: RequestClass, count: u32| {
                ([row.name.as_str(), class.as_str()], whole(count))
            };
            [
                of(RequestClass::LatencyCritical, row.load.queued_critical),
                of(RequestClass::Throughput, row.load.queued_throughput),
            ]
        });
        self.queued.replace(queued);
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
