//! Indexes of executors that a policy keeps, and which executors they have to look at again.

use crate::fleet::Fleet;
use crate::held::Held;
use crate::mirror::Mirror;
use crate::placements::BatchPlacements;
use crate::wire::types::Change;

/// Knowledge of a policy about executors beside the mirror, such as an order of them.
///
/// A policy names its index in [`Policy::index`](crate::Policy::index). The SDK updates it at the
/// end of every `observe` and, for a [`Router`](crate::Router), before each request of a batch, and
/// after the last; and before and after an explanation.
pub trait ExecutorIndex {
    /// Looks at some executors again, because their rows or the placements on them have changed, or because the
    /// request that is being placed would share blocks there. They come in any order, some of them twice; one
    /// that is not in the mirror is gone.
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]);

    /// Executors that a placement changes.
    fn reach(&self) -> Reach {
        Reach::Executor
    }
}

/// Executors that a placement changes in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The executor that is placed on.
    Executor,
    /// All executors on its device, as in an index by free blocks.
    Device,
}

/// Updates an index for the placements that are new in the batch.
pub(crate) fn update_placed(
    index: &mut dyn ExecutorIndex,
    mirror: &Mirror,
    placed: &mut BatchPlacements,
) {
    let reach = index.reach();
    let fleet = Fleet { mirror, placed };
    for executor in placed.executors_not_indexed() {
        index.update(fleet, reached(mirror, executor, reach));
    }
    placed.set_indexed();
}

/// Updates an index for the executors that have room for the request which is being placed only together with what is
/// held of its prompt, and for those of the request before. So it finds them, and looks at no others for their sake.
pub(crate) fn update_held(
    index: &mut dyn ExecutorIndex,
    mirror: &Mirror,
    placed: &mut BatchPlacements,
    held: Vec<Held>,
) {
    let before = placed.set_held(held);
    let changed = before.iter().chain(placed.held());
    let executors: Vec<u32> = changed.map(|held| held.executor).collect();
    if !executors.is_empty() {
        index.update(Fleet { mirror, placed }, &executors);
    }
}

fn reached<'a>(mirror: &'a Mirror, executor: &'a u32, reach: Reach) -> &'a [u32] {
    match reach {
        Reach::Executor => std::slice::from_ref(executor),
        Reach::Device => mirror.sharing_device_of(*executor),
    }
}

/// Executors that one `observe` changes, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    executors: Vec<u32>,
    /// By executor id: true for those among them.
    are_in: Vec<bool>,
}

// === impl Touched ===

impl Touched {
    #[inline]
    fn add(&mut self, id: u32) {
        let at = id as usize;
        if at >= self.are_in.len() {
            self.are_in.resize(at + 1, false);
        }
        if !std::mem::replace(&mut self.are_in[at], true) {
            self.executors.push(id);
        }
    }

    #[inline]
    fn add_all(&mut self, ids: &[u32]) {
        ids.iter().for_each(|id| self.add(*id));
    }

    /// Adds the executors that earlier placements changed: what the host took is in the rows, and
    /// the rest is void.
    pub(crate) fn placed(&mut self, mirror: &Mirror, placed: &BatchPlacements, reach: Reach) {
        for executor in placed.executors() {
            self.add_all(reached(mirror, executor, reach));
        }
    }

    /// Adds all executors: the mirror is about to be cleared.
    pub(crate) fn cleared(&mut self, mirror: &Mirror) {
        let all = mirror.executors().map(|executor| executor.id());
        all.for_each(|id| self.add(id));
    }

    /// Adds the executors that a row changes, before it does: for a device's row, all on it.
    #[inline]
    pub(crate) fn changed(&mut self, mirror: &Mirror, change: &Change) {
        match change {
            Change::Load(load) => self.add(load.id),
            Change::Completed(completion) => self.add(completion.executor),
            Change::Executor(info) => self.add(info.id),
            Change::ExecutorGone(id) => self.add(*id),
            Change::Device(device) => {
                self.add_all(mirror.sharing_device(device.id));
            }
            Change::Name(_)
            | Change::Residency(_)
            | Change::ResidencyGone(_)
            | Change::Model(_)
            | Change::Tenant(_)
            | Change::Waiting(_)
            | Change::WaitingGone(_)
            | Change::Sequence(_)
            | Change::SequenceGone(_) => {}
        }
    }

    /// Hands the executors to an index, and forgets them.
    pub(crate) fn update(&mut self, index: &mut dyn ExecutorIndex, fleet: Fleet<'_>) {
        index.update(fleet, &self.executors);
        for id in self.executors.drain(..) {
            self.are_in[id as usize] = false;
        }
    }
}
