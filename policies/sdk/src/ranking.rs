//! Executors by rank, kept current as rows change.
//!
//! A tournament tree: each inner node names the better of its two children. A changed row costs
//! the depth of the tree, and the next best executor is found without a look at the rest, so a
//! decision costs about the same over sixty executors and over ten thousand. A node also knows
//! which models are served below it, in which groups, and the longest prompt there is room for:
//! executors that cannot take a request for such a reason are passed over by whole subtrees.
//!
//! ```
//! # use pointsman_sdk::wire::types::Request;
//! use pointsman_sdk::{ExecutorIndex, Fleet, Ranking};
//!
//! #[derive(Default)]
//! struct Emptiest(Ranking<u32>);
//!
//! impl ExecutorIndex for Emptiest {
//!     fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
//!         self.0.update(fleet, executors, |place| u32::MAX - place.slots_free());
//!     }
//! }
//!
//! impl Emptiest {
//!     fn best(&self, request: &Request) -> Option<u32> {
//!         self.0.best_first(request).next()
//!     }
//! }
//! ```
//!
//! # Invariants
//! 1. After [`Ranking::update`] the order is that of the ranks, then of the ids
//!    (`tests::the_walk_is_in_order_of_ranks`).

mod ahead;
mod offer;

use std::cmp::Ordering;

use crate::executor::Executor;
use crate::fleet::{Fleet, Place, Readiness};
use crate::turns::Turn;
use crate::wire::types::Request;
use ahead::Ahead;
use offer::Offer;

#[cfg(test)]
mod tests;

/// Executors by rank, the least first; of equals, those attached first.
#[derive(Clone, Debug)]
pub struct Ranking<R> {
    /// By executor id, which the host counts up. Absent where there is nothing to place on.
    ranks: Vec<Option<R>>,
    /// Inner nodes from 1, leaves from `leaves`.
    nodes: Vec<Node>,
    leaves: usize,
}

/// A part of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Node {
    /// The best executor below, if there is one.
    best: Option<u32>,
    /// The offer of the executors below.
    offer: Offer,
}

// === impl Ranking ===

impl<R> Default for Ranking<R> {
    fn default() -> Self {
        Self {
            ranks: Vec::new(),
            nodes: Vec::new(),
            leaves: 0,
        }
    }
}

impl<R: Ord> Ranking<R> {
    /// Ranks some executors anew by their best place for any request. One without a place is in
    /// no walk.
    pub fn update(&mut self, fleet: Fleet<'_>, executors: &[u32], rank: impl Fn(&Place<'_>) -> R) {
        self.update_each(fleet, executors, |_, place| place.map(&rank));
    }

    /// Ranks some executors anew, those without room too. One without a rank is in no walk.
    pub fn update_with(
        &mut self,
        fleet: Fleet<'_>,
        executors: &[u32],
        rank: impl Fn(&Executor<'_>) -> Option<R>,
    ) {
        self.update_each(fleet, executors, |executor, _| rank(executor));
    }

    #[inline]
    fn update_each(
        &mut self,
        fleet: Fleet<'_>,
        executors: &[u32],
        rank: impl Fn(&Executor<'_>, Option<&Place<'_>>) -> Option<R>,
    ) {
        // Where many change at once, each inner node is better decided once.
        let many = executors.len() * 8 > self.leaves;
        for &id in executors {
            let ranked = fleet.mirror.executor(id).and_then(|executor| {
                let place = fleet.place(executor);
                let rank = rank(&executor, place.as_ref())?;
                Some((rank, Offer::of(fleet, &executor, place.as_ref())))
            });
            if self.set(id, ranked) && !many {
                self.decide_above(self.leaves + id as usize);
            }
        }
        if many {
            for node in (1..self.leaves).rev() {
                self.decide(node);
            }
        }
    }

    /// Enters an executor's rank, and returns whether that makes a difference.
    fn set(&mut self, id: u32, ranked: Option<(R, Offer)>) -> bool {
        let leaf = id as usize;
        if leaf >= self.leaves {
            if ranked.is_none() {
                return false;
            }
            self.grow(leaf);
        }
        let (rank, offer) = ranked.unzip();
        let entry = Node {
            best: rank.is_some().then_some(id),
            offer: offer.unwrap_or_default(),
        };
        let node = &mut self.nodes[self.leaves + leaf];
        if *node == entry && self.ranks[leaf] == rank {
            return false;
        }
        *node = entry;
        self.ranks[leaf] = rank;
        true
    }

    /// Makes room for `leaf`.
    fn grow(&mut self, leaf: usize) {
        let before = self.leaves;
        self.leaves = (leaf + 1).next_power_of_two();
        self.ranks.resize_with(self.leaves, || None);
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
            (Some(a), Some(b)) if self.rank(b).cmp(&self.rank(a)).is_lt() => right.best,
            (Some(_), _) => left.best,
            (None, _) => right.best,
        };
        let offer = left.offer.or(right.offer);
        self.nodes[node] = Node { best, offer };
    }

    #[inline]
    fn rank(&self, id: u32) -> Option<&R> {
        self.ranks.get(id as usize)?.as_ref()
    }

    /// Walks the executors that may take the request, best first. An executor that is left out
    /// cannot take it; one that is not has to be asked.
    pub fn best_first<'a>(&'a self, request: &'a Request) -> BestFirst<'a, R> {
        BestFirst {
            ranking: self,
            request,
            wanted: Offer::wanted(request),
            last: None,
            has_begun: false,
            ahead: Ahead::new(),
            opened: None,
        }
    }
}

/// A walk over executors, from the best on.
#[derive(Debug)]
pub struct BestFirst<'a, R> {
    ranking: &'a Ranking<R>,
    request: &'a Request,
    wanted: Offer,
    last: Option<u32>,
    has_begun: bool,
    /// Parts of the tree not walked yet.
    ahead: Ahead<Subtree<'a, R>>,
    /// The part whose best executor came last. What else is in it is looked at when one more is asked for.
    opened: Option<Subtree<'a, R>>,
}

/// A part of the tree, by its best executor.
#[derive(Debug)]
struct Subtree<'a, R> {
    rank: &'a R,
    turn: Turn,
    best: u32,
    node: usize,
}

// === impl BestFirst ===

impl<R: Ord> BestFirst<'_, R> {
    /// Walks equals in turn: those after `last` come first, and otherwise those attached first.
    #[must_use]
    pub fn after(self, last: Option<u32>) -> Self {
        Self { last, ..self }
    }

    /// Walks the executors of a group, if one is given. Some of other groups may be among them.
    #[must_use]
    pub fn in_group(self, group: Option<u32>) -> Self {
        let wanted = match group {
            Some(group) => self.wanted.in_group(group),
            None => self.wanted,
        };
        Self { wanted, ..self }
    }

    /// Walks the executors with a better place than that, for some request.
    #[must_use]
    pub fn better_than(self, readiness: Readiness) -> Self {
        let wanted = self.wanted.better_than(readiness);
        Self { wanted, ..self }
    }

    /// Walks executors without room too, which may take the request once they have it.
    #[must_use]
    pub fn with_or_without_room(self) -> Self {
        let wanted = self.wanted.whatever_its_size();
        Self { wanted, ..self }
    }

    fn begin(&mut self) {
        self.has_begun = true;
        self.ahead.reserve();
        match (&self.request.allowed, self.last) {
            (Some(allowed), last) => {
                for &id in allowed {
                    let leaf = self.ranking.leaves.saturating_add(id as usize);
                    self.leave(leaf, Turn::of(id, last));
                }
            }
            (None, None) => self.leave(1, Turn::ToCome),
            (None, Some(last)) => self.split(last as usize),
        }
    }

    /// Leaves a part of the tree for later, if an executor in it may take the request.
    #[inline]
    fn leave(&mut self, node: usize, turn: Turn) {
        let Some(&Node { best, offer }) = self.ranking.nodes.get(node) else {
            return;
        };
        if let Some(best) = best
            && offer.meets(self.wanted)
            && let Some(rank) = self.ranking.rank(best)
        {
            self.ahead.push(Subtree {
                rank,
                turn,
                best,
                node,
            });
        }
    }

    /// Leaves for later what lies in a part of the tree beside the way down to its best executor.
    #[inline]
    fn leave_beside(&mut self, part: &Subtree<'_, R>) {
        let mut node = self.ranking.leaves + part.best as usize;
        while node > part.node {
            self.leave(node ^ 1, part.turn);
            node /= 2;
        }
    }

    /// Leaves all executors for later: those up to `last` had their turn.
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
                Turn::ToCome
            };
            self.leave(node ^ 1, turn);
            node /= 2;
        }
    }
}

impl<R: Ord> Iterator for BestFirst<'_, R> {
    type Item = u32;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.has_begun {
            self.begin();
        }
        loop {
            if let Some(part) = self.opened.take() {
                self.leave_beside(&part);
            }
            let part = self.ahead.pop()?;
            let best = part.best;
            let offer = self.ranking.nodes[self.ranking.leaves + best as usize].offer;
            self.opened = Some(part);
            if offer.meets(self.wanted) {
                return Some(best);
            }
        }
    }
}

// === impl Subtree ===

impl<R: Ord> Subtree<'_, R> {
    #[inline]
    fn key(&self) -> (&R, Turn, u32) {
        (self.rank, self.turn, self.best)
    }
}

impl<R: Ord> Ord for Subtree<'_, R> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<R: Ord> PartialOrd for Subtree<'_, R> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Ord> PartialEq for Subtree<'_, R> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<R: Ord> Eq for Subtree<'_, R> {}
