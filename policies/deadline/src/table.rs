//! The live executors, in classes of equal use and room.
//!
//! The length of an answer decides which of two equally used executors ends it first, so there is
//! no one order of executors. Those that are equally used, and have room for about the same
//! prompts, are kept together. A request looks at the least used with room for it, and at others
//! only where these would be late.
//!
//! # Invariants
//! 1. After an update each live executor is in the class that its row says, once
//!    (`it_goes_where_it_explains_as_loads_change` of the policy's tests).

use std::collections::BTreeMap;

use pointsman_sdk::{Executor, ExecutorIndex, ExecutorTable, Fleet, Seat};

use crate::pace::Pace;

/// A bit of a row's order: the executor has no room.
pub(crate) const NO_ROOM: u64 = 1 << 63;
/// A bit added for a request that the executor would end too late.
pub(crate) const LATE: u64 = 1 << 62;
/// A bit of a row's order: only the queue has room. The bits below are the use in permille.
const QUEUE: u64 = 1 << 61;
/// The order of an executor with slots on which nothing is placed, and of no other.
pub(crate) const IDLE: u64 = 0;

/// A live executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: u32,
    pub(crate) pace: Pace,
    /// Order by [`order_on`]; the least is the best.
    pub(crate) order: u64,
    /// Tokens that there may be room for.
    pub(crate) room: u64,
}

/// The live executors, by id and by class.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: ExecutorTable<Row>,
    classes: BTreeMap<Class, Members>,
}

/// The executors of one order, with room for about the same prompts; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class {
    pub(crate) order: u64,
    /// Length in bits of the tokens that there may be room for.
    room_bits: u32,
}

/// The executors of a class.
#[derive(Debug)]
pub(crate) struct Members {
    /// Times that no member ever undercut.
    pub(crate) pace_min: Pace,
    /// The members by ascending id, at least one.
    pub(crate) rows: Vec<Row>,
}

// === impl Row ===

impl Row {
    /// The row of an executor; absent where it takes nothing new.
    fn of(fleet: Fleet<'_>, executor: &Executor<'_>) -> Option<Self> {
        executor.is_live().then(|| Self {
            id: executor.id(),
            pace: Pace::of(executor.load),
            order: order_on(fleet, executor),
            room: fleet.open_tokens(executor),
        })
    }

    fn class(&self) -> Class {
        Class {
            order: self.order,
            room_bits: u64::BITS - self.room.leading_zeros(),
        }
    }
}

/// The order of an executor: the best seat for any request, then the use in permille.
pub(crate) fn order_on(fleet: Fleet<'_>, executor: &Executor<'_>) -> u64 {
    match fleet.place(*executor).map(|place| place.seat) {
        Some(Seat::Slot) => used_permille(fleet, executor),
        Some(Seat::Queue) => used_permille(fleet, executor) | QUEUE,
        None => NO_ROOM,
    }
}

/// Requests placed on an executor, in permille of its slots, rounded up: one is more than none.
pub(crate) fn used_permille(fleet: Fleet<'_>, executor: &Executor<'_>) -> u64 {
    let permille = fleet.depth(executor) * 1000;
    permille.div_ceil(u64::from(executor.info.slots_total.max(1)))
}

// === impl Class ===

impl Class {
    /// Returns whether a member may have room for so many tokens.
    pub(crate) fn may_have_room(self, tokens: u64) -> bool {
        u64::BITS - tokens.leading_zeros() <= self.room_bits
    }
}

// === impl Table ===

impl Table {
    /// All rows, by ascending id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().map(|(_, row)| row)
    }

    /// The row of an executor.
    pub(crate) fn row(&self, id: u32) -> Option<&Row> {
        self.rows.row(id)
    }

    /// The classes, the best first.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (Class, &Members)> {
        self.classes
            .iter()
            .map(|(class, members)| (*class, members))
    }
}

impl ExecutorIndex for Table {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        let Self { rows, classes } = self;
        let row = |executor: &Executor<'_>| Row::of(fleet, executor);
        rows.update_telling(fleet.mirror, executors, row, |old, new| {
            if old == new {
                return;
            }
            if let Some(old) = old {
                leave(classes, old);
            }
            if let Some(new) = new {
                join(classes, *new);
            }
        });
    }
}

fn join(classes: &mut BTreeMap<Class, Members>, row: Row) {
    let members = classes.entry(row.class()).or_insert_with(|| Members {
        pace_min: row.pace,
        rows: Vec::new(),
    });
    members.pace_min = members.pace_min.best(row.pace);
    let at = members.rows.partition_point(|member| member.id < row.id);
    members.rows.insert(at, row);
}

fn leave(classes: &mut BTreeMap<Class, Members>, row: &Row) {
    let class = row.class();
    let Some(members) = classes.get_mut(&class) else {
        return;
    };
    if let Ok(at) = members
        .rows
        .binary_search_by_key(&row.id, |member| member.id)
    {
        members.rows.remove(at);
    }
    if members.rows.is_empty() {
        classes.remove(&class);
    }
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn a_class_may_have_room_for_what_takes_no_more_bits() {
        let of = |room_bits| Class {
            order: 0,
            room_bits,
        };
        assert!(!of(0).may_have_room(1));
        assert!(of(9).may_have_room(511));
        assert!(!of(9).may_have_room(512));
        assert!(of(64).may_have_room(u64::MAX));
    }
}
