//! Decides which placed sequences give way.

use std::cmp::Reverse;

use pointsman_sdk::wire::preemption::{Eviction, How, Shortage, Victim};
use pointsman_sdk::wire::types::{Sequence, SequenceState};
use pointsman_sdk::{Feed, Lack, Mirror, Moment, Preemption, Urgency};

use crate::{Decisions, reason};

impl Preemption for Decisions {
    const NEEDS: Feed = Feed::FIT.union(Feed::SEQUENCES);

    /// The newest of the least urgent sequences give way, and no more of them than it takes: on the
    /// first executor where they leave what is lacking.
    fn evict(&mut self, mirror: &Mirror, at: Moment, shortage: &Shortage) -> Option<Eviction> {
        let needy = Urgency::of(mirror, shortage.needy)?;
        let gives = |row: &&Sequence| {
            row.preemptible && row.state == SequenceState::Running && Urgency::from(*row) < needy
        };
        let lacks = Lack::all(mirror, at.now, shortage);
        let (executor, victims) = lacks.into_iter().find_map(|lack| {
            let mut candidates: Vec<_> = lack.candidates(mirror).filter(gives).collect();
            candidates.sort_unstable_by_key(|row| (Urgency::from(*row), Reverse(row.request)));
            Some((lack.executor.id(), lack.fewest(candidates)?))
        })?;
        let victim = |row: &Sequence| Victim {
            request: row.request,
            how: How::Recompute,
        };
        Some(Eviction {
            executor,
            victims: victims.into_iter().map(victim).collect(),
            reason: reason::LESS_URGENT,
        })
    }
}
