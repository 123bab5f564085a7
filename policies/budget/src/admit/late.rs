//! Arrivals that would wait longer than they may, at the pace at which their line moves.
//!
//! An arrival is taken to go before whatever is less urgent, and to have its turns among tenants by
//! their weights: for each request of its own tenant that is before it, and for itself, each other tenant has its weight's part. A
//! tenant beyond its share of the last minute has no turn before one that is within its own. That is
//! about what the default order gives it. A pace is an estimate, and so is what follows.

use pointsman_sdk::Urgency;
use pointsman_sdk::tenants::Contest;
use pointsman_sdk::wire::types::{Request, RequestClass, Stage};

use super::{Books, CHECKS_OF_SHARE, Door};
use crate::line::Line;
use crate::reason::Reason;
use crate::settings::micros;

/// Seconds that a refused client is told to wait at most.
const RETRY_AFTER_MAX: u64 = 3600;

impl Door<'_> {
    /// Seconds after which an arrival would come in time, and the reason why it does not now; absent where it does, or where
    /// the pace of its line is not known.
    pub(super) fn late_secs(&mut self, request: &Request) -> Option<(u32, Reason)> {
        // Who has waited outside the queue is not behind those that came later.
        if request.stage != Stage::Arrived {
            return None;
        }
        let lines = &self.books.queue.lines;
        let before = [lines.unpinned(request), lines.get(request)];
        let late = before.map(|line| self.late_behind(line?, request));
        late.into_iter().flatten().max_by_key(|(secs, _)| *secs)
    }

    /// The same where those of one line alone are before it.
    fn late_behind(&mut self, line: &Line, request: &Request) -> Option<(u32, Reason)> {
        let now = self.books.now;
        let everybody = line.ahead(Urgency::from(request));
        let longest = line.pace.time_for(everybody, now)?;
        let (patience, reason) = self.patience(line, request);
        let tolerated = u128::from(patience) * u128::from(1000 + self.settings.late_tolerance);
        let is_late = |wait: u64| u128::from(wait) * 1000 > tolerated;
        if !is_late(longest) {
            return None;
        }
        let in_turns = self.ahead_in_turns(line, request)?;
        let wait = line.pace.time_for(in_turns, now)?;
        let secs = wait.saturating_sub(patience).div_ceil(1_000_000);
        let secs = u32::try_from(secs.min(RETRY_AFTER_MAX)).unwrap_or(u32::MAX);
        is_late(wait).then_some((secs, reason))
    }

    /// The time that an arrival may wait for a place, in microseconds, and the reason to refuse it if it would wait longer.
    fn patience(&self, line: &Line, request: &Request) -> (u64, Reason) {
        let patience = self.patience_in_calm(request);
        let surge_wait_max = micros(self.settings.surge_wait_max);
        if is_hurried(request) && surge_wait_max < patience && line.surge.lasts() {
            (surge_wait_max, Reason::Surge)
        } else {
            (patience, Reason::Late)
        }
    }

    /// The same where there is no surge.
    fn patience_in_calm(&self, request: &Request) -> u64 {
        let bounds = self.books.mirror.bounds();
        let hurried = is_hurried(request).then(|| micros(self.settings.wait_max));
        let share_wait_max = self.share_wait_max(request.tenant);
        let own = [hurried, share_wait_max].into_iter().flatten();
        let bound = own.fold(bounds.wait_max, u64::min);
        let until = request.arrived.saturating_add(bound);
        let until = request
            .deadline
            .map_or(until, |deadline| deadline.min(until));
        until.saturating_sub(self.books.now)
    }

    /// The time that a request of a tenant beyond its share may wait. Routing may hold it to keep places free for
    /// others, and the host lets it for `held-max`: half of that, since a pace is an estimate.
    fn share_wait_max(&self, tenant: u32) -> Option<u64> {
        let wait_max = self.settings.share_wait_max.map(micros);
        let wait_max = wait_max.unwrap_or(self.books.mirror.bounds().held_max / 2);
        self.is_beyond_of_minute(tenant).then_some(wait_max)
    }

    /// The use to share out among the tenants of the last minute.
    fn contest_of_minute(&self) -> Contest {
        let Books {
            mirror,
            tenants,
            now,
            ..
        } = self.books;
        let contest = || tenants.contest_of_minute(mirror.tenants(), now);
        *self.contest_of_minute.get_or_init(contest)
    }

    /// Returns whether a tenant is beyond its share of the last minute, and what is tolerated.
    fn is_beyond_of_minute(&self, tenant: u32) -> bool {
        let Books {
            mirror, tenants, ..
        } = self.books;
        let contest = self.contest_of_minute();
        let permille = 1000 + self.settings.share_tolerance;
        let row = mirror.tenant(tenant);
        row.is_some_and(|row| tenants.beyond_share(row, contest, permille).is_some())
    }

    /// The same of a tenant of a line, found once for a question; absent past the bound on what one question looks at.
    fn yields(&mut self, tenant: u32) -> Option<bool> {
        if self.contest_of_minute().is_idle() {
            return Some(false);
        }
        if let Some(known) = self.beyond_of_minute.get(&tenant) {
            return Some(*known);
        }
        self.checks_left = self.checks_left.checked_sub(CHECKS_OF_SHARE)?;
        let is_beyond = self.is_beyond_of_minute(tenant);
        self.beyond_of_minute.insert(tenant, is_beyond);
        Some(is_beyond)
    }

    /// Requests of a line that go before this one where tenants take turns by weight, those beyond their share after the
    /// others; absent past the bound on what one question looks at.
    fn ahead_in_turns(&mut self, line: &Line, request: &Request) -> Option<usize> {
        let urgency = Urgency::from(request);
        let books = self.books;
        let weight = |tenant: u32| {
            let row = books.mirror.tenant(tenant);
            row.map_or(1, |row| u128::from(row.weight.max(1)))
        };
        let own_weight = weight(request.tenant);
        let own = line.ahead_of(request.tenant, urgency);
        let is_within = !self.is_beyond_of_minute(request.tenant);
        let mut ahead = own;
        for (tenant, waiting) in line.ahead_by_tenant(urgency) {
            self.checks_left = self.checks_left.checked_sub(1)?;
            if tenant != request.tenant && !(is_within && self.yields(tenant)?) {
                let turns = (own as u128 + 1) * weight(tenant);
                let turns = usize::try_from(turns.div_ceil(own_weight)).unwrap_or(usize::MAX);
                ahead += waiting.min(turns);
            }
        }
        Some(ahead)
    }
}

/// Returns whether a person waits for a request, and nobody has said until when.
fn is_hurried(request: &Request) -> bool {
    request.class == RequestClass::LatencyCritical && request.deadline.is_none()
}

#[cfg(test)]
mod tests;
