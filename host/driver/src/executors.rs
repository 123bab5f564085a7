//! The ways to the executors: their command channels, and what finds no room in them.
//!
//! # Bounds
//! An outbox holds at most what the machine can order for the slots and queue places of its
//! executor, each a handful of commands; it is emptied whenever the executor reads.

use std::collections::{BTreeMap, VecDeque};

use super::operator::Fate;
use pointsman_core::{ExecutorId, Incarnation};
use pointsman_executor::contract::Command;
use tokio::sync::mpsc;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Executors {
    links: BTreeMap<ExecutorId, Link>,
    /// Of those that an operator has ordered about.
    fates: BTreeMap<ExecutorId, Fate>,
}

#[derive(Debug)]
struct Link {
    commands: mpsc::Sender<Command>,
    outbox: VecDeque<Command>,
    incarnation: Incarnation,
}

impl Executors {
    pub(super) fn attach(&mut self, executor: ExecutorId, commands: mpsc::Sender<Command>) {
        let link = Link {
            commands,
            outbox: VecDeque::new(),
            incarnation: Incarnation(0),
        };
        self.links.insert(executor, link);
    }

    pub(super) fn detach(&mut self, executor: ExecutorId) {
        self.links.remove(&executor);
        self.fates.remove(&executor);
    }

    /// Whether orders reach it.
    pub(super) fn is_linked(&self, executor: ExecutorId) -> bool {
        self.links.contains_key(&executor)
    }

    /// What becomes of it by an operator's order.
    pub(super) fn fate(&self, executor: ExecutorId) -> Fate {
        self.fates.get(&executor).copied().unwrap_or_default()
    }

    pub(super) fn set_fate(&mut self, executor: ExecutorId, fate: Fate) {
        self.fates.insert(executor, fate);
    }

    /// Whether what it says is of its present life.
    pub(super) fn is_current(&self, executor: ExecutorId, incarnation: Incarnation) -> bool {
        let link = self.links.get(&executor);
        link.is_some_and(|link| link.incarnation == incarnation)
    }

    /// Sends a command, in order with the others.
    pub(super) fn send(&mut self, executor: ExecutorId, command: Command) {
        if let Some(link) = self.links.get_mut(&executor) {
            link.outbox.push_back(command);
        }
    }

    /// It has begun another life, and knows nothing of what was ordered before.
    pub(super) fn reborn(&mut self, executor: ExecutorId, incarnation: Incarnation) {
        if let Some(link) = self.links.get_mut(&executor) {
            link.outbox.clear();
            link.incarnation = incarnation;
        }
    }

    /// Hands out what there is room for. Executors that take nothing any more, with the life
    /// that ended; each is reported once.
    pub(super) fn flush(&mut self) -> Vec<(ExecutorId, Incarnation)> {
        let mut closed = Vec::new();
        for (executor, link) in &mut self.links {
            if !link.flush() {
                closed.push((*executor, link.incarnation));
            }
        }
        for (executor, _) in &closed {
            self.links.remove(executor);
        }
        closed
    }
}

impl Link {
    /// False if nobody reads any more.
    fn flush(&mut self) -> bool {
        while let Some(command) = self.outbox.pop_front() {
            match self.commands.try_send(command) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(command)) => {
                    self.outbox.push_front(command);
                    return true;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        !self.commands.is_closed()
    }
}
