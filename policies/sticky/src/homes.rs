//! The home of a session: the executor with the greatest claim to it.
//!
//! A claim is a hash of the session and the executor's name, so every executor has to be looked at.
//! A look costs a few words. Only an executor with the greatest claim so far is asked whether it may
//! take the request.

use pointsman_sdk::rendezvous::{node, weight};
use pointsman_sdk::wire::types::{Health, NameKind};
use pointsman_sdk::{Case, ExecutorTable, Fleet, Mirror, Place};

/// The executors that are up, and the degraded ones, which count only where no other does.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    up: ExecutorTable<Row>,
    degraded: ExecutorTable<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    /// Hash of the executor's name.
    node: u64,
    group: u32,
    /// Tokens that there may be room for.
    room: u64,
}

/// The executors that a session's request may go to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claimants<'a> {
    /// The executor with the greatest claim of those that may take it once they have room.
    pub(crate) home: Option<u32>,
    /// The place on the executor with the greatest claim of those that have room.
    pub(crate) next: Option<Place<'a>>,
}

/// The claim of an executor to a session, which belongs to the executor with the greatest. Names
/// outlast a restart, ids do not.
pub(crate) fn claim(mirror: &Mirror, session: u64, executor: u32) -> u64 {
    weight(session, node_of(mirror, executor))
}

fn node_of(mirror: &Mirror, executor: u32) -> u64 {
    let name = mirror.name(NameKind::Executor, executor);
    node(name.unwrap_or_default())
}

// === impl Homes ===

impl Homes {
    pub(crate) fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        let tables = [
            (&mut self.up, Health::Up),
            (&mut self.degraded, Health::Degraded),
        ];
        for (table, health) in tables {
            table.update(fleet.mirror, executors, |executor| {
                (executor.load.health == health).then(|| Row {
                    node: node_of(fleet.mirror, executor.id()),
                    group: executor.info.group,
                    room: fleet.open_tokens(executor),
                })
            });
        }
    }

    /// Returns whether the group has an executor which may take the request once there is room.
    pub(crate) fn has_group(&self, case: &Case<'_>, group: u32) -> bool {
        let may_take = |id| {
            let executor = case.fleet.mirror.executor(id);
            executor.is_some_and(|executor| case.check_lasting(&executor).is_ok())
        };
        let mut has = false;
        for table in [&self.up, &self.degraded] {
            table.each(case.request, |id, row| {
                has = has || row.group == group && may_take(id);
            });
        }
        has
    }

    /// The claimants to a session, of the group if one is given.
    pub(crate) fn claimants<'a>(
        &self,
        case: &'a Case<'a>,
        session: u64,
        group: Option<u32>,
    ) -> Claimants<'a> {
        let up = Search::new(case, group).among(&self.up, session);
        if up.next.is_some() {
            return up;
        }
        let degraded = Search::new(case, group).among(&self.degraded, session);
        Claimants {
            home: up.home.or(degraded.home),
            next: up.next.or(degraded.next),
        }
    }
}

/// The greatest claims so far.
struct Search<'a> {
    case: &'a Case<'a>,
    group: Option<u32>,
    tokens: u64,
    /// The least claim that is greater than that of `found.home`.
    claim_min: u64,
    /// The least claim that is greater than that of `found.next`; it is at most `claim_min`.
    claim_min_open: u64,
    found: Claimants<'a>,
}

// === impl Search ===

impl<'a> Search<'a> {
    fn new(case: &'a Case<'a>, group: Option<u32>) -> Self {
        Self {
            case,
            group,
            tokens: case.tokens(),
            claim_min: 0,
            claim_min_open: 0,
            found: Claimants::default(),
        }
    }

    fn among(mut self, table: &ExecutorTable<Row>, session: u64) -> Claimants<'a> {
        // Most executors are turned away by their claim, with or without room.
        table.each(self.case.request, |id, row| {
            let claim = weight(session, row.node);
            if claim >= self.claim_min_for(row) {
                self.look(id, row, claim);
            }
        });
        self.found
    }

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
        let Some(executor) = self.case.fleet.mirror.executor(id) else {
            return;
        };
        if claim >= self.claim_min && self.case.check_lasting(&executor).is_ok() {
            self.claim_min = claim.saturating_add(1);
            self.found.home = Some(id);
        }
        if row.room >= self.tokens
            && let Some(place) = self.case.place_on(executor)
        {
            self.claim_min_open = claim.saturating_add(1);
            self.found.next = Some(place);
        }
    }
}
