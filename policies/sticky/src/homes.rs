//! Whose a session is: each executor's claim to it, side by side.
//!
//! A claim is a hash of the session and the executor's name, so that every executor has to be
//! looked at. It is looked at in a few words, and asked whether it may take the request only where
//! its claim is the greatest so far.

use pointsman_sdk::rendezvous::{node, weight};
use pointsman_sdk::wire::types::{Change, Health, NameKind};
use pointsman_sdk::{Mirror, Need, Seat, Sheet, Tentative, fit, open_tokens};

/// The executors that are up, and those that are degraded, which only count if no other does.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    up: Sheet<Row>,
    degraded: Sheet<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    /// What its name is hashed to.
    node: u64,
    group: u32,
    /// Tokens that it may have room for.
    room: u64,
}

/// Whom a session's request may go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claimants {
    /// The executor with the greatest claim of those that may take it once they have room.
    pub(crate) home: Option<u32>,
    /// The one with the greatest claim of those that have room.
    pub(crate) next: Option<(u32, Seat)>,
}

/// The claim of an executor to a session, the greatest of which has it. Names outlast a restart,
/// ids do not.
pub(crate) fn claim(mirror: &Mirror, session: u64, executor: u32) -> u64 {
    weight(session, node_of(mirror, executor))
}

fn node_of(mirror: &Mirror, executor: u32) -> u64 {
    let name = mirror.name(NameKind::Executor, executor);
    node(name.unwrap_or_default())
}

// === impl Homes ===

impl Homes {
    fn sheets(&mut self) -> [&mut Sheet<Row>; 2] {
        [&mut self.up, &mut self.degraded]
    }

    pub(crate) fn clear(&mut self) {
        for sheet in self.sheets() {
            sheet.clear();
        }
    }

    pub(crate) fn changed(&mut self, mirror: &Mirror, change: &Change) {
        for sheet in self.sheets() {
            sheet.changed(mirror, change);
        }
    }

    pub(crate) fn placed(&mut self, executor: u32) {
        for sheet in self.sheets() {
            sheet.placed(executor);
        }
    }

    pub(crate) fn observed(&mut self) {
        for sheet in self.sheets() {
            sheet.observed();
        }
    }

    pub(crate) fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        let sheets = [
            (&mut self.up, Health::Up),
            (&mut self.degraded, Health::Degraded),
        ];
        for (sheet, health) in sheets {
            sheet.refresh(mirror, |executor| {
                (executor.load.health == health).then(|| Row {
                    node: node_of(mirror, executor.id()),
                    group: executor.info.group,
                    room: open_tokens(mirror, placed, executor),
                })
            });
        }
    }

    /// Whether the group has an executor which may take the request once there is room.
    pub(crate) fn has_group(&self, mirror: &Mirror, need: &Need<'_>, group: u32) -> bool {
        let mut has = false;
        for sheet in [&self.up, &self.degraded] {
            sheet.each(need.request, |id, row| {
                has = has || row.group == group && may_take(mirror, need, id);
            });
        }
        has
    }

    /// Of the group, if one is given.
    pub(crate) fn claimants(
        &self,
        mirror: &Mirror,
        needed: (&Need<'_>, &Tentative),
        session: u64,
        group: Option<u32>,
    ) -> Claimants {
        let up = claimants(&self.up, mirror, needed, (session, group));
        if up.next.is_some() {
            return up;
        }
        let degraded = claimants(&self.degraded, mirror, needed, (session, group));
        Claimants {
            home: up.home.or(degraded.home),
            next: up.next.or(degraded.next),
        }
    }
}

fn claimants(
    sheet: &Sheet<Row>,
    mirror: &Mirror,
    (need, placed): (&Need<'_>, &Tentative),
    (session, group): (u64, Option<u32>),
) -> Claimants {
    let mut search = Search {
        mirror,
        placed,
        need,
        group,
        tokens: need.tokens(),
        claim_min: 0,
        claim_min_open: 0,
        found: Claimants::default(),
    };
    // Most executors are turned away by their claim, with or without room.
    sheet.each(need.request, |id, row| {
        let claim = weight(session, row.node);
        if claim >= search.claim_min_for(row) {
            search.look(id, row, claim);
        }
    });
    search.found
}

/// The greatest claims so far.
struct Search<'a> {
    mirror: &'a Mirror,
    placed: &'a Tentative,
    need: &'a Need<'a>,
    group: Option<u32>,
    tokens: u64,
    /// From this one on a claim is greater than that of `found.home`.
    claim_min: u64,
    /// The same of `found.next`, which is never greater.
    claim_min_open: u64,
    found: Claimants,
}

// === impl Search ===

impl Search<'_> {
    #[inline]
    fn claim_min_for(&self, row: &Row) -> u64 {
        if row.room >= self.tokens {
            self.claim_min_open
        } else {
            self.claim_min
        }
    }

    #[inline(never)]
    fn look(&mut self, id: u32, row: &Row, claim: u64) {
        if self.group.is_some_and(|group| group != row.group) {
            return;
        }
        let Some(executor) = self.mirror.executor(id) else {
            return;
        };
        if claim >= self.claim_min && self.need.check_lasting(&executor).is_ok() {
            self.claim_min = claim.saturating_add(1);
            self.found.home = Some(id);
        }
        if row.room >= self.tokens
            && let Ok(seat) = fit(self.mirror, self.placed, self.need, &executor)
        {
            self.claim_min_open = claim.saturating_add(1);
            self.found.next = Some((id, seat));
        }
    }
}

fn may_take(mirror: &Mirror, need: &Need<'_>, id: u32) -> bool {
    let executor = mirror.executor(id);
    executor.is_some_and(|executor| need.check_lasting(&executor).is_ok())
}
