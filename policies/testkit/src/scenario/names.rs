//! The check that everything a step names is there by then.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_notation::{TomlError, TomlText};

use super::cost::Cost;
use super::expect::Expect;
use super::fleet::{ExecutorTable, Thing};
use super::step::{Action, Arrival};
use super::{Name, Scenario, did_you_mean};

/// The tenant that always exists.
pub(crate) const DEFAULT_TENANT: &str = "default";

/// The names there are so far, by the kind of thing.
struct Known<'a> {
    source: &'a TomlText,
    names: BTreeMap<Thing, BTreeSet<String>>,
}

pub(super) fn check(scenario: &Scenario) -> Result<(), TomlError> {
    let mut known = Known {
        source: &scenario.source,
        names: BTreeMap::new(),
    };
    let fleet = &scenario.fleet;
    known.add_text(Thing::Tenant, DEFAULT_TENANT);
    for tenant in &fleet.tenants {
        known.add(Thing::Tenant, &tenant.name)?;
    }
    for model in &fleet.models {
        known.add(Thing::Model, &model.name)?;
    }
    for device in &fleet.devices {
        known.add(Thing::Device, &device.name)?;
        if device.kv_blocks.is_some() && device.report.is_some() {
            let text = "a device whose blocks the host manages has nothing to report";
            return Err(known.source.error(device.name.span().start, text));
        }
    }
    for executor in &fleet.executors {
        known.add_executor(executor)?;
    }
    for table in &scenario.load.cached {
        known.need_all(Thing::Executor, &table.executor.0)?;
        known.need_all(Thing::Model, &table.model)?;
    }
    for table in &scenario.load.running {
        known.need(Thing::Executor, &table.executor)?;
        known.add_arrivals(&table.request.0)?;
    }
    for table in &scenario.load.waiting {
        known.add_arrivals(&table.request.0)?;
    }
    for step in &scenario.steps {
        if let Some(action) = &step.action {
            known.check_action(action)?;
        }
        if let Some(expect) = &step.expect {
            known.check_expect(expect)?;
        }
    }
    Ok(())
}

// === impl Known ===

impl Known<'_> {
    fn of(&self, thing: Thing) -> impl Iterator<Item = &String> {
        self.names.get(&thing).into_iter().flatten()
    }

    fn is_known(&self, thing: Thing, name: &str) -> bool {
        self.of(thing).any(|known| known == name)
    }

    fn add_text(&mut self, thing: Thing, name: &str) {
        self.names.entry(thing).or_default().insert(name.to_owned());
    }

    fn add(&mut self, thing: Thing, name: &Name) -> Result<(), TomlError> {
        self.add_named(thing, name.get_ref(), name)
    }

    /// Adds a name that comes from the place of another, `at`.
    fn add_named(&mut self, thing: Thing, name: &str, at: &Name) -> Result<(), TomlError> {
        let at = at.span().start;
        if name.is_empty() {
            return Err(self.source.error(at, format!("a {thing} needs a name")));
        }
        if self.is_known(thing, name) {
            let text = format!("another {thing} is called `{name}`");
            return Err(self.source.error(at, text));
        }
        self.add_text(thing, name);
        Ok(())
    }

    fn need(&self, thing: Thing, name: &Name) -> Result<(), TomlError> {
        if self.is_known(thing, name.get_ref()) {
            return Ok(());
        }
        let known: Vec<String> = self.of(thing).map(|name| format!("`{name}`")).collect();
        let there = if known.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there are {}", known.join(", "))
        };
        let hint = did_you_mean(name.get_ref(), self.of(thing).map(String::as_str));
        let text = format!(
            "no {thing} is called `{}` by then; {there}{hint}",
            name.get_ref()
        );
        Err(self.source.error(name.span().start, text))
    }

    fn need_all<'n>(
        &self,
        thing: Thing,
        names: impl IntoIterator<Item = &'n Name>,
    ) -> Result<(), TomlError> {
        names
            .into_iter()
            .try_for_each(|name| self.need(thing, name))
    }

    fn add_executor(&mut self, executor: &ExecutorTable) -> Result<(), TomlError> {
        self.add(Thing::Executor, &executor.name)?;
        match &executor.device {
            Some(device) => self.need(Thing::Device, device)?,
            None => self.add(Thing::Device, &executor.name)?,
        }
        self.need_all(Thing::Model, executor.loaded.iter().flatten())?;
        self.need_all(Thing::Model, executor.serves.iter().flatten())
    }

    fn add_arrivals(&mut self, arrivals: &[Arrival]) -> Result<(), TomlError> {
        arrivals
            .iter()
            .try_for_each(|arrival| self.add_arrival(arrival))
    }

    fn add_arrival(&mut self, arrival: &Arrival) -> Result<(), TomlError> {
        self.need_all(Thing::Model, &arrival.model)?;
        self.need_all(Thing::Tenant, &arrival.tenant)?;
        self.need_all(Thing::Executor, &arrival.preferred)?;
        self.need_all(Thing::Executor, arrival.allowed.iter().flatten())?;
        for name in arrival.names() {
            self.add_named(Thing::Request, &name, &arrival.name)?;
        }
        Ok(())
    }

    fn check_action(&mut self, action: &Action) -> Result<(), TomlError> {
        match action {
            Action::Advance(_) | Action::Settle | Action::RunOut(_) => Ok(()),
            Action::Arrive(arrivals) => self.add_arrivals(arrivals),
            Action::Attach(executors) => executors
                .iter()
                .try_for_each(|executor| self.add_executor(executor)),
            Action::Cancel(requests) => self.need_all(Thing::Request, requests),
            Action::Fail(failure) => self.need(Thing::Request, &failure.request),
            Action::EngineStep(executors)
            | Action::Lose(executors)
            | Action::Recover(executors)
            | Action::Degrade(executors)
            | Action::Drain(executors)
            | Action::Detach(executors) => self.need_all(Thing::Executor, executors),
            Action::Update(updates) => updates.iter().try_for_each(|update| {
                self.need(Thing::Executor, &update.executor)?;
                self.need_all(Thing::Model, update.loaded.iter().flatten())?;
                self.need_all(Thing::Model, update.serves.iter().flatten())
            }),
            Action::SetTenant(tenants) => {
                self.need_all(Thing::Tenant, tenants.iter().map(|tenant| &tenant.name))
            }
            Action::SetModel(models) => {
                self.need_all(Thing::Model, models.iter().map(|model| &model.name))
            }
            Action::Report(reports) => {
                self.need_all(Thing::Device, reports.iter().map(|report| &report.device))
            }
            Action::Cache(caches) => {
                let devices = caches.iter().filter_map(|cache| cache.device.as_ref());
                self.need_all(Thing::Device, devices)?;
                let models = caches.iter().filter_map(|cache| cache.model.as_ref());
                self.need_all(Thing::Model, models)
            }
        }
    }

    fn check_expect(&self, expect: &Expect) -> Result<(), TomlError> {
        let lists = [
            &expect.placements,
            &expect.waiting,
            &expect.parked,
            &expect.victims,
            &expect.swapped,
        ];
        self.need_all(Thing::Request, lists.into_iter().flatten().flatten())?;
        let lists = [
            &expect.held,
            &expect.finished,
            &expect.given_up,
            &expect.never_fits,
            &expect.unserved,
            &expect.cancelled,
            &expect.failed,
        ];
        self.need_all(Thing::Request, lists.into_iter().flatten())?;
        for places in [&expect.placed, &expect.reserved] {
            self.need_all(Thing::Request, places.keys())?;
            self.need_all(Thing::Executor, places.values())?;
        }
        for among in [&expect.placed_among, &expect.placed_off] {
            self.need_all(Thing::Request, among.keys())?;
            self.need_all(Thing::Executor, among.values().flatten())?;
        }
        for (request, other) in &expect.placed_with {
            self.need_all(Thing::Request, [request, other])?;
        }
        self.need_all(Thing::Executor, expect.placed_count.keys())?;
        for contents in [&expect.running, &expect.queued_on] {
            self.need_all(Thing::Executor, contents.keys())?;
            self.need_all(Thing::Request, contents.values().flatten())?;
        }
        self.need_all(Thing::Request, expect.held_until.keys())?;
        for numbers in [&expect.output, &expect.refused, &expect.displaced] {
            self.need_all(Thing::Request, numbers.keys())?;
        }
        self.need_all(Thing::Request, expect.expired.keys())?;
        self.need_all(Thing::Request, expect.evicted_for.keys())?;
        self.need_all(Thing::Request, expect.evicted_for.values())?;
        for (request, costs) in &expect.cost {
            self.need(Thing::Request, request)?;
            self.need_all(Thing::Executor, costs.keys())?;
            for cost in costs.values() {
                if let Cost::Than(_, executor) = cost.get_ref() {
                    self.need(Thing::Executor, &Name::new(cost.span(), executor.clone()))?;
                }
            }
        }
        for texts in [&expect.reasons, &expect.decided_by] {
            self.need_all(Thing::Request, texts.keys())?;
        }
        self.need_all(Thing::Executor, expect.allotted.keys())?;
        self.need_all(Thing::Executor, expect.arranged.keys())?;
        self.need_all(Thing::Request, expect.arranged.values().flatten())?;
        self.need_all(Thing::Executor, expect.prefill_max.keys())?;
        self.need_all(Thing::Tenant, expect.served.keys())?;
        let fair = expect.fair.iter().flat_map(|fair| &fair.tenants);
        self.need_all(Thing::Tenant, fair)?;
        self.need_all(Thing::Executor, expect.tokens.keys())
    }
}
