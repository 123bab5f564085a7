//! Decides which placed sequences give way.

use std::cmp::Reverse;

use pointsman_sdk::wire::preemption::{Cause, Eviction, How, Shortage, Victim};
use pointsman_sdk::wire::types::{Sequence, SequenceState};
use pointsman_sdk::{Case, Feed, Fleet, Mirror, Moment, Preemption, Urgency};

use crate::{Decisions, reason};

impl Preemption for Decisions {
    const NEEDS: Feed = Feed::FIT.union(Feed::SEQUENCES);

    /// Takes a missing slot from the newest of the least urgent sequences. For want of anything
    /// else none gives way.
    fn evict(&mut self, mirror: &Mirror, at: Moment, shortage: &Shortage) -> Option<Eviction> {
        if shortage.cause != Cause::Slots {
            return None;
        }
        let needy = mirror.request(shortage.needy)?;
        let case = Case::new(Fleet::from(mirror), needy, at.now);
        let gives = |row: &&Sequence| {
            row.preemptible
                && row.state == SequenceState::Running
                && shortage.executor.is_none_or(|only| only == row.executor)
                && Urgency::from(*row) < Urgency::from(needy)
                && mirror
                    .executor(row.executor)
                    .is_some_and(|executor| case.check_lasting(&executor).is_ok())
        };
        let victim = mirror
            .sequences()
            .filter(gives)
            .min_by_key(|row| (Urgency::from(*row), Reverse(row.request)))?;
        Some(Eviction {
            executor: victim.executor,
            victims: vec![Victim {
                request: victim.request,
                how: How::Recompute,
            }],
            reason: reason::LESS_URGENT,
        })
    }
}
