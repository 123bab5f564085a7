//! Executors in order of how good a place they are, kept current as rows change.
//!
//! A tournament: each inner node names the better of its two children, so that a changed row
//! costs the depth of the tree, and the next best is found without looking at the rest. A decision
//! costs about the same over sixty executors and over ten thousand. A node also knows which
//! models are served below it, in which groups, and the longest prompt there is room for: who
//! cannot take a request for such a reason is passed over by whole subtrees.
//!
//! ```
//! # use pointsman_sdk::{Mirror, Tentative, wire::types::{Change, Request}};
//! use pointsman_sdk::{Executor, Ranking};
//!
//! /// A policy keeps the ranking and forwards what it is told.
//! #[derive(Default)]
//! struct Emptiest(Ranking<u32>);
//!
//! impl Emptiest {
//!     fn changed(&mut self, mirror: &Mirror, change: &Change) {
//!         self.0.changed(mirror, change);
//!     }
//!
//!     fn observed(&mut self, mirror: &Mirror) {
//!         self.0.observed();
//!         self.refresh(mirror, &Tentative::default());
//!     }
//!
//!     fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
//!         let used = |at: &Executor<'_>| at.load.slots_used + placed.counts(at).slots;
//!         self.0.refresh(mirror, placed, |at| at.is_live().then(|| used(at)));
//!     }
//!
//!     fn best(&self, request: &Request) -> Option<u32> {
//!         self.0.best_first(request, None).next()
//!     }
//! }
//! ```
//!
//! # Invariants
//! 1. After [`Ranking::refresh`] the order is that of the keys, then of the ids
//!    (`tests::the_walk_is_in_order_of_keys`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::fit::Standing;
use crate::mirror::{Executor, Mirror};
use crate::tentative::Tentative;
use crate::touched::{Kinds, Touched};
use crate::wire::types::{Change, Request};

#[cfg(test)]
mod tests;

/// Executors by key, the least first; of equals those after one that had its turn come first, and
/// otherwise those attached first.
#[derive(Clone, Debug)]
pub struct Ranking<K> {
    /// By executor id, which the host counts up. Absent where there is nothing to place on.
    keys: Vec<Option<K>>,
    /// Inner nodes from 1, leaves from `leaves`.
    nodes: Vec<Node>,
    leaves: usize,
    touched: Touched,
}

/// A part of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Node {
    /// The best executor below, if there is one.
    best: Option<u32>,
    /// What executors below offer.
    kinds: Kinds,
}

// === impl Ranking ===

impl<K> Default for Ranking<K> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            nodes: Vec::new(),
            leaves: 0,
            touched: Touched::default(),
        }
    }
}

impl<K: Ord> Ranking<K> {
    /// For [`Policy::cleared`](crate::Policy::cleared).
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// For [`Policy::changed`](crate::Policy::changed): whose key may be another.
    pub fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.touched.changed(mirror, change);
    }

    /// Something was placed there. Whether the host takes it shows at the next `observe`.
    pub fn placed(&mut self, executor: u32) {
        self.touched.placed(executor);
    }

    /// The same where keys are made of a device's blocks: those of all executors on it are others.
    pub fn placed_on_device(&mut self, device: u32) {
        self.touched.placed_on_device(device);
    }

    /// For [`Policy::observed`](crate::Policy::observed), before [`Self::refresh`]: placements are
    /// in the mirror now, or void.
    pub fn observed(&mut self) {
        self.touched.observed();
    }

    /// Brings the keys up to date with the mirror and what was placed in this batch. An executor
    /// without a key is in no walk.
    pub fn refresh(
        &mut self,
        mirror: &Mirror,
        placed: &Tentative,
        key: impl Fn(&Executor<'_>) -> Option<K>,
    ) {
        let dirty = self.touched.take();
        // Where many change at once, each inner node is better decided once.
        let many = dirty.len() * 8 > self.leaves;
        for &id in &dirty {
            let executor = mirror.executor(id);
            let kinds = executor.map(|executor| Kinds::of(mirror, placed, &executor));
            let key = executor.and_then(|executor| key(&executor));
            if self.set(id, key, kinds.unwrap_or_default()) && !many {
                self.decide_above(self.leaves + id as usize);
            }
        }
        if many {
            for node in (1..self.leaves).rev() {
                self.decide(node);
            }
        }
        self.touched.done(dirty);
    }

    /// Whether that makes a difference.
    fn set(&mut self, id: u32, key: Option<K>, kinds: Kinds) -> bool {
        let leaf = id as usize;
        if leaf >= self.leaves {
            if key.is_none() {
                return false;
            }
            self.grow(leaf);
        }
        let entry = Node {
            best: key.is_some().then_some(id),
            kinds: if key.is_some() {
                kinds
            } else {
                Kinds::default()
            },
        };
        let node = &mut self.nodes[self.leaves + leaf];
        if *node == entry && self.keys[leaf] == key {
            return false;
        }
        *node = entry;
        self.keys[leaf] = key;
        true
    }

    /// Makes room for `leaf`.
    fn grow(&mut self, leaf: usize) {
        let before = self.leaves;
        self.leaves = (leaf + 1).next_power_of_two();
        self.keys.resize_with(self.leaves, || None);
        let mut nodes = vec![Node::default(); 2 * self.leaves];
        if before > 0 {
            nodes[self.leaves..self.leaves + before].copy_from_slice(&self.nodes[before..]);
        }
        self.nodes = nodes;
        for node in (1..self.leaves).rev() {
            self.decide(node);
        }
    }

    fn decide_above(&mut self, mut node: usize) {
        while node > 1 {
            node /= 2;
            self.decide(node);
        }
    }

    #[inline]
    fn decide(&mut self, node: usize) {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        let best = match (left.best, right.best) {
            // Of equals the left one, which is the one attached first.
            (Some(a), Some(b)) if self.key(b) < self.key(a) => right.best,
            (Some(_), _) => left.best,
            (None, _) => right.best,
        };
        let kinds = left.kinds.or(right.kinds);
        self.nodes[node] = Node { best, kinds };
    }

    #[inline]
    fn key(&self, id: u32) -> Option<&K> {
        self.keys.get(id as usize)?.as_ref()
    }

    /// Executors that may take the request, best first. Of equals, those after `last` come before
    /// the others. Who is left out cannot take it; of the others not everyone can.
    pub fn best_first(&self, request: &Request, last: Option<u32>) -> BestFirst<'_, K> {
        self.walk(request, Kinds::wanted(request), last)
    }

    /// The same among the executors of a group; some of another may be among them.
    pub fn best_in_group(
        &self,
        group: u32,
        request: &Request,
        last: Option<u32>,
    ) -> BestFirst<'_, K> {
        self.walk(request, Kinds::wanted(request).in_group(group), last)
    }

    /// The same among the executors whose place, for some request, is a better one than that.
    pub fn above(&self, standing: Standing, request: &Request) -> BestFirst<'_, K> {
        self.walk(request, Kinds::wanted(request).above(standing), None)
    }

    /// Executors that may take the request now or once they have room, best first.
    pub fn serving(&self, request: &Request) -> BestFirst<'_, K> {
        let wanted = Kinds::wanted(request).whatever_its_size();
        self.walk(request, wanted, None)
    }

    fn walk(&self, request: &Request, wanted: Kinds, last: Option<u32>) -> BestFirst<'_, K> {
        let mut walk = BestFirst {
            ranking: self,
            wanted,
            ahead: BinaryHeap::new(),
            beside: Vec::with_capacity(BESIDE_EXPECTED),
        };
        let turn = |id: u32| match last {
            Some(last) if id <= last => Turn::Had,
            Some(_) | None => Turn::Ahead,
        };
        match (&request.allowed, last) {
            (Some(allowed), _) => {
                for &id in allowed {
                    let leaf = self.leaves.saturating_add(id as usize);
                    walk.leave(leaf, turn(id));
                }
            }
            (None, None) => walk.leave(1, Turn::Ahead),
            (None, Some(last)) => walk.split(last as usize),
        }
        walk
    }
}

/// Parts of the tree that a walk to the third best leaves beside it, in a fleet of some thousands.
const BESIDE_EXPECTED: usize = 48;

/// Walks executors from the best on.
#[derive(Debug)]
pub struct BestFirst<'a, K> {
    ranking: &'a Ranking<K>,
    wanted: Kinds,
    /// Parts of the tree not walked yet, the best in front.
    ahead: BinaryHeap<Reverse<Subtree<'a, K>>>,
    /// More of them, not sorted in before one more executor is asked for.
    beside: Vec<Reverse<Subtree<'a, K>>>,
}

/// Whether the executors of a part of the tree had their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Ahead,
    Had,
}

/// A part of the tree, by its best executor.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subtree<'a, K> {
    key: &'a K,
    turn: Turn,
    best: u32,
    node: usize,
}

// === impl BestFirst ===

impl<K: Ord> BestFirst<'_, K> {
    /// Leaves a part of the tree for later, if there may be anything in it.
    #[inline]
    fn leave(&mut self, node: usize, turn: Turn) {
        let Some(&Node { best, kinds }) = self.ranking.nodes.get(node) else {
            return;
        };
        if let Some(best) = best
            && kinds.meets(self.wanted)
            && let Some(key) = self.ranking.key(best)
        {
            self.beside.push(Reverse(Subtree {
                key,
                turn,
                best,
                node,
            }));
        }
    }

    /// All leaves: those up to `last` had their turn.
    fn split(&mut self, last: usize) {
        let leaves = self.ranking.leaves;
        if last >= leaves {
            return self.leave(1, Turn::Had);
        }
        // From the leaf of `last` up: what lies to the left had its turn, to the right not.
        let mut node = leaves + last;
        self.leave(node, Turn::Had);
        while node > 1 {
            let turn = if node % 2 == 1 {
                Turn::Had
            } else {
                Turn::Ahead
            };
            self.leave(node ^ 1, turn);
            node /= 2;
        }
    }
}

impl<K: Ord> Iterator for BestFirst<'_, K> {
    type Item = u32;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.ahead.extend(self.beside.drain(..));
            let Reverse(Subtree {
                best,
                mut node,
                turn,
                ..
            }) = self.ahead.pop()?;
            // What lies beside the way down to the best is left for later.
            let ranking = self.ranking;
            while node < ranking.leaves && ranking.nodes[node].kinds.meets(self.wanted) {
                let left = 2 * node;
                let way = if ranking.nodes[left].best == Some(best) {
                    left
                } else {
                    left + 1
                };
                self.leave(way ^ 1, turn);
                node = way;
            }
            if node >= ranking.leaves && ranking.nodes[node].kinds.meets(self.wanted) {
                return Some(best);
            }
        }
    }
}
