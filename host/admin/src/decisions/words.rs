//! Decisions told for people: a step, a question with its answer, and an end.

use super::answer::GivenAnswer;
use super::shape::{Asked, Decider, StepEvent};
use crate::words::author;

/// A step of a request's way, in a few words.
pub(super) fn step(event: &StepEvent) -> String {
    match event {
        StepEvent::Asked(asked) => question(asked),
        StepEvent::Admitted(decider) => format!("admitted {}", by(decider)),
        StepEvent::Parked(decider) => format!("parked outside the queue {}", by(decider)),
        StepEvent::Unparked => "came into the queue".to_owned(),
        StepEvent::TurnedAway(decider) => format!("turned away {}", by(decider)),
        StepEvent::Held { decider, .. } => format!("left waiting {}", by(decider)),
        StepEvent::Placed {
            decider,
            into,
            executor,
        } => format!("placed on {executor} ({into}) {}", by(decider)),
        StepEvent::Refused { hook, why, by, .. } => {
            format!("the interlock refused the {hook} answer of {by}: {why}")
        }
        StepEvent::Struck { hook } => {
            format!("a liveness bound ran out, the built-in rule stepped in ({hook})")
        }
        StepEvent::Started { executor } => format!("started on {executor}"),
        StepEvent::Evicted {
            decider,
            for_request,
            executor,
            ..
        } => format!(
            "evicted from {executor} for request {for_request} {}",
            by(decider)
        ),
        StepEvent::Requeued { why } => format!("waits again: {why}"),
        StepEvent::Ended { outcome } => outcome.told.clone(),
    }
}

/// The end of a request, in a few words.
pub(super) fn end(how: &str, why: Option<&str>, output_tokens: Option<u32>) -> String {
    match (why, output_tokens) {
        (Some(why), _) => format!("{how}: {why}"),
        (None, Some(1)) => format!("{how}, 1 token"),
        (None, Some(tokens)) => format!("{how}, {tokens} tokens"),
        (None, None) => how.to_owned(),
    }
}

fn by(decider: &Decider) -> String {
    format!("by {}", author(&decider.by, &decider.reason))
}

/// A question with its answer.
fn question(asked: &Asked) -> String {
    let answer = asked.answer.as_ref().map(GivenAnswer::words);
    let answer = answer.unwrap_or_else(|| "no answer that could be used".to_owned());
    let faults = match asked.faults.len() {
        0 => String::new(),
        faults => format!(", after {faults} that failed"),
    };
    format!("{}: {} says {answer}{faults}", asked.hook, asked.decider.by)
}
