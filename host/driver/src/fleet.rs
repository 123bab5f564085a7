//! The executors and the models they serve: added and removed while the host runs.
//!
//! [`Fleet`] takes orders of operators, has the driver attach or detach, and keeps the [`Catalog`]
//! of names for clients in step. `upkeep` has its orders about servers elsewhere that come and go with the
//! configuration.
//!
//! # Invariants
//! 1. A model is in the catalogue exactly as long as an executor serves it that is not being
//!    removed (`tests/tests/operating/admin/executors.rs`, and
//!    `tests::a_model_that_goes_while_an_executor_of_it_is_added_comes_back_with_that`).
//! 2. Orders, servers elsewhere and the end of the host wait for the driver alone, and for no model that loads
//!    (`tests::nothing_but_additions_waits_while_a_model_loads`).
//! 3. Of additions at once a later one finds what the earlier ones have loaded
//!    (`tests::of_two_additions_at_once_one_loads_the_model`).
//! 4. A model is held in memory as long as an engine serves it, whoever else does
//!    (`tests::a_model_without_an_engine_is_loaded_again_though_a_server_elsewhere_has_it`).
//!
//! # Cancellation
//! An addition that has begun is finished, even if nobody waits for it any more.
//!
//! # Not here
//! The work of an executor (`pointsman-executor`), and placements on it (`pointsman-core`).

#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use pointsman_core::ExecutorId;
use pointsman_executor::handle::{Ended, EngineHandle, EngineWork, FoundModel};
use tokio::sync::{Mutex, watch};
use tokio::task;
use tracing::info;

use crate::catalog::{Catalog, ExecutorEntry, ModelEntry};
use crate::clock;
use crate::message::DriverHandle;
use crate::operator::{
    AttachRefused, Attached, ChangeRefused, ExecutorChange, ExecutorRow, Operator,
};
use crate::provider::{
    ExecutorConfig, ExecutorTerms, ModelConfig, ModelSource, PreparedExecutor, PreparedModel,
    Provider, ServeModelError, ServedModel,
};
use pointsman_executor::server::ServerConfig;

pub use upkeep::UpkeepError;

/// The executors and their models.
#[derive(Debug)]
pub struct Fleet {
    // Immutable.
    provider: Arc<dyn Provider>,
    driver: DriverHandle,
    // Owned.
    catalog: watch::Sender<Arc<Catalog>>,
    /// Locked while an executor with an engine is added, however long its model loads: two additions at once would
    /// both load it, and find the memory there. Locked before `members`.
    additions: Mutex<()>,
    /// The executors of each model, and the engines' threads. Locked while the driver attaches or changes an
    /// executor and the catalogue follows, so that both change in the same order; never while a model loads.
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    /// The executors that nobody has ordered to go.
    executors: BTreeMap<ExecutorId, FleetMember>,
    /// The models that are served, by name.
    serving: BTreeMap<String, Serving>,
    /// The engines' threads, each with its executor.
    threads: Vec<(ExecutorId, JoinHandle<Ended>)>,
}

/// An executor that nobody has ordered to go.
#[derive(Clone, Debug)]
struct FleetMember {
    /// The executor as it came. One that is withdrawn is in the catalogue again once it is taken back.
    entry: ExecutorEntry,
    /// The givers of orders to drain that are in force: it takes nothing new while there are any.
    drained_by: BTreeSet<Drainer>,
    /// The models that a server elsewhere was found to have last.
    found: Vec<FoundModel>,
}

/// The giver of an order to drain, which is in force until the same one takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Drainer {
    /// An operator, by an order.
    Operator,
    /// The configuration, which does not have the server at present.
    Configuration,
}

/// A model that is served.
#[derive(Debug, Default)]
struct Serving {
    /// The model as it was loaded; absent: no engine serves it.
    loaded: Option<ServedModel>,
    /// The longest sequence on each executor that serves the model, in tokens; absent: not known.
    context_tokens: BTreeMap<String, Option<u32>>,
}

/// An executor that the machine knows, and its engine.
#[derive(Debug)]
pub struct Running {
    /// The executor's id in the machine.
    pub executor: ExecutorId,
    /// The executor as clients may name it.
    pub entry: ExecutorEntry,
    /// The models that the executor serves, each with its longest sequence there, in tokens.
    pub models: Vec<(ServedModel, u32)>,
    /// The engine that runs the executor's sequences.
    pub engine: EngineHandle,
}

/// An executor to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The models that the executor serves.
    pub models: AddedModels,
    /// The executor; [`ExecutorConfig::models`] has the names of its models.
    pub executor: ExecutorConfig,
}

/// The models of an executor to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddedModels {
    /// One model, which is loaded unless it is served already. [`ModelSource::Embedded`] stands for
    /// the files that the model has there, too.
    Loaded(ModelSource),
    /// Models that are served already.
    Served,
}

/// The reason why an executor was not added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The model cannot be loaded.
    #[error("{0}")]
    Load(String),
    /// Another model has that name.
    #[error("model `{0}` is served from another folder: leave out `path`, or give it another name")]
    OtherModel(String),
    /// A model is not served, and is not to be loaded.
    #[error("there is no model `{name}`; there are: {known}")]
    NotServed {
        name: String,
        /// The names of the models that are served.
        known: String,
    },
    /// No device has the name.
    #[error(transparent)]
    NoDevice(ServeModelError),
    /// A server elsewhere is to be known by certificates that are none.
    #[error(transparent)]
    NoCertificates(ServeModelError),
    /// The executor does not fit the device.
    #[error("{0}")]
    Refused(String),
    /// The host is shutting down.
    #[error("the host is shutting down")]
    Ended,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet without executors, for which `provider` makes them.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>, driver: DriverHandle) -> Self {
        Self {
            provider,
            driver,
            catalog: watch::channel(Arc::default()).0,
            additions: Mutex::default(),
            members: Mutex::default(),
        }
    }

    /// A fleet that begins with the executors `running` of this process, which the machine knows.
    #[must_use]
    pub fn of(provider: Arc<dyn Provider>, driver: DriverHandle, running: Vec<Running>) -> Self {
        let mut fleet = Self::new(provider, driver);
        for running in running {
            let (members, catalog) = (fleet.members.get_mut(), &fleet.catalog);
            catalog.send_modify(|catalog| members.take_in(Arc::make_mut(catalog), running));
        }
        fleet
    }

    /// The names that clients may use.
    #[must_use]
    pub fn catalog(&self) -> watch::Receiver<Arc<Catalog>> {
        self.catalog.subscribe()
    }

    /// Replaces the names that clients may use.
    pub fn show(&self, catalog: Catalog) {
        self.catalog.send_replace(Arc::new(catalog));
    }

    /// Loads a model, unless it is served already, and attaches an executor for it.
    ///
    /// # Errors
    /// If the executor cannot be added; nothing has changed then.
    pub async fn add(self: Arc<Self>, addition: Addition) -> Result<ExecutorRow, AddError> {
        let adding = task::spawn(async move { self.add_now(addition).await });
        adding.await.unwrap_or(Err(AddError::Ended))
    }

    async fn add_now(self: &Arc<Self>, addition: Addition) -> Result<ExecutorRow, AddError> {
        let _turn = self.additions.lock().await;
        let models = self.models_of(&addition).await?;
        let provider = Arc::clone(&self.provider);
        let preparing = task::spawn_blocking(move || {
            let prepared = provider.executor(&models, &addition.executor);
            prepared.map(|prepared| (prepared, models))
        });
        let (prepared, models) = match preparing.await {
            Ok(prepared) => prepared?,
            Err(error) => return Err(AddError::Load(format!("preparing panicked: {error}"))),
        };
        let mut members = self.members.lock().await;
        self.attach(&mut members, prepared, models).await
    }

    /// Attaches a server elsewhere as an executor. Its models are served from the time at which it is
    /// found to have them.
    ///
    /// # Errors
    /// If the executor cannot be added; nothing has changed then.
    pub async fn connect(
        self: Arc<Self>,
        server: ServerConfig,
        terms: ExecutorTerms,
    ) -> Result<ExecutorRow, AddError> {
        let adding = task::spawn(async move {
            let prepared = self.provider.server(&server, terms)?;
            let mut members = self.members.lock().await;
            self.attach(&mut members, prepared, Vec::new()).await
        });
        adding.await.unwrap_or(Err(AddError::Ended))
    }

    async fn attach(
        self: &Arc<Self>,
        members: &mut Members,
        prepared: PreparedExecutor,
        models: Vec<ServedModel>,
    ) -> Result<ExecutorRow, AddError> {
        let sizes = prepared.models.clone();
        let tokens_per_block = prepared.spec.tokens_per_block;
        let prepared = Box::new(prepared);
        let attached = self
            .driver
            .operate(|answer| Operator::Attach(prepared, answer));
        let Attached {
            executor,
            row,
            engine,
        } = match attached.await.ok_or(AddError::Ended)? {
            Ok(attached) => attached,
            Err(AttachRefused::Machine(error)) => return Err(AddError::Refused(error.to_string())),
            Err(AttachRefused::NoThread(error)) => return Err(AddError::Load(error.to_string())),
        };
        let running = Running {
            executor,
            entry: ExecutorEntry {
                name: row.name.clone(),
                device: row.device.clone(),
                kind: row.kind,
                models: sizes.iter().map(|model| model.name.clone()).collect(),
                tokens_per_block,
            },
            models: sized(models, &sizes),
            engine,
        };
        if let Some(found) = running.engine.found.clone() {
            task::spawn(follow(Arc::downgrade(self), executor, found));
        }
        self.catalog
            .send_modify(|catalog| members.take_in(Arc::make_mut(catalog), running));
        info!(
            executor = row.name,
            slots = row.slots_total,
            "executor added"
        );
        Ok(row)
    }

    /// The models of an executor to add. One that is not served is loaded.
    async fn models_of(&self, addition: &Addition) -> Result<Vec<ServedModel>, AddError> {
        let mut models = Vec::new();
        for name in &addition.executor.models {
            let served = self.members.lock().await.loaded(name);
            models.push(match (&addition.models, served) {
                (AddedModels::Served, Some(served)) => served,
                (AddedModels::Served, None) => {
                    return Err(self.members.lock().await.not_served(name));
                }
                (AddedModels::Loaded(source), Some(served)) => same(served, name, source)?,
                (AddedModels::Loaded(source), None) => {
                    self.load(ModelConfig::new(name, source.clone())).await?
                }
            });
        }
        Ok(models)
    }

    async fn load(&self, model: ModelConfig) -> Result<ServedModel, AddError> {
        let provider = Arc::clone(&self.provider);
        let loading = task::spawn_blocking(move || provider.load(&model)).await;
        match loading {
            Ok(loaded) => Ok(loaded?),
            Err(error) => Err(AddError::Load(format!("loading panicked: {error}"))),
        }
    }

    /// Has an executor drain, resume, or go, as an operator orders; absent: the driver has ended.
    ///
    /// # Cancellation
    /// The driver carries out an order that it has, and the catalogue does not follow: where this may be dropped, it
    /// is run as a task.
    pub async fn change(
        &self,
        name: &str,
        change: ExecutorChange,
    ) -> Option<Result<ExecutorRow, ChangeRefused>> {
        let mut members = self.members.lock().await;
        let is_withdrawn = members.named(name).is_some_and(|it| it.is_withdrawn());
        if is_withdrawn && change == ExecutorChange::Resume {
            return Some(Err(ChangeRefused::Withdrawn(name.to_owned())));
        }
        let changed = self.order(&mut members, name, change).await?;
        if changed.is_ok() {
            info!(
                executor = name,
                change = change.as_str(),
                "executor changed"
            );
            if let Some(member) = members.named(name) {
                member.note(change);
            }
        }
        Some(changed)
    }

    /// Has the driver change an executor; absent: it has ended. An executor that goes leaves the catalogue.
    async fn order(
        &self,
        members: &mut Members,
        name: &str,
        change: ExecutorChange,
    ) -> Option<Result<ExecutorRow, ChangeRefused>> {
        let order = |answer| Operator::Change(name.to_owned(), change, answer);
        let changed = self.driver.operate(order).await?;
        if changed.is_ok() && change == ExecutorChange::Remove {
            self.catalog
                .send_modify(|catalog| members.let_go(Arc::make_mut(catalog), name));
        }
        Some(changed)
    }

    /// Takes note of the models that a server elsewhere was found to have, which it serves from now on unless it is
    /// withdrawn.
    async fn found_models(&self, executor: ExecutorId, models: &[FoundModel]) {
        let mut members = self.members.lock().await;
        let Some(member) = members.executors.get_mut(&executor) else {
            return;
        };
        member.found = models.to_vec();
        if !member.is_withdrawn() {
            let name = member.entry.name.clone();
            self.serve(&mut members, &name, models).await;
        }
    }

    /// Sets the models that a server elsewhere serves: for the machine first, then for clients.
    async fn serve(&self, members: &mut Members, name: &str, models: &[FoundModel]) {
        let names = models.iter().map(|model| model.name.clone()).collect();
        let order = |answer| Operator::Serve(name.to_owned(), names, answer);
        if let Some(Ok(())) = self.driver.operate(order).await {
            self.catalog
                .send_modify(|catalog| members.found(Arc::make_mut(catalog), name, models));
        }
    }

    /// The threads of the engines, to be joined, each with its executor's name; absent: that was ordered to go.
    pub async fn threads(&self) -> Vec<(Option<String>, JoinHandle<Ended>)> {
        let mut members = self.members.lock().await;
        let threads = std::mem::take(&mut members.threads).into_iter();
        let name = |executor: ExecutorId| members.executors.get(&executor).map(|it| &it.entry.name);
        threads
            .map(|(executor, thread)| (name(executor).cloned(), thread))
            .collect()
    }
}

/// Has the models of a server elsewhere served as they are found, until its executor ends.
async fn follow(
    fleet: Weak<Fleet>,
    executor: ExecutorId,
    mut found: watch::Receiver<Arc<[FoundModel]>>,
) {
    while found.changed().await.is_ok() {
        let models = Arc::clone(&found.borrow_and_update());
        let Some(fleet) = fleet.upgrade() else { return };
        fleet.found_models(executor, &models).await;
    }
}

/// The model `served`, unless `source` means a model in another place.
fn same(served: ServedModel, name: &str, source: &ModelSource) -> Result<ServedModel, AddError> {
    if *source == ModelSource::Embedded || served.source == *source {
        return Ok(served);
    }
    Err(AddError::OtherModel(name.to_owned()))
}

/// Models with their longest sequences on an executor, which `sizes` has in the same order.
#[must_use]
pub fn sized(models: Vec<ServedModel>, sizes: &[PreparedModel]) -> Vec<(ServedModel, u32)> {
    let sizes = sizes.iter().map(|model| model.context_tokens);
    models.into_iter().zip(sizes).collect()
}

impl From<ServeModelError> for AddError {
    fn from(error: ServeModelError) -> Self {
        match error {
            ServeModelError::Files(why) => AddError::Load(why),
            ServeModelError::DoesNotFit(why) => AddError::Refused(why),
            ServeModelError::NoCertificates(_) => AddError::NoCertificates(error),
            ServeModelError::NoDevice { .. } => AddError::NoDevice(error),
        }
    }
}

// === impl FleetMember ===

impl FleetMember {
    /// True while the configuration does not have it.
    fn is_withdrawn(&self) -> bool {
        self.drained_by.contains(&Drainer::Configuration)
    }

    /// Takes note of an operator's order that was carried out.
    fn note(&mut self, change: ExecutorChange) {
        match change {
            ExecutorChange::Drain => {
                self.drained_by.insert(Drainer::Operator);
            }
            ExecutorChange::Resume => {
                self.drained_by.remove(&Drainer::Operator);
            }
            ExecutorChange::Remove | ExecutorChange::ShareWeight(_) | ExecutorChange::Load(_) => {}
        }
    }
}

// === impl Members ===

impl Members {
    /// The executor of this name; absent: there is none, or it was ordered to go.
    fn named(&mut self, name: &str) -> Option<&mut FleetMember> {
        let mut members = self.executors.values_mut();
        members.find(|member| member.entry.name == name)
    }

    /// The model `name` as it was loaded; absent: it was not.
    fn loaded(&self, name: &str) -> Option<ServedModel> {
        self.serving.get(name)?.loaded.clone()
    }

    fn not_served(&self, name: &str) -> AddError {
        let known: Vec<&str> = self.serving.keys().map(String::as_str).collect();
        AddError::NotServed {
            name: name.to_owned(),
            known: known.join(", "),
        }
    }

    /// Takes note of an executor, which is in the catalogue from now on.
    fn take_in(&mut self, catalog: &mut Catalog, running: Running) {
        let name = &running.entry.name;
        let member = FleetMember {
            entry: running.entry.clone(),
            drained_by: BTreeSet::new(),
            found: Vec::new(),
        };
        self.executors.insert(running.executor, member);
        for (model, context_tokens) in running.models {
            let entry = model.entry.clone();
            let serving = self.serving.entry(entry.name.clone()).or_default();
            let context_tokens = Some(context_tokens);
            serving.context_tokens.insert(name.clone(), context_tokens);
            if serving.loaded.is_none() {
                serving.loaded = Some(model);
                catalog.list(entry);
            }
        }
        catalog.engines.push((name.clone(), running.engine.stats));
        catalog.executors.push(running.entry);
        let known = &self.executors;
        // Nobody asks for the end of an engine whose executor was ordered to go.
        self.threads
            .retain(|(executor, thread)| known.contains_key(executor) || !thread.is_finished());
        match running.engine.work {
            EngineWork::Thread(thread) => self.threads.push((running.executor, thread)),
            EngineWork::Task => {}
        }
        self.measure(catalog);
    }

    /// Takes note of the models of a server elsewhere, which are in the catalogue from now on.
    fn found(&mut self, catalog: &mut Catalog, name: &str, models: &[FoundModel]) {
        let mut executors = catalog.executors.iter_mut();
        let Some(entry) = executors.find(|executor| executor.name == name) else {
            return;
        };
        entry.models = models.iter().map(|model| model.name.clone()).collect();
        for serving in self.serving.values_mut() {
            serving.context_tokens.remove(name);
        }
        for model in models {
            let serving = self.serving.entry(model.name.clone()).or_default();
            let context_tokens = model.context_tokens;
            serving
                .context_tokens
                .insert(name.to_owned(), context_tokens);
            if !catalog.models.iter().any(|entry| entry.name == model.name) {
                catalog.list(ModelEntry {
                    name: model.name.clone(),
                    text: None,
                    context_tokens: None,
                    contexts: Arc::default(),
                    created: clock::unix_seconds(),
                });
            }
        }
        self.forget_unserved(catalog);
    }

    /// Forgets an executor.
    fn let_go(&mut self, catalog: &mut Catalog, name: &str) {
        self.executors.retain(|_, member| member.entry.name != name);
        catalog.executors.retain(|executor| executor.name != name);
        catalog.engines.retain(|(executor, _)| executor != name);
        for serving in self.serving.values_mut() {
            serving.context_tokens.remove(name);
        }
        self.forget_unserved(catalog);
    }

    /// Forgets the models that no executor serves any more, and of those that no engine serves what was loaded.
    fn forget_unserved(&mut self, catalog: &mut Catalog) {
        self.serving
            .retain(|_, serving| !serving.context_tokens.is_empty());
        catalog
            .models
            .retain(|entry| self.serving.contains_key(&entry.name));
        let engines = catalog.executors.iter().filter(|it| !it.is_remote());
        for entry in &mut catalog.models {
            let serving = self.serving.get_mut(&entry.name);
            if let Some(serving) = serving
                && !engines.clone().any(|it| it.models.contains(&entry.name))
            {
                serving.loaded = None;
                entry.text = None;
            }
        }
        self.measure(catalog);
    }

    /// Notes each model's longest sequences, on the executors that serve it.
    fn measure(&self, catalog: &mut Catalog) {
        for entry in &mut catalog.models {
            let serving = self.serving.get(&entry.name);
            let longest = serving.and_then(|serving| serving.context_tokens.values().max());
            entry.context_tokens = longest.copied().flatten();
            let contexts = serving.iter().flat_map(|serving| &serving.context_tokens);
            let known = contexts.filter_map(|(name, tokens)| Some((name.clone(), (*tokens)?)));
            entry.contexts = Arc::new(known.collect());
        }
    }
}
