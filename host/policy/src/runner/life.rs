//! The life of a runner's instance: dropped after a fault, and followed by a fresh one.
//!
//! A fresh instance runs the policy's `configure` and `restore` for as long as its limits allow,
//! which may be seconds. [`Restarts`] says who waits for that.
//!
//! # Invariants
//! 1. Under [`Restarts::Elsewhere`] no question waits for an instance: until it is there the runner
//!    rests (`host::tests::restarts`).

use std::mem;
use std::thread::{self, JoinHandle};

use pointsman_component::{Fault, Instance};
use pointsman_core::{FaultKind, Micros};

use super::{Runner, Woken};
use crate::policy::{Fresh, Restored};

/// The place where a fresh instance is made after a fault, a strike or a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restarts {
    /// Made by the thread that asks the next question, so that a run is the same each time: in
    /// simulations, tests and replays.
    #[default]
    AtTheQuestion,
    /// Made by a thread of its own as soon as the last one is gone. The next policy in line answers
    /// meanwhile.
    Elsewhere,
}

pub(super) enum Life {
    Up(Box<dyn Instance>),
    Down(Pause),
    /// Another runner has the instance: a shadow's.
    Lent,
}

/// A runner's time without an instance.
pub(super) struct Pause {
    /// End of the back-off.
    until: Micros,
    /// The thread that makes the next instance.
    coming: Option<JoinHandle<Result<Fresh, Fault>>>,
}

impl Life {
    pub(super) fn down(until: Micros) -> Self {
        Self::Down(Pause {
            until,
            coming: None,
        })
    }
}

// === impl Runner ===

impl Runner {
    /// The end of its back-off; absent: it can be asked.
    pub(crate) fn down_until(&self) -> Option<Micros> {
        match &self.life {
            Life::Up(_) | Life::Lent => None,
            Life::Down(pause) => Some(pause.until),
        }
    }

    /// True while it is too early to ask it: during its back-off, while its next instance is made
    /// elsewhere, or while another runner has its instance.
    pub(crate) fn rests(&mut self, now: Micros) -> bool {
        self.begin_restart();
        match &self.life {
            Life::Up(_) => false,
            Life::Down(pause) if now < pause.until => true,
            Life::Down(pause) => match &pause.coming {
                Some(coming) => !coming.is_finished(),
                // A thread could not be had.
                None => self.restarts == Restarts::Elsewhere,
            },
            Life::Lent => true,
        }
    }

    /// Returns whether it has an instance. After a fault or a strike it has none until it is asked again,
    /// nor while a shadow has it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.life, Life::Up(_))
    }

    /// Has a thread make the next instance, where that is wanted and none does so yet.
    pub(super) fn begin_restart(&mut self) {
        let Life::Down(pause) = &mut self.life else {
            return;
        };
        if self.restarts == Restarts::AtTheQuestion || pause.coming.is_some() {
            return;
        }
        let (source, state) = (self.source.clone(), self.snapshots.last.clone());
        let make = move || source.warm(state.as_deref());
        let thread = thread::Builder::new().name("policy-restart".to_owned());
        // Without a thread it is tried again at the next question.
        pause.coming = thread.spawn(make).ok();
    }

    /// Takes the fresh instance, or makes one, where there is none.
    pub(super) fn wake(&mut self) -> Result<(), Fault> {
        let coming = match &mut self.life {
            Life::Up(_) => return Ok(()),
            Life::Down(pause) => pause.coming.take(),
            Life::Lent => None,
        };
        let fresh = match coming.map(JoinHandle::join) {
            Some(Ok(made)) => made,
            Some(Err(_panic)) => Err(Fault::new(
                FaultKind::Start,
                "has no instance: the host panicked while it made one",
            )),
            None => self.source.warm(self.snapshots.last.as_deref()),
        }?;
        self.counters.generation = self.counters.generation.saturating_add(1);
        let offered = self.snapshots.last.clone();
        if matches!(fresh.restored, Restored::Refused(_) | Restored::Faulted(_)) {
            self.snapshots.last = None;
        }
        self.life = Life::Up(fresh.instance);
        self.feed.reset();
        self.output.woken = Some(Woken {
            generation: self.counters.generation,
            state: offered,
            restored: fresh.restored,
        });
        Ok(())
    }

    /// Books a fault and drops the instance: what it knows is not trusted any more.
    pub(crate) fn back_off(&mut self, now: Micros) {
        while let Some(first) = self.faults.front()
            && now.since(*first).0 >= self.patience.window_micros
        {
            self.faults.pop_front();
        }
        self.faults.push_back(now);
        let back_off = Micros(self.patience.back_off(self.faults.len()));
        self.drop_instance(now.after(back_off));
    }

    /// Lets a fresh instance take the place of this one, offered `state`.
    pub fn restart(&mut self, state: Option<Vec<u8>>, now: Micros) {
        self.snapshots.last = state;
        match &self.life {
            Life::Up(_) => self.drop_instance(now),
            Life::Down(_) | Life::Lent => self.remake(),
        }
    }

    /// Begins anew to make the next instance, where there is none: the state that it is offered has
    /// changed.
    pub(super) fn remake(&mut self) {
        if let Some(until) = self.down_until() {
            self.drop_instance(until);
        }
    }

    fn drop_instance(&mut self, until: Micros) {
        if let Life::Up(instance) = mem::replace(&mut self.life, Life::down(until)) {
            self.output.retired.push(instance);
        }
        self.begin_restart();
    }
}
