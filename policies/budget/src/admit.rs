//! Who may wait: room is given in order of arrival, then the operator's choice of overflow decides.

use pointsman_sdk::wire::admission::{Choice, Verdict};
use pointsman_sdk::{Mirror, Urgency};

use crate::queue::Queue;
use crate::reason::Reason;
use crate::settings::{Overflow, Settings};

/// One verdict per arrival.
pub(crate) fn verdicts(
    mirror: &Mirror,
    queue: &Queue,
    settings: &Settings,
    arrivals: &[u64],
    room: u32,
) -> Vec<Verdict> {
    let mut room = room;
    let mut displaceable = queue.iter().peekable();
    let mut verdict = |&id: &u64| {
        if room > 0 {
            room -= 1;
            return given(Choice::Admit, Reason::Room);
        }
        let shed = Choice::Shed(settings.retry_after);
        let Some(request) = mirror.request(id) else {
            return given(shed, Reason::Unknown);
        };
        if !request.may_wait {
            return given(shed, Reason::Background);
        }
        match settings.overflow {
            Overflow::Block => given(Choice::Park, Reason::Parked),
            Overflow::DropNewest => given(shed, Reason::Full),
            // The iterator goes on through the batch: nobody is displaced twice.
            Overflow::DropOldest => {
                let urgency = Urgency::from(request);
                match displaceable.next_if(|standing| standing.urgency <= urgency) {
                    Some(standing) => given(Choice::Displace(standing.request), Reason::Displaced),
                    None => given(shed, Reason::LeastUrgent),
                }
            }
        }
    };
    arrivals.iter().map(&mut verdict).collect()
}

fn given(choice: Choice, reason: Reason) -> Verdict {
    Verdict {
        choice,
        reason: reason.index(),
    }
}
