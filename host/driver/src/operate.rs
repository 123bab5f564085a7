//! Answers to operators' questions, and the execution of their orders about executors.

use pointsman_core::rows::{ExecutorKind, Health, NameKind};
use pointsman_core::{
    AttachError, DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, ExecutorUpdate, Handled, Input,
    KvSpec, Micros, ModelId, PlacementTerms,
};

use pointsman_executor::contract::Command;
use pointsman_executor::server::{PromptCache, ServerConfig};
use pointsman_policy::ShadowReport;

use super::Driver;
use super::operator::{
    AttachRefused, Attached, ChangeRefused, DeviceRefused, DeviceRow, ExecutorChange, ExecutorRow,
    Fate, ModelRow, Operator, TenantTerms,
};
use super::provider::{ExecutorTerms, PreparedExecutor};

/// The most names in an error.
const NAMES_SHOWN: usize = 32;

impl Driver {
    /// Answers `operator`. An answer that nobody waits for any more is dropped.
    pub(super) fn operate(&mut self, now: Micros, operator: Operator) {
        match operator {
            Operator::Overview(answer) => drop(answer.send(self.overview(now))),
            Operator::Loads(answer) => drop(answer.send(self.loads())),
            Operator::Executor(name, answer) => {
                let id = self.executor_named(&name).ok();
                drop(answer.send(id.and_then(|id| self.executor_row(id))));
            }
            Operator::Monitor(answer) => drop(answer.send(self.monitored(now))),
            Operator::Shadows(answer) => drop(answer.send(self.shadows())),
            Operator::Route(query, answer) => drop(answer.send(self.forecast(now, &query))),
            Operator::Decision(ticket, answer) => drop(answer.send(self.explained(now, ticket))),
            Operator::Decisions(last, answer) => {
                drop(answer.send(self.named(self.decisions.newest(last))))
            }
            Operator::Eject(hooks, answer) => {
                let ejected = hooks.iter();
                let ejected = ejected.flat_map(|hook| self.policies.eject(now, hook));
                drop(answer.send(ejected.collect()));
            }
            Operator::Attach(prepared, answer) => {
                drop(answer.send(self.attach_new(now, *prepared)));
            }
            Operator::Serve(name, models, answer) => {
                drop(answer.send(self.serve(now, &name, &models)));
            }
            Operator::Configure(name, description, answer) => {
                let (server, terms) = *description;
                drop(answer.send(self.configure(now, &name, (server, terms))));
            }
            Operator::Change(name, change, answer) => {
                drop(answer.send(self.change_executor(now, &name, change)));
            }
            Operator::TokensPerStep(name, tokens, answer) => {
                drop(answer.send(self.set_tokens_per_step(now, &name, tokens)));
            }
            Operator::RunningMax(name, max, answer) => {
                drop(answer.send(self.limit_model(now, &name, max)));
            }
            Operator::Tenants(terms, answer) => {
                for terms in terms {
                    self.set_tenant(now, &terms);
                }
                drop(answer.send(self.tenant_rows().collect()));
            }
        }
    }

    fn shadows(&self) -> Vec<ShadowReport> {
        let numbers = self.policies.numbers();
        numbers
            .filter_map(|number| self.policies.shadow_report(number))
            .collect()
    }

    /// Attaches an executor to the machine, and starts its engine.
    fn attach_new(
        &mut self,
        now: Micros,
        prepared: PreparedExecutor,
    ) -> Result<Attached, AttachRefused> {
        let models = prepared.models.iter();
        let models: Vec<ModelId> = models
            .map(|model| self.machine.intern(now, &model.name))
            .collect();
        let own_kv = prepared.device.as_ref().map(|device| device.kv);
        let device = prepared.device.map(|device| self.own_device(now, device));
        let spec = ExecutorSpec {
            serves: Some(models.clone()),
            device: device.transpose()?.unwrap_or(prepared.spec.device),
            ..prepared.spec
        };
        let terms = PlacementTerms {
            group: spec.group,
            models_max: spec.models_max,
            queue_limit: spec.queue_limit,
            model_unload_delay: spec.model_unload_delay,
            assumes_prompts: own_kv == Some(KvSpec::Assumed),
        };
        let kept_kv = self.machine.device_spec(spec.device).map(|spec| spec.kv);
        let executor = self
            .machine
            .handle(now, Input::ExecutorAttached(spec))
            .executor()?;
        // Another server of this name may have left the device behind, on other terms.
        if own_kv.is_some() && own_kv != kept_kv {
            self.update(now, executor, ExecutorUpdate::Terms(terms));
        }
        if let Some((spans, server)) = self.spans.as_mut().zip(prepared.server) {
            spans.attached(executor, server);
        }
        let engine = match (prepared.spawn)(executor, &models) {
            Ok(engine) => engine,
            Err(error) => {
                self.update(now, executor, ExecutorUpdate::Detach);
                return Err(AttachRefused::NoThread(error));
            }
        };
        self.attach(executor, engine.commands.clone());
        let row = self.executor_row(executor);
        let row = row.expect("an executor that was just attached is there");
        Ok(Attached {
            executor,
            row,
            engine,
        })
    }

    /// The device that an executor brings. One that was removed left its device behind.
    fn own_device(&mut self, now: Micros, spec: DeviceSpec) -> Result<DeviceId, AttachError> {
        match self.machine.id_of(NameKind::Device, &spec.name) {
            Some(known) => Ok(DeviceId(known)),
            None => self
                .machine
                .handle(now, Input::DeviceAttached(spec))
                .device(),
        }
    }

    /// Sets the models of an executor.
    fn serve(&mut self, now: Micros, name: &str, models: &[String]) -> Result<(), ChangeRefused> {
        let executor = self.executor_named(name)?;
        let models = models.iter();
        let models = models.map(|name| self.machine.intern(now, name)).collect();
        self.update(now, executor, ExecutorUpdate::Serves(Some(models)));
        Ok(())
    }

    /// Describes a server elsewhere anew. What runs there runs on.
    fn configure(
        &mut self,
        now: Micros,
        name: &str,
        (server, terms): (ServerConfig, ExecutorTerms),
    ) -> Result<ExecutorRow, ChangeRefused> {
        let executor = self.executor_named(name)?;
        let info = self.machine.executor_info(executor);
        if info.is_some_and(|info| info.kind != ExecutorKind::Remote) {
            return Err(ChangeRefused::NoServer(name.to_owned()));
        }
        if self.executors.fate(executor) == Fate::Leaves {
            return Err(ChangeRefused::Leaves(name.to_owned()));
        }
        if let Some(spans) = &mut self.spans {
            spans.attached(executor, server.url.clone());
        }
        let placement = PlacementTerms {
            group: terms.group,
            models_max: terms.models_max,
            queue_limit: terms.queue,
            model_unload_delay: terms.model_unload_delay,
            assumes_prompts: server.prompt_cache == PromptCache::Assumed,
        };
        self.update(
            now,
            executor,
            ExecutorUpdate::ShareWeight(terms.share_weight),
        );
        self.update(now, executor, ExecutorUpdate::Terms(placement));
        let described = Command::Configure {
            server: Box::new(server),
            models_max: terms.models_max,
        };
        self.executors.send(executor, described);
        let row = self.executor_row(executor);
        row.ok_or_else(|| self.unknown_executor(name))
    }

    fn change_executor(
        &mut self,
        now: Micros,
        name: &str,
        change: ExecutorChange,
    ) -> Result<ExecutorRow, ChangeRefused> {
        let executor = self.executor_named(name)?;
        let health = self.machine.executor_load(executor).map(|load| load.health);
        let ended = health == Some(Health::Down) && !self.executors.is_linked(executor);
        match (self.executors.fate(executor), change) {
            (Fate::Stays | Fate::Drains | Fate::Leaves, ExecutorChange::Load(load)) => {
                let info = self.machine.executor_info(executor);
                if info.is_some_and(|info| info.kind != ExecutorKind::Remote) {
                    return Err(ChangeRefused::OwnEngine(name.to_owned()));
                }
                self.executors.send(executor, Command::Load(load));
            }
            (Fate::Leaves, ExecutorChange::Remove) => {}
            (
                Fate::Leaves,
                ExecutorChange::Drain | ExecutorChange::Resume | ExecutorChange::ShareWeight(_),
            ) => {
                return Err(ChangeRefused::Leaves(name.to_owned()));
            }
            (Fate::Stays | Fate::Drains, ExecutorChange::ShareWeight(weight)) => {
                self.update(now, executor, ExecutorUpdate::ShareWeight(weight));
            }
            (Fate::Stays | Fate::Drains, ExecutorChange::Drain | ExecutorChange::Resume)
                if ended =>
            {
                return Err(ChangeRefused::Ended(name.to_owned()));
            }
            (Fate::Stays, ExecutorChange::Drain) => {
                self.executors.set_fate(executor, Fate::Drains);
                self.update(now, executor, ExecutorUpdate::Health(Health::Draining));
            }
            (Fate::Stays, ExecutorChange::Resume) | (Fate::Drains, ExecutorChange::Drain) => {}
            (Fate::Drains, ExecutorChange::Resume) => {
                self.executors.set_fate(executor, Fate::Stays);
                self.update(now, executor, ExecutorUpdate::Health(Health::Up));
            }
            (Fate::Stays | Fate::Drains, ExecutorChange::Remove) => {
                self.executors.set_fate(executor, Fate::Leaves);
                let row = self.executor_row(executor);
                self.update(now, executor, ExecutorUpdate::Detach);
                // An executor that has gone already is shown as it was before.
                let row = self.executor_row(executor).or(row);
                return row.ok_or_else(|| self.unknown_executor(name));
            }
        }
        self.executor_row(executor)
            .ok_or_else(|| self.unknown_executor(name))
    }

    fn set_tokens_per_step(
        &mut self,
        now: Micros,
        name: &str,
        tokens: u32,
    ) -> Result<DeviceRow, DeviceRefused> {
        let unknown = |driver: &Self| DeviceRefused::Unknown {
            name: name.to_owned(),
            known: listed(driver.device_rows().map(|row| row.name)),
        };
        let id = self.machine.id_of(NameKind::Device, name);
        let id = id.map(DeviceId).ok_or_else(|| unknown(self))?;
        let set = self
            .machine
            .handle(now, Input::TokensPerStepSet(id, tokens));
        if let Handled::Refused(why) = set {
            return Err(why.into());
        }
        let row = self.device_rows().find(|row| row.name == name);
        row.ok_or_else(|| unknown(self))
    }

    fn limit_model(&mut self, now: Micros, name: &str, max: Option<u32>) -> ModelRow {
        let id = self.machine.intern(now, name);
        self.input(now, Input::ModelLimitSet(id, max));
        let row = self.model_rows().find(|row| row.name == name);
        row.expect("a model is known by its name from its first use")
    }

    fn set_tenant(&mut self, now: Micros, terms: &TenantTerms) {
        let id = self.machine.intern(now, &terms.name);
        let input = Input::TenantSet(id, terms.weight, terms.tokens_per_minute);
        self.input(now, input);
    }

    pub(super) fn update(&mut self, now: Micros, executor: ExecutorId, update: ExecutorUpdate) {
        self.input(now, Input::ExecutorUpdated(executor, update));
    }

    fn executor_named(&self, name: &str) -> Result<ExecutorId, ChangeRefused> {
        let id = self.machine.id_of(NameKind::Executor, name).map(ExecutorId);
        let id = id.filter(|id| self.machine.executor_info(*id).is_some());
        id.ok_or_else(|| self.unknown_executor(name))
    }

    fn unknown_executor(&self, name: &str) -> ChangeRefused {
        let ids = self.machine.executor_ids();
        ChangeRefused::Unknown {
            name: name.to_owned(),
            known: listed(ids.map(|id| self.name_of(NameKind::Executor, id.0))),
        }
    }
}

/// The first of these names, with the number of the others.
fn listed(mut names: impl Iterator<Item = String>) -> String {
    let first: Vec<String> = names.by_ref().take(NAMES_SHOWN).collect();
    let more = names.count();
    let mut listed = if first.is_empty() {
        "none".to_owned()
    } else {
        first.join(", ")
    };
    if more > 0 {
        listed.push_str(&format!(" and {more} more"));
    }
    listed
}
