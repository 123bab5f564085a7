//! Requests for which sequences that run give their slot.

use pointsman_sdk::Urgency;
use pointsman_sdk::wire::types::{Request, RequestClass};

use super::Needy;
use super::victims::Asked;
use crate::settings::TakeSlots;

/// The sequences that may be asked for their slot; absent where the needy one waits for a free one.
pub(super) fn asked(takes: TakeSlots, needy: &Needy<'_>, now: u64) -> Option<Asked<'static>> {
    let less_urgent = Asked::LessUrgent(needy.urgency());
    let request = match needy {
        Needy::Waiting(request) => *request,
        Needy::Running(_) => return Some(less_urgent),
    };
    let is_critical = request.class == RequestClass::LatencyCritical;
    match takes {
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

/// Returns whether a request has waited for half of the time that its deadline left it.
fn is_in_danger(request: &Request, now: u64) -> bool {
    request.deadline.is_some_and(|deadline| {
        let waited = now.saturating_sub(request.arrived);
        waited >= deadline.saturating_sub(now)
    })
}

#[cfg(test)]
mod tests;
