//! Rows of the books, as policies are told them.

use pointsman_events::rows::{self, Change, ExecutorLoad};
use pointsman_events::{DeviceId, ModelId, RowKind, RowKinds, TenantId};

use super::models::{ModelUse, TenantUse};
use super::{Executor, Ledger};

impl Ledger {
    pub(crate) fn device_row(&self, id: DeviceId) -> Option<rows::Device> {
        self.find_device(id)?.memory.row_told(id)
    }

    /// The load of an executor.
    pub(crate) fn load(&self, executor: &Executor) -> ExecutorLoad {
        let pool = self[executor.spec.device].pool();
        let used = pool.map(|pool| u64::from(pool.used_by(executor.id)));
        executor.load(used.unwrap_or_else(|| executor.blocks_reckoned()))
    }

    pub(crate) fn model_row(&self, id: ModelId) -> Option<rows::Model> {
        Some(model_row(id, self.models.get(&id)?))
    }

    pub(crate) fn tenant_row(&self, id: TenantId) -> Option<rows::Tenant> {
        Some(tenant_row(id, self.tenants.get(&id)?))
    }

    /// The rows of the models, in the order of their ids.
    pub(crate) fn model_rows(&self) -> impl Iterator<Item = rows::Model> {
        let models = self.models.iter();
        models.map(|(id, model)| model_row(*id, model))
    }

    /// The rows of the tenants, in the order of their ids.
    pub(crate) fn tenant_rows(&self) -> impl Iterator<Item = rows::Tenant> {
        let tenants = self.tenants.iter();
        tenants.map(|(id, tenant)| tenant_row(*id, tenant))
    }

    /// Adds every row there is of these kinds.
    pub(crate) fn all_rows(&self, kinds: RowKinds, out: &mut Vec<Change>) {
        if kinds.contains(RowKind::Device) {
            let devices = self.devices.iter();
            let told = devices.filter_map(|device| device.memory.row_told(device.id));
            out.extend(told.map(Change::Device));
        }
        if kinds.contains(RowKind::Model) {
            out.extend(self.model_rows().map(Change::Model));
        }
        if kinds.contains(RowKind::Tenant) {
            out.extend(self.tenant_rows().map(Change::Tenant));
        }
        self.all_executor_rows(kinds, out);
    }

    fn all_executor_rows(&self, kinds: RowKinds, out: &mut Vec<Change>) {
        let infos = kinds.contains(RowKind::Executor);
        let loads = kinds.contains(RowKind::Load);
        let residencies = kinds.contains(RowKind::Residency);
        if !infos && !loads && !residencies {
            return;
        }
        for executor in self.executors() {
            if infos {
                out.push(Change::Executor(Box::new(executor.info())));
            }
            if loads {
                out.push(Change::Load(self.load(executor)));
            }
            if residencies {
                out.extend(executor.residencies().map(Change::Residency));
            }
        }
    }
}

fn model_row(id: ModelId, model: &ModelUse) -> rows::Model {
    rows::Model {
        id,
        running_max: model.running_max,
        running: model.running,
        waiting: model.waiting,
    }
}

fn tenant_row(id: TenantId, tenant: &TenantUse) -> rows::Tenant {
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
