//! The models on this machine's processors: loaded, attached to the machine, and running.
//!
//! [`start`] does that for those of the configuration; `fleet` for those that come later.
//!
//! They share one device, the processors, and its KV blocks. A block is a fixed number of bytes:
//! as many as 16 tokens take of the model that takes the most, and as many tokens as fit of each.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pointsman_core::rows::{ExecutorKind, Role};
use pointsman_core::{
    DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, Incarnation, Input, KvSpec, Machine, Micros,
};
use pointsman_engine::cpu::{CpuBackend, CpuModel, KvShape};
use pointsman_engine::model::backend::Backend;
use pointsman_engine::model::files::ModelFiles;
use pointsman_engine::text::ModelText;
use pointsman_engine::thread::{self as engine, EngineSpec, Recovery};
use pointsman_executor::contract::Events;
use pointsman_executor::handle::EngineHandle;
use tokio::sync::mpsc;
use tracing::info;

use crate::catalog::ModelEntry;
use crate::clock;
use crate::config::{CpuConfig, ModelConfig, ModelSource};
use crate::embedded;

/// Tokens a block holds of the model that takes the most memory per token.
const TOKENS_PER_BLOCK: u64 = 16;
/// The processors as a device.
const DEVICE: &str = "cpu0";

/// A model in memory.
#[derive(Debug)]
pub struct Loaded {
    config: ModelConfig,
    text: Arc<ModelText>,
    model: Arc<CpuModel>,
}

/// A model's engine.
#[derive(Debug)]
pub struct Running {
    /// How it is known to the machine.
    pub executor: ExecutorId,
    /// Its name there.
    pub name: String,
    /// Its model.
    pub loaded: Arc<Loaded>,
    /// The way to it.
    pub engine: EngineHandle,
}

/// Blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes of one.
    pub bytes: u64,
    /// How many there are.
    pub total: u32,
}

/// The processors as a device that is attached.
#[derive(Clone, Debug)]
pub struct Host {
    /// How the machine knows it.
    pub device: DeviceId,
    /// Its KV blocks.
    pub blocks: Blocks,
    /// What its engines may use.
    pub cpu: CpuConfig,
    /// Where they say what happens.
    pub events: mpsc::Sender<Events>,
}

/// A block of the device holds no token of the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token of model {model} takes {token_bytes} bytes of KV cache, a block of the device has \
     {block_bytes}; put the model into the configuration and start the host again"
)]
pub struct TooWide {
    model: String,
    token_bytes: u64,
    block_bytes: u64,
}

// === impl Loaded ===

impl Loaded {
    /// Loads a model. Slow: it reads all its weights.
    ///
    /// # Errors
    /// What is wrong with its files, and which model it is.
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

    /// The model it is.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// As clients see it: a sequence is no longer than the whole pool, were it alone.
    pub(crate) fn entry(&self, shape: KvShape) -> ModelEntry {
        let pool = shape.tokens_per_block.saturating_mul(shape.blocks_total);
        ModelEntry {
            name: self.config.name.clone(),
            text: Arc::clone(&self.text) as _,
            context_tokens: self.model.config().context_tokens.min(pool),
            created: clock::unix_seconds(),
        }
    }

    /// What its executor is called where nobody says otherwise.
    pub(crate) fn executor_name(&self) -> String {
        format!("{DEVICE}/{}", self.config.name)
    }

    /// How its KV cache lies in blocks.
    pub(crate) fn shape(&self, blocks: Blocks) -> Result<KvShape, TooWide> {
        let token_bytes = self.kv_bytes_per_token();
        let tokens = u32::try_from(blocks.bytes / token_bytes).unwrap_or(u32::MAX);
        if tokens == 0 {
            return Err(TooWide {
                model: self.config.name.clone(),
                token_bytes,
                block_bytes: blocks.bytes,
            });
        }
        Ok(KvShape {
            tokens_per_block: tokens,
            blocks_total: blocks.total,
        })
    }

    /// Starts its engine, with so many slots.
    pub(crate) fn spawn(
        &self,
        executor: ExecutorId,
        slots: u32,
        shape: KvShape,
        host: &Host,
    ) -> io::Result<EngineHandle> {
        let model = Arc::clone(&self.model);
        let threads = NonZeroUsize::new(host.cpu.threads).unwrap_or(NonZeroUsize::MIN);
        let backend = move || {
            let backend = CpuBackend::new(Arc::clone(&model), shape, threads)?;
            Ok(Box::new(backend) as Box<dyn Backend>)
        };
        engine::spawn(EngineSpec {
            executor,
            incarnation: Incarnation(0),
            slots,
            text: Arc::clone(&self.text),
            backend: Box::new(backend),
            events: host.events.clone(),
            recovery: Recovery::default(),
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

/// Attaches the processors and each model to `machine`, and starts the engines.
///
/// # Errors
/// If a model's shape does not fit the device, or a thread cannot be made.
pub fn start(
    machine: &mut Machine,
    now: Micros,
    models: &[Arc<Loaded>],
    cpu: &CpuConfig,
    events: mpsc::Sender<Events>,
) -> Result<(Host, Vec<Running>)> {
    let blocks = blocks(models, cpu)?;
    let device = DeviceSpec {
        name: DEVICE.to_owned(),
        kv: KvSpec::Owned {
            block_bytes: blocks.bytes,
            blocks_total: blocks.total,
        },
        tokens_per_step: Some(cpu.tokens_per_step),
    };
    let device = machine
        .handle(now, Input::DeviceAttached(device))
        .device()?;
    let host = Host {
        device,
        blocks,
        cpu: cpu.clone(),
        events,
    };
    let mut running = Vec::new();
    for loaded in models {
        let shape = loaded.shape(blocks)?;
        let spec = executor_spec(machine, now, loaded, (device, shape));
        let name = &loaded.config.name;
        let executor = machine
            .handle(now, Input::ExecutorAttached(spec))
            .executor()
            .with_context(|| format!("model {name}"))?;
        let engine = loaded.spawn(executor, loaded.config.slots, shape, &host);
        running.push(Running {
            executor,
            name: loaded.executor_name(),
            loaded: Arc::clone(loaded),
            engine: engine.with_context(|| format!("engine of model {name}"))?,
        });
    }
    Ok((host, running))
}

fn blocks(models: &[Arc<Loaded>], cpu: &CpuConfig) -> Result<Blocks> {
    let widest = models
        .iter()
        .map(|loaded| loaded.kv_bytes_per_token())
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

fn executor_spec(
    machine: &mut Machine,
    now: Micros,
    loaded: &Loaded,
    (device, shape): (DeviceId, KvShape),
) -> ExecutorSpec {
    ExecutorSpec {
        name: loaded.executor_name(),
        device,
        kind: ExecutorKind::Cpu,
        role: Role::Both,
        group: 0,
        share_weight: loaded.config.share_weight,
        serves: Some(vec![machine.intern(now, &loaded.config.name)]),
        slots_total: loaded.config.slots,
        models_max: None,
        queue_limit: 0,
        tokens_per_block: Some(shape.tokens_per_block),
        preempts: true,
        model_unload_delay: Micros(0),
    }
}
