//! Engines as executors under test: one that works when it is asked for events, and one on its
//! thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::backend::{Backend, KvBlocks, KvShape};
use crate::cpu::{CpuBackend, KvMemory, Processors, kv_bytes_per_token};
use crate::step_loop::{LoopModel, StepLoop, StepLoopParts, StepOutcome};
use crate::thread::{BackendFactory, EngineSpec, ModelSpec, Recovery, spawn};
use pointsman_events::ModelId;
use pointsman_executor::contract::{Command, Events};
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::job::Job;
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _};
use pointsman_executor::stats::EngineStats;
use pointsman_executor::test_util::{EXECUTOR, ExecutorUnderTest, FIRST_LIFE, SLOTS, WholeAnswer};
use tokio::sync::mpsc;

use super::scripted::{Faults, SHAPE, ScriptedBackend, Shape};
use super::{demo_text, solo};
use pointsman_model::test_util::models;

/// The shape of the pools of all backends.
pub const KV_SHAPE: KvShape = KvShape {
    tokens_per_block: SHAPE.tokens_per_block,
    blocks_total: SHAPE.blocks_total,
};

/// The blocks of a device that has such a pool, and host memory.
pub fn with_arena(bytes_per_token: u64) -> KvBlocks {
    KvBlocks {
        host: SHAPE.host_blocks,
        ..KV_SHAPE.blocks(bytes_per_token)
    }
}

/// A maker of backends, each with a pool of its own.
pub type MakeBackend = fn() -> Box<dyn Backend>;

pub fn scripted() -> Box<dyn Backend> {
    Box::new(ScriptedBackend::new(SHAPE))
}

/// Makes a backend of another scripted model, with a pool of the same shape.
pub fn scripted_other() -> Box<dyn Backend> {
    Box::new(ScriptedBackend::new(Shape { seed: 7, ..SHAPE }))
}

/// Makes a backend whose swaps take a while.
pub fn scripted_slow_swaps() -> Box<dyn Backend> {
    Box::new(ScriptedBackend::new(Shape {
        swap_looks: 3,
        ..SHAPE
    }))
}

/// Makes a backend of the demo model, with a pool of the same shape.
pub fn demo() -> Box<dyn Backend> {
    let model = models::demo();
    let memory = KvMemory::new(with_arena(kv_bytes_per_token(model.config())));
    let processors = Processors::of_caller();
    Box::new(CpuBackend::on(memory, model, KV_SHAPE, processors))
}

/// Answers of fresh backends, by the maker and the job. A maker has nothing but its code: backends of the same one answer the
/// same.
type Alone = BTreeMap<(MakeBackend, String), Arc<OnceLock<WholeAnswer>>>;

/// The answers so far, which tests ask for again and again. Locked to look one up and to put one in.
static ALONE: Mutex<Alone> = Mutex::new(BTreeMap::new());

/// The models of an engine under test, by the makers of their backends.
#[derive(Clone, Copy)]
pub struct Models(pub &'static [MakeBackend]);

impl Models {
    /// The place of a job's model: that of each prompt is another.
    fn place(self, job: &Job) -> usize {
        let sum: usize = job.prompt.iter().map(|token| *token as usize).sum();
        sum % self.0.len()
    }

    fn model(self, job: &Job) -> Option<ModelId> {
        (self.0.len() > 1).then(|| model(self.place(job)))
    }

    fn alone(self, job: &Job) -> WholeAnswer {
        let make = self.0[self.place(job)];
        let asked = (make, format!("{job:?}"));
        let answer = Arc::clone(ALONE.lock().unwrap().entry(asked).or_default());
        let answer = answer.get_or_init(|| solo(&mut *make(), &demo_text(), job));
        answer.clone()
    }
}

/// The id of the model at a place.
pub fn model(place: usize) -> ModelId {
    ModelId(u32::try_from(place).unwrap() + 5)
}

/// A model of a step loop, with the demo model's text.
pub fn loop_model(place: usize, backend: Box<dyn Backend>) -> LoopModel {
    LoopModel::new(model(place), demo_text(), backend)
}

/// An engine that makes a step when it is asked for events.
pub struct Stepped {
    pub steps: StepLoop,
    pub stats: Arc<EngineStats>,
    alone: Models,
}

impl Stepped {
    pub fn new(models: &'static [MakeBackend]) -> Self {
        let backends = models.iter().map(|make| make());
        Self::on(backends.collect(), models)
    }

    /// An engine on `backends`, whose answers must be those of the backends that `alone` makes.
    pub fn on(backends: Vec<Box<dyn Backend>>, alone: &'static [MakeBackend]) -> Self {
        let stats = Arc::new(EngineStats::default());
        let models = backends.into_iter().enumerate();
        let parts = StepLoopParts {
            slots: SLOTS,
            models: models.map(|(place, it)| loop_model(place, it)).collect(),
            stats: Arc::clone(&stats),
        };
        Self {
            steps: StepLoop::new(EXECUTOR, FIRST_LIFE, parts),
            stats,
            alone: Models(alone),
        }
    }

    pub fn failing(shape: Shape, faults: Faults) -> Self {
        let backend = Box::new(ScriptedBackend::failing(shape, faults));
        Self::on(vec![backend], &[scripted])
    }
}

impl ExecutorUnderTest for Stepped {
    fn send(&mut self, command: Command) {
        self.steps.handle(command);
    }

    fn events(&mut self) -> Events {
        let mut list = self.steps.take_events();
        if list.is_empty() {
            assert_eq!(self.steps.step(), Ok(StepOutcome::Stepped));
            list = self.steps.take_events();
        }
        Events {
            executor: EXECUTOR,
            incarnation: FIRST_LIFE,
            list,
        }
    }

    fn is_stepped(&self) -> bool {
        true
    }

    fn tokens_per_block(&self) -> u32 {
        SHAPE.tokens_per_block
    }

    fn blocks_total(&self) -> u32 {
        SHAPE.blocks_total
    }

    fn host_blocks(&self) -> u32 {
        SHAPE.host_blocks
    }

    fn model(&self, job: &Job) -> Option<ModelId> {
        self.alone.model(job)
    }

    fn alone(&self, job: &Job) -> WholeAnswer {
        self.alone.alone(job)
    }

    fn prompts_that_end(&self) -> Vec<Vec<u32>> {
        prompts_that_end()
    }
}

/// An engine on its thread.
pub struct Threaded {
    pub handle: EngineHandle,
    pub events: mpsc::Receiver<Events>,
    alone: Models,
}

impl Threaded {
    pub fn new(models: &'static [MakeBackend]) -> Self {
        let factories = models.iter().map(|make| {
            let factory = move || Ok(make());
            Box::new(factory) as BackendFactory
        });
        Self::with_factories(factories.collect(), models)
    }

    pub fn with_factories(backends: Vec<BackendFactory>, alone: &'static [MakeBackend]) -> Self {
        let (sender, events) = mpsc::channel(4);
        let models = backends.into_iter().enumerate();
        let models = models.map(|(place, backend)| ModelSpec {
            model: model(place),
            text: demo_text(),
            backend,
        });
        let spec = EngineSpec {
            executor: EXECUTOR,
            incarnation: FIRST_LIFE,
            slots: SLOTS,
            models: models.collect(),
            events: sender,
            recovery: Recovery {
                pause: Duration::ZERO,
                ..Recovery::default()
            },
        };
        Self {
            handle: spawn(spec).unwrap(),
            events,
            alone: Models(alone),
        }
    }
}

impl ExecutorUnderTest for Threaded {
    fn send(&mut self, command: Command) {
        self.handle.commands.try_send(command).unwrap();
    }

    fn events(&mut self) -> Events {
        self.events.blocking_recv().unwrap()
    }

    fn is_stepped(&self) -> bool {
        false
    }

    fn tokens_per_block(&self) -> u32 {
        SHAPE.tokens_per_block
    }

    fn blocks_total(&self) -> u32 {
        SHAPE.blocks_total
    }

    fn host_blocks(&self) -> u32 {
        SHAPE.host_blocks
    }

    fn model(&self, job: &Job) -> Option<ModelId> {
        self.alone.model(job)
    }

    fn alone(&self, job: &Job) -> WholeAnswer {
        self.alone.alone(job)
    }

    fn prompts_that_end(&self) -> Vec<Vec<u32>> {
        prompts_that_end()
    }
}

/// Questions to which both backends give short answers.
fn prompts_that_end() -> Vec<Vec<u32>> {
    let questions = ["What comes after four?", "What is 7 plus 5?", "Hello!"];
    let prompts = questions.map(|question| {
        let messages = [ChatMessage::new("user", question)];
        demo_text().chat_prompt(&messages, &[], u32::MAX).unwrap()
    });
    prompts.to_vec()
}
