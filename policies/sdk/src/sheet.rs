//! What a policy compares executors by where every one has to be looked at: in a few words each,
//! side by side, so that a look at ten thousand costs some hundred thousand instructions.
//!
//! A hash of the request and the executor, or times that depend on the length of its answer, put
//! executors in another order for each request, which no [`Ranking`](crate::Ranking) can keep.
//! What is expensive to find out, first of all whether the request fits, is asked of those only
//! that would be the best so far.
//!
//! ```
//! # use pointsman_sdk::{Mirror, wire::types::{Change, Request}};
//! use pointsman_sdk::{Case, Sheet, rendezvous};
//!
//! /// A policy keeps the sheet and forwards what it is told.
//! #[derive(Default)]
//! struct Homes(Sheet<u64>);
//!
//! impl Homes {
//!     fn changed(&mut self, mirror: &Mirror, change: &Change) {
//!         self.0.changed(mirror, change);
//!     }
//!
//!     fn observed(&mut self, mirror: &Mirror) {
//!         self.0.observed();
//!         self.0.refresh(mirror, |at| at.is_live().then(|| u64::from(at.id())));
//!     }
//!
//!     /// The executor with the greatest claim to the session of those that can take the request.
//!     fn home(&self, case: &Case<'_>, session: u64) -> Option<u32> {
//!         let mut best = None;
//!         self.0.each(case.need.request, |id, node| {
//!             let claim = rendezvous::weight(session, *node);
//!             if best.is_none_or(|(most, _)| claim > most) && case.seat(id).is_some() {
//!                 best = Some((claim, id));
//!             }
//!         });
//!         best.map(|(_, id)| id)
//!     }
//! }
//! ```
//!
//! # Invariants
//! 1. After [`Sheet::refresh`] the rows are those of the mirror, by ascending id
//!    (`tests::rows_follow_the_mirror`).

use crate::mirror::{Executor, Mirror};
use crate::touched::Touched;
use crate::wire::types::{Change, Request};

/// A row for each executor that has one, kept current as rows of the mirror change.
#[derive(Clone, Debug)]
pub struct Sheet<T> {
    /// By ascending id.
    rows: Vec<(u32, T)>,
    touched: Touched,
}

// === impl Sheet ===

impl<T> Default for Sheet<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            touched: Touched::default(),
        }
    }
}

impl<T> Sheet<T> {
    /// For [`Policy::cleared`](crate::Policy::cleared).
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// For [`Policy::changed`](crate::Policy::changed): whose row may be another.
    pub fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.touched.changed(mirror, change);
    }

    /// Something was placed there. Whether the host takes it shows at the next `observe`.
    pub fn placed(&mut self, executor: u32) {
        self.touched.placed(executor);
    }

    /// For [`Policy::observed`](crate::Policy::observed), before [`Self::refresh`]: placements are
    /// in the mirror now, or void.
    pub fn observed(&mut self) {
        self.touched.observed();
    }

    /// Brings the rows up to date. An executor without a row is left out.
    pub fn refresh(&mut self, mirror: &Mirror, row: impl Fn(&Executor<'_>) -> Option<T>) {
        self.refresh_telling(mirror, row, |_, _| {});
    }

    /// The same, and tells each row that went and the one in its stead, for whoever keeps sums over
    /// the rows.
    pub fn refresh_telling(
        &mut self,
        mirror: &Mirror,
        row: impl Fn(&Executor<'_>) -> Option<T>,
        mut tell: impl FnMut(Option<&T>, Option<&T>),
    ) {
        let dirty = self.touched.take();
        for &id in &dirty {
            let executor = mirror.executor(id);
            let new = executor.and_then(|executor| row(&executor));
            tell(self.row(id), new.as_ref());
            match (self.position(id), new) {
                (Ok(at), Some(new)) => self.rows[at].1 = new,
                (Ok(at), None) => drop(self.rows.remove(at)),
                (Err(at), Some(new)) => self.rows.insert(at, (id, new)),
                (Err(_), None) => {}
            }
        }
        self.touched.done(dirty);
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

    /// Looks at the rows of executors that the request may go to as far as its pins say: those it is
    /// pinned to, in the order it names them, or all by id. Whether they serve its model is not
    /// asked.
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
    use super::Sheet;
    use crate::fit::open_tokens;
    use crate::fixture::{device, executor, load, request};
    use crate::mirror::{Executor, Mirror};
    use crate::tentative::Tentative;
    use crate::wire::types::{Change, Device, ExecutorLoad, Extent, Request};

    struct Told {
        mirror: Mirror,
        sheet: Sheet<u32>,
    }

    impl Told {
        fn tell(&mut self, changes: impl IntoIterator<Item = Change>) {
            self.mirror.begin(0, Extent::SinceLast);
            for change in changes {
                self.sheet.changed(&self.mirror, &change);
                self.mirror.apply(change);
            }
            self.sheet.observed();
            self.sheet
                .refresh(&self.mirror, |at| Some(at.load.slots_used));
        }

        fn rows(&self, allowed: Option<Vec<u32>>) -> Vec<(u32, u32)> {
            let request = Request {
                allowed,
                ..request(1)
            };
            let mut rows = Vec::new();
            self.sheet.each(&request, |id, &used| rows.push((id, used)));
            rows
        }
    }

    fn of_three() -> Told {
        let mut told = Told {
            mirror: Mirror::default(),
            sheet: Sheet::default(),
        };
        let rows = |id| [Change::Executor(executor(id)), Change::Load(load(id))];
        told.tell([2, 0, 1].into_iter().flat_map(rows));
        told
    }

    #[test]
    fn rows_follow_the_mirror() {
        let mut told = of_three();
        assert_eq!(told.rows(None), [(0, 0), (1, 0), (2, 0)]);
        let busy = ExecutorLoad {
            slots_used: 3,
            ..load(1)
        };
        told.tell([Change::Load(busy), Change::ExecutorGone(0)]);
        assert_eq!(told.rows(None), [(1, 3), (2, 0)]);
        told.tell([Change::Executor(executor(0)), Change::Load(load(0))]);
        assert_eq!(told.rows(None), [(0, 0), (1, 3), (2, 0)]);
    }

    #[test]
    fn rows_follow_what_is_free_on_their_device() {
        let mut told = of_three();
        let blocks_free = |blocks_free| {
            Change::Device(Device {
                blocks_free,
                ..device(0)
            })
        };
        let room = |at: &Executor<'_>, mirror: &Mirror| {
            Some(open_tokens(mirror, &Tentative::default(), at))
        };
        let mut sheet = Sheet::default();
        for id in 0..3 {
            sheet.changed(&told.mirror, &Change::Load(load(id)));
            sheet.changed(&told.mirror, &Change::Executor(executor(id)));
        }
        for blocks in [3, 2] {
            sheet.changed(&told.mirror, &blocks_free(blocks));
            told.mirror.apply(blocks_free(blocks));
            let mirror = &told.mirror;
            sheet.refresh(mirror, |at| room(at, mirror));
            let tokens = executor(0).tokens_per_block.map(u64::from).unwrap();
            let rows: Vec<u64> = sheet.iter().map(|(_, room)| *room).collect();
            assert_eq!(rows, [u64::from(blocks) * tokens; 3]);
        }
    }

    #[test]
    fn sums_over_the_rows_can_be_kept() {
        let mut told = of_three();
        let mut sum = 0;
        for (id, used) in [(1, 3), (2, 2), (1, 1)] {
            let busy = ExecutorLoad {
                slots_used: used,
                ..load(id)
            };
            told.sheet.changed(&told.mirror, &Change::Load(busy));
            told.mirror.apply(Change::Load(busy));
            let row = |at: &Executor<'_>| Some(at.load.slots_used);
            told.sheet.refresh_telling(&told.mirror, row, |old, new| {
                sum = sum + new.unwrap_or(&0) - old.unwrap_or(&0);
            });
        }
        assert_eq!(sum, 1 + 2);
    }

    #[test]
    fn a_pinned_request_looks_at_its_executors_only() {
        let told = of_three();
        assert_eq!(told.rows(Some(vec![2, 9, 0])), [(2, 0), (0, 0)]);
    }
}
