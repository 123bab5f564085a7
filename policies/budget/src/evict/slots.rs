//! Slots that are taken from sequences that run, and what that may cost.
//!
//! A victim is computed again, so a slot taken costs tokens that would have been served. They are bounded by a
//! part of the tokens served within the last minute, whoever takes them.

use pointsman_sdk::Urgency;
use pointsman_sdk::wire::types::{Request, RequestClass};

use super::Needy;
use super::victims::Asked;
use crate::settings::TakeSlots;

/// The operator's terms for slots, as they stand at the time of a question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotTerms {
    pub(crate) takes: TakeSlots,
    /// Tokens that victims may have to compute again.
    pub(crate) tokens_left: u64,
}

impl SlotTerms {
    /// The sequences that may be asked for their slot; absent where the needy one waits for a free one.
    pub(super) fn asked(self, needy: &Needy<'_>, now: u64) -> Option<Asked<'static>> {
        let less_urgent = Asked::LessUrgent(needy.urgency());
        let request = match needy {
            Needy::Waiting(request) => *request,
            Needy::Running(_) => return Some(less_urgent),
        };
        let is_critical = request.class == RequestClass::LatencyCritical;
        match self.takes {
            TakeSlots::Never => None,
            TakeSlots::Urgent => Some(less_urgent),
            TakeSlots::Deadline | TakeSlots::Critical if is_in_danger(request, now) => {
                Some(less_urgent)
            }
            TakeSlots::Critical if is_critical => Some(Asked::LessUrgent(Urgency::new(
                RequestClass::LatencyCritical,
                i32::MIN,
            ))),
            TakeSlots::Deadline | TakeSlots::Critical => None,
        }
    }
}

/// Returns whether a request has waited for half of the time that its deadline left it.
fn is_in_danger(request: &Request, now: u64) -> bool {
    request.deadline.is_some_and(|deadline| {
        let waited = now.saturating_sub(request.arrived);
        waited >= deadline.saturating_sub(now)
    })
}

#[cfg(test)]
mod tests;
