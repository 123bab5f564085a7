//! Engines as executors under test: one that works when it is asked for events, and one on its
//! thread.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pointsman_engine::cpu::{CpuBackend, CpuModel, KvShape};
use pointsman_engine::model::backend::Backend;
use pointsman_engine::step_loop::{StepLoop, StepLoopParts, StepOutcome};
use pointsman_engine::thread::{BackendFactory, EngineSpec, Recovery, spawn};
use pointsman_executor::contract::{Command, Events};
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::job::Job;
use pointsman_executor::prompt::{ChatMessage, PromptEncoder as _};
use pointsman_executor::stats::EngineStats;
use pointsman_executor::test_util::{EXECUTOR, ExecutorUnderTest, FIRST_LIFE, SLOTS, WholeAnswer};
use tokio::sync::mpsc;

use super::scripted::{Faults, SHAPE, ScriptedBackend, Shape};
use super::{demo_model, demo_text, solo};

/// A maker of backends, each with a pool of its own.
pub type MakeBackend = fn() -> Box<dyn Backend>;

pub fn scripted() -> Box<dyn Backend> {
    Box::new(ScriptedBackend::new(SHAPE))
}

/// Makes a backend of the demo model, with a pool of the same shape.
pub fn demo() -> Box<dyn Backend> {
    static MODEL: OnceLock<Arc<CpuModel>> = OnceLock::new();
    let model = MODEL.get_or_init(|| Arc::new(CpuModel::load(&demo_model()).unwrap()));
    let shape = KvShape {
        tokens_per_block: SHAPE.tokens_per_block,
        blocks_total: SHAPE.blocks_total,
    };
    let backend = CpuBackend::new(Arc::clone(model), shape, NonZeroUsize::MIN);
    Box::new(backend.unwrap())
}

/// An engine that makes a step when it is asked for events.
pub struct Stepped {
    pub steps: StepLoop,
    pub stats: Arc<EngineStats>,
    make_alone: MakeBackend,
}

impl Stepped {
    pub fn new(make: MakeBackend) -> Self {
        Self::on(make(), make)
    }

    /// An engine on `backend`, whose answers must be those of the backends that `make_alone` makes.
    pub fn on(backend: Box<dyn Backend>, make_alone: MakeBackend) -> Self {
        let stats = Arc::new(EngineStats::default());
        let parts = StepLoopParts {
            slots: SLOTS,
            backend,
            text: demo_text(),
            stats: Arc::clone(&stats),
        };
        Self {
            steps: StepLoop::new(EXECUTOR, FIRST_LIFE, parts),
            stats,
            make_alone,
        }
    }

    pub fn failing(shape: Shape, faults: Faults) -> Self {
        Self::on(Box::new(ScriptedBackend::failing(shape, faults)), scripted)
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

    fn alone(&self, job: &Job) -> WholeAnswer {
        solo(&mut *(self.make_alone)(), &demo_text(), job)
    }

    fn prompts_that_end(&self) -> Vec<Vec<u32>> {
        prompts_that_end()
    }
}

/// An engine on its thread.
pub struct Threaded {
    pub handle: EngineHandle,
    pub events: mpsc::Receiver<Events>,
    make_alone: MakeBackend,
}

impl Threaded {
    pub fn new(make: MakeBackend) -> Self {
        Self::with_factory(Box::new(move || Ok(make())), make)
    }

    pub fn with_factory(backend: BackendFactory, make_alone: MakeBackend) -> Self {
        let (sender, events) = mpsc::channel(4);
        let spec = EngineSpec {
            executor: EXECUTOR,
            incarnation: FIRST_LIFE,
            slots: SLOTS,
            text: demo_text(),
            backend,
            events: sender,
            recovery: Recovery {
                pause: Duration::ZERO,
                ..Recovery::default()
            },
        };
        Self {
            handle: spawn(spec).unwrap(),
            events,
            make_alone,
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

    fn alone(&self, job: &Job) -> WholeAnswer {
        solo(&mut *(self.make_alone)(), &demo_text(), job)
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
        demo_text().chat_prompt(&messages, u32::MAX).unwrap()
    });
    prompts.to_vec()
}
