//! The host's activity since its start and in the last hour, for the monitor: folded from the machine's
//! facts, as the metrics are, and told when an operator asks.
//!
//! # Bounds
//! The last hour is kept in a bucket for each minute, for the whole host and for each attached executor;
//! a minute keeps at most 256 waits and as many times to the first token. There is an entry for each executor that is attached and
//! each model that a request has asked for.

mod minutes;
#[cfg(test)]
mod tests;
mod times;

use std::collections::BTreeMap;

use pointsman_core::{ExecutorId, Fact, Micros, ModelId, Outcome, Stamped, Stay};

use crate::lives::Life;
use minutes::Minutes;
pub use times::TimeSummary;
use times::Times;

/// The host's activity.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    totals: Totals,
    hour: Minutes<Minute>,
    executors: BTreeMap<ExecutorId, OnExecutor>,
    models: BTreeMap<Option<ModelId>, ModelActivity>,
    /// Sequences that executors have taken up.
    running: u32,
}

/// A minute of the whole host.
#[derive(Clone, Debug, Default)]
struct Minute {
    numbers: MinuteNumbers,
    waits: Times,
    first_tokens: Times,
}

/// The activity on an attached executor.
#[derive(Debug)]
struct OnExecutor {
    attached: Micros,
    served: u64,
    sessions: SessionHits,
    running: u32,
    /// The time up to which the sequences that run are booked.
    booked: Micros,
    hour: Minutes<BusyMinute>,
}

/// A minute of an executor.
#[derive(Clone, Copy, Debug, Default)]
struct BusyMinute {
    /// The time that sequences ran, all together.
    busy_micros: u64,
    /// Requests that it served to their end.
    served: u64,
    /// The time that those ran there.
    served_micros: u64,
}

// === Reports ===

/// Numbers since the host's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub arrived: u64,
    pub finished: u64,
    pub refused: u64,
    pub cancelled: u64,
    pub expired: u64,
    pub failed: u64,
    /// Tokens of prompts, computed or cached.
    pub prompt_tokens: u64,
    /// The part of them that was cached.
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub sessions: SessionHits,
}

/// Requests whose session an executor had served: those that it served too, and the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionHits {
    pub hits: u64,
    pub misses: u64,
}

/// Numbers of a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinuteNumbers {
    pub arrived: u64,
    pub finished: u64,
    /// Requests that were refused, ran out of time or failed.
    pub unserved: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// The most requests in the queue at the end of a turn of the driver.
    pub queued_max: u64,
    /// The most sequences that ran at once.
    pub running_max: u64,
}

/// A minute that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinuteSample {
    /// The beginning of the minute, on the host's clock.
    pub from: Micros,
    pub numbers: MinuteNumbers,
    /// The waits for a place that ended in it; absent: none did.
    pub waits: Option<TimeSummary>,
    /// The times from arrivals to the first tokens that came in it; absent: none came.
    pub first_tokens: Option<TimeSummary>,
}

/// Times of the last [`RECENT_MINUTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentTimes {
    /// The waits for a place that ended; absent: none did.
    pub waits: Option<TimeSummary>,
    /// The times from arrivals to first tokens; absent: none came.
    pub first_tokens: Option<TimeSummary>,
}

/// Minutes of which [`RecentTimes`] tell: the one that has begun, and those before it.
pub const RECENT_MINUTES: u64 = 15;

/// The activity of the whole host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivityReport {
    pub totals: Totals,
    /// The waits for a place that ended in the last hour; absent: none did.
    pub waits: Option<TimeSummary>,
    pub recent: RecentTimes,
    /// The minutes of the last hour in which something happened, the oldest first.
    pub minutes: Vec<MinuteSample>,
}

/// The activity on an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorActivity {
    /// Requests that it served to their end.
    pub served: u64,
    /// The part of all served requests, in thousandths; absent: none was served.
    pub share_permille: Option<u64>,
    /// The part of the slots' time in the last hour in which sequences ran, in thousandths; absent: it has
    /// no slots, or has just come.
    pub utilisation_permille: Option<u64>,
    /// The mean time of a request there that it served in the last hour; absent: it served none.
    pub mean_micros: Option<u64>,
    /// Sessions that were expected there.
    pub sessions: SessionHits,
}

/// The activity for a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelActivity {
    /// Requests that asked for it.
    pub requests: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
}

// === impl Activity: folding ===

impl Activity {
    /// Folds in a fact. `life` is that of its request before it.
    pub(crate) fn fact(&mut self, stamped: &Stamped, life: Option<Life>) {
        let now = stamped.now;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "other facts change nothing that is told here"
        )]
        match &stamped.fact {
            Fact::Arrived { model, .. } => {
                self.totals.arrived += 1;
                self.models.entry(*model).or_default().requests += 1;
                self.hour.at(now).numbers.arrived += 1;
            }
            Fact::Placed { executor, .. } => {
                if let Some(life) = life {
                    self.placed(now, life, *executor);
                }
            }
            Fact::Started(_, executor) => self.started(now, *executor),
            Fact::StayEnded(stay) => self.stay_ended(now, stay),
            Fact::Ended(_, outcome) => self.ended(now, life, *outcome),
            Fact::ExecutorAttached(executor, _) => {
                self.executors.insert(*executor, OnExecutor::new(now));
            }
            Fact::ExecutorDetached(executor) => drop(self.executors.remove(executor)),
            _ => {}
        }
    }

    /// Notes the requests in the queue at the end of a turn.
    pub(crate) fn turned(&mut self, now: Micros, queued: usize) {
        let queued = u64::try_from(queued).unwrap_or(u64::MAX);
        let running = u64::from(self.running);
        if queued == 0 && running == 0 {
            return;
        }
        let numbers = &mut self.hour.at(now).numbers;
        numbers.queued_max = numbers.queued_max.max(queued);
        numbers.running_max = numbers.running_max.max(running);
    }

    /// Notes the first token of a request, so long after its arrival.
    pub(crate) fn first_token(&mut self, now: Micros, after: Micros) {
        self.hour.at(now).first_tokens.add(after.0);
    }

    fn placed(&mut self, now: Micros, life: Life, executor: ExecutorId) {
        let waited = now.since(life.waiting_since);
        self.hour.at(now).waits.add(waited.0);
        let Some(expected) = life.expected() else {
            return;
        };
        let hits = u64::from(expected == executor);
        let misses = 1 - hits;
        self.totals.sessions.add(SessionHits { hits, misses });
        if let Some(there) = self.executors.get_mut(&expected) {
            there.sessions.add(SessionHits { hits, misses });
        }
    }

    fn started(&mut self, now: Micros, executor: ExecutorId) {
        self.running += 1;
        if let Some(there) = self.executors.get_mut(&executor) {
            there.book(now);
            there.running += 1;
        }
    }

    fn stay_ended(&mut self, now: Micros, stay: &Stay) {
        let (prompt, output) = (u64::from(stay.prompt_tokens), u64::from(stay.output_tokens));
        self.totals.prompt_tokens += prompt;
        self.totals.cached_tokens += u64::from(stay.cached_tokens);
        self.totals.output_tokens += output;
        let model = self.models.entry(stay.model).or_default();
        model.prompt_tokens += prompt;
        model.output_tokens += output;
        let numbers = &mut self.hour.at(now).numbers;
        numbers.prompt_tokens += prompt;
        numbers.output_tokens += output;
        if stay.started.is_none() {
            return;
        }
        self.running = self.running.saturating_sub(1);
        if let Some(there) = self.executors.get_mut(&stay.executor) {
            there.book(now);
            there.running = there.running.saturating_sub(1);
        }
    }

    fn ended(&mut self, now: Micros, life: Option<Life>, outcome: Outcome) {
        let (totals, numbers) = (&mut self.totals, &mut self.hour.at(now).numbers);
        match outcome {
            Outcome::Finished { .. } => {
                totals.finished += 1;
                numbers.finished += 1;
            }
            Outcome::Cancelled => totals.cancelled += 1,
            Outcome::Refused(_) => totals.refused += 1,
            Outcome::Expired(_) => totals.expired += 1,
            Outcome::Failed(_) => totals.failed += 1,
        }
        let unserved = !matches!(outcome, Outcome::Finished { .. } | Outcome::Cancelled);
        numbers.unserved += u64::from(unserved);
        if let Outcome::Finished { .. } = outcome
            && let Some(stay) = life.and_then(|life| life.last_stay)
            && let Some(there) = self.executors.get_mut(&stay.executor)
        {
            there.served += 1;
            let minute = there.hour.at(now);
            minute.served += 1;
            minute.served_micros += stay.lasted.0;
        }
    }
}

// === impl Activity: reports ===

impl Activity {
    /// The activity of the whole host.
    pub(crate) fn report(&self, now: Micros) -> ActivityReport {
        let samples = self.hour.hour(now).map(|(minute, of)| MinuteSample {
            from: minutes::beginning(minute),
            numbers: of.numbers,
            waits: Times::summary([&of.waits].into_iter()),
            first_tokens: Times::summary([&of.first_tokens].into_iter()),
        });
        let recent = || {
            let newest = self.hour.newest(now, RECENT_MINUTES);
            newest.map(|(_, minute)| minute)
        };
        ActivityReport {
            totals: self.totals,
            waits: Times::summary(self.hour.hour(now).map(|(_, minute)| &minute.waits)),
            recent: RecentTimes {
                waits: Times::summary(recent().map(|minute| &minute.waits)),
                first_tokens: Times::summary(recent().map(|minute| &minute.first_tokens)),
            },
            minutes: samples.collect(),
        }
    }

    /// The activity on an executor with so many slots; absent: it is not attached.
    pub(crate) fn executor(
        &self,
        now: Micros,
        executor: ExecutorId,
        slots: u32,
    ) -> Option<ExecutorActivity> {
        let there = self.executors.get(&executor)?;
        let window = now.since(there.window_from(now)).0;
        let hour = || there.hour.hour(now).map(|(_, minute)| minute);
        // Of the time since the last booking at most the window counts.
        let unbooked = now.since(there.booked).0.min(window);
        let unbooked = unbooked.saturating_mul(there.running.into());
        let busy = hour().map(|minute| minute.busy_micros).sum::<u64>();
        let (served, micros) = hour().fold((0, 0), |(served, micros), minute| {
            (served + minute.served, micros + minute.served_micros)
        });
        Some(ExecutorActivity {
            served: there.served,
            share_permille: permille(there.served, self.totals.finished),
            utilisation_permille: permille(
                busy.saturating_add(unbooked),
                window.saturating_mul(slots.into()),
            ),
            mean_micros: u64::checked_div(micros, served),
            sessions: there.sessions,
        })
    }

    /// The activity for a model.
    pub(crate) fn model(&self, model: ModelId) -> ModelActivity {
        let known = self.models.get(&Some(model));
        known.copied().unwrap_or_default()
    }
}

/// A part of a whole in thousandths, at most 1000; absent: there is no whole.
fn permille(part: u64, whole: u64) -> Option<u64> {
    let permille = part.saturating_mul(1000).checked_div(whole)?;
    Some(permille.min(1000))
}

// === impl OnExecutor ===

impl OnExecutor {
    fn new(now: Micros) -> Self {
        Self {
            attached: now,
            served: 0,
            sessions: SessionHits::default(),
            running: 0,
            booked: now,
            hour: Minutes::default(),
        }
    }

    /// The beginning of the minutes that count, or the time when it came.
    fn window_from(&self, now: Micros) -> Micros {
        let first = (minutes::number(now) + 1).saturating_sub(minutes::MINUTES);
        self.attached.max(minutes::beginning(first))
    }

    /// Books the sequences that ran up to `now`, each minute's part to that minute.
    fn book(&mut self, now: Micros) {
        let mut from = self.booked.max(self.window_from(now));
        while self.running > 0 && from < now {
            let end = minutes::beginning(minutes::number(from) + 1).min(now);
            let ran = end.since(from).0.saturating_mul(self.running.into());
            self.hour.at(from).busy_micros += ran;
            from = end;
        }
        self.booked = now;
    }
}

// === impl SessionHits ===

impl SessionHits {
    fn add(&mut self, more: SessionHits) {
        self.hits += more.hits;
        self.misses += more.misses;
    }
}
