//! A running engine, as the driver holds it.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, watch};

use crate::contract::Command;
use crate::stats::EngineStats;

/// The driver's hold on an engine, or on the part of the host that talks to another server.
#[derive(Debug)]
pub struct EngineHandle {
    /// The engine's commands. When all senders are dropped, the engine ends.
    pub commands: mpsc::Sender<Command>,
    /// The engine's counters.
    pub stats: Arc<EngineStats>,
    /// The work of the engine, to be waited for.
    pub work: EngineWork,
    /// The models of a server elsewhere, as it is found to serve them; absent: those that the
    /// executor was made for.
    pub found: Option<watch::Receiver<Arc<[FoundModel]>>>,
}

/// A model that a server elsewhere says that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundModel {
    /// The model's name for clients.
    pub name: String,
    /// Longest sequence, in tokens; absent: the server does not tell.
    pub context_tokens: Option<u32>,
}

/// The work of an engine.
#[derive(Debug)]
pub enum EngineWork {
    /// The engine computes on a thread of its own.
    Thread(JoinHandle<Ended>),
    /// The engine waits for others, as a task of a runtime, and ends when its commands do.
    Task,
}

/// The reason why an engine's thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The driver let go of the engine.
    Closed,
    /// The device kept failing, at last for this reason.
    GaveUp(String),
}
