//! The interlock: the one place in which an answer is checked before anything changes.
//!
//! Functions of what the books and the requests are: each looks at an action that a policy, or the
//! built-in rule in its place, wants, and returns what it comes to or why it is refused. The round
//! applies what passes.
//!
//! | file | checks |
//! |---|---|
//! | `place` | placements |
//! | `evict` | evictions: each victim, and that their leaving covers the shortage |
//! | `walk` | where the requests of an answer would go |
//! | `answers` | admissions, orders, budgets, and the form of answers |
//!
//! # Invariants
//! 1. Nothing here changes anything: the books and the requests are borrowed immutably.
//! 2. No answer takes effect without a check here, and nothing else checks room.

mod answers;
mod evict;
mod place;
mod walk;

use super::ledger::Ledger;
use super::requests::Requests;

pub(super) use answers::{check_admission, check_budgets, check_count, named, order};
pub(super) use walk::walks;

pub(super) use place::{
    Prospect, check_eligible, check_open_to, check_place, first_in_order, prospect,
};

/// The state that an answer is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Books<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) requests: &'a Requests,
}
