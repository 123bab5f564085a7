//! The values of labels: a word for each variant of an enum, so that there are few.

use pointsman_core::{
    EvictHow, ExpiredWhy, FailedWhy, Outcome, PlacedIn, RefusedWhy, RequeuedWhy, ShortageCause,
};

/// The end of a request, as labels.
pub(crate) struct Ending {
    pub(crate) outcome: &'static str,
    pub(crate) why: &'static str,
}

pub(crate) fn ending(outcome: Outcome) -> Ending {
    let (outcome, why) = match outcome {
        Outcome::Finished { .. } => ("finished", ""),
        Outcome::Cancelled => ("cancelled", ""),
        Outcome::Refused(RefusedWhy::NoRoom { .. }) => ("refused", "no-room"),
        Outcome::Refused(RefusedWhy::Displaced { .. }) => ("refused", "displaced"),
        Outcome::Refused(RefusedWhy::Closed { .. }) => ("refused", "closed"),
        Outcome::Refused(RefusedWhy::GaveUp) => ("refused", "gave-up"),
        Outcome::Refused(RefusedWhy::NeverFits { .. }) => ("refused", "never-fits"),
        Outcome::Refused(RefusedWhy::Unserved { .. }) => ("refused", "unserved"),
        Outcome::Expired(ExpiredWhy::Deadline) => ("expired", "deadline"),
        Outcome::Expired(ExpiredWhy::Wait) => ("expired", "wait"),
        Outcome::Failed(FailedWhy::NotRetryable) => ("failed", "not-retryable"),
        Outcome::Failed(FailedWhy::AttemptsMax) => ("failed", "attempts-max"),
        Outcome::Failed(FailedWhy::NowhereLeft) => ("failed", "nowhere-left"),
    };
    Ending { outcome, why }
}

pub(super) fn place(into: PlacedIn) -> &'static str {
    match into {
        PlacedIn::Slot => "slot",
        PlacedIn::Queue => "queue",
    }
}

pub(super) fn manner(how: EvictHow) -> &'static str {
    match how {
        EvictHow::Recompute => "recompute",
        EvictHow::Swap => "swap",
    }
}

pub(super) fn return_cause(why: RequeuedWhy) -> &'static str {
    match why {
        RequeuedWhy::Evicted => "evicted",
        RequeuedWhy::Failed => "failed",
        RequeuedWhy::Lost => "lost",
        RequeuedWhy::TurnedBack => "turned-back",
    }
}

pub(super) fn shortage(cause: ShortageCause) -> &'static str {
    match cause {
        ShortageCause::Slots => "slots",
        ShortageCause::Blocks => "blocks",
        ShortageCause::Models => "models",
    }
}
