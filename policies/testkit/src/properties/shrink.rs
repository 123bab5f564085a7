//! The fewest events after which a property is still broken.
//!
//! The events of a run are drawn one after the other, so that a run of fewer events is the
//! beginning of a longer one. Whether a beginning breaks the property need not go with its length;
//! what bisection ends at breaks it, and one event less does not.
//!
//! # Invariants
//! 1. What is said of a seed and a number of events happens again with these
//!    (`what_is_said_of_a_seed_happens_again_with_it`).

use pointsman_policy::StartError;

use super::{Outcome, Plan, Property, Subject, run_once};
use crate::report::Problem;

/// The same problem, or one of its kind, after the fewest events. `problem` is that of the whole
/// run.
pub(super) fn least(
    (subject, plan, seed): (&Subject, &Plan, u64),
    property: Property,
    mut problem: Problem,
) -> Result<Problem, StartError> {
    let (mut too_few, mut enough) = (0, plan.events);
    while too_few + 1 < enough {
        let events = too_few.midpoint(enough);
        let shorter = Plan {
            events,
            ..plan.clone()
        };
        let found = match run_once(subject, &shorter, seed)? {
            Outcome::Ran(mut ran) => ran.broken.remove(&property),
            Outcome::HostBroke(_) => None,
        };
        match found {
            Some(found) => {
                problem = found;
                enough = events;
            }
            None => too_few = events,
        }
    }
    Ok(problem)
}
