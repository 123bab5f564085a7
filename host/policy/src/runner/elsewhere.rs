//! A runner's instance lent to a shadow's thread, and rehearsals with copies of it.

use std::collections::VecDeque;

use pointsman_core::{Feed, Micros, Moment, Needs};

use super::life::{Life, Restarts};
use super::snapshots::Snapshots;
use super::{InstanceCounters, Output, Rows, Runner};
use crate::policy::Briefing;
use crate::rehearsal::Rehearsal;

impl Runner {
    /// Another runner of the same policy, which takes the instance along and has no state. This
    /// one cannot be asked before [`Self::take_back`].
    pub(crate) fn lend(&mut self) -> Runner {
        let (life, generation) = match std::mem::replace(&mut self.life, Life::Lent) {
            up @ Life::Up(_) => (up, 1),
            Life::Down(_) | Life::Lent => (Life::down(Micros(0)), 0),
        };
        Runner {
            source: self.source.clone(),
            description: self.description.clone(),
            hooks: self.hooks,
            explains: self.explains,
            feed: Feed::new(self.description.needs),
            snapshots: Snapshots::default(),
            counters: InstanceCounters {
                generation,
                ..InstanceCounters::default()
            },
            changes: Vec::new(),
            life,
            restarts: Restarts::AtTheQuestion,
            faults: VecDeque::new(),
            patience: self.patience,
            output: Output::default(),
        }
    }

    /// Ends the loan: a fresh instance is made, since the lent one may be in a call.
    pub(crate) fn take_back(&mut self, now: Micros) {
        if matches!(self.life, Life::Lent) {
            self.life = Life::down(now);
            self.begin_restart();
        }
    }

    /// The policy as it is, with all rows, for throw-away copies to be asked. `policy` is its number.
    pub(crate) fn rehearse(&self, policy: u32, rows: &dyn Rows, at: Moment) -> Rehearsal {
        let needs = Needs::every(self.description.needs.all());
        Rehearsal {
            policy,
            name: self.name().to_owned(),
            source: self.source.clone(),
            description: self.description.clone(),
            explains: self.explains,
            state: self.snapshots.last.clone(),
            at,
            told: Briefing::of_rows(rows, at.now, needs),
        }
    }
}
