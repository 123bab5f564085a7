//! The search for the fewest events that break a property.
//!
//! The events of a run are drawn one after the other, so a run of fewer events is the beginning of
//! a longer one. A longer beginning need not break the property if a shorter one does, so the
//! search finds a number of events that breaks it while one less does not.
//!
//! # Invariants
//! 1. The reported seed and number of events break the property again
//!    (`what_is_said_of_a_seed_happens_again_with_it`).

use pointsman_policy::StartError;

use super::{Outcome, Plan, Property, Subject, run_once};
use crate::report::Problem;

/// Finds the fewest events with a problem of the same kind. `problem` is the one of the whole run.
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
