//! Requests that nobody serves: every executor that could is down, is leaving, or was never there.
//!
//! Such a request is refused after `unserved-max`, at once where that is 0. Servers are looked for when
//! a request arrives, and for all that wait in the first round after an executor came or went: one that
//! dies and is back before that disturbs nobody.

use pointsman_events::{Outcome, RefusedWhy, RequestId};

use super::Machine;
use super::interlock::{Prospect, prospect};
use super::outbox::FleetNews;
use super::requests::Request;

impl Machine {
    /// Looks for a server of a request that has arrived. One that can never fit is refused.
    pub(super) fn look_for_first_server(&mut self, id: RequestId) {
        match prospect(&self.ledger, &self.requests[id]) {
            Prospect::Served => {}
            Prospect::Unserved => self.note_prospect(id, Prospect::Unserved),
            Prospect::NeverFits(why) => self.end(id, Outcome::Refused(why)),
        }
    }

    /// Has a server looked for, in the next round, for a request that has come back and that nobody
    /// serves at this time.
    pub(super) fn look_for_next_server(&mut self, id: RequestId) {
        if prospect(&self.ledger, &self.requests[id]) != Prospect::Served {
            self.out.fleet_changed();
        }
    }

    /// Looks for servers of all requests that wait, if the fleet has changed since it last did.
    pub(super) fn look_for_servers(&mut self) {
        if std::mem::take(&mut self.out.fleet_news) == FleetNews::None {
            return;
        }
        let waiting = self.requests.iter().filter(|r| r.waiting().is_some());
        for id in waiting.map(Request::id).collect::<Vec<_>>() {
            let prospect = prospect(&self.ledger, &self.requests[id]);
            self.note_prospect(id, prospect);
        }
    }

    /// Starts or stops the clock of a request that nobody may serve. One whose time is over is refused.
    fn note_prospect(&mut self, id: RequestId, prospect: Prospect) {
        let now = self.out.now();
        let Some(waiting) = self.requests.waiting_mut(id) else {
            return;
        };
        waiting.unserved_since = match prospect {
            Prospect::Served => None,
            // What fitted once may come back.
            Prospect::Unserved | Prospect::NeverFits(_) => waiting.unserved_since.or(Some(now)),
        };
        self.arm_request(id);
        self.expire(id);
    }

    /// The refusal of a request that nobody has served for `unserved-max`.
    pub(super) fn unserved(&self, request: &Request) -> Option<RefusedWhy> {
        let since = request.waiting()?.unserved_since?;
        let retry_after = self.config.retry_after_secs;
        let is_over = self.out.now().since(since) >= self.config.unserved_max;
        is_over.then_some(RefusedWhy::Unserved { retry_after })
    }
}
