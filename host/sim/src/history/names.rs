//! Names of a run that happened, and its executors as they were attached.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pointsman_core::rows::{Change, NameKind};
use pointsman_core::{
    DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, ExecutorUpdate, Input, KvSpec, Machine,
    ModelId, RowKind, RowKinds, TenantId,
};

use crate::numbers::narrow_len;
use crate::workload::{Roll, TenantEntry};

/// Names and executors.
#[derive(Debug, Default)]
pub(super) struct Names {
    texts: BTreeMap<(NameKind, u32), String>,
    tenants: BTreeMap<TenantId, PastTenant>,
    /// Requests of a model that may run at once; absent: any number.
    running_max: BTreeMap<ModelId, u32>,
    devices: BTreeMap<DeviceId, PastDevice>,
    executors: BTreeMap<ExecutorId, ExecutorSpec>,
    /// The places of the executors' names, in attach order.
    places: BTreeMap<String, u32>,
    /// Devices and executors whose number is not known yet.
    devices_new: VecDeque<DeviceSpec>,
    executors_new: VecDeque<ExecutorSpec>,
}

/// The terms of a tenant, as they were last set.
#[derive(Clone, Copy, Debug)]
struct PastTenant {
    weight: u32,
    /// Absent: unlimited.
    tokens_per_minute: Option<u64>,
}

/// A device, and the KV blocks that it was last known to have.
#[derive(Clone, Debug)]
pub(super) struct PastDevice {
    pub(super) spec: DeviceSpec,
    /// Blocks in all; 0: nobody told.
    pub(super) blocks_total: u32,
}

impl Names {
    /// Learns all that a machine knows.
    pub(super) fn meet(&mut self, machine: &Machine) {
        let kinds = [
            RowKind::Name,
            RowKind::Executor,
            RowKind::Device,
            RowKind::Tenant,
            RowKind::Model,
        ];
        for row in machine.view().rows(RowKinds::from_iter(kinds)) {
            self.meet_row(machine, row);
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only rows of the kinds that were asked for come"
    )]
    fn meet_row(&mut self, machine: &Machine, row: Change) {
        match row {
            Change::Name(name) => {
                self.texts.insert((name.kind, name.id), name.text);
            }
            Change::Tenant(tenant) => {
                self.set_tenant(tenant.id, tenant.weight, tenant.tokens_per_minute);
            }
            Change::Model(model) => self.limit_model(model.id, model.running_max),
            Change::Device(device) => {
                if let Some(spec) = machine.device_spec(device.id) {
                    let past = PastDevice {
                        spec: spec.clone(),
                        blocks_total: device.blocks_total,
                    };
                    self.devices.insert(device.id, past);
                }
            }
            Change::Executor(executor) => {
                if let Some(spec) = machine.executor_spec(executor.id) {
                    self.attach(executor.id, spec.clone());
                }
            }
            _ => {}
        }
    }

    /// Hears an input that is not about requests.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only some of the inputs are of use here"
    )]
    pub(super) fn hear(&mut self, input: &Input) {
        match input {
            Input::NameInterned { kind, text } => {
                let next = (*kind, 0)..=(*kind, u32::MAX);
                let last = self.texts.range(next).next_back();
                let id = last.map_or(0, |((_, id), _)| id + 1);
                self.texts.insert((*kind, id), text.clone());
            }
            Input::TenantSet(tenant, weight, tokens) => self.set_tenant(*tenant, *weight, *tokens),
            Input::ModelLimitSet(model, max) => self.limit_model(*model, *max),
            Input::DeviceAttached(spec) => self.devices_new.push_back(spec.clone()),
            Input::ExecutorAttached(spec) => self.executors_new.push_back(spec.clone()),
            Input::KvReported(device, report) => {
                if let Some(device) = self.devices.get_mut(device) {
                    device.blocks_total = report.blocks_total;
                }
            }
            Input::TokensPerStepSet(device, tokens) => {
                if let Some(device) = self.devices.get_mut(device) {
                    device.spec.tokens_per_step = Some(*tokens);
                }
            }
            Input::ExecutorUpdated(executor, update) => self.updated(*executor, update),
            _ => {}
        }
    }

    fn set_tenant(&mut self, tenant: TenantId, weight: u32, tokens_per_minute: Option<u64>) {
        let terms = PastTenant {
            weight,
            tokens_per_minute,
        };
        self.tenants.insert(tenant, terms);
    }

    fn limit_model(&mut self, model: ModelId, running_max: Option<u32>) {
        match running_max {
            Some(max) => self.running_max.insert(model, max),
            None => self.running_max.remove(&model),
        };
    }

    fn updated(&mut self, executor: ExecutorId, update: &ExecutorUpdate) {
        let Some(spec) = self.executors.get_mut(&executor) else {
            return;
        };
        match update {
            ExecutorUpdate::SlotsTotal(slots) => spec.slots_total = *slots,
            ExecutorUpdate::ShareWeight(weight) => spec.share_weight = *weight,
            ExecutorUpdate::Serves(models) => spec.serves.clone_from(models),
            ExecutorUpdate::TokensPerBlock(tokens) => spec.tokens_per_block = *tokens,
            ExecutorUpdate::Terms(terms) => {
                spec.group = terms.group;
                spec.models_max = terms.models_max;
                spec.queue_limit = terms.queue_limit;
                spec.model_unload_delay = terms.model_unload_delay;
            }
            ExecutorUpdate::ModelsMax(max) => spec.models_max = *max,
            ExecutorUpdate::Health(_)
            | ExecutorUpdate::Replaced
            | ExecutorUpdate::Loaded(_)
            | ExecutorUpdate::Detach
            | ExecutorUpdate::Availability(_) => {}
        }
    }

    /// Learns the number of a device. One that was refused has none.
    pub(super) fn device_attached(&mut self, device: DeviceId) {
        if let Some(spec) = self.devices_new.pop_front() {
            let blocks_total = match spec.kv {
                KvSpec::Owned { blocks_total, .. } => blocks_total,
                KvSpec::Remote | KvSpec::Assumed => 0,
            };
            let past = PastDevice { spec, blocks_total };
            self.devices.insert(device, past);
        }
    }

    /// Learns the number of an executor. Those before it that are not of its device were refused.
    pub(super) fn executor_attached(&mut self, executor: ExecutorId, device: DeviceId) {
        while let Some(spec) = self.executors_new.pop_front() {
            if spec.device == device {
                self.attach(executor, spec);
                return;
            }
        }
    }

    /// The executors by their numbers, each with its device.
    pub(super) fn executors(
        &self,
    ) -> impl Iterator<Item = (ExecutorId, &ExecutorSpec, Option<&PastDevice>)> {
        let executors = self.executors.iter();
        executors.map(|(id, spec)| (*id, spec, self.devices.get(&spec.device)))
    }

    /// The names of the executors, in attach order. One that was attached anew is the same.
    pub(super) fn executor_names(&self) -> Vec<String> {
        let mut names: Vec<(u32, &String)> =
            self.places.iter().map(|(name, at)| (*at, name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// The place of an executor among those names.
    pub(super) fn place_of(&self, executor: ExecutorId) -> Option<u32> {
        let spec = self.executors.get(&executor)?;
        self.places.get(&spec.name).copied()
    }

    /// The places of executors among those names. One that nothing is known of has none.
    pub(super) fn places_of(&self, executors: &[ExecutorId]) -> Vec<u32> {
        let places = executors.iter().filter_map(|id| self.place_of(*id));
        places.collect()
    }

    fn attach(&mut self, executor: ExecutorId, spec: ExecutorSpec) {
        let next = narrow_len(self.places.len());
        self.places.entry(spec.name.clone()).or_insert(next);
        self.executors.insert(executor, spec);
    }

    /// Executors that have their blocks on a device.
    pub(super) fn sharing(&self, device: DeviceId) -> u32 {
        let there = self.executors.values().filter(|it| it.device == device);
        let names: BTreeSet<&str> = there.map(|it| it.name.as_str()).collect();
        narrow_len(names.len())
    }

    /// True if the machine hands out the blocks of an executor.
    pub(super) fn is_hosted(&self, executor: ExecutorId) -> bool {
        let spec = self.executors.get(&executor);
        let device = spec.and_then(|spec| self.devices.get(&spec.device));
        device.is_some_and(PastDevice::is_hosted)
    }

    /// The weight of a tenant.
    pub(super) fn weight(&self, tenant: u32) -> u32 {
        let terms = self.tenants.get(&TenantId(tenant));
        terms.map_or(1, |terms| terms.weight)
    }

    /// The names as a workload has them: the place of each is its number.
    pub(super) fn roll(&self) -> Roll {
        let of = |kind| -> Vec<String> {
            let texts = self.texts.range((kind, 0)..=(kind, u32::MAX));
            texts.map(|(_, text)| text.clone()).collect()
        };
        let tenants = (0..).zip(of(NameKind::Tenant));
        let tenants = tenants.map(|(place, name)| {
            let terms = self.tenants.get(&TenantId(place));
            TenantEntry {
                name,
                weight: self.weight(place),
                tokens_per_minute: terms.and_then(|terms| terms.tokens_per_minute),
            }
        });
        let limits = self.running_max.iter();
        Roll {
            tenants: tenants.collect(),
            models: of(NameKind::Model),
            running_max: limits.map(|(model, max)| (model.0, *max)).collect(),
            labels: of(NameKind::Label),
        }
    }
}

impl PastDevice {
    /// True if the machine hands out its blocks.
    pub(super) fn is_hosted(&self) -> bool {
        matches!(self.spec.kv, KvSpec::Owned { .. })
    }
}
