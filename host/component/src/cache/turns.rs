//! The digests whose bytes are being compiled: each by one thread at a time.
//!
//! Files with the same code, such as one policy with several sidecars, settle together. The first of them is
//! compiled, and the others find its code.
//!
//! # Invariants
//! 1. A thread that waits begins no compilation, and its wait ends with its turn, or soon after nobody wants what it
//!    waits for (`nobody_waits_for_a_compilation_that_is_not_wanted_any_more`).

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::compiler::LOOK;
use crate::digest::Digest;

/// The digests that have a thread at work.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<BTreeSet<Digest>>,
    /// Told when a digest is free again.
    freed: Condvar,
}

/// A thread's turn to compile the bytes with one digest. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    digest: Digest,
}

impl Turns {
    /// Waits until no other thread has the turn of `digest`; absent: it `is_over` before that.
    pub(super) fn take(&self, digest: Digest, is_over: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut taken = self.taken();
        while !taken.insert(digest) {
            if is_over() {
                return None;
            }
            let waited = self.freed.wait_timeout(taken, LOOK);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Turn {
            turns: self,
            digest,
        })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<Digest>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken().remove(&self.digest);
        self.turns.freed.notify_all();
    }
}
