//! A world with the names of a scenario, and the actions of its steps.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_core::rows::{Change, Health, Tenant};
use pointsman_core::{
    BlockKind, DeviceId, ExecutorId, ExecutorSpec, ExecutorUpdate, Input, Micros, ModelId,
    NewRequest, PrefixEvent, PromptBlocks, ReadableBlocks, RequestId, RowKind, RowKinds,
    SessionKey, TenantId, Tier,
};
use pointsman_sim::World;

use super::RunError;
use super::watch::Watched;
use crate::properties::Property;
use crate::scenario::fleet::{
    DeviceTable, ExecutorTable, HealthName, ModelTable, TOKENS_PER_BLOCK, TenantTable,
};
use crate::scenario::names::DEFAULT_TENANT;
use crate::scenario::prompt::Prompt;
use crate::scenario::step::{Action, Arrival, CacheTable, Failure, TierName, UpdateTable};
use crate::scenario::units::micros;
use crate::scenario::{Name, Scenario};

/// A world, the names of the things in it, and the position in its facts.
#[derive(Debug)]
pub(crate) struct ScenarioRun {
    pub(super) world: World<Watched>,
    /// Names of the policies, by number.
    pub(super) policies: Vec<String>,
    pub(super) executors: BTreeMap<String, ExecutorId>,
    /// Names of the requests by id: ids are given in order of arrival.
    pub(super) requests: Vec<String>,
    pub(super) mark: Mark,
    /// The sizes of KV blocks in tokens, on devices whose blocks the host manages.
    tokens_per_block: BTreeSet<u32>,
    /// The names of the requests whose costs are compared.
    costed: BTreeSet<String>,
    devices: BTreeMap<String, DeviceId>,
    pub(super) models: BTreeMap<String, ModelId>,
    pub(super) tenants: BTreeMap<String, TenantId>,
    /// Number of facts that were judged.
    pub(super) judged: usize,
}

/// The counts at the last `expect`.
#[derive(Debug, Default)]
pub(super) struct Mark {
    pub(super) facts: usize,
    pub(super) tokens: BTreeMap<ExecutorId, u64>,
    served: BTreeMap<TenantId, u64>,
}

/// The work for a tenant since the last `expect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) weight: u32,
    pub(super) tokens: u64,
}

// === impl ScenarioRun: the fleet ===

impl ScenarioRun {
    pub(super) fn new(
        scenario: &Scenario,
        policies: Watched,
        names: Vec<String>,
    ) -> Result<Self, RunError> {
        let world = World::new(scenario.config.clone(), policies);
        let mut run = Self {
            world: world.expect("the configuration was checked when the scenario was read"),
            policies: names,
            executors: BTreeMap::new(),
            requests: Vec::new(),
            mark: Mark::default(),
            tokens_per_block: BTreeSet::new(),
            costed: scenario.costed(),
            devices: BTreeMap::new(),
            models: BTreeMap::new(),
            tenants: BTreeMap::new(),
            judged: 0,
        };
        let impossible = |at: &Name, why| RunError::Impossible {
            place: scenario.source.location(at.span().start),
            step: 0,
            why,
        };
        run.set_tenant(DEFAULT_TENANT, 1, None);
        run.set_tenants(&scenario.fleet.tenants);
        run.set_models(&scenario.fleet.models);
        for device in &scenario.fleet.devices {
            let added = run.add_device(device);
            added.map_err(|why| impossible(&device.name, why))?;
        }
        for executor in &scenario.fleet.executors {
            let added = run.attach(executor);
            added.map_err(|why| impossible(&executor.name, why))?;
        }
        run.load(scenario)?;
        Ok(run)
    }

    /// Adds tenants, or changes those that exist.
    fn set_tenants(&mut self, tenants: &[TenantTable]) {
        for tenant in tenants {
            let name = tenant.name.get_ref();
            self.set_tenant(name, tenant.weight, tenant.tokens_per_minute);
        }
    }

    fn set_tenant(&mut self, name: &str, weight: u32, tokens_per_minute: Option<u64>) {
        let id = self.world.machine.intern(self.world.now(), name);
        let set = Input::TenantSet(id, weight, tokens_per_minute);
        self.world.input(set);
        self.tenants.insert(name.to_owned(), id);
    }

    /// Adds models, or changes those that exist.
    fn set_models(&mut self, models: &[ModelTable]) {
        for model in models {
            let name = model.name.get_ref();
            let id = self.world.machine.intern(self.world.now(), name);
            self.world
                .input(Input::ModelLimitSet(id, model.running_max));
            self.models.insert(name.clone(), id);
        }
    }

    fn add_device(&mut self, device: &DeviceTable) -> Result<(), String> {
        let attached = self.world.attach_device(device.spec());
        let id = attached.map_err(|error| error.to_string())?;
        self.devices.insert(device.name.get_ref().clone(), id);
        if let Some(counts) = device.report {
            self.world.input(Input::KvReported(id, counts.report()));
        }
        Ok(())
    }

    fn attach(&mut self, executor: &ExecutorTable) -> Result<(), String> {
        let name = executor.name.get_ref();
        let device = match &executor.device {
            Some(device) => self.devices[device.get_ref()],
            None => {
                let attached = self.world.attach_device(DeviceTable::remote(name));
                let id = attached.map_err(|error| error.to_string())?;
                self.devices.insert(name.clone(), id);
                id
            }
        };
        let owned = self.world.machine.owns_kv(device);
        let tokens_per_block = executor
            .tokens_per_block
            .or(owned.then_some(TOKENS_PER_BLOCK));
        let spec = ExecutorSpec {
            name: name.clone(),
            device,
            kind: executor.kind.into(),
            role: executor.role.into(),
            group: executor.group,
            share_weight: executor.share_weight,
            serves: executor
                .serves
                .as_deref()
                .map(|names| self.model_ids(names)),
            slots_total: executor.slots,
            models_max: executor.models_max,
            queue_limit: executor.queue_limit,
            tokens_per_block,
            preempts: executor.preempts,
            reads: ReadableBlocks::Device,
            model_unload_delay: micros(executor.model_unload_delay),
        };
        let attached = self.world.attach_executor(spec, executor.engine.profile());
        let id = attached.map_err(|error| error.to_string())?;
        self.executors.insert(name.clone(), id);
        self.tokens_per_block
            .extend(tokens_per_block.filter(|_| owned));
        if let Some(names) = &executor.loaded {
            self.set_loaded(id, names);
        }
        if executor.health != HealthName::Up {
            self.set_health(id, executor.health.into());
        }
        Ok(())
    }
}

// === impl ScenarioRun: names ===

impl ScenarioRun {
    // `names::check` made sure that every name of a scenario was declared.

    pub(super) fn executor(&self, name: &Name) -> ExecutorId {
        self.executors[name.get_ref()]
    }

    pub(super) fn request(&self, name: &Name) -> RequestId {
        self.arrived(name)
            .expect("an expectation names a request only once it has arrived")
    }

    /// The request of that name. In a drawn run it need not be there: its arrival may have been
    /// impossible.
    fn arrived(&self, name: &Name) -> Result<RequestId, String> {
        let at = self
            .requests
            .iter()
            .position(|known| known == name.get_ref());
        at.and_then(|at| u64::try_from(at).ok())
            .map(RequestId)
            .ok_or_else(|| format!("`{}` has not arrived", name.get_ref()))
    }

    pub(super) fn request_name(&self, id: RequestId) -> &str {
        let at = usize::try_from(id.0).ok();
        at.and_then(|at| self.requests.get(at))
            .map_or("(probe)", String::as_str)
    }

    pub(super) fn executor_name(&self, id: ExecutorId) -> &str {
        let kind = pointsman_core::rows::NameKind::Executor;
        self.world.machine.name(kind, id.0).unwrap_or("?")
    }

    pub(super) fn device_name(&self, id: DeviceId) -> &str {
        let kind = pointsman_core::rows::NameKind::Device;
        self.world.machine.name(kind, id.0).unwrap_or("?")
    }

    fn model_ids(&self, names: &[Name]) -> Vec<ModelId> {
        let ids = names.iter().map(|name| self.models[name.get_ref()]);
        ids.collect()
    }
}

// === impl ScenarioRun: actions ===

impl ScenarioRun {
    pub(super) fn settle(&mut self) {
        self.world.settle();
    }

    pub(super) fn set_mark(&mut self) {
        let scheduled = |id: &ExecutorId| {
            let engine = self.world.engine(*id);
            (*id, engine.map_or(0, |engine| engine.tokens_total()))
        };
        self.mark = Mark {
            facts: self.world.facts().len(),
            tokens: self.executors.values().map(scheduled).collect(),
            served: self
                .tenant_rows()
                .into_iter()
                .map(|row| (row.id, computed(&row)))
                .collect(),
        };
    }

    pub(super) fn served(&self, name: &Name) -> Served {
        let id = self.tenants[name.get_ref()];
        let before = self.mark.served.get(&id).copied().unwrap_or(0);
        let row = self.tenant_rows().into_iter().find(|row| row.id == id);
        row.map_or(
            Served {
                weight: 1,
                tokens: 0,
            },
            |row| Served {
                weight: row.weight,
                tokens: computed(&row).saturating_sub(before),
            },
        )
    }

    /// The tenants as a policy is told of them.
    fn tenant_rows(&self) -> Vec<Tenant> {
        let tenants = RowKinds::from_iter([RowKind::Tenant]);
        let rows = self.world.machine.view().rows(tenants);
        let rows = rows.into_iter().filter_map(|change| {
            if let Change::Tenant(row) = change {
                Some(row)
            } else {
                None
            }
        });
        rows.collect()
    }

    /// Carries out an action. The error says why it is impossible.
    pub(super) fn act(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Arrive(arrivals) => arrivals.iter().try_for_each(|new| self.arrive(new))?,
            Action::Advance(time) => self.world.run_until(self.world.now().after(micros(*time))),
            Action::EngineStep(names) => self.engine_step(names),
            Action::Settle => self.settle(),
            Action::RunOut(time) => self.run_out(micros(*time))?,
            Action::Cancel(names) => {
                for name in names {
                    let request = self.arrived(name)?;
                    self.world.input(Input::RequestCancelled(request));
                }
            }
            Action::Fail(failure) => self.fail(failure)?,
            Action::Lose(names) => self.set_all_health(names, Health::Down),
            Action::Recover(names) => self.set_all_health(names, Health::Up),
            Action::Degrade(names) => self.set_all_health(names, Health::Degraded),
            Action::Drain(names) => self.set_all_health(names, Health::Draining),
            Action::Attach(executors) => {
                executors
                    .iter()
                    .try_for_each(|executor| self.attach(executor))?;
            }
            Action::Detach(names) => {
                for name in names {
                    self.world
                        .update(self.executor(name), ExecutorUpdate::Detach);
                }
            }
            Action::Update(updates) => updates.iter().try_for_each(|update| self.update(update))?,
            Action::SetTenant(tenants) => self.set_tenants(tenants),
            Action::SetModel(models) => self.set_models(models),
            Action::Report(reports) => {
                for report in reports {
                    let device = self.devices[report.device.get_ref()];
                    let counts = report.counts.report();
                    self.world.input(Input::KvReported(device, counts));
                }
            }
            Action::Cache(caches) => caches.iter().try_for_each(|cache| self.cache(cache))?,
        }
        Ok(())
    }

    pub(super) fn arrive(&mut self, arrival: &Arrival) -> Result<(), String> {
        let new = self.new_request(arrival);
        let block = arrival
            .prompt
            .is_in_pieces()
            .then(|| self.block_of_pieces())
            .transpose()?;
        for name in arrival.names() {
            let new = NewRequest {
                prompt_blocks: block.map_or_else(PromptBlocks::default, |tokens_per_block| {
                    PromptBlocks {
                        tokens_per_block,
                        hashes: arrival.prompt.hashes(&name, tokens_per_block),
                    }
                }),
                ..new.clone()
            };
            let id = self.world.arrive(new, arrival.output);
            self.requests.push(name);
            self.watch_cost_of(id);
        }
        Ok(())
    }

    /// Has a request explained where the scenario compares its costs.
    pub(super) fn watch_cost_of(&mut self, id: RequestId) {
        if self.costed.contains(self.request_name(id)) {
            self.world.policies.sink.explain_cost_of(id);
        }
    }

    /// The size of the blocks by which prompts in pieces are compared, in tokens.
    pub(super) fn block_of_pieces(&self) -> Result<u32, &'static str> {
        let mut sizes = self.tokens_per_block.iter();
        match (sizes.next(), sizes.next()) {
            (Some(tokens), None) => Ok(*tokens),
            (None, _) => Err("a prompt in pieces needs an executor on a device with `kv-blocks`"),
            (Some(_), Some(_)) => {
                Err("a prompt in pieces needs executors with the same `tokens-per-block`")
            }
        }
    }

    fn cache(&mut self, cache: &CacheTable) -> Result<(), String> {
        let tokens_per_block = self.block_of_pieces()?;
        let device = cache
            .device
            .as_ref()
            .map(|name| self.devices[name.get_ref()]);
        let tier = match (cache.tier, device) {
            (TierName::Device, Some(device)) => Tier::Device(device),
            (TierName::Host, Some(device)) => Tier::Host(device),
            (TierName::Disk, Some(device)) => Tier::Disk(device),
            (TierName::Shared, None) => Tier::Shared,
            (TierName::Shared, Some(_)) => return Err("a shared cache has no `device`".into()),
            (TierName::Device | TierName::Host | TierName::Disk, None) => {
                return Err("a tier that is not shared needs a `device`".into());
            }
        };
        // Only common text is reported: the name "" belongs to no request.
        let hashes = |prompt: &Prompt| prompt.hashes("", tokens_per_block);
        let model = cache.model.as_ref();
        let kind = BlockKind {
            model: model.map(|name| self.models[name.get_ref()]),
            adapter: None,
            tokens_per_block,
        };
        let event = match (&cache.stored, &cache.removed, cache.cleared) {
            (Some(stored), None, false) => PrefixEvent::Stored(kind, hashes(stored)),
            (None, Some(removed), false) => PrefixEvent::Removed(kind, hashes(removed)),
            (None, None, true) => PrefixEvent::Cleared,
            _ => return Err("write one of `stored`, `removed` and `cleared = true`".into()),
        };
        self.world.input(Input::PrefixesReported(tier, event));
        Ok(())
    }

    fn new_request(&mut self, arrival: &Arrival) -> NewRequest {
        let now = self.world.now();
        let tenant = arrival
            .tenant
            .as_ref()
            .map_or(DEFAULT_TENANT, |name| name.get_ref());
        let machine = &mut self.world.machine;
        NewRequest {
            model: arrival
                .model
                .as_ref()
                .map(|name| self.models[name.get_ref()]),
            adapter: arrival
                .adapter
                .as_ref()
                .map(|name| machine.intern(now, name)),
            session: arrival.session.as_deref().map(session_key),
            class: arrival.class.into(),
            priority: arrival.priority,
            head_start: micros(arrival.head_start),
            labels: arrival
                .labels
                .iter()
                .map(|text| machine.intern(now, text))
                .collect(),
            deadline: arrival.deadline.map(|time| now.after(micros(time))),
            may_wait: arrival.may_wait,
            output_tokens_expected: arrival.output_expected,
            group: arrival.group,
            allowed: arrival.allowed.as_ref().map(|names| {
                let ids = names.iter().map(|name| self.executors[name.get_ref()]);
                ids.collect()
            }),
            preferred: arrival
                .preferred
                .as_ref()
                .map(|name| self.executors[name.get_ref()]),
            ..NewRequest::new(
                self.tenants[tenant],
                arrival.prompt.tokens(),
                arrival.output_max.unwrap_or(arrival.output),
            )
        }
    }

    fn engine_step(&mut self, names: &[Name]) {
        self.settle();
        for name in names {
            self.world.step(self.executor(name));
        }
    }

    fn run_out(&mut self, at_most: Micros) -> Result<(), String> {
        if self.world.run_out(self.world.now().after(at_most)) {
            return Ok(());
        }
        let left = format!(
            "by then these have no outcome: {}",
            self.unended().join(", ")
        );
        match &mut self.world.policies.sink.judge {
            Some(judge) if judge.judges(Property::StarvesNobody) => {
                judge.note(Property::StarvesNobody, left);
                Ok(())
            }
            Some(_) | None => Err(left),
        }
    }

    fn fail(&mut self, failure: &Failure) -> Result<(), String> {
        self.settle();
        let request = self.arrived(&failure.request)?;
        let runs_on = self.executors.values().copied().find(|id| {
            let engine = self.world.engine(*id);
            engine.is_some_and(|engine| engine.sequences().any(|running| running == request))
        });
        let executor = runs_on.ok_or("the request runs nowhere")?;
        self.world.fail(executor, request, failure.retry.into());
        Ok(())
    }

    fn set_all_health(&mut self, names: &[Name], health: Health) {
        for name in names {
            self.set_health(self.executor(name), health);
        }
    }

    fn set_health(&mut self, executor: ExecutorId, health: Health) {
        self.world.update(executor, ExecutorUpdate::Health(health));
    }

    fn set_loaded(&mut self, executor: ExecutorId, names: &[Name]) {
        let loaded = Some(self.model_ids(names));
        self.world.update(executor, ExecutorUpdate::Loaded(loaded));
    }

    fn update(&mut self, update: &UpdateTable) -> Result<(), String> {
        let id = self.executor(&update.executor);
        if let Some(weight) = update.share_weight {
            self.world.update(id, ExecutorUpdate::ShareWeight(weight));
        }
        if let Some(names) = &update.serves {
            let serves = self.model_ids(names);
            self.world.update(id, ExecutorUpdate::Serves(Some(serves)));
        }
        if let Some(names) = &update.loaded {
            self.set_loaded(id, names);
        }
        let Some(slots) = update.slots else {
            return Ok(());
        };
        self.world.update(id, ExecutorUpdate::SlotsTotal(slots));
        let snapshot = self.world.machine.executor_snapshot(id);
        if snapshot.is_some_and(|snapshot| snapshot.slots_total != slots) {
            return Err(format!("the host refuses {slots} slots there"));
        }
        Ok(())
    }

    /// Collects explanations for waiting requests, if they are wanted. The run cannot go on after
    /// it, because a request has arrived that is not in the scenario.
    pub(super) fn explain_waiting(&mut self) {
        if self.world.policies.sink.wants_explanations() {
            self.world.policies.sink.probe_next_arrival();
            let probe = NewRequest::new(self.tenants[DEFAULT_TENANT], 0, 0);
            let now = self.world.now();
            let World {
                machine, policies, ..
            } = &mut self.world;
            machine.handle(now, Input::arrival(probe));
            machine.decide(now, |_recorder| policies);
        }
    }
}

fn computed(row: &Tenant) -> u64 {
    row.prompt_tokens_total
        .saturating_add(row.output_tokens_total)
}

/// A stable hash of the session's name (FNV-1a), or the key that `key:` and 16 digits are. The
/// server's hash is keyed.
pub(super) fn session_key(name: &str) -> SessionKey {
    let digits = name.strip_prefix("key:").filter(|key| key.len() == 16);
    if let Some(key) = digits.and_then(|key| u64::from_str_radix(key, 16).ok()) {
        return SessionKey(key);
    }
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    SessionKey(hash)
}
