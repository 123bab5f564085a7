//! Copies and loans of a runner: for a shadow's thread, for explanations and dry runs.

use std::collections::VecDeque;

use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{Feed, Micros, Moment, Question, routing};

use super::snapshots::Snapshots;
use super::{InstanceCounters, Life, Output, Rows, Runner, observe_all};
use crate::instance::{Candidate, Fault, Instance};

impl Runner {
    /// Another runner of the same policy, which takes the instance along and has no state. This
    /// one cannot be asked before [`Self::take_back`].
    pub(crate) fn lend(&mut self) -> Runner {
        let (life, generation) = match std::mem::replace(&mut self.life, Life::Lent) {
            up @ Life::Up(_) => (up, 1),
            Life::Down { .. } | Life::Lent => (Life::Down { until: Micros(0) }, 0),
        };
        Runner {
            source: self.source.clone(),
            name: self.name.clone(),
            description: self.description.clone(),
            hooks: self.hooks,
            explains: self.explains,
            feed: Feed::new(self.description.feed),
            snapshots: Snapshots::default(),
            counters: InstanceCounters {
                generation,
                ..InstanceCounters::default()
            },
            changes: Vec::new(),
            life,
            faults: VecDeque::new(),
            patience: self.patience,
            output: Output::default(),
        }
    }

    /// Ends the loan: a fresh instance is made, since the lent one may be in a call.
    pub(crate) fn take_back(&mut self, now: Micros) {
        if matches!(self.life, Life::Lent) {
            self.life = Life::Down { until: now };
        }
    }

    /// A copy of the instance, with its last state, that has been told everything.
    fn copy_told(&self, rows: &dyn Rows, now: Micros) -> Result<Box<dyn Instance>, Fault> {
        let mut copy = self.source.warm(self.snapshots.last.as_deref())?.instance;
        let mut changes = Vec::new();
        let extent = rows.changes(&mut Feed::new(self.description.feed), &mut changes);
        observe_all(copy.as_mut(), self.source.limits(), (now, extent), &changes)?;
        Ok(copy)
    }

    /// Asks a copy why `request` would go where it would go.
    pub(crate) fn explain(
        &self,
        rows: &dyn Rows,
        at: Moment,
        (request, cached): (&Request, &Cached),
    ) -> Result<Vec<Candidate>, Fault> {
        self.copy_told(rows, at.now)?.explain(at, request, cached)
    }

    /// Asks a copy where it would put `request`, which need not exist.
    pub(crate) fn dry_run(
        &self,
        rows: &dyn Rows,
        at: Moment,
        (request, cached): (&Request, &Cached),
    ) -> Result<routing::Verdict, Fault> {
        let mut copy = self.copy_told(rows, at.now)?;
        if self.description.feed.waiting {
            let arrived = [Change::Waiting(std::sync::Arc::new(request.clone()))];
            let told = (at.now, Extent::SinceLast);
            observe_all(copy.as_mut(), self.source.limits(), told, &arrived)?;
        }
        let question = Question::Routing(std::slice::from_ref(cached).into());
        let reply = copy.ask(at, &question)?;
        let verdicts = reply.routing().unwrap_or_default();
        // No verdict places nothing.
        Ok(verdicts.into_iter().next().unwrap_or(routing::Verdict {
            choice: routing::Choice::Hold(None),
            reason: 0,
        }))
    }
}
