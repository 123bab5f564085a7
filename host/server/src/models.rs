//! The models on this machine's processors: the [`Provider`] of the local engine.
//!
//! [`start`] attaches the models of the configuration; the fleet adds and removes others.
//!
//! All models share one device, the processors, and its KV blocks. A block is a fixed number of
//! bytes: enough for 16 tokens of the model with the most bytes per token. A block holds as many
//! tokens of each other model as fit.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pointsman_core::rows::{ExecutorKind, Role};
use pointsman_core::{
    DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, Incarnation, Input, KvSpec, Machine, Micros,
    ModelId,
};
use pointsman_driver::catalog::ModelEntry;
use pointsman_driver::clock;
use pointsman_driver::fleet::Running;
use pointsman_driver::provider::{
    ExecutorTerms, ModelConfig, ModelSource, Provider, ServeModelError, ServedModel,
};
use pointsman_engine::cpu::{CpuBackend, CpuModel, KvShape};
use pointsman_engine::model::backend::Backend;
use pointsman_engine::model::files::ModelFiles;
use pointsman_engine::text::ModelText;
use pointsman_engine::thread::{self as engine, EngineSpec, ModelSpec, Recovery};
use pointsman_executor::contract::Events;
use pointsman_executor::handle::EngineHandle;
use tokio::sync::mpsc;
use tracing::info;

use crate::config::CpuConfig;
use crate::embedded;

/// Tokens in a block, of the model that takes the most memory per token.
const TOKENS_PER_BLOCK: u64 = 16;
/// The name of the processors as a device.
const DEVICE: &str = "cpu0";

/// The files of a model in memory, before the device is known.
#[derive(Debug)]
pub struct Loaded {
    config: ModelConfig,
    text: Arc<ModelText>,
    model: Arc<CpuModel>,
}

/// The processors as an attached device.
#[derive(Clone, Debug)]
pub struct LocalProvider {
    device: DeviceId,
    blocks: Blocks,
    cpu: CpuConfig,
    /// The way for reports of the engines.
    events: mpsc::Sender<Events>,
}

/// The KV blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    /// Bytes of one block.
    bytes: u64,
    /// Number of blocks.
    total: u32,
}

/// A model whose tokens fit the blocks of the device.
#[derive(Debug)]
struct LocalModel {
    loaded: Arc<Loaded>,
    shape: KvShape,
    host: LocalProvider,
}

// === impl Loaded ===

impl Loaded {
    /// Loads a model. Slow: all weights are read.
    ///
    /// # Errors
    /// If a file of the model is missing or wrong; the error names the model.
    pub fn load(config: &ModelConfig) -> Result<Self> {
        let name = &config.name;
        let files = match &config.source {
            ModelSource::Embedded => {
                embedded::demo_model().context("this binary was built without the demo model")?
            }
            ModelSource::Folder(folder) => ModelFiles::Folder(folder.clone()),
        };
        let text = ModelText::load(&files).with_context(|| format!("model {name}"))?;
        let text = text.with_clock(clock::unix_seconds);
        let model = CpuModel::load(&files).with_context(|| format!("model {name}"))?;
        let (ids, rows) = (text.vocab_size(), model.config().vocab_size);
        ensure!(
            ids <= rows,
            "model {name}: the tokenizer has {ids} tokens, the model {rows}; they do not belong \
             together"
        );
        info!(model = name, files = %describe(&config.source), "model loaded");
        Ok(Self {
            config: config.clone(),
            text: Arc::new(text),
            model: Arc::new(model),
        })
    }

    fn kv_bytes_per_token(&self) -> u64 {
        self.model.kv_bytes_per_token()
    }
}

fn describe(source: &ModelSource) -> String {
    match source {
        ModelSource::Embedded => "embedded".to_owned(),
        ModelSource::Folder(folder) => folder.display().to_string(),
    }
}

// === impl LocalProvider ===

impl Provider for LocalProvider {
    fn load(&self, model: &ModelConfig) -> Result<Arc<dyn ServedModel>, ServeModelError> {
        let loaded = Loaded::load(model);
        let loaded = loaded.map_err(|error| ServeModelError::Files(format!("{error:#}")))?;
        Ok(Arc::new(self.fit(Arc::new(loaded))?))
    }
}

impl LocalProvider {
    /// Lays the model's KV cache out in the blocks of the device.
    fn fit(&self, loaded: Arc<Loaded>) -> Result<LocalModel, ServeModelError> {
        let token_bytes = loaded.kv_bytes_per_token();
        let tokens = u32::try_from(self.blocks.bytes / token_bytes).unwrap_or(u32::MAX);
        if tokens == 0 {
            return Err(ServeModelError::DoesNotFit(format!(
                "a token of model {} takes {token_bytes} bytes of KV cache, a block of the device \
                 has {}; put the model into the configuration and start the host again",
                loaded.config.name, self.blocks.bytes
            )));
        }
        let shape = KvShape {
            tokens_per_block: tokens,
            blocks_total: self.blocks.total,
        };
        Ok(LocalModel {
            loaded,
            shape,
            host: self.clone(),
        })
    }
}

// === impl LocalModel ===

impl ServedModel for LocalModel {
    fn config(&self) -> &ModelConfig {
        &self.loaded.config
    }

    /// The model as clients see it: a sequence alone is no longer than the whole pool.
    fn entry(&self) -> ModelEntry {
        let shape = self.shape;
        let pool = shape.tokens_per_block.saturating_mul(shape.blocks_total);
        ModelEntry {
            name: self.config().name.clone(),
            text: Arc::clone(&self.loaded.text) as _,
            context_tokens: self.loaded.model.config().context_tokens.min(pool),
            created: clock::unix_seconds(),
        }
    }

    fn executor(&self, terms: &ExecutorTerms) -> ExecutorSpec {
        ExecutorSpec {
            name: format!("{DEVICE}/{}", self.config().name),
            device: self.host.device,
            kind: ExecutorKind::Cpu,
            role: Role::Both,
            group: terms.group,
            share_weight: terms.share_weight,
            serves: None,
            slots_total: terms.slots,
            models_max: None,
            queue_limit: terms.queue,
            tokens_per_block: Some(self.shape.tokens_per_block),
            preempts: terms.preemptible,
            model_unload_delay: Micros(0),
        }
    }

    fn spawn(&self, executor: ExecutorId, model: ModelId, slots: u32) -> io::Result<EngineHandle> {
        let (weights, shape) = (Arc::clone(&self.loaded.model), self.shape);
        let threads = NonZeroUsize::new(self.host.cpu.threads).unwrap_or(NonZeroUsize::MIN);
        let backend = move || {
            let backend = CpuBackend::new(Arc::clone(&weights), shape, threads)?;
            Ok(Box::new(backend) as Box<dyn Backend>)
        };
        engine::spawn(EngineSpec {
            executor,
            incarnation: Incarnation(0),
            slots,
            models: vec![ModelSpec {
                model,
                text: Arc::clone(&self.loaded.text),
                backend: Box::new(backend),
            }],
            events: self.host.events.clone(),
            recovery: Recovery::default(),
        })
    }
}

// === The start ===

/// A model in memory, and an executor for it.
pub type Wanted = (ModelConfig, Arc<Loaded>);

/// Loads the models that `configs` name, each once.
///
/// # Errors
/// If a file of a model is missing or wrong; the error names the model.
pub fn load(configs: Vec<ModelConfig>) -> Result<Vec<Wanted>> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for config in configs {
        let mut earlier = wanted.iter().filter(|(known, _)| known.name == config.name);
        let loaded = match earlier.next() {
            Some((_, loaded)) => Arc::clone(loaded),
            None => Arc::new(Loaded::load(&config)?),
        };
        wanted.push((config, loaded));
    }
    Ok(wanted)
}

/// Attaches the processors and each model to `machine`, and starts the engines.
///
/// # Errors
/// If a model does not fit the device, or a thread cannot be made.
pub fn start(
    machine: &mut Machine,
    now: Micros,
    models: &[Wanted],
    cpu: &CpuConfig,
    events: mpsc::Sender<Events>,
) -> Result<(LocalProvider, Vec<Running>)> {
    let blocks = blocks(models, cpu)?;
    let device = DeviceSpec {
        name: DEVICE.to_owned(),
        kv: KvSpec::Owned {
            block_bytes: blocks.bytes,
            blocks_total: blocks.total,
        },
        tokens_per_step: Some(cpu.tokens_per_step),
    };
    let device = machine.handle(now, Input::DeviceAttached(device));
    let provider = LocalProvider {
        device: device.device()?,
        blocks,
        cpu: cpu.clone(),
        events,
    };
    let running = models.iter().map(|(config, loaded)| {
        let model = provider.fit(Arc::clone(loaded))?;
        attach(machine, now, model, config).with_context(|| format!("model {}", config.name))
    });
    let running = running.collect::<Result<_>>()?;
    Ok((provider, running))
}

/// Attaches an executor of a model, and starts its engine.
fn attach(
    machine: &mut Machine,
    now: Micros,
    model: LocalModel,
    config: &ModelConfig,
) -> Result<Running> {
    let id = machine.intern(now, &config.name);
    let default = model.executor(&config.terms);
    let spec = ExecutorSpec {
        name: config.executor.clone().unwrap_or(default.name),
        serves: Some(vec![id]),
        ..default
    };
    let name = spec.name.clone();
    let executor = machine.handle(now, Input::ExecutorAttached(spec));
    let executor = executor.executor()?;
    let engine = model
        .spawn(executor, id, config.terms.slots)
        .context("its engine")?;
    Ok(Running {
        executor,
        name,
        model: Arc::new(model),
        engine,
    })
}

fn blocks(models: &[Wanted], cpu: &CpuConfig) -> Result<Blocks> {
    let widest = models
        .iter()
        .map(|(_, loaded)| loaded.kv_bytes_per_token())
        .max();
    let bytes = widest.context("no model is configured")? * TOKENS_PER_BLOCK;
    let total = u32::try_from(cpu.kv_bytes / bytes).unwrap_or(u32::MAX);
    ensure!(
        total > 0,
        "cpu.kv-memory of {} bytes holds no block: one takes {bytes} bytes",
        cpu.kv_bytes
    );
    Ok(Blocks { bytes, total })
}
