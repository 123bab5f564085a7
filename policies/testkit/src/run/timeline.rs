//! Facts in words, with the names of the scenario.

use pointsman_core::rows::SequenceState;
use pointsman_core::{
    Arrangement, Author, Clock, Decided, ExecutorId, ExpiredWhy, Fact, Hook, Outcome, PlacedIn,
    Refusal, RefusedWhy, RequestId, Stamped, Stay,
};
use pointsman_notation::Time;

use super::history;
use super::load::AUTHOR;
use super::state::ScenarioRun;
use crate::scenario::units::shown;

// === impl ScenarioRun: in words ===

impl ScenarioRun {
    /// A fact with its time and round.
    pub(super) fn line(&self, stamped: &Stamped) -> String {
        let (at, round) = (shown(stamped.now), stamped.round);
        format!("{at:>10} round {round:<3} {}", self.words(&stamped.fact))
    }

    fn words(&self, fact: &Fact) -> String {
        let name = |id: &RequestId| self.request_name(*id);
        let on = |id: &ExecutorId| self.executor_name(*id);
        let about = history::subject(fact).map_or("", |id| self.request_name(id));
        match fact {
            Fact::DeviceAttached(id) => format!("device {} is attached", self.device_name(*id)),
            Fact::ExecutorAttached(id, _) => format!("executor {} is attached", on(id)),
            Fact::HealthChanged(id, health) => format!("{} is {}", on(id), health.as_str()),
            Fact::Saturated(id) => format!("{} is saturated", on(id)),
            Fact::Relieved(id) => format!("{} is no longer saturated", on(id)),
            Fact::ExecutorLost(id) => format!("{} is lost", on(id)),
            Fact::ExecutorDetached(id) => format!("{} is detached", on(id)),
            Fact::Arrived { .. } => format!("{about} arrives"),
            Fact::Admitted(_, by) => format!("{about} is admitted{}", self.by(*by)),
            Fact::Parked(_, by) => format!("{about} is parked{}", self.by(*by)),
            Fact::Unparked(_) => format!("{about} comes into the queue"),
            Fact::TurnedAway(_, by) => format!("{about} is turned away{}", self.by(*by)),
            Fact::Held(_, None, by) => format!("{about} is held{}", self.by(*by)),
            Fact::Held(_, Some(at), by) => {
                format!("{about} is held until {}{}", shown(*at), self.by(*by))
            }
            Fact::Placed {
                executor, into, by, ..
            } => {
                let into = match into {
                    PlacedIn::Slot => "on",
                    PlacedIn::Queue => "in the queue of",
                };
                format!("{about} is placed {into} {}{}", on(executor), self.by(*by))
            }
            Fact::Started(_, executor) => format!("{about} starts on {}", on(executor)),
            Fact::Evicted {
                executor,
                needy,
                blocks,
                by,
                ..
            } => {
                let (from, needy, by) = (on(executor), name(needy), self.by(*by));
                format!("{about} must leave {from} for {needy}, which frees {blocks} blocks{by}")
            }
            Fact::Left(_, executor) => format!("{about} has left {}", on(executor)),
            Fact::Requeued(_, why) => format!("{about} waits again: {}", why.in_words()),
            Fact::Reserved(_, executor) => format!("{about} has room kept on {}", on(executor)),
            Fact::ReservationDropped(_, executor) => {
                format!("{about} has no room kept on {} any more", on(executor))
            }
            Fact::Short(_, cause) => format!("{about} is short of {}", cause.in_words()),
            Fact::Allotted {
                executor,
                tokens_max,
                author,
            } => {
                let (on, author) = (on(executor), self.author(*author));
                format!("{on} is allotted {tokens_max} tokens, by {author}")
            }
            Fact::Arranged {
                executor,
                arrangement,
                author,
            } => self.arranged(*executor, arrangement, *author),
            Fact::Refused(author, hook, refusal) => self.refusal(*author, *hook, refusal),
            Fact::Fault(_, fault) => fault.headline().to_owned(),
            Fact::Strike(clock, hook, _) => strike(about, *clock, *hook),
            Fact::StayEnded(stay) => self.stay(stay),
            Fact::Ended(_, outcome) => format!("{about} is {}", outcome_words(outcome)),
        }
    }

    fn stay(&self, stay: &Stay) -> String {
        let Stay {
            prompt_tokens,
            cached_tokens,
            output_tokens,
            ..
        } = stay;
        let (request, on) = (
            self.request_name(stay.request),
            self.executor_name(stay.executor),
        );
        format!(
            "{request} is off {on}: {prompt_tokens} tokens of its prompt, {cached_tokens} of them cached, \
             {output_tokens} generated"
        )
    }

    fn arranged(&self, on: ExecutorId, how: &Arrangement, author: Author) -> String {
        let first = how.first.iter().map(|id| self.request_name(*id));
        let first = first.collect::<Vec<&str>>().join(", ");
        let prompts = how.prefill_max.map_or(String::new(), |tokens| {
            format!(", {tokens} tokens of prompts a step")
        });
        let (on, author) = (self.executor_name(on), self.author(author));
        format!("{on} serves first [{first}]{prompts}, by {author}")
    }

    pub(super) fn refusal(&self, author: Author, hook: Hook, refusal: &Refusal) -> String {
        let request = refusal.request.map(|id| self.request_name(id).to_owned());
        let executor = refusal.executor.map(|id| match self.executor_name(id) {
            "?" => format!("executor {id}"),
            name => name.to_owned(),
        });
        let about: Vec<String> = [request, executor].into_iter().flatten().collect();
        let about = if about.is_empty() {
            String::new()
        } else {
            format!(" ({})", about.join(", "))
        };
        let (author, hook, cause) = (self.author(author), hook.as_str(), refusal.cause);
        format!("the interlock refuses {hook} of {author}: {cause}{about}")
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

    /// The text of a decision's reason; empty for the built-in rule and the scenario itself.
    pub(super) fn reason(&self, by: Decided) -> String {
        let Author::Policy(number) = by.author else {
            return String::new();
        };
        if self.author(by.author) == AUTHOR {
            return String::new();
        }
        let text = self.world.policies.inner.reason(number, by.reason);
        text.map_or_else(|| format!("reason {}", by.reason), ToOwned::to_owned)
    }

    fn by(&self, by: Decided) -> String {
        match (self.author(by.author), self.reason(by)) {
            (author, reason) if reason.is_empty() => format!(", by {author}"),
            (author, reason) => format!(", by {author}: {reason}"),
        }
    }

    /// The place of a request, or its outcome.
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
                Some(Some(at)) => format!("waiting, held until {}", shown(at)),
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

fn seconds(seconds: u32) -> Time {
    Time::from_secs(seconds.into())
}

pub(super) fn outcome_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished { output_tokens } => format!("finished with {output_tokens} tokens"),
        Outcome::Refused(RefusedWhy::NoRoom { retry_after }) => {
            format!("refused, retry after {}", seconds(*retry_after))
        }
        Outcome::Refused(RefusedWhy::Displaced { retry_after }) => {
            format!("displaced, retry after {}", seconds(*retry_after))
        }
        Outcome::Refused(RefusedWhy::Closed { retry_after }) => {
            let later = seconds(*retry_after);
            format!("refused, admission is closed, come back in {later}")
        }
        Outcome::Refused(RefusedWhy::Unserved { .. }) => "refused: nobody serves it".to_owned(),
        Outcome::Refused(RefusedWhy::GaveUp) => "given up".to_owned(),
        Outcome::Refused(RefusedWhy::NeverFits {
            blocks_needed,
            blocks_total,
        }) => format!("refused: it needs {blocks_needed} of {blocks_total} blocks"),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Expired(ExpiredWhy::Deadline) => "expired at its deadline".to_owned(),
        Outcome::Expired(ExpiredWhy::Wait) => "expired waiting".to_owned(),
        Outcome::Failed(why) => format!("failed: {}", why.in_words()),
    }
}

fn strike(about: &str, clock: Clock, hook: Hook) -> String {
    format!(
        "a strike against {}: {about} {}",
        hook.as_str(),
        suffering(clock)
    )
}

/// The suffering of a request for which a liveness clock ran out, as the end of a sentence.
pub(super) fn suffering(clock: Clock) -> &'static str {
    match clock {
        Clock::Unplaced => "could have had a place, and had none for `unplaced-max`",
        Clock::Overtaken => "could have gone on, and was overtaken `overtaken-max` times",
        Clock::Tokenless => "ran for `tokenless-steps-max` steps without a token",
        Clock::Stalled => "ran, and lacked a block for too long",
    }
}
