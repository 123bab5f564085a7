//! A running engine, as the driver holds it.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use crate::contract::Command;
use crate::stats::EngineStats;

/// The driver's hold on an engine that runs on a thread of its own.
#[derive(Debug)]
pub struct EngineHandle {
    /// The engine's commands. When all senders are dropped, the engine ends.
    pub commands: mpsc::Sender<Command>,
    /// The engine's counters.
    pub stats: Arc<EngineStats>,
    /// The engine's thread.
    pub thread: JoinHandle<Ended>,
}

/// The reason why an engine's thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The driver let go of the engine.
    Closed,
    /// The device kept failing, at last for this reason.
    GaveUp(String),
}
