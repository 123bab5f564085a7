//! What a policy compares executors by where every one has to be looked at: in a few words each,
//! side by side, so that a look at ten thousand costs some hundred thousand instructions.
//!
//! A hash of the request and the executor, or times that depend on the length of its answer, put
//! executors in another order for each request, which no [`Ranking`](crate::Ranking) can keep.
//! What is expensive to find out, first of all whether the request fits, is then asked of those
//! only that would be the best so far.

use crate::mirror::{Executor, Mirror};
use crate::touched::{Served, Touched};
use crate::wire::types::Change;

/// A row for each executor that has one, kept current as rows of the mirror change.
#[derive(Clone, Debug)]
pub struct Sheet<T> {
    /// By ascending id.
    rows: Vec<Row<T>>,
    touched: Touched,
}

#[derive(Clone, Debug)]
struct Row<T> {
    id: u32,
    served: Served,
    row: T,
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
    pub fn changed(&mut self, change: &Change) {
        self.touched.changed(change);
    }

    /// The row of an executor may be another, for a reason that no row of its own tells.
    pub fn touch(&mut self, executor: u32) {
        self.touched.touch(executor);
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
        let dirty = self.touched.take();
        for &id in &dirty {
            let executor = mirror.executor(id);
            let new = executor.and_then(|executor| {
                Some(Row {
                    id,
                    served: Served::by(executor.info),
                    row: row(&executor)?,
                })
            });
            match (self.rows.binary_search_by_key(&id, |row| row.id), new) {
                (Ok(at), Some(new)) => self.rows[at] = new,
                (Ok(at), None) => drop(self.rows.remove(at)),
                (Err(at), Some(new)) => self.rows.insert(at, new),
                (Err(_), None) => {}
            }
        }
        self.touched.done(dirty);
    }

    /// The rows of executors that may serve the model, by id; one that does not is left out as a
    /// rule, but not always.
    pub fn rows(&self, model: Option<u32>) -> impl Iterator<Item = (u32, &T)> {
        let wanted = Served::wanted(model);
        let rows = self.rows.iter();
        let serving = rows.filter(move |row| row.served.meets(wanted));
        serving.map(|row| (row.id, &row.row))
    }
}

#[cfg(test)]
mod tests {
    use super::Sheet;
    use crate::fixture::{executor, load};
    use crate::mirror::Mirror;
    use crate::wire::types::{Change, ExecutorInfo, ExecutorLoad, Extent};

    struct Told {
        mirror: Mirror,
        sheet: Sheet<u32>,
    }

    impl Told {
        fn tell(&mut self, changes: impl IntoIterator<Item = Change>) {
            self.mirror.begin(0, Extent::SinceLast);
            for change in changes {
                self.sheet.changed(&change);
                self.mirror.apply(change);
            }
            self.sheet.observed();
            self.sheet
                .refresh(&self.mirror, |at| Some(at.load.slots_used));
        }

        fn rows(&self, model: Option<u32>) -> Vec<(u32, u32)> {
            let rows = self.sheet.rows(model);
            rows.map(|(id, &used)| (id, used)).collect()
        }
    }

    fn of_three() -> Told {
        let mut told = Told {
            mirror: Mirror::default(),
            sheet: Sheet::default(),
        };
        told.tell([2, 0, 1].into_iter().flat_map(|id| {
            let serves = (id > 0).then(|| vec![id, 7]);
            let info = ExecutorInfo {
                serves,
                ..executor(id)
            };
            [Change::Executor(info), Change::Load(load(id))]
        }));
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
    }

    #[test]
    fn who_serves_other_models_is_left_out() {
        let told = of_three();
        assert_eq!(told.rows(Some(1)), [(0, 0), (1, 0)]);
        assert_eq!(told.rows(Some(7)), [(0, 0), (1, 0), (2, 0)]);
    }
}
