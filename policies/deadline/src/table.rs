//! The live executors, by what they are compared by.
//!
//! Which of two equally used executors ends an answer first depends on how long the answer is, so
//! that there is no one order of them. Those that are equally used, and have room for about the
//! same prompts, are kept together: a request looks at the least used with room for it, and at
//! others only where these would be late.
//!
//! # Invariants
//! 1. After [`Table::refresh`] each live executor is in the class that its row says, once
//!    (`it_goes_where_it_explains_as_loads_change` of the policy's tests).

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::Change;
use pointsman_sdk::{Executor, Mirror, Seat, Sheet, Tentative, open_seat, open_tokens};

use crate::pace::Pace;

/// In the order of a row: that it has no room.
pub(crate) const NO_ROOM: u64 = 1 << 63;
/// Added for a request that it would end too late.
pub(crate) const LATE: u64 = 1 << 62;
/// That there is only a place in its queue. What is left is how much is in use.
const QUEUE: u64 = 1 << 61;

/// A live executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: u32,
    pub(crate) pace: Pace,
    /// Its best place for any request, and how much of it is in use.
    pub(crate) order: u64,
    /// Tokens that it may have room for.
    pub(crate) room: u64,
}

/// The live executors, by id and by class.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Sheet<Row>,
    classes: BTreeMap<Class, Members>,
}

/// What executors are kept together by; the smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class {
    pub(crate) order: u64,
    /// Bits that it takes to say how many tokens there may be room for.
    room_bits: u32,
}

/// The executors of a class.
#[derive(Debug)]
pub(crate) struct Members {
    /// No member was ever faster.
    pub(crate) pace_min: Pace,
    /// By ascending id, at least one.
    pub(crate) rows: Vec<Row>,
}

// === impl Row ===

impl Row {
    /// Absent where it takes nothing new.
    fn of(mirror: &Mirror, placed: &Tentative, executor: &Executor<'_>) -> Option<Self> {
        executor.is_live().then(|| Self {
            id: executor.id(),
            pace: Pace::of(executor.load),
            order: match open_seat(placed, executor) {
                Some(Seat::Slot) => used_permille(placed, executor),
                Some(Seat::Queue) => used_permille(placed, executor) | QUEUE,
                None => NO_ROOM,
            },
            room: open_tokens(mirror, placed, executor),
        })
    }

    fn class(&self) -> Class {
        Class {
            order: self.order,
            room_bits: u64::BITS - self.room.leading_zeros(),
        }
    }
}

pub(crate) fn used_permille(placed: &Tentative, executor: &Executor<'_>) -> u64 {
    let used = executor.depth() + placed.counts(executor).total();
    used * 1000 / u64::from(executor.info.slots_total.max(1))
}

// === impl Class ===

impl Class {
    /// Whether somebody of it may have room for so many tokens.
    pub(crate) fn may_have_room(self, tokens: u64) -> bool {
        u64::BITS - tokens.leading_zeros() <= self.room_bits
    }
}

// === impl Table ===

impl Table {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.rows.changed(mirror, change);
    }

    pub(crate) fn placed(&mut self, executor: u32) {
        self.rows.placed(executor);
    }

    pub(crate) fn observed(&mut self) {
        self.rows.observed();
    }

    pub(crate) fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        let classes = &mut self.classes;
        let row = |executor: &Executor<'_>| Row::of(mirror, placed, executor);
        self.rows.refresh_telling(mirror, row, |old, new| {
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

    /// All rows, by ascending id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().map(|(_, row)| row)
    }

    /// That of an executor.
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
