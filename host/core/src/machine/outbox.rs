//! Everything that leaves the machine: facts, effects, changed rows, and the time of the next call.
//!
//! Every part of the machine that changes something is handed the [`Outbox`], and says there what
//! has become of it. Nothing is read back from it to decide anything but the time.

use std::collections::VecDeque;

use pointsman_events::changes::{ChangeLog, RowKey, Stamp};
use pointsman_events::rows::{Completion, Moment};
use pointsman_events::{Config, Effect, Fact, Micros, Outcome, RequestId, Round, Stamped};

use super::timers::Timers;

/// The outputs of the machine that nobody has fetched yet.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Outbox {
    /// The newest time that the machine was told, and its last round.
    pub(super) at: Moment,
    /// True if something changed that could change an answer: a round has something to decide.
    pub(super) due: bool,
    pub(super) fleet_news: FleetNews,
    pub(super) timers: Timers,
    pub(super) log: ChangeLog,
    pub(super) completions: Completions,
    pub(super) effects: VecDeque<Effect>,
    pub(super) facts: VecDeque<Stamped>,
}

/// The news of the fleet since servers were last looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum FleetNews {
    #[default]
    None,
    /// An executor has come, changed or gone, or a request that nobody serves came back.
    Some,
}

/// The newest completions, numbered.
#[derive(Clone, Debug)]
pub(super) struct Completions {
    pub(super) kept: VecDeque<Completion>,
    pub(super) kept_max: usize,
    pub(super) first: u64,
}

impl Outbox {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            at: Moment {
                now: Micros(0),
                round: Round(0),
            },
            due: false,
            fleet_news: FleetNews::None,
            timers: Timers::default(),
            log: ChangeLog::new(config.change_log_max),
            completions: Completions {
                kept: VecDeque::new(),
                kept_max: config.completions_max as usize,
                first: 0,
            },
            effects: VecDeque::new(),
            facts: VecDeque::new(),
        }
    }

    /// Has servers looked for in the next round.
    pub(super) fn fleet_changed(&mut self) {
        self.fleet_news = FleetNews::Some;
        self.due = true;
    }

    pub(crate) fn now(&self) -> Micros {
        self.at.now
    }

    /// Lets time pass; it never runs backwards.
    pub(super) fn pass(&mut self, now: Micros) {
        self.at.now = self.at.now.max(now);
    }

    pub(crate) fn fact(&mut self, fact: Fact) {
        let Moment { now, round } = self.at;
        self.facts.push_back(Stamped { now, round, fact });
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// Tells the client and the record of facts how a request ended.
    pub(crate) fn end(&mut self, request: RequestId, outcome: Outcome) {
        self.effect(Effect::Finish { request, outcome });
        self.fact(Fact::Ended(request, outcome));
    }

    /// Notes that the row behind `key` changed, and stamps it.
    pub(crate) fn mark(&mut self, key: RowKey, stamp: &mut Stamp) {
        self.log.mark(key, stamp);
    }

    /// Notes that the row behind `key` is gone.
    pub(crate) fn gone(&mut self, key: RowKey, stamp: &mut Stamp) {
        self.log.gone(key, stamp);
    }

    /// Notes a row that changes only this once.
    pub(crate) fn note(&mut self, key: RowKey) {
        self.log.note(key);
    }

    /// Keeps a completion for policies that learn.
    pub(crate) fn complete(&mut self, completion: Completion) {
        self.note(RowKey::Completion(self.completions.end()));
        let all = &mut self.completions;
        if all.kept.len() == all.kept_max {
            all.kept.pop_front();
            all.first += 1;
        }
        all.kept.push_back(completion);
    }
}

impl Completions {
    /// The number of the next completion.
    pub(super) fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    pub(super) fn get(&self, number: u64) -> Option<Completion> {
        let idx = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.kept.get(idx).copied()
    }
}
