//! The executors and the models they serve: added and removed while the host runs.
//!
//! [`Fleet`] takes orders of operators, has the driver attach or detach, and keeps the [`Catalog`]
//! of names for clients in step.
//!
//! # Invariants
//! 1. A model is in the catalogue exactly as long as an executor serves it that is not being
//!    removed (`tests/tests/admin/executors.rs`).
//!
//! # Cancellation
//! An addition that has begun is finished, even if nobody waits for it any more.
//!
//! # Not here
//! The work of an executor (`pointsman-executor`), and placements on it (`pointsman-core`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use pointsman_core::{ExecutorId, ExecutorSpec};
use pointsman_executor::handle::{Ended, EngineHandle};
use pointsman_executor::stats::EngineStats;
use tokio::sync::{Mutex, watch};
use tokio::task;
use tracing::info;

use crate::catalog::Catalog;
use crate::message::DriverHandle;
use crate::operator::{
    AttachRefused, AttachRequest, Attached, ChangeRefused, ExecutorChange, ExecutorRow, Operator,
};
use crate::provider::{
    ExecutorTerms, ModelConfig, ModelSource, Provider, ServeModelError, ServedModel,
};

/// The executors and their models.
#[derive(Debug)]
pub struct Fleet {
    // Immutable.
    provider: Arc<dyn Provider>,
    driver: DriverHandle,
    // Owned.
    catalog: watch::Sender<Arc<Catalog>>,
    /// The executors of each model, and the engines' threads. Locked while an executor is added or
    /// removed, even while a model loads: two additions at once would both find the name free and
    /// the memory there.
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    /// Names of the executors of each model, with the model.
    serving: BTreeMap<String, (Arc<dyn ServedModel>, Vec<String>)>,
    threads: Vec<JoinHandle<Ended>>,
}

/// An executor that the machine knows, and its engine.
#[derive(Debug)]
pub struct Running {
    /// The executor's id in the machine.
    pub executor: ExecutorId,
    /// The executor's name.
    pub name: String,
    /// The model that the executor serves.
    pub model: Arc<dyn ServedModel>,
    /// The engine that runs the executor's sequences.
    pub engine: EngineHandle,
}

/// An executor to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The name that clients use for the model.
    pub model: String,
    /// The model's Hugging Face folder; absent: the model is served already, or embedded.
    pub folder: Option<PathBuf>,
    /// The executor's name; absent: a name made of the device's and the model's.
    pub executor: Option<String>,
    /// The terms of the executor.
    pub terms: ExecutorTerms,
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
            members: Mutex::default(),
        }
    }

    /// A fleet that begins with the executors `running`, which the machine knows.
    #[must_use]
    pub fn of(provider: Arc<dyn Provider>, driver: DriverHandle, running: Vec<Running>) -> Self {
        let mut fleet = Self::new(provider, driver);
        for running in running {
            let attached = (running.name, running.engine.stats, running.engine.thread);
            let members = fleet.members.get_mut();
            let catalog = Catalog::clone(&fleet.catalog.borrow());
            let catalog = members.take_in(catalog, &running.model, attached);
            fleet.catalog.send_replace(Arc::new(catalog));
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

    async fn add_now(&self, addition: Addition) -> Result<ExecutorRow, AddError> {
        let mut members = self.members.lock().await;
        let model = addition.into_model();
        let loaded = match members.serving.get(&model.name) {
            Some((loaded, _)) => same(loaded, &model)?,
            None => self.load(model.clone()).await?,
        };
        let (engine, slots) = (Arc::clone(&loaded), model.terms.slots);
        let default = loaded.executor(&model.terms);
        let spec = ExecutorSpec {
            name: model.executor.unwrap_or(default.name),
            ..default
        };
        let request = Box::new(AttachRequest {
            spec,
            model: model.name,
            spawn: Box::new(move |executor, model| engine.spawn(executor, model, slots)),
        });
        let attached = self
            .driver
            .operate(|answer| Operator::Attach(request, answer));
        let Attached { row, engine } = match attached.await.ok_or(AddError::Ended)? {
            Ok(attached) => attached,
            Err(AttachRefused::Machine(error)) => return Err(AddError::Refused(error.to_string())),
            Err(AttachRefused::NoThread(error)) => return Err(AddError::Load(error.to_string())),
        };
        let attached = (row.name.clone(), engine.stats, engine.thread);
        let catalog = Catalog::clone(&self.catalog.borrow());
        let catalog = members.take_in(catalog, &loaded, attached);
        self.catalog.send_replace(Arc::new(catalog));
        info!(executor = row.name, slots, "executor added");
        Ok(row)
    }

    async fn load(&self, model: ModelConfig) -> Result<Arc<dyn ServedModel>, AddError> {
        let provider = Arc::clone(&self.provider);
        let loading = task::spawn_blocking(move || provider.load(&model)).await;
        match loading {
            Ok(loaded) => Ok(loaded?),
            Err(error) => Err(AddError::Load(format!("loading panicked: {error}"))),
        }
    }

    /// Has an executor drain, resume, or go; absent: the driver has ended.
    pub async fn change(
        &self,
        name: &str,
        change: ExecutorChange,
    ) -> Option<Result<ExecutorRow, ChangeRefused>> {
        let mut members = self.members.lock().await;
        let order = |answer| Operator::Change(name.to_owned(), change, answer);
        let changed = self.driver.operate(order).await?;
        if changed.is_ok() {
            info!(executor = name, ?change, "executor changed");
            if change == ExecutorChange::Remove {
                let catalog = Catalog::clone(&self.catalog.borrow());
                self.catalog
                    .send_replace(Arc::new(members.let_go(catalog, name)));
            }
        }
        Some(changed)
    }

    /// The threads of the engines, to be joined.
    pub async fn threads(&self) -> Vec<JoinHandle<Ended>> {
        std::mem::take(&mut self.members.lock().await.threads)
    }
}

/// The served model `loaded`, unless `meant` means a model in another folder.
fn same(
    loaded: &Arc<dyn ServedModel>,
    meant: &ModelConfig,
) -> Result<Arc<dyn ServedModel>, AddError> {
    let unsaid = meant.source == ModelSource::Embedded;
    if unsaid || loaded.config().source == meant.source {
        return Ok(Arc::clone(loaded));
    }
    Err(AddError::OtherModel(meant.name.clone()))
}

/// An engine's name, counters and thread.
type Engine = (String, Arc<EngineStats>, JoinHandle<Ended>);

impl From<ServeModelError> for AddError {
    fn from(error: ServeModelError) -> Self {
        match error {
            ServeModelError::Files(why) => AddError::Load(why),
            ServeModelError::DoesNotFit(why) => AddError::Refused(why),
        }
    }
}

// === impl Addition ===

impl Addition {
    fn into_model(self) -> ModelConfig {
        let source = self
            .folder
            .map_or(ModelSource::Embedded, ModelSource::Folder);
        ModelConfig {
            name: self.model,
            source,
            executor: self.executor,
            terms: self.terms,
        }
    }
}

// === impl Members ===

impl Members {
    /// Takes note of an engine, and returns the catalogue with it.
    fn take_in(
        &mut self,
        mut catalog: Catalog,
        loaded: &Arc<dyn ServedModel>,
        (name, stats, thread): Engine,
    ) -> Catalog {
        let model = &loaded.config().name;
        if !catalog.models.iter().any(|entry| entry.name == *model) {
            catalog.models.push(loaded.entry());
        }
        catalog.executors.push(name.clone());
        catalog.engines.push((name.clone(), stats));
        let (_, names) = self
            .serving
            .entry(model.clone())
            .or_insert_with(|| (Arc::clone(loaded), Vec::new()));
        names.push(name);
        // An engine that gave up has said so to the log and to the driver.
        self.threads.retain(|thread| !thread.is_finished());
        self.threads.push(thread);
        catalog
    }

    /// Forgets an engine, and returns the catalogue without it.
    fn let_go(&mut self, mut catalog: Catalog, name: &str) -> Catalog {
        catalog.executors.retain(|executor| executor != name);
        catalog.engines.retain(|(executor, _)| executor != name);
        self.serving.retain(|_, (_, names)| {
            names.retain(|executor| executor != name);
            !names.is_empty()
        });
        catalog
            .models
            .retain(|entry| self.serving.contains_key(&entry.name));
        catalog
    }
}
