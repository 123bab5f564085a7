//! What happened, in the names of the scenario.

use pointsman_core::rows::SequenceState;
use pointsman_core::{
    Author, Decided, ExpiredWhy, Fact, Hook, Outcome, PlacedIn, PolicyFault, Refusal, RefusedWhy,
    RequestId, Stamped,
};

use super::history;
use super::stage::Stage;
use crate::scenario::units::Seconds;

// === impl Stage: in words ===

impl Stage {
    /// A fact with its time and round.
    pub(super) fn line(&self, stamped: &Stamped) -> String {
        let (at, round) = (Seconds(stamped.now), stamped.round);
        format!("{at:>10} round {round:<3} {}", self.words(&stamped.fact))
    }

    fn words(&self, fact: &Fact) -> String {
        let request = |id: &RequestId| self.request_name(*id);
        let executor = |id| self.executor_name(id);
        match fact {
            Fact::DeviceAttached(id) => format!("device {} is attached", self.device_name(*id)),
            Fact::ExecutorAttached(id, device) => {
                let device = self.device_name(*device);
                format!("executor {} is attached to {device}", executor(*id))
            }
            Fact::HealthChanged(id, health) => format!("{} is {health:?}", executor(*id)),
            Fact::ExecutorLost(id) => format!("{} is lost", executor(*id)),
            Fact::ExecutorDetached(id) => format!("{} is detached", executor(*id)),
            Fact::Arrived { request: id, .. } => format!("{} arrives", request(id)),
            Fact::Admitted(id, by) => format!("{} is admitted{}", request(id), self.by(*by)),
            Fact::Parked(id, by) => format!("{} is parked{}", request(id), self.by(*by)),
            Fact::TurnedAway(id, by) => format!("{} is turned away{}", request(id), self.by(*by)),
            Fact::Held(id, until, by) => {
                let until = until.map(|at| format!(" until {}", Seconds(at)));
                let (until, by) = (until.unwrap_or_default(), self.by(*by));
                format!("{} is held{until}{by}", request(id))
            }
            Fact::Placed {
                request: id,
                executor: on,
                into,
                by,
            } => {
                let into = match into {
                    PlacedIn::Slot => "on",
                    PlacedIn::Queue => "in the queue of",
                };
                let (on, by) = (executor(*on), self.by(*by));
                format!("{} is placed {into} {on}{by}", request(id))
            }
            Fact::Started(id, on) => format!("{} starts on {}", request(id), executor(*on)),
            Fact::Evicted {
                victim,
                executor: from,
                needy,
                by,
                ..
            } => {
                let (from, by) = (executor(*from), self.by(*by));
                format!("{} must leave {from} for {}{by}", request(victim), request(needy))
            }
            Fact::Left(id, from) => format!("{} has left {}", request(id), executor(*from)),
            Fact::Requeued(id, why) => format!("{} waits again: {why:?}", request(id)),
            Fact::Reserved(id, on) => {
                format!("room on {} is kept for {}", executor(*on), request(id))
            }
            Fact::ReservationDropped(id, on) => {
                format!("room on {} is no longer kept for {}", executor(*on), request(id))
            }
            Fact::Short(id, cause) => format!("{} is short of {cause:?}", request(id)),
            Fact::Allotted {
                executor: id,
                tokens_max,
                author,
            } => {
                let author = self.author(*author);
                format!("{} is allotted {tokens_max} tokens, by {author}", executor(*id))
            }
            Fact::Refused(author, hook, refusal) => self.refusal(*author, *hook, refusal),
            Fact::Fault(hook, fault) => self.fault(*hook, fault),
            Fact::Strike(clock, hook, id) => {
                format!("a strike against {}: {} was {clock:?}", hook.as_str(), request(id))
            }
            Fact::Ended(id, outcome) => format!("{} is {}", request(id), outcome_words(outcome)),
        }
    }

    fn refusal(&self, author: Author, hook: Hook, refusal: &Refusal) -> String {
        let request = refusal.request.map(|id| self.request_name(id));
        let executor = refusal.executor.map(|id| self.executor_name(id));
        let about: Vec<&str> = [request, executor].into_iter().flatten().collect();
        let about = if about.is_empty() {
            String::new()
        } else {
            format!(" ({})", about.join(", "))
        };
        let (author, hook, cause) = (self.author(author), hook.as_str(), refusal.cause);
        format!("the interlock refuses {hook} of {author}: {cause}{about}")
    }

    fn fault(&self, hook: Hook, fault: &PolicyFault) -> String {
        let (author, hook) = (self.author(Author::Policy(fault.policy)), hook.as_str());
        format!("{author} fails at {hook}: {:?}: {}", fault.kind, fault.detail)
    }

    pub(super) fn author(&self, author: Author) -> &str {
        match author {
            Author::BuiltIn => "built-in",
            Author::Policy(number) => {
                let name = self.policies.get(number as usize);
                name.map_or("?", String::as_str)
            }
        }
    }

    /// The text behind a decision's reason; empty for the built-in rule.
    pub(super) fn reason(&self, by: Decided) -> String {
        let Author::Policy(number) = by.author else {
            return String::new();
        };
        let text = self.world.policies.host.reason(number, by.reason);
        text.map_or_else(|| format!("reason {}", by.reason), ToOwned::to_owned)
    }

    fn by(&self, by: Decided) -> String {
        match (self.author(by.author), self.reason(by)) {
            (author, reason) if reason.is_empty() => format!(", by {author}"),
            (author, reason) => format!(", by {author}: {reason}"),
        }
    }

    /// Where a request is, or how it ended.
    pub(super) fn whereabouts(&self, id: RequestId) -> String {
        if let Some(outcome) = self.world.outcome(id) {
            return outcome_words(&outcome);
        }
        let queue = self.world.machine.queue_snapshot();
        if let Some((_, on)) = queue.reserved.iter().find(|(other, _)| *other == id) {
            return format!("waiting for room on {}", self.executor_name(*on));
        }
        if queue.parked.contains(&id) {
            return "parked".to_owned();
        }
        if queue.queued.contains(&id) {
            return match history::held(self.world.facts(), id) {
                None => "waiting".to_owned(),
                Some(None) => "waiting, held".to_owned(),
                Some(Some(at)) => format!("waiting, held until {}", Seconds(at)),
            };
        }
        let found = self.executors.values().find_map(|executor| {
            let snapshot = self.world.machine.executor_snapshot(*executor)?;
            let here = snapshot.sequences.iter().find(|(other, _)| *other == id)?;
            Some((*executor, here.1))
        });
        match found {
            Some((on, state)) => {
                let state = match state {
                    SequenceState::Queued => "in the queue of",
                    SequenceState::Running => "running on",
                    SequenceState::Leaving => "leaving",
                };
                format!("{state} {}", self.executor_name(on))
            }
            None => "nowhere".to_owned(),
        }
    }
}

pub(super) fn outcome_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished { output_tokens } => format!("finished with {output_tokens} tokens"),
        Outcome::Refused(RefusedWhy::NoRoom { retry_after }) => {
            format!("refused, retry after {retry_after} seconds")
        }
        Outcome::Refused(RefusedWhy::Displaced { retry_after }) => {
            format!("displaced, retry after {retry_after} seconds")
        }
        Outcome::Refused(RefusedWhy::GaveUp) => "given up".to_owned(),
        Outcome::Refused(RefusedWhy::NeverFits {
            blocks_needed,
            blocks_total,
        }) => format!("refused: it needs {blocks_needed} of {blocks_total} blocks"),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Expired(ExpiredWhy::Deadline) => "expired at its deadline".to_owned(),
        Outcome::Expired(ExpiredWhy::Wait) => "expired waiting".to_owned(),
        Outcome::Failed(why) => format!("failed: {why:?}"),
    }
}
