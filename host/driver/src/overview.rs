//! The state of the host and of one executor, for operators, and the loads of executors, for metrics.

use pointsman_core::rows::{ExecutorLoad, LoadedModels, NameKind, Stage};
use pointsman_core::{ExecutorId, ExecutorSnapshot, Micros};

use super::Driver;
use super::message::Load;
use super::metrics::SERIES_MAX;
use super::operator::{
    BlockCounts, DeviceRow, EXECUTORS_SHOWN, ExecutorRow, LoadRow, ModelRow, Overview,
    PresentModel, TenantRow,
};

impl Driver {
    /// The state of the host at the time `at`.
    #[must_use]
    pub(super) fn overview(&self, at: Micros) -> Overview {
        let shown = self.machine.executor_ids().take(EXECUTORS_SHOWN);
        let quarantined = self.policies.quarantined();
        Overview {
            at,
            round: self.machine.round(),
            load: self.load(),
            executors: shown.filter_map(|id| self.executor_row(id)).collect(),
            executors_total: self.machine.executor_ids().count(),
            devices: self.device_rows().collect(),
            models: self.model_rows().collect(),
            tenants: self.tenant_rows().collect(),
            quarantined: quarantined.map(|entry| entry.name.clone()).collect(),
        }
    }

    /// The loads of as many executors as metrics tell of, in attach order.
    #[must_use]
    pub(super) fn loads(&self) -> Vec<LoadRow> {
        let measured = self.machine.executor_ids().take(SERIES_MAX);
        measured.filter_map(|id| self.load_row(id)).collect()
    }

    /// The requests that are queued and that run, and the room they take.
    #[must_use]
    pub fn load(&self) -> Load {
        let mut load = Load {
            live: self.machine.live_requests(),
            ..Load::default()
        };
        for request in self.machine.waiting_requests() {
            match request.stage {
                Stage::Queued => load.queued_by_class.add(request.class),
                Stage::Parked => load.parked_by_class.add(request.class),
                Stage::Arrived | Stage::Placed => {}
            }
        }
        load.queued = load.queued_by_class.total();
        load.parked = load.parked_by_class.total();
        for device in self.machine.devices() {
            let idle = device.blocks_free.saturating_add(device.blocks_cached);
            let used = u64::from(device.blocks_total.saturating_sub(idle));
            load.blocks_used += used;
            load.blocks_cached += u64::from(device.blocks_cached);
            load.blocks_total += u64::from(device.blocks_total);
            load.kv_bytes_used += used.saturating_mul(device.block_bytes);
            let total = u64::from(device.blocks_total).saturating_mul(device.block_bytes);
            load.kv_bytes_total += total;
        }
        for id in self.machine.executor_ids() {
            let Some(executor) = self.machine.executor_snapshot(id) else {
                continue;
            };
            load.slots_used += executor.slots_used;
            // Servers elsewhere may say what they like.
            load.slots_total = load.slots_total.saturating_add(executor.slots_total);
            load.executors_up += u32::from(executor.health.takes_new());
        }
        load
    }

    /// The KV pools, in attach order.
    pub(super) fn device_rows(&self) -> impl Iterator<Item = DeviceRow> {
        self.machine.devices().map(|device| DeviceRow {
            name: self.name_of(NameKind::Device, device.id.0),
            tokens_per_step: self.machine.tokens_per_step(device.id),
            blocks: (device.blocks_total > 0).then_some(BlockCounts {
                bytes: (device.block_bytes > 0).then_some(device.block_bytes),
                total: device.blocks_total,
                free: device.blocks_free,
                cached: device.blocks_cached,
            }),
            host_blocks_total: device.host_blocks_total,
            host_blocks_free: device.host_blocks_free,
        })
    }

    /// The models that were ever named.
    pub(super) fn model_rows(&self) -> impl Iterator<Item = ModelRow> {
        self.machine.models().map(|model| ModelRow {
            name: self.name_of(NameKind::Model, model.id.0),
            running_max: model.running_max,
            running: model.running,
            waiting: model.waiting,
        })
    }

    /// The tenants that are configured or have asked.
    pub(super) fn tenant_rows(&self) -> impl Iterator<Item = TenantRow> {
        self.machine.tenants().map(|tenant| TenantRow {
            name: self.name_of(NameKind::Tenant, tenant.id.0),
            weight: tenant.weight,
            tokens_per_minute: tenant.tokens_per_minute,
            running: tenant.running,
            waiting: tenant.waiting,
            tokens_total: tenant
                .prompt_tokens_total
                .saturating_add(tenant.output_tokens_total),
        })
    }

    /// The models that are on an executor.
    fn present(&self, executor: ExecutorId) -> Vec<PresentModel> {
        let info = self.machine.executor_info(executor);
        let tells = info.is_some_and(|info| info.loaded_models == LoadedModels::Told);
        let present = self.machine.residencies(executor);
        let present = present.map(|residency| PresentModel {
            model: self.name_of(NameKind::Model, residency.model.0),
            sequences: residency.sequences,
            warm_until: residency.warm_until,
            loaded: tells.then_some(residency.loaded),
        });
        present.collect()
    }

    /// The state of the executor `id`; absent: the executor is not attached.
    pub(super) fn executor_row(&self, id: ExecutorId) -> Option<ExecutorRow> {
        let info = self.machine.executor_info(id)?;
        let snapshot = self.machine.executor_snapshot(id)?;
        let load = self.load_of(&snapshot)?;
        let models = info.serves.map(|models| {
            let names = models
                .iter()
                .map(|model| self.name_of(NameKind::Model, model.0));
            names.collect()
        });
        Some(ExecutorRow {
            name: self.name_of(NameKind::Executor, id.0),
            kind: info.kind,
            device: self.name_of(NameKind::Device, info.device.0),
            models,
            fate: self.executors.fate(id),
            group: info.group,
            share_weight: info.share_weight,
            queue_max: info.queue_limit,
            preemptible: info.preempts,
            models_max: info.models_max,
            present: self.present(id),
            slots_total: info.slots_total,
            tokens_max: snapshot.tokens_max,
            tokens_used: snapshot.tokens_used,
            load,
        })
    }

    /// The load of the executor `id`; absent: the executor is not attached.
    fn load_row(&self, id: ExecutorId) -> Option<LoadRow> {
        let snapshot = self.machine.executor_snapshot(id)?;
        Some(LoadRow {
            load: self.load_of(&snapshot)?,
            slots_total: snapshot.slots_total,
            name: snapshot.name,
        })
    }

    /// The load of an executor in this state.
    fn load_of(&self, snapshot: &ExecutorSnapshot) -> Option<ExecutorLoad> {
        Some(ExecutorLoad {
            // Those who choose are told of slots that are closed, too.
            slots_used: snapshot.slots_used,
            ..self.machine.executor_load(snapshot.id)?
        })
    }

    pub(super) fn name_of(&self, kind: NameKind, id: u32) -> String {
        self.machine.name(kind, id).unwrap_or_default().to_owned()
    }
}
