//! The engine's thread: takes commands, makes steps, says what happened, and begins anew when its
//! device fails.
//!
//! While no sequence can go on it waits for a command; otherwise it takes those that are there
//! between two steps. It ends when the driver drops the command channel or the events.
//!
//! # Invariants
//! Held by `tests/engine_thread.rs`.
//! 1. A failing device or a panic takes one life of the engine, and never the host
//!    (`a_panic_loses_what_ran_and_the_next_life_serves`).
//! 2. A device that keeps failing is given up after [`Recovery::losses_max`] lives
//!    (`a_device_that_keeps_failing_is_given_up`).

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pointsman_core::{ExecutorId, Incarnation};
use tokio::sync::mpsc;

use crate::contract::{Command, Event, Events};
use crate::model::backend::{Backend, DeviceError};
use crate::text::ModelText;

use super::stats::EngineStats;
use super::{Engine, EngineParts, Worked};

/// Makes a backend with an empty pool, for each life of an engine. Called on its thread.
pub type BackendFactory = Box<dyn FnMut() -> Result<Box<dyn Backend>, DeviceError> + Send>;

/// What an engine's thread is made of.
pub struct EngineSpec {
    /// Who it is.
    pub executor: ExecutorId,
    /// Its first life.
    pub incarnation: Incarnation,
    /// Sequences at once.
    pub slots: u32,
    /// The model's text side.
    pub text: Arc<ModelText>,
    /// The model and its KV pool.
    pub backend: BackendFactory,
    /// Where it says what happened. It waits where there is no room.
    pub events: mpsc::Sender<Events>,
    /// What it does about a failing device.
    pub recovery: Recovery,
}

impl fmt::Debug for EngineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineSpec")
            .field("executor", &self.executor)
            .field("slots", &self.slots)
            .field("recovery", &self.recovery)
            .finish_non_exhaustive()
    }
}

/// What an engine does about a failing device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// After so many losses without a step between them it gives up.
    pub losses_max: u32,
    /// It waits so long after the first of them, and twice as long after each further one.
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

/// The way to an engine.
#[derive(Debug)]
pub struct EngineHandle {
    /// Its commands. When all senders are dropped, it ends.
    pub commands: mpsc::Sender<Command>,
    /// What it counts.
    pub stats: Arc<EngineStats>,
    /// Its thread.
    pub thread: JoinHandle<Ended>,
}

/// Why an engine's thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The driver let go of it.
    Closed,
    /// Its device kept failing, at last for this reason.
    GaveUp(String),
}

/// Commands that may wait for the engine: some for each slot it could reasonably have. What finds
/// no room waits with the driver.
const COMMANDS_MAX: usize = 256;

/// Starts an engine's thread.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn(spec: EngineSpec) -> io::Result<EngineHandle> {
    let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
    let stats = Arc::new(EngineStats::default());
    let life = Life {
        incarnation: spec.incarnation,
        spec,
        commands: inbox,
        stats: Arc::clone(&stats),
        losses: 0,
    };
    let thread = thread::Builder::new()
        .name(format!("engine-{}", life.spec.executor))
        .spawn(move || life.run())?;
    Ok(EngineHandle {
        commands,
        stats,
        thread,
    })
}

/// An engine's lives, one after the other.
struct Life {
    spec: EngineSpec,
    commands: mpsc::Receiver<Command>,
    stats: Arc<EngineStats>,
    incarnation: Incarnation,
    /// Without a step between them.
    losses: u32,
}

/// Why a life ended.
enum Stop {
    Closed,
    Failed(DeviceError),
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Self {
        Stop::Failed(error)
    }
}

impl Life {
    fn run(mut self) -> Ended {
        loop {
            // What a panic leaves half done is in the engine, which is dropped with this life.
            let lived = panic::catch_unwind(AssertUnwindSafe(|| self.live()));
            let why = match lived {
                Ok(Err(Stop::Closed)) => return Ended::Closed,
                Ok(Err(Stop::Failed(error))) => error.to_string(),
                Err(payload) => format!("panicked: {}", panic_message(&*payload)),
            };
            if let Err(ended) = self.begin_anew(why) {
                return ended;
            }
        }
    }

    /// One life, until its device fails or the driver lets go.
    fn live(&mut self) -> Result<Infallible, Stop> {
        let parts = EngineParts {
            slots: self.spec.slots,
            backend: (self.spec.backend)()?,
            text: Arc::clone(&self.spec.text),
            stats: Arc::clone(&self.stats),
        };
        let mut engine = Engine::new(self.spec.executor, self.incarnation, parts);
        loop {
            self.take_commands(&mut engine)?;
            // Those that left make room: not a step later than need be.
            self.say(engine.take_events())?;
            match self.stats.busy_nanos.time(|| engine.step())? {
                Worked::Stepped => {
                    self.losses = 0;
                    self.say(engine.take_events())?;
                }
                Worked::Nothing => self.wait(&mut engine)?,
            }
        }
    }

    fn take_commands(&mut self, engine: &mut Engine) -> Result<(), Stop> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => engine.handle(command),
                Err(mpsc::error::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::error::TryRecvError::Disconnected) => return Err(Stop::Closed),
            }
        }
    }

    fn wait(&mut self, engine: &mut Engine) -> Result<(), Stop> {
        let command = if engine.is_idle() {
            self.commands.blocking_recv()
        } else {
            let commands = &mut self.commands;
            self.stats.waiting_nanos.time(|| commands.blocking_recv())
        };
        engine.handle(command.ok_or(Stop::Closed)?);
        Ok(())
    }

    fn say(&self, list: Vec<Event>) -> Result<(), Stop> {
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
            .waiting_nanos
            .time(|| sender.blocking_send(events));
        if sent.is_ok() {
            Ok(())
        } else {
            Err(Stop::Closed)
        }
    }

    /// Says that everything is lost, and pauses before the next life, if there is to be one.
    fn begin_anew(&mut self, mut why: String) -> Result<(), Ended> {
        let Recovery { losses_max, pause } = self.spec.recovery;
        self.losses += 1;
        self.stats.losses.add(1);
        let gives_up = self.losses >= losses_max;
        if gives_up {
            why = format!("{why}; given up after {losses_max} losses without a step");
        }
        let lost = Event::Lost { why: why.clone() };
        if self.say(vec![lost]).is_err() {
            return Err(Ended::Closed);
        }
        if gives_up {
            return Err(Ended::GaveUp(why));
        }
        self.incarnation = Incarnation(self.incarnation.0 + 1);
        let pause = pause.saturating_mul(2_u32.saturating_pow(self.losses - 1));
        thread::park_timeout(pause);
        Ok(())
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}
