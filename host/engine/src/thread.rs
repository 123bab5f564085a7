//! The engine's thread: takes commands, makes steps, reports events, and begins anew when its
//! device fails.
//!
//! While no sequence can go on, the thread waits for a command; otherwise it takes commands between
//! two steps. It ends when the driver drops the command channel or the events.
//!
//! Engines may share a device. One that is lost begins anew once all of them have let go of it: an engine without work
//! looks for that again and again, and one that would begin waits for the others, as it does for weights that are loaded.
//!
//! # Invariants
//! Held by `tests/thread.rs`.
//! 1. A failing device or a panic takes one life of the engine, and never the host
//!    (`a_panic_loses_what_ran_and_the_next_life_serves`).
//! 2. A device that keeps failing is given up after [`Recovery::losses_max`] lives, and nothing can be sent to the engine
//!    once that is told (`a_device_that_keeps_failing_is_given_up`).
//! 3. A device that another engine has lost is let go of without a step too, and no engine is given up for it
//!    (`an_idle_engine_lets_go_of_a_device_that_another_has_lost_and_is_not_given_up`).

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use pointsman_events::{ExecutorId, Incarnation, ModelId};
use pointsman_executor::contract::{Command, Event, Events};
use pointsman_executor::handle::{Ended, EngineHandle, EngineWork};
use pointsman_executor::stats::EngineStats;
use tokio::sync::mpsc;

use crate::backend::{Backend, DeviceError};
use crate::step_loop::{LoopModel, StepLoop, StepLoopParts, StepOutcome};
use pointsman_text::ModelText;

/// A maker of a model's backends, one with an empty pool for each life of an engine. Called on its thread.
pub trait BackendMaker: Send {
    /// Makes a backend.
    ///
    /// # Errors
    /// If the device fails, or the weights cannot be read.
    fn make(&mut self) -> Result<Box<dyn Backend>, DeviceError>;

    /// Checks that the device is not lost and kept by engines nevertheless: until all of them have let go of it, none
    /// computes anything there. Asked before backends are made, and again and again while the engine has nothing to do.
    ///
    /// # Errors
    /// If it is.
    fn check_device(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// True for a device that other engines may lose, too.
    fn is_shared(&self) -> bool {
        false
    }
}

/// A device that is nobody else's.
impl<F> BackendMaker for F
where
    F: FnMut() -> Result<Box<dyn Backend>, DeviceError> + Send,
{
    fn make(&mut self) -> Result<Box<dyn Backend>, DeviceError> {
        self()
    }
}

/// A model's maker of backends, of whatever kind.
pub type BackendFactory = Box<dyn BackendMaker>;

/// The parts of an engine with its thread, put together by the server.
pub struct EngineSpec {
    /// The engine's id in the machine.
    pub executor: ExecutorId,
    /// The engine's first life.
    pub incarnation: Incarnation,
    /// Most sequences at once.
    pub slots: u32,
    /// The models that the engine serves, at least one. All have as many tokens in a block.
    pub models: Vec<ModelSpec>,
    /// The channel for events. The engine waits where it has no room.
    pub events: mpsc::Sender<Events>,
    /// The engine's patience with a failing device.
    pub recovery: Recovery,
}

/// A model that an engine serves.
pub struct ModelSpec {
    /// The model's id in the machine.
    pub model: ModelId,
    /// The model's text side.
    pub text: Arc<ModelText>,
    /// The maker of the model's backend.
    pub backend: BackendFactory,
}

impl fmt::Debug for EngineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineSpec")
            .field("executor", &self.executor)
            .field("slots", &self.slots)
            .field("models", &self.models)
            .field("recovery", &self.recovery)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelSpec")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// An engine's patience with a failing device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Losses without a step between them after which the engine gives up. To one that has nothing to do, or is about
    /// to begin, a device that another has lost counts as none; one that meets that in a step counts it.
    pub losses_max: u32,
    /// Pause after the first of these losses; each further one doubles it. So much time is between two looks at a device
    /// that others have to let go of, too.
    pub pause: Duration,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            losses_max: 5,
            pause: Duration::from_millis(100),
        }
    }
}

/// Commands that may wait for the engine: some for each slot it could reasonably have. Commands
/// that find no room wait with the driver.
const COMMANDS_MAX: usize = 256;
/// Time after which an engine without work looks again whether another one has lost its device.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Looks at a device that others have to let go of, after which the engine reports that it is lost: what was sent to it
/// meanwhile may go elsewhere.
const LOOKS_MAX: u32 = 50;

/// Starts an engine's thread.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn(spec: EngineSpec) -> io::Result<EngineHandle> {
    let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
    let stats = Arc::new(EngineStats::default());
    let lives = Lives {
        incarnation: spec.incarnation,
        spec,
        commands: inbox,
        stats: Arc::clone(&stats),
        losses: 0,
    };
    let thread = thread::Builder::new()
        .name(format!("engine-{}", lives.spec.executor))
        .spawn(move || lives.run())?;
    Ok(EngineHandle {
        commands,
        stats,
        work: EngineWork::Thread(thread),
        found: None,
    })
}

/// The lives of an engine, one after the other.
struct Lives {
    spec: EngineSpec,
    commands: mpsc::Receiver<Command>,
    stats: Arc<EngineStats>,
    incarnation: Incarnation,
    /// Losses without a step between them.
    losses: u32,
}

/// The reason why a life ended.
enum LifeEnd {
    Closed,
    Failed(DeviceError),
    /// The device was lost by another engine.
    LostElsewhere(DeviceError),
}

/// Wakes a thread that is parked.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl From<DeviceError> for LifeEnd {
    fn from(error: DeviceError) -> Self {
        LifeEnd::Failed(error)
    }
}

impl ModelSpec {
    /// The model at the beginning of a life.
    fn begin(&mut self) -> Result<LoopModel, DeviceError> {
        let backend = self.backend.make()?;
        Ok(LoopModel::new(self.model, Arc::clone(&self.text), backend))
    }
}

impl Lives {
    fn run(mut self) -> Ended {
        loop {
            // A panic leaves half-done work in the step loop only, which is dropped with this life.
            let lived = panic::catch_unwind(AssertUnwindSafe(|| self.live()));
            let (why, losses) = match lived {
                Ok(Err(LifeEnd::Closed)) => return Ended::Closed,
                Ok(Err(LifeEnd::Failed(error))) => (error.to_string(), 1),
                Ok(Err(LifeEnd::LostElsewhere(error))) => (error.to_string(), 0),
                Err(payload) => (format!("panicked: {}", panic_message(&*payload)), 1),
            };
            self.losses += losses;
            if let Err(ended) = self.begin_anew(why) {
                return ended;
            }
        }
    }

    /// Runs one life, until the device fails or the driver lets go.
    fn live(&mut self) -> Result<Infallible, LifeEnd> {
        self.wait_for_devices()?;
        let models = self.spec.models.iter_mut().map(ModelSpec::begin);
        let parts = StepLoopParts {
            slots: self.spec.slots,
            models: models.collect::<Result<_, _>>()?,
            stats: Arc::clone(&self.stats),
        };
        let mut steps = StepLoop::new(self.spec.executor, self.incarnation, parts);
        loop {
            self.take_commands(&mut steps)?;
            // Sequences that left make room: not a step later than need be.
            steps.swap()?;
            self.report(steps.take_events())?;
            match self.stats.busy_nanos.time(|| steps.step())? {
                StepOutcome::Stepped => {
                    self.losses = 0;
                    self.report(steps.take_events())?;
                }
                StepOutcome::Nothing => self.wait(&mut steps)?,
            }
        }
    }

    fn take_commands(&mut self, steps: &mut StepLoop) -> Result<(), LifeEnd> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => steps.handle(command),
                Err(mpsc::error::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::error::TryRecvError::Disconnected) => return Err(LifeEnd::Closed),
            }
        }
    }

    fn wait(&mut self, steps: &mut StepLoop) -> Result<(), LifeEnd> {
        let command = if steps.is_idle() {
            self.next_command()
        } else {
            let stats = Arc::clone(&self.stats);
            stats.waiting_nanos.time(|| self.next_command())
        };
        steps.handle(command?);
        Ok(())
    }

    /// Waits for a command, and looks at the devices meanwhile: without a step, the engine would not hear of a loss.
    fn next_command(&mut self) -> Result<Command, LifeEnd> {
        if !self.spec.models.iter().any(|it| it.backend.is_shared()) {
            return self.commands.blocking_recv().ok_or(LifeEnd::Closed);
        }
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match self.commands.poll_recv(&mut context) {
                Poll::Ready(command) => return command.ok_or(LifeEnd::Closed),
                Poll::Pending => thread::park_timeout(LOOK_AGAIN),
            }
            self.check_devices()?;
        }
    }

    /// Waits until all engines have let go of a device that one of them has lost.
    fn wait_for_devices(&mut self) -> Result<(), LifeEnd> {
        for _ in 0..LOOKS_MAX {
            if self.check_devices().is_ok() {
                return Ok(());
            }
            if self.commands.is_closed() {
                return Err(LifeEnd::Closed);
            }
            thread::park_timeout(self.spec.recovery.pause);
        }
        self.check_devices()
    }

    /// Checks that no other engine has lost a device that engines keep.
    fn check_devices(&self) -> Result<(), LifeEnd> {
        let mut models = self.spec.models.iter();
        let checked = models.try_for_each(|model| model.backend.check_device());
        checked.map_err(LifeEnd::LostElsewhere)
    }

    fn report(&self, list: Vec<Event>) -> Result<(), LifeEnd> {
        if list.is_empty() {
            return Ok(());
        }
        let events = Events {
            executor: self.spec.executor,
            incarnation: self.incarnation,
            list,
        };
        let sender = &self.spec.events;
        let sent = self
            .stats
            .reporting_nanos
            .time(|| sender.blocking_send(events));
        if sent.is_ok() {
            Ok(())
        } else {
            Err(LifeEnd::Closed)
        }
    }

    /// Reports that everything is lost, and pauses before the next life, if there is to be one.
    fn begin_anew(&mut self, mut why: String) -> Result<(), Ended> {
        let Recovery { losses_max, pause } = self.spec.recovery;
        self.stats.losses.add(1);
        let gives_up = self.losses >= losses_max;
        if gives_up {
            why = format!("{why}; given up after {losses_max} losses without a step");
            // Whoever hears of the loss finds that nobody reads what is sent here any more.
            self.commands.close();
        }
        let lost = Event::Lost { why: why.clone() };
        if self.report(vec![lost]).is_err() {
            return Err(Ended::Closed);
        }
        if gives_up {
            return Err(Ended::GaveUp(why));
        }
        self.incarnation = Incarnation(self.incarnation.0 + 1);
        let doubled = self.losses.saturating_sub(1);
        let pause = pause.saturating_mul(2_u32.saturating_pow(doubled));
        thread::park_timeout(pause);
        Ok(())
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}
