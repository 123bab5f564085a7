//! Engines as executors under test: one that works when it is asked to, and one on its thread.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pointsman_executor::contract::{Command, Events};
use pointsman_executor::cpu::{CpuBackend, CpuModel, KvShape};
use pointsman_executor::engine::stats::EngineStats;
use pointsman_executor::engine::thread::{
    BackendFactory, EngineHandle, EngineSpec, Recovery, spawn,
};
use pointsman_executor::engine::{Engine, EngineParts, Worked};
use pointsman_executor::model::backend::Backend;
use pointsman_executor::text::ModelText;
use tokio::sync::mpsc;

use super::books::{SLOTS, Subject};
use super::scripted::{Faults, SHAPE, ScriptedBackend, Shape};
use super::{EXECUTOR, FIRST_LIFE, demo_model, demo_text};

/// Makes backends, each with a pool of its own.
pub type MakeBackend = fn() -> Box<dyn Backend>;

pub fn scripted() -> Box<dyn Backend> {
    Box::new(ScriptedBackend::new(SHAPE))
}

/// The demo model, with a pool of the same shape.
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
    pub engine: Engine,
    pub stats: Arc<EngineStats>,
    make_alone: MakeBackend,
}

impl Stepped {
    pub fn new(make: MakeBackend) -> Self {
        Self::on(make(), make)
    }

    /// An engine on `backend`, whose answers shall be those of the backends that `make_alone`
    /// makes.
    pub fn on(backend: Box<dyn Backend>, make_alone: MakeBackend) -> Self {
        let stats = Arc::new(EngineStats::default());
        let parts = EngineParts {
            slots: SLOTS,
            backend,
            text: demo_text(),
            stats: Arc::clone(&stats),
        };
        Self {
            engine: Engine::new(EXECUTOR, FIRST_LIFE, parts),
            stats,
            make_alone,
        }
    }

    pub fn failing(shape: Shape, faults: Faults) -> Self {
        Self::on(Box::new(ScriptedBackend::failing(shape, faults)), scripted)
    }
}

impl Subject for Stepped {
    fn send(&mut self, command: Command) {
        self.engine.handle(command);
    }

    fn events(&mut self) -> Events {
        let mut list = self.engine.take_events();
        if list.is_empty() {
            assert_eq!(self.engine.step(), Ok(Worked::Stepped));
            list = self.engine.take_events();
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

    fn alone(&self) -> (Box<dyn Backend>, Arc<ModelText>) {
        ((self.make_alone)(), demo_text())
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

impl Subject for Threaded {
    fn send(&mut self, command: Command) {
        self.handle.commands.try_send(command).unwrap();
    }

    fn events(&mut self) -> Events {
        self.events.blocking_recv().unwrap()
    }

    fn is_stepped(&self) -> bool {
        false
    }

    fn alone(&self) -> (Box<dyn Backend>, Arc<ModelText>) {
        ((self.make_alone)(), demo_text())
    }
}
