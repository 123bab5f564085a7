//! Things to come, of which the least is the next.
//!
//! Most walks end after a few steps. To look through a short list for its least then takes fewer comparisons than to
//! keep a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most things that are kept in a list: those that a walk to the third best has in a fleet of some thousands.
const FEW_MAX: usize = 32;

/// Things to come, in a list as long as they are few.
#[derive(Debug)]
pub(super) struct Ahead<T> {
    /// Empty while there are many.
    few: Vec<T>,
    many: BinaryHeap<Reverse<T>>,
}

impl<T: Ord> Ahead<T> {
    pub(super) fn new() -> Self {
        Self {
            few: Vec::new(),
            many: BinaryHeap::new(),
        }
    }

    /// Makes room for few.
    pub(super) fn reserve(&mut self) {
        self.few.reserve(FEW_MAX);
    }

    #[inline]
    pub(super) fn push(&mut self, thing: T) {
        if self.few.len() < FEW_MAX && self.many.is_empty() {
            self.few.push(thing);
        } else {
            self.push_to_many(thing);
        }
    }

    #[cold]
    fn push_to_many(&mut self, thing: T) {
        self.many.extend(self.few.drain(..).map(Reverse));
        self.many.push(Reverse(thing));
    }

    /// Takes the least.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if let Some(Reverse(least)) = self.many.pop() {
            return Some(least);
        }
        let few = self.few.iter().enumerate();
        let (least, _) = few.min_by(|one, other| one.1.cmp(other.1))?;
        Some(self.few.swap_remove(least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_comes_first_of_few_and_of_many() {
        for count in [0, 1, FEW_MAX, FEW_MAX + 1, 3 * FEW_MAX] {
            let mut ahead = Ahead::new();
            let things = (0..count).map(|at| at * 7919 % 101);
            let mut sorted: Vec<usize> = things.clone().collect();
            things.for_each(|thing| ahead.push(thing));
            sorted.sort_unstable();
            // One that comes when others have gone takes its place among the rest.
            let mut popped: Vec<usize> = (0..count / 2).filter_map(|_| ahead.pop()).collect();
            if count > 0 {
                ahead.push(200);
                sorted.push(200);
            }
            popped.extend(std::iter::from_fn(|| ahead.pop()));
            assert_eq!(popped, sorted, "{count}");
        }
    }
}
