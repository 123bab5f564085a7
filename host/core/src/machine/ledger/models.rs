//! Models and tenants: their limits, the requests of each that run and wait, and the models' places
//! on executors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pointsman_events::changes::{RowKey, Stamp};
use pointsman_events::rows::{Health, Presence, Request as RequestRow};
use pointsman_events::{ExecutorId, Micros, ModelId, PromptCount, RefusalCause, TenantId};

use super::super::outbox::Outbox;
use super::super::requests::Request;
use super::super::timers::Timer;
use super::Ledger;
use super::executor::Tenure;

/// The use of the host by a model: the number of its requests in each place.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct ModelUse {
    pub(crate) running_max: Option<u32>,
    pub(crate) running: u32,
    pub(crate) waiting: u32,
    pub(super) stamp: Stamp,
}

/// The use of the host by a tenant.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct TenantUse {
    pub(super) weight: u32,
    pub(super) tokens_per_minute: Option<u64>,
    pub(crate) running: u32,
    pub(crate) waiting: u32,
    pub(super) prompt_tokens_total: u64,
    /// Prompt tokens counted too many, by which the next ones are fewer: totals never go back.
    prompt_tokens_over: u64,
    pub(super) output_tokens_total: u64,
    pub(super) stamp: Stamp,
}

impl TenantUse {
    /// The requests that are placed, and the weight.
    fn placed(&self) -> (u64, u64) {
        (u64::from(self.running), u64::from(self.weight))
    }
}

/// One more or one fewer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Up,
    Down,
}

impl Step {
    fn apply(self, n: &mut u32) {
        match self {
            Step::Up => *n += 1,
            Step::Down => *n -= 1,
        }
    }
}

// === impl Ledger: limits ===

impl Ledger {
    /// Opens the books of a model at its first use.
    pub(crate) fn add_model(&mut self, id: ModelId, out: &mut Outbox) {
        if let Entry::Vacant(entry) = self.models.entry(id) {
            entry.insert(ModelUse::default());
            self.touch_model(id, out);
        }
    }

    /// Opens the books of a tenant at its first use, with weight 1 and no limit.
    pub(crate) fn add_tenant(&mut self, id: TenantId, out: &mut Outbox) {
        if let Entry::Vacant(entry) = self.tenants.entry(id) {
            entry.insert(TenantUse {
                weight: 1,
                tokens_per_minute: None,
                running: 0,
                waiting: 0,
                prompt_tokens_total: 0,
                prompt_tokens_over: 0,
                output_tokens_total: 0,
                stamp: Stamp::default(),
            });
            self.touch_tenant(id, out);
        }
    }

    /// Sets how many requests of a model may run at once; absent: unlimited.
    pub(crate) fn limit_model(&mut self, id: ModelId, running_max: Option<u32>, out: &mut Outbox) {
        if let Some(model) = self.models.get_mut(&id) {
            model.running_max = running_max;
            out.due = true;
            self.touch_model(id, out);
        }
    }

    /// Sets a tenant's weight, at least 1, and tokens per minute; absent: unlimited.
    pub(crate) fn set_tenant(
        &mut self,
        id: TenantId,
        weight: u32,
        tokens_per_minute: Option<u64>,
        out: &mut Outbox,
    ) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.weight = weight.max(1);
            tenant.tokens_per_minute = tokens_per_minute;
            self.touch_tenant(id, out);
        }
    }

    /// Checks that a model has fewer running requests than its limit.
    pub(crate) fn can_run(&self, model: Option<ModelId>) -> Result<(), RefusalCause> {
        let model = model.and_then(|model| self.models.get(&model));
        match model.and_then(|model| Some((model.running_max?, model.running))) {
            Some((running_max, running)) if running >= running_max => Err(RefusalCause::RunningMax),
            Some(_) | None => Ok(()),
        }
    }

    /// True if a tenant has more requests placed than another, both by their weights.
    pub(crate) fn holds_more(&self, tenant: TenantId, other: TenantId) -> bool {
        let of = |id| self.tenants.get(&id).map_or((0, 1), TenantUse::placed);
        let (placed, weight) = of(tenant);
        let (other_placed, other_weight) = of(other);
        placed * other_weight > other_placed * weight
    }

    pub(crate) fn models(&self) -> impl Iterator<Item = (ModelId, &ModelUse)> {
        self.models.iter().map(|(id, model)| (*id, model))
    }

    pub(crate) fn tenants(&self) -> impl Iterator<Item = (TenantId, &TenantUse)> {
        self.tenants.iter().map(|(id, tenant)| (*id, tenant))
    }
}

// === impl Ledger: counting requests ===

impl Ledger {
    /// Counts a request of this model and tenant in or out of the waiting ones.
    pub(crate) fn count_waiting(&mut self, row: &RequestRow, step: Step, out: &mut Outbox) {
        if let Some(id) = row.model
            && let Some(model) = self.models.get_mut(&id)
        {
            step.apply(&mut model.waiting);
            self.touch_model(id, out);
        }
        if let Some(tenant) = self.tenants.get_mut(&row.tenant) {
            step.apply(&mut tenant.waiting);
            self.touch_tenant(row.tenant, out);
        }
    }

    /// Counts a request of this tenant in or out of the running ones.
    pub(super) fn count_running(&mut self, id: TenantId, step: Step, out: &mut Outbox) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            step.apply(&mut tenant.running);
            self.touch_tenant(id, out);
        }
    }

    /// Adds tokens to those that a tenant has used.
    pub(super) fn count_tokens(
        &mut self,
        id: TenantId,
        (prompt, output): (u32, u32),
        out: &mut Outbox,
    ) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            let prompt = u64::from(prompt);
            let paid = prompt.min(tenant.prompt_tokens_over);
            tenant.prompt_tokens_over -= paid;
            tenant.prompt_tokens_total += prompt - paid;
            tenant.output_tokens_total += u64::from(output);
            self.touch_tenant(id, out);
        }
    }

    /// Has a tenant pay for the tokens of a prompt that a server has counted, in the place of those that were
    /// booked.
    pub(crate) fn settle_prompt(
        &mut self,
        request: &Request,
        count: PromptCount,
        out: &mut Outbox,
    ) {
        let (placed, id) = (request.placement(), request.row.tenant);
        let booked = placed.prefilled.saturating_sub(placed.cached_tokens);
        let used = count.tokens.saturating_sub(count.cached);
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.prompt_tokens_over += u64::from(booked.saturating_sub(used));
        }
        self.count_tokens(id, (used.saturating_sub(booked), 0), out);
    }

    fn touch_model(&mut self, id: ModelId, out: &mut Outbox) {
        if let Some(model) = self.models.get_mut(&id) {
            out.mark(RowKey::Model(id), &mut model.stamp);
        }
    }

    fn touch_tenant(&mut self, id: TenantId, out: &mut Outbox) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            out.mark(RowKey::Tenant(id), &mut tenant.stamp);
        }
    }
}

// === impl Ledger: models' places on executors ===

impl Ledger {
    /// Counts one more sequence of a request's model, placed or reserved, on an executor.
    pub(super) fn join_model(&mut self, executor: ExecutorId, request: &Request, out: &mut Outbox) {
        let Some(id) = request.row.model else { return };
        let record = self.executor_mut(executor);
        let presence = record.models.entry(id);
        let presence = presence.or_insert_with(|| Tenure::new(out.now()));
        presence.sequences += 1;
        presence.warm_until = None;
        let mut cooled = Vec::new();
        if presence.sequences == 1 {
            record.models_active += 1;
            // A model that starts ends the hold of the one that was kept warm.
            let warm = record.models.iter().filter(|(_, p)| p.sequences == 0);
            cooled.extend(warm.map(|(model, _)| *model));
        }
        if let Some(model) = self.models.get_mut(&id) {
            model.running += 1;
        }
        self.touch_model(id, out);
        self.touch_presence(executor, id, out);
        self.cool(executor, &cooled, out);
    }

    /// Counts one sequence of a request's model less on an executor. After its last sequence the
    /// model stays warm for a while, if nothing else runs there.
    pub(super) fn leave_model(
        &mut self,
        executor: ExecutorId,
        request: &Request,
        out: &mut Outbox,
    ) {
        let Some(id) = request.row.model else { return };
        let record = self.executor_mut(executor);
        let presence = record.models.get_mut(&id);
        let presence = presence.expect("a model with a sequence is present");
        presence.sequences -= 1;
        if presence.sequences == 0 {
            record.models_active -= 1;
            let delay = record.spec.model_unload_delay;
            let stays =
                delay > Micros(0) && record.models_active == 0 && record.health != Health::Down;
            if stays {
                presence.warm_until = Some(out.now().after(delay));
            } else {
                record.models.remove(&id);
            }
        }
        if let Some(model) = self.models.get_mut(&id) {
            model.running -= 1;
        }
        self.touch_model(id, out);
        self.touch_presence(executor, id, out);
        self.arm(executor, out);
    }

    /// Notes that a sequence of this model on an executor has its first token.
    pub(super) fn begin_model(
        &mut self,
        executor: ExecutorId,
        model: Option<ModelId>,
        out: &mut Outbox,
    ) {
        let Some(id) = model else { return };
        let present = self.executor_mut(executor).models.get_mut(&id);
        if present.is_some_and(|present| present.begins(out.now())) {
            self.touch_presence(executor, id, out);
        }
    }

    /// Ends the hold of the models whose time is over.
    pub(crate) fn cool_due(&mut self, executor: ExecutorId, out: &mut Outbox) {
        let Some(record) = self.find(executor) else {
            return;
        };
        let is_due = |at: Micros| at <= out.now();
        let cooled = record.models.iter();
        let cooled = cooled.filter(|(_, presence)| presence.warm_until.is_some_and(is_due));
        let cooled: Vec<ModelId> = cooled.map(|(model, _)| *model).collect();
        self.cool(executor, &cooled, out);
        self.arm(executor, out);
    }

    /// Ends the hold of these models, which have no sequence left.
    pub(super) fn cool(&mut self, executor: ExecutorId, models: &[ModelId], out: &mut Outbox) {
        for model in models {
            self.executor_mut(executor).models.remove(model);
            self.touch_presence(executor, *model, out);
        }
        if !models.is_empty() {
            self.arm(executor, out);
        }
    }

    /// Notes the models that a server elsewhere has loaded; absent: it does not tell.
    pub(crate) fn set_loaded(
        &mut self,
        executor: ExecutorId,
        loaded: Option<Vec<ModelId>>,
        out: &mut Outbox,
    ) {
        let now = out.now();
        let record = self.executor_mut(executor);
        let before = record.loaded.take();
        let since = |model: &ModelId| before.as_ref().and_then(|told| told.get(model)).copied();
        let told = loaded.map(|models| {
            let models = models.into_iter();
            let told = models.map(|model| (model, since(&model).unwrap_or(now)));
            told.collect::<BTreeMap<_, _>>()
        });
        record.loaded.clone_from(&told);
        if told.is_some() != before.is_some() {
            self.touch_info(executor, out);
        }
        let (before, told) = (before.unwrap_or_default(), told.unwrap_or_default());
        let news = before.keys().filter(|model| !told.contains_key(model));
        let news = news.chain(told.keys().filter(|model| !before.contains_key(model)));
        for model in news {
            self.touch_presence(executor, *model, out);
        }
    }

    /// Sets an executor's timer to the time at which the first of its models cools or its rest ends.
    pub(super) fn arm(&self, executor: ExecutorId, out: &mut Outbox) {
        let record = &self[executor];
        let cools = record.models.values();
        let cools = cools.filter_map(|presence| presence.warm_until);
        let first = cools.chain(record.faults.until()).min();
        out.timers.arm(Timer::Executor(executor), first);
    }

    fn touch_presence(&mut self, executor: ExecutorId, model: ModelId, out: &mut Outbox) {
        let record = self.executor_mut(executor);
        let key = RowKey::Residency(Presence { executor, model });
        if record.residency(model).is_some() {
            let stamp = record.models_stamps.entry(model).or_default();
            out.mark(key, stamp);
        } else {
            let stamp = record.models_stamps.remove(&model);
            out.gone(key, &mut stamp.unwrap_or_default());
        }
    }
}
