//! The ways to the executors: a command channel for each, and an outbox for the commands that find
//! no room in the channel.
//!
//! # Bounds
//! An outbox holds at most the commands that the machine can order for the slots and queue places
//! of its executor, a handful for each, its last budget, the last load that it was told, and its last description. It is
//! emptied whenever the executor reads.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use pointsman_core::{ExecutorId, Incarnation, Micros};
use pointsman_executor::contract::Command;
use pointsman_executor::server::BrokenStreams;
use tokio::sync::mpsc;

use super::operator::Fate;

/// The links to the executors, and the operators' orders about them.
#[derive(Debug, Default)]
pub(super) struct Executors {
    links: BTreeMap<ExecutorId, Link>,
    /// The effects of operators' orders; executors without an order are missing.
    fates: BTreeMap<ExecutorId, Fate>,
}

#[derive(Debug)]
struct Link {
    commands: mpsc::Sender<Command>,
    outbox: VecDeque<Command>,
    incarnation: Incarnation,
    /// The time of its last news; absent: there was none.
    heard: Option<Micros>,
    broken_streams: BrokenStreams,
}

impl Executors {
    pub(super) fn attach(&mut self, executor: ExecutorId, commands: mpsc::Sender<Command>) {
        let link = Link {
            commands,
            outbox: VecDeque::new(),
            incarnation: Incarnation(0),
            heard: None,
            broken_streams: BrokenStreams::End,
        };
        self.links.insert(executor, link);
    }

    pub(super) fn detach(&mut self, executor: ExecutorId) {
        self.links.remove(&executor);
        self.fates.remove(&executor);
    }

    /// True if commands reach `executor`.
    pub(super) fn is_linked(&self, executor: ExecutorId) -> bool {
        self.links.contains_key(&executor)
    }

    /// Drops the link to `executor` if nobody reads what is sent there any more. Returns true if so.
    pub(super) fn drop_closed(&mut self, executor: ExecutorId) -> bool {
        let link = self.links.get(&executor);
        let is_closed = link.is_some_and(|link| link.commands.is_closed());
        if is_closed {
            self.links.remove(&executor);
        }
        is_closed
    }

    /// The effect of an operator's order on `executor`.
    pub(super) fn fate(&self, executor: ExecutorId) -> Fate {
        self.fates.get(&executor).copied().unwrap_or_default()
    }

    pub(super) fn set_fate(&mut self, executor: ExecutorId, fate: Fate) {
        self.fates.insert(executor, fate);
    }

    /// True if `incarnation` is the present life of `executor`.
    pub(super) fn is_current(&self, executor: ExecutorId, incarnation: Incarnation) -> bool {
        let link = self.links.get(&executor);
        link.is_some_and(|link| link.incarnation == incarnation)
    }

    /// Notes that `executor` has told something.
    pub(super) fn heard(&mut self, executor: ExecutorId, now: Micros) {
        if let Some(link) = self.links.get_mut(&executor) {
            link.heard = Some(now);
        }
    }

    /// The time at which `executor` last told something; absent: it never has, or has ended.
    pub(super) fn last_heard(&self, executor: ExecutorId) -> Option<Micros> {
        self.links.get(&executor)?.heard
    }

    /// Notes the part that `executor` takes in streams that break off.
    pub(super) fn takes_part(&mut self, executor: ExecutorId, part: BrokenStreams) {
        if let Some(link) = self.links.get_mut(&executor) {
            link.broken_streams = part;
        }
    }

    /// The executors that go on with streams that broke off at others.
    pub(super) fn going_on(&self) -> Vec<ExecutorId> {
        let goes_on = |link: &Link| link.broken_streams == BrokenStreams::GoOn;
        let links = self.links.iter().filter(|(_, link)| goes_on(link));
        links.map(|(executor, _)| *executor).collect()
    }

    /// Puts a command for `executor` behind the earlier ones; [`Self::flush`] sends it. A budget goes before them: an
    /// engine makes no step without the budget that was set in the round of its first start.
    pub(super) fn send(&mut self, executor: ExecutorId, command: Command) {
        let Some(link) = self.links.get_mut(&executor) else {
            return;
        };
        let kind = mem::discriminant(&command);
        let is_budget = matches!(command, Command::SetBudget { .. });
        // Of these the last one counts.
        if is_budget || matches!(command, Command::Load(_) | Command::Configure { .. }) {
            link.outbox
                .retain(|earlier| mem::discriminant(earlier) != kind);
        }
        if is_budget {
            link.outbox.push_front(command);
        } else {
            link.outbox.push_back(command);
        }
    }

    /// Begins the life `incarnation` of `executor`, and drops the commands for the life before.
    pub(super) fn reborn(&mut self, executor: ExecutorId, incarnation: Incarnation) {
        if let Some(link) = self.links.get_mut(&executor) {
            link.outbox.clear();
            link.incarnation = incarnation;
        }
    }

    /// Sends the commands for which the channels have room. Returns the executors that have ended,
    /// each once, with the life that ended.
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
    /// Sends the commands for which the channel has room. False: the executor has ended.
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

#[cfg(test)]
mod tests {
    use pointsman_executor::server::ServerLoad;

    use super::*;

    #[test]
    fn of_loads_and_budgets_for_one_who_does_not_read_the_last_ones_wait() {
        let (commands, mut inbox) = mpsc::channel(1);
        let (executor, mut executors) = (ExecutorId(0), Executors::default());
        executors.attach(executor, commands);
        for number in 0..100 {
            let load = ServerLoad {
                present: Some(number),
                ..ServerLoad::default()
            };
            executors.send(executor, Command::Load(load));
            executors.flush();
            executors.send(executor, Command::SetBudget { tokens_max: number });
        }
        let mut read = Vec::new();
        while let Ok(command) = inbox.try_recv() {
            read.push(match &command {
                Command::Load(load) => ("load", load.present),
                Command::SetBudget { tokens_max } => ("budget", Some(*tokens_max)),
                Command::Start(_)
                | Command::Grant { .. }
                | Command::Evict { .. }
                | Command::Cancel(_)
                | Command::Arrange(_)
                | Command::Configure { .. } => panic!("{command:?}"),
            });
            executors.flush();
        }
        let last = [("budget", Some(99)), ("load", Some(99))];
        assert_eq!(read[0], ("load", Some(0)));
        assert_eq!(read[1..], last);
    }
}
