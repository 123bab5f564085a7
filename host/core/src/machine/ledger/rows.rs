//! Rows of the books, as policies are told them.

use crate::log::Wanted;
use pointsman_interface::rows::{self, Change, Presence};
use pointsman_interface::{DeviceId, ExecutorId, ModelId, TenantId};

use super::models::{Model, Tenant};
use super::{Device, Ledger};

impl Ledger {
    pub(crate) fn executor_change(&self, id: ExecutorId, wanted: Wanted) -> Option<Change> {
        match self.find(id) {
            Some(executor) => {
                let is_wanted = wanted.live(executor.info_stamp);
                is_wanted.then(|| Change::Executor(Box::new(executor.info())))
            }
            None => wanted.gone().then_some(Change::ExecutorGone(id)),
        }
    }

    pub(crate) fn load_change(&self, id: ExecutorId, wanted: Wanted) -> Option<Change> {
        let executor = self.find(id).filter(|e| wanted.live(e.load_stamp))?;
        Some(Change::Load(executor.load()))
    }

    pub(crate) fn residency_change(&self, key: Presence, wanted: Wanted) -> Option<Change> {
        let executor = self.find(key.executor);
        match executor.and_then(|executor| executor.residency(key.model)) {
            Some(row) => {
                let stamp = executor?.models_stamps.get(&key.model).copied();
                let is_wanted = wanted.live(stamp.unwrap_or_default());
                is_wanted.then_some(Change::Residency(row))
            }
            None => wanted.gone().then_some(Change::ResidencyGone(key)),
        }
    }

    pub(crate) fn device_change(&self, id: DeviceId, wanted: Wanted) -> Option<Change> {
        let device = self.find_device(id).filter(|d| wanted.live(d.stamp))?;
        device.row().map(Change::Device)
    }

    pub(crate) fn model_change(&self, id: ModelId, wanted: Wanted) -> Option<Change> {
        let model = self.models.get(&id).filter(|m| wanted.live(m.stamp))?;
        Some(Change::Model(model_row(id, model)))
    }

    pub(crate) fn tenant_change(&self, id: TenantId, wanted: Wanted) -> Option<Change> {
        let tenant = self.tenants.get(&id).filter(|t| wanted.live(t.stamp))?;
        Some(Change::Tenant(tenant_row(id, tenant)))
    }

    /// The rows of the models, in the order of their ids.
    pub(crate) fn model_rows(&self) -> impl Iterator<Item = rows::Model> {
        let models = self.models.iter();
        models.map(|(id, model)| model_row(*id, model))
    }

    /// Adds every row there is.
    pub(crate) fn all_rows(&self, out: &mut Vec<Change>) {
        let devices = self.devices.iter().filter_map(Device::row);
        out.extend(devices.map(Change::Device));
        out.extend(self.model_rows().map(Change::Model));
        let tenants = self.tenants.iter();
        out.extend(tenants.map(|(id, tenant)| Change::Tenant(tenant_row(*id, tenant))));
        for executor in self.executors() {
            out.push(Change::Executor(Box::new(executor.info())));
            out.push(Change::Load(executor.load()));
            let models = executor.models.keys();
            let residencies = models.filter_map(|model| executor.residency(*model));
            out.extend(residencies.map(Change::Residency));
        }
    }
}

fn model_row(id: ModelId, model: &Model) -> rows::Model {
    rows::Model {
        id,
        running_max: model.running_max,
        running: model.running,
        waiting: model.waiting,
    }
}

fn tenant_row(id: TenantId, tenant: &Tenant) -> rows::Tenant {
    rows::Tenant {
        id,
        weight: tenant.weight,
        tokens_per_minute: tenant.tokens_per_minute,
        running: tenant.running,
        waiting: tenant.waiting,
        prompt_tokens_total: tenant.prompt_tokens_total,
        output_tokens_total: tenant.output_tokens_total,
    }
}
