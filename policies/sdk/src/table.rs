//! A table with a row for each executor, for policies that have to look at every one.
//!
//! A hash of the request and the executor puts executors in another order for each request, and so
//! does a time that depends on the length of the answer. No [`Ranking`](crate::Ranking) can keep
//! such an order. A table keeps a few words of each executor side by side, so that a look at ten
//! thousand costs some hundred thousand instructions. Expensive questions, first of all whether
//! the request fits, are asked only of an executor that would be the best so far.
//!
//! ```
//! use pointsman_sdk::{Case, ExecutorIndex, ExecutorTable, Fleet, rendezvous};
//!
//! #[derive(Default)]
//! struct Homes(ExecutorTable<u64>);
//!
//! impl ExecutorIndex for Homes {
//!     fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
//!         self.0.update(fleet.mirror, executors, |at| Some(u64::from(at.id())));
//!     }
//! }
//!
//! impl Homes {
//!     /// The executor with the greatest claim to the session of those that can take the request.
//!     fn home(&self, case: &Case<'_>, session: u64) -> Option<u32> {
//!         let mut best = None;
//!         self.0.each(case.request, |id, node| {
//!             let claim = rendezvous::weight(session, *node);
//!             if best.is_none_or(|(most, _)| claim > most) && case.place(id).is_some() {
//!                 best = Some((claim, id));
//!             }
//!         });
//!         best.map(|(_, id)| id)
//!     }
//! }
//! ```
//!
//! # Invariants
//! 1. After [`ExecutorTable::update`] the rows are those of the mirror, by ascending id
//!    (`tests::rows_follow_the_mirror`).

use crate::executor::Executor;
use crate::mirror::Mirror;
use crate::wire::types::Request;

/// A row for each executor that has one, by ascending id.
#[derive(Clone, Debug)]
pub struct ExecutorTable<T> {
    rows: Vec<(u32, T)>,
}

// === impl ExecutorTable ===

impl<T> Default for ExecutorTable<T> {
    fn default() -> Self {
        Self { rows: Vec::new() }
    }
}

impl<T> ExecutorTable<T> {
    /// Makes the rows of some executors anew.
    pub fn update(
        &mut self,
        mirror: &Mirror,
        executors: &[u32],
        row: impl Fn(&Executor<'_>) -> Option<T>,
    ) {
        self.update_telling(mirror, executors, row, |_, _| {});
    }

    /// Makes the rows of some executors anew, and passes each old row with the one in its stead to
    /// `tell`, which may keep sums over the rows.
    pub fn update_telling(
        &mut self,
        mirror: &Mirror,
        executors: &[u32],
        row: impl Fn(&Executor<'_>) -> Option<T>,
        mut tell: impl FnMut(Option<&T>, Option<&T>),
    ) {
        for &id in executors {
            let executor = mirror.executor(id);
            let new = executor.and_then(|executor| row(&executor));
            let position = self.position(id);
            let old = position.ok().map(|at| &self.rows[at].1);
            tell(old, new.as_ref());
            match (position, new) {
                (Ok(at), Some(new)) => self.rows[at].1 = new,
                (Ok(at), None) => drop(self.rows.remove(at)),
                (Err(at), Some(new)) => self.rows.insert(at, (id, new)),
                (Err(_), None) => {}
            }
        }
    }

    /// The row of an executor.
    #[must_use]
    pub fn row(&self, id: u32) -> Option<&T> {
        self.position(id).ok().map(|at| &self.rows[at].1)
    }

    /// All rows, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows.iter().map(|(id, row)| (*id, row))
    }

    fn position(&self, id: u32) -> Result<usize, usize> {
        self.rows.binary_search_by_key(&id, |row| row.0)
    }

    /// Looks at the rows of executors that the request's pins allow: in the order they are named,
    /// or by id where there are none. Such an executor need not serve the request's model.
    #[inline]
    pub fn each(&self, request: &Request, mut look: impl FnMut(u32, &T)) {
        match &request.allowed {
            None => {
                for (id, row) in &self.rows {
                    look(*id, row);
                }
            }
            Some(allowed) => {
                for &id in allowed {
                    if let Ok(at) = self.position(id) {
                        look(id, &self.rows[at].1);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ExecutorTable;
    use crate::executor::Executor;
    use crate::fixture::{device, executor, load, request};
    use crate::fleet::Fleet;
    use crate::index::{ExecutorIndex, Touched};
    use crate::mirror::Mirror;
    use crate::wire::types::{Change, Device, ExecutorLoad, Extent, Request};

    /// Slots in use, and tokens that there may be room for.
    #[derive(Default)]
    struct Used {
        rows: ExecutorTable<(u32, u64)>,
        sum: u32,
    }

    impl ExecutorIndex for Used {
        fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
            let Self { rows, sum } = self;
            let row = |at: &Executor<'_>| Some((at.load.slots_used, fleet.open_tokens(at)));
            rows.update_telling(fleet.mirror, executors, row, |old, new| {
                let used = |row: Option<&(u32, u64)>| row.map_or(0, |row| row.0);
                *sum = *sum + used(new) - used(old);
            });
        }
    }

    #[derive(Default)]
    struct Told {
        mirror: Mirror,
        index: Used,
    }

    impl Told {
        fn tell(&mut self, changes: impl IntoIterator<Item = Change>) {
            self.mirror.begin(0, Extent::SinceLast);
            let mut touched = Touched::default();
            for mut change in changes {
                touched.changed(&self.mirror, &change);
                self.mirror.apply(&mut change);
            }
            touched.update(&mut self.index, Fleet::from(&self.mirror));
        }

        fn used(&self, allowed: Option<Vec<u32>>) -> Vec<(u32, u32)> {
            let request = Request {
                allowed,
                ..request(1)
            };
            let mut used = Vec::new();
            let rows = &self.index.rows;
            rows.each(&request, |id, row| used.push((id, row.0)));
            used
        }
    }

    fn of_three() -> Told {
        let mut told = Told::default();
        let rows = |id| [Change::Executor(executor(id)), Change::Load(load(id))];
        told.tell([2, 0, 1].into_iter().flat_map(rows));
        told
    }

    fn busy(id: u32, slots_used: u32) -> Change {
        Change::Load(ExecutorLoad {
            slots_used,
            ..load(id)
        })
    }

    #[test]
    fn rows_follow_the_mirror() {
        let mut told = of_three();
        assert_eq!(told.used(None), [(0, 0), (1, 0), (2, 0)]);
        told.tell([busy(1, 3), Change::ExecutorGone(0)]);
        assert_eq!(told.used(None), [(1, 3), (2, 0)]);
        told.tell([Change::Executor(executor(0)), Change::Load(load(0))]);
        assert_eq!(told.used(None), [(0, 0), (1, 3), (2, 0)]);
    }

    #[test]
    fn rows_follow_what_is_free_on_their_device() {
        let mut told = of_three();
        for blocks_free in [3, 2] {
            let row = Device {
                blocks_free,
                ..device(0)
            };
            told.tell([Change::Device(row)]);
            let tokens = executor(0).tokens_per_block.map(u64::from).unwrap();
            let rows: Vec<u64> = told.index.rows.iter().map(|(_, row)| row.1).collect();
            assert_eq!(rows, [u64::from(blocks_free) * tokens; 3]);
        }
    }

    #[test]
    fn sums_over_the_rows_can_be_kept() {
        let mut told = of_three();
        for (id, used) in [(1, 3), (2, 2), (1, 1)] {
            told.tell([busy(id, used)]);
        }
        assert_eq!(told.index.sum, 1 + 2);
    }

    #[test]
    fn a_pinned_request_looks_at_its_executors_only() {
        let told = of_three();
        assert_eq!(told.used(Some(vec![2, 9, 0])), [(2, 0), (0, 0)]);
    }
}
