//! The models on this machine's devices: the local part of the host's provider.
//!
//! [`start`] attaches the devices and executors of the configuration; the fleet adds and removes
//! other executors.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use pointsman_core::rows::Role;
use pointsman_core::{
    ExecutorId, ExecutorSpec, Incarnation, Input, Machine, Micros, ModelId, ReadableBlocks,
};
use pointsman_driver::catalog::{ExecutorEntry, ModelEntry};
use pointsman_driver::clock;
use pointsman_driver::fleet::{Running, sized};
use pointsman_driver::provider::{
    ExecutorConfig, ExecutorTerms, ModelConfig, ModelSource, PreparedExecutor, PreparedModel,
    ServeModelError, ServedModel,
};
use pointsman_engine::backend::{Backend, DeviceError, KvShape};
use pointsman_engine::cpu::CpuBackend;
use pointsman_engine::thread::{self as engine, BackendMaker, EngineSpec, ModelSpec, Recovery};
use pointsman_executor::contract::Events;
use pointsman_model::config::LlamaConfig;
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_text::ModelText;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::check;
use crate::demo;
use crate::devices::{self, ComingModel, LocalDevice};
use crate::local_model::LocalModel;
use crate::longest::LongestSequence;
use crate::settings::{DeviceConfig, LocalSettings};

/// A model with its text side.
#[derive(Debug)]
struct Loaded {
    text: Arc<ModelText>,
    model: LocalModel,
}

/// The rule by which the backends of engines are made of those of the processors. By default they are
/// the same; a test may have some that fail.
#[derive(Clone)]
pub struct Backends(Arc<MakeBackend>);

type MakeBackend = dyn Fn(&str, CpuBackend) -> Box<dyn Backend> + Send + Sync;

impl Backends {
    /// Backends that `make` makes, given the name of the executor each time.
    pub fn new(
        make: impl Fn(&str, CpuBackend) -> Box<dyn Backend> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }
}

impl Default for Backends {
    fn default() -> Self {
        Self::new(|_, backend| Box::new(backend))
    }
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backends").finish_non_exhaustive()
    }
}

/// The attached devices of this machine.
#[derive(Clone, Debug)]
pub struct LocalProvider {
    /// The devices, the default one first.
    devices: Vec<LocalDevice>,
    backends: Backends,
    /// The way for reports of the engines.
    events: mpsc::Sender<Events>,
}

// === Loading ===

/// Loads a model: its text side, and what its weights are and where, which devices read when they need them.
///
/// # Errors
/// If a file of the model is missing or wrong; the error names the model.
fn load(config: &ModelConfig) -> Result<ServedModel> {
    let name = &config.name;
    let files = files(config)?;
    let text = ModelText::load(&files).with_context(|| format!("model {name}"))?;
    let text = text.with_clock(clock::unix_seconds);
    let model = LocalModel::open(name, &files).with_context(|| format!("model {name}"))?;
    let found = model.files().config();
    check_tokens(&text, found).with_context(|| format!("model {name}"))?;
    info!(model = name, files = %describe(&config.source), "model loaded");
    let text = Arc::new(text);
    Ok(ServedModel {
        source: config.source.clone(),
        entry: ModelEntry {
            name: name.clone(),
            text: Some(Arc::clone(&text) as _),
            context_tokens: Some(found.context_tokens),
            contexts: Arc::default(),
            created: clock::unix_seconds(),
        },
        weights: Arc::new(Loaded { text, model }),
    })
}

/// Checks that the model knows the tokens of its text side.
///
/// # Errors
/// If it has fewer.
pub(crate) fn check_tokens(text: &ModelText, model: &LlamaConfig) -> Result<()> {
    let (ids, rows) = (text.vocab_size(), model.vocab_size);
    ensure!(
        ids <= rows,
        "the tokenizer has {ids} tokens, the model {rows}; they do not belong together"
    );
    Ok(())
}

/// The files of a model.
///
/// # Errors
/// If they are not in this binary, or there is nothing at their path, or a GGUF file that cannot be read; the error names the
/// model.
pub(crate) fn files(config: &ModelConfig) -> Result<ModelFiles> {
    match &config.source {
        ModelSource::Embedded => {
            demo::demo_model()?.context("this binary was built without the demo model")
        }
        ModelSource::Path(path) => {
            ModelFiles::at(path).with_context(|| format!("model {}", config.name))
        }
        ModelSource::Hub(model) => bail!("model {}: {model} was not fetched", config.name),
        ModelSource::Dummy { config, seed } => Ok(ModelFiles::Dummy(Dummy::new(config, *seed))),
    }
}

fn describe(source: &ModelSource) -> String {
    match source {
        ModelSource::Embedded => "embedded".to_owned(),
        ModelSource::Path(path) => path.display().to_string(),
        ModelSource::Hub(model) => model.to_string(),
        ModelSource::Dummy { config, seed } => {
            format!("random weights by seed {seed} for {}", config.display())
        }
    }
}

/// A model of an executor whose blocks on a device are laid out so. An operator is told where that has too few for the model's
/// context.
fn prepared(device: &LocalDevice, shape: KvShape, model: &ServedModel) -> PreparedModel {
    let name = &model.entry.name;
    let longest = LongestSequence {
        model: name,
        context_tokens: loaded(model).model.files().config().context_tokens,
        device: &device.name,
        shape,
        block_bytes: device.block_bytes(),
    };
    if let Some(shortage) = longest.shortage() {
        warn!("{shortage}");
    }
    PreparedModel {
        name: name.clone(),
        context_tokens: longest.tokens(),
    }
}

/// The files of a model that [`load`] returned.
fn loaded(model: &ServedModel) -> Arc<Loaded> {
    let weights = Arc::clone(&model.weights) as Arc<dyn Any + Send + Sync>;
    let loaded = weights.downcast();
    loaded.expect("a provider is given the models that it has loaded")
}

// === impl LocalProvider ===

impl LocalProvider {
    /// Loads a model, as a provider does.
    ///
    /// # Errors
    /// If a file of the model is missing or wrong.
    pub fn load(&self, model: &ModelConfig) -> Result<ServedModel, ServeModelError> {
        load(model).map_err(|error| ServeModelError::Files(format!("{error:#}")))
    }

    /// Prepares an executor, as a provider does. The models are some that this provider has loaded.
    ///
    /// # Errors
    /// If there is no such device, or it cannot have the models.
    pub fn executor(
        &self,
        models: &[ServedModel],
        config: &ExecutorConfig,
    ) -> Result<PreparedExecutor, ServeModelError> {
        let device = self.device(config.device.as_deref())?;
        let loaded_models: Vec<Arc<Loaded>> = models.iter().map(loaded).collect();
        let files = loaded_models.iter().map(|loaded| &**loaded.model.files());
        let shape = device.shape(&files.collect::<Vec<_>>())?;
        for loaded in &loaded_models {
            device.prepare(&loaded.model)?;
        }
        let name = config.name.clone().unwrap_or_else(|| {
            let first = models.first().map_or("", |model| &*model.entry.name);
            format!("{}/{first}", device.name)
        });
        let terms = config.terms;
        let spec = ExecutorSpec {
            name,
            device: device.id,
            kind: device.kind(),
            role: Role::Both,
            group: terms.group,
            share_weight: terms.share_weight,
            serves: None,
            slots_total: terms.slots,
            models_max: terms.models_max,
            queue_limit: terms.queue,
            tokens_per_block: Some(shape.tokens_per_block),
            preempts: terms.preemptible,
            // Each engine has memory of its own behind the blocks of its device.
            reads: ReadableBlocks::Own,
            model_unload_delay: terms.model_unload_delay,
        };
        let prepared = models.iter().map(|model| prepared(device, shape, model));
        let engine = Engine {
            name: spec.name.clone(),
            backends: self.backends.clone(),
            models: loaded_models,
            shape,
            slots: terms.slots,
            device: device.clone(),
            events: self.events.clone(),
        };
        Ok(PreparedExecutor {
            spec,
            device: None,
            models: prepared.collect(),
            server: None,
            spawn: Box::new(move |executor, models| engine::spawn(engine.spec(executor, models))),
        })
    }
}

impl LocalProvider {
    /// The device `name`; without a name the default one.
    fn device(&self, name: Option<&str>) -> Result<&LocalDevice, ServeModelError> {
        let mut devices = self.devices.iter();
        let found = match name {
            Some(name) => devices.find(|device| device.name == name),
            None => devices.next(),
        };
        found.ok_or_else(|| {
            let known: Vec<&str> = self.devices.iter().map(|device| &*device.name).collect();
            ServeModelError::NoDevice {
                name: name.unwrap_or_default().to_owned(),
                known: known.join(", "),
            }
        })
    }
}

/// An engine that could be started.
struct Engine {
    /// The executor's name.
    name: String,
    backends: Backends,
    models: Vec<Arc<Loaded>>,
    shape: KvShape,
    slots: u32,
    device: LocalDevice,
    events: mpsc::Sender<Events>,
}

impl Engine {
    /// The engine of `executor`, whose models the machine knows by `ids`.
    fn spec(self, executor: ExecutorId, ids: &[ModelId]) -> EngineSpec {
        let models = self.models.iter().zip(ids).map(|(loaded, id)| ModelSpec {
            model: *id,
            text: Arc::clone(&loaded.text),
            backend: Box::new(EngineBackends {
                executor: self.name.clone(),
                backends: self.backends.clone(),
                loaded: Arc::clone(loaded),
                shape: self.shape,
                device: self.device.clone(),
            }),
        });
        EngineSpec {
            executor,
            incarnation: Incarnation(0),
            slots: self.slots,
            models: models.collect(),
            events: self.events,
            recovery: Recovery::default(),
        }
    }
}

/// The backends of a model for an engine.
struct EngineBackends {
    /// The executor's name.
    executor: String,
    backends: Backends,
    loaded: Arc<Loaded>,
    shape: KvShape,
    device: LocalDevice,
}

impl BackendMaker for EngineBackends {
    fn make(&mut self) -> Result<Box<dyn Backend>, DeviceError> {
        let (Backends(make), model) = (&self.backends, &self.loaded.model);
        let make = |backend: CpuBackend| make(&self.executor, backend);
        self.device.backend(model, self.shape, make)
    }

    fn check_device(&self) -> Result<(), DeviceError> {
        self.device.check_life()
    }

    fn is_shared(&self) -> bool {
        self.device.may_be_lost()
    }
}

// === The start ===

/// Loads the models of a configuration, each once, and reads the weights of those that processors are going to
/// compute. Slow: they may be gigabytes.
///
/// # Errors
/// If a file of a model is missing or wrong, or there is no memory for what processors compute; the error names the model,
/// or the sizes.
pub fn load_all(settings: &LocalSettings) -> Result<Vec<ServedModel>> {
    let models: Vec<ServedModel> = settings.models.iter().map(load).collect::<Result<_>>()?;
    let on_processors = |model: &&ServedModel| {
        let mut executors = settings.executors_on_processors();
        executors.any(|executor| executor.models.contains(&model.entry.name))
    };
    let weights = models.iter().filter(on_processors);
    let weights = weights.map(|model| loaded(model).model.files().bytes_in_memory());
    check::check_memory(settings, weights.sum())?;
    for executor in settings.executors_on_processors() {
        for model in named(&models, &executor.models) {
            let read = loaded(model).model.in_memory();
            read.with_context(|| format!("model {}", model.entry.name))?;
        }
    }
    Ok(models)
}

/// Attaches the devices and executors of a configuration to `machine`, and starts the engines.
/// `models` are those of the configuration. The engines make their backends by `backends` and report to
/// `events`.
///
/// # Errors
/// If a model does not fit its device, or a thread cannot be made.
pub fn start(
    machine: &mut Machine,
    now: Micros,
    (settings, models): (&LocalSettings, &[ServedModel]),
    (backends, events): (Backends, mpsc::Sender<Events>),
) -> Result<(LocalProvider, Vec<Running>)> {
    for model in &settings.models {
        let id = machine.intern(now, &model.name);
        if model.running_max.is_some() {
            machine.handle(now, Input::ModelLimitSet(id, model.running_max));
        }
    }
    // Without a model of its own the host has no work for devices of its own.
    let used = settings.devices.iter().filter(|_| !models.is_empty());
    let available = check::unpromised_bytes(settings);
    let devices = used.map(|device| {
        let executors: Vec<&ExecutorConfig> = settings.executors_on(device).collect();
        let coming = models.iter().map(|model| {
            let slots = slots(&executors, &model.entry.name);
            let width = width(device, &executors, (models, model));
            (loaded(model), slots, width)
        });
        let coming: Vec<_> = coming.filter(|(_, slots, _)| !slots.is_empty()).collect();
        let coming = coming.iter().map(|(loaded, slots, width)| ComingModel {
            model: loaded.model.files(),
            slots,
            width: *width,
        });
        let coming: Vec<ComingModel<'_>> = coming.collect();
        LocalDevice::attach(machine, now, device, (&coming, available))
    });
    let provider = LocalProvider {
        devices: devices.collect::<Result<_>>()?,
        backends,
        events,
    };
    let running = settings.executors.iter().map(|executor| {
        let models: Vec<ServedModel> = named(models, &executor.models).cloned().collect();
        let about = || format!("model {}", executor.models.join(", "));
        attach(machine, now, &provider, (executor, models)).with_context(about)
    });
    let running = running.collect::<Result<_>>()?;
    Ok((provider, running))
}

/// The slots of each of a device's executors that serves a model. Where there are none yet, one may come for any model.
pub(crate) fn slots(executors: &[&ExecutorConfig], model: &str) -> Vec<u32> {
    if executors.is_empty() {
        return vec![ExecutorTerms::default().slots];
    }
    let serves = |executor: &&&ExecutorConfig| executor.models.iter().any(|name| name == model);
    let serving = executors.iter().filter(serves);
    serving.map(|executor| executor.terms.slots).collect()
}

/// Bytes that a token takes of the widest of the models that the executors have which serve `model`, one of `models`.
fn width(
    device: &DeviceConfig,
    executors: &[&ExecutorConfig],
    (models, model): (&[ServedModel], &ServedModel),
) -> u64 {
    let serving = executors
        .iter()
        .filter(|it| it.models.contains(&model.entry.name));
    let beside = serving.flat_map(|executor| named(models, &executor.models));
    let all: Vec<_> = beside.chain([model]).map(loaded).collect();
    let all = all.iter().map(|loaded| &**loaded.model.files());
    devices::widest(&device.hardware, all)
}

/// The models of these names, in the order of the names.
fn named<'a>(
    models: &'a [ServedModel],
    names: &'a [String],
) -> impl Iterator<Item = &'a ServedModel> {
    let find = |name: &&String| models.iter().find(|model| model.entry.name == **name);
    names.iter().filter_map(move |name| find(&name))
}

/// Attaches an executor of these models, and starts its engine.
fn attach(
    machine: &mut Machine,
    now: Micros,
    provider: &LocalProvider,
    (config, models): (&ExecutorConfig, Vec<ServedModel>),
) -> Result<Running> {
    let prepared = provider.executor(&models, config)?;
    let ids = config.models.iter();
    let ids: Vec<ModelId> = ids.map(|name| machine.intern(now, name)).collect();
    let entry = ExecutorEntry {
        name: prepared.spec.name.clone(),
        device: provider.device(config.device.as_deref())?.name.clone(),
        kind: prepared.spec.kind,
        models: config.models.clone(),
        tokens_per_block: prepared.spec.tokens_per_block,
    };
    let spec = ExecutorSpec {
        serves: Some(ids.clone()),
        ..prepared.spec
    };
    let executor = machine.handle(now, Input::ExecutorAttached(spec));
    let executor = executor.executor()?;
    let engine = (prepared.spawn)(executor, &ids).context("its engine")?;
    Ok(Running {
        executor,
        entry,
        models: sized(models, &prepared.models),
        engine,
    })
}
