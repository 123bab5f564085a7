//! The books of everything there may be too little of: slots, KV blocks, models' places, tokens per
//! step, and the first claims on what comes free.
//!
//! A placement is opened by [`Ledger::place`], or by [`Ledger::reserve`] for room that is kept;
//! [`Ledger::grow`] adds blocks, and exactly one [`Ledger::release`] closes it.
//!
//! # Invariants
//! 1. Nothing outside this folder takes or gives a slot, a block or a model's place: the books are
//!    private, and records are lent out to be read only. The compiler checks this.
//! 2. Room that comes free is handed out: whoever frees some gets a [`Freed`], which
//!    [`super::Machine::refill`] consumes and nothing else does.
//! 3. The books agree with the requests (`check`).
//!
//! # Panics
//! `ledger[id]` is for ids that cannot be missing, because a placement, a claim or a list names
//! them. It panics if one is: books that contradict themselves would sooner or later give one block
//! to two sequences, and a stopped host is safer than that. Ids from outside, in inputs and in
//! answers, go through [`Ledger::find`].

mod arrangements;
mod budgets;
mod cached;
mod device;
mod executor;
mod faults;
mod fleet;
mod models;
mod overlaps;
mod placements;
mod prefix;
mod rows;
mod swapped;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

use pointsman_events::changes::RowKey;
use pointsman_events::rows::RequestClass;
use pointsman_events::{BlockId, DeviceId, ExecutorId, Fact, ModelId, RequestId, TenantId};
use pointsman_kv::{PrefixIndex, SwappedOut};

use super::outbox::Outbox;
use super::requests::Urgency;

pub(super) use budgets::Budgets;
pub(super) use device::Device;
pub(super) use executor::{Attachment, Executor, SlotUse};
pub(super) use models::Step;
pub(super) use placements::{Grown, blocks_at_start};

use executor::Executors;
use models::{ModelUse, TenantUse};

/// The books of all devices, executors, models and tenants.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Ledger {
    devices: Vec<Device>,
    /// Cached prompt blocks that are known of beside the devices' own books.
    index: PrefixIndex,
    executors: Executors,
    /// The KV that requests have in host memory.
    swapped: SwappedOut,
    models: BTreeMap<ModelId, ModelUse>,
    tenants: BTreeMap<TenantId, TenantUse>,
    sets: Sets,
}

/// Sets of what is to be looked at, so that nothing is searched for.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Sets {
    /// Executors that could take something, as far as slots and device queue go.
    pub(super) open: BTreeSet<ExecutorId>,
    /// Placed sequences that could be evicted, least urgent first.
    pub(super) preemptible: BTreeSet<(Urgency, RequestId)>,
    /// Devices on which a running sequence may lack a block.
    pub(super) short: BTreeSet<DeviceId>,
    /// Devices whose budgets the next round sets anew.
    pub(super) allot_due: BTreeSet<DeviceId>,
    /// Devices whose next budgets are the built-in ones.
    pub(super) allot_built_in: BTreeSet<DeviceId>,
    /// Classes of device queues that the next round puts in order.
    pub(super) queue_due: BTreeSet<(ExecutorId, RequestClass)>,
    /// Executors whose sequences the next round puts in order.
    pub(super) arrange_due: BTreeSet<ExecutorId>,
    /// Executors whose next order is the built-in one.
    pub(super) arrange_built_in: BTreeSet<ExecutorId>,
}

/// A device on which room came free, or on which somebody has a new claim on what is free.
#[derive(Debug)]
#[must_use = "free room belongs to the claimants until `Machine::refill` has handed it out"]
pub(super) struct Freed(DeviceId);

impl Freed {
    /// Both, on the same device.
    pub(super) fn and(self, other: Freed) -> Freed {
        debug_assert_eq!(self.0, other.0, "a step frees room on one device");
        self
    }

    /// The device whose room is handed out now, by [`super::Machine::refill`] alone.
    pub(super) fn hand_out(self) -> DeviceId {
        self.0
    }
}

const ATTACHED: &str = "an executor that a placement, a claim or a device names is attached";

impl Index<ExecutorId> for Ledger {
    type Output = Executor;

    fn index(&self, id: ExecutorId) -> &Executor {
        self.find(id).expect(ATTACHED)
    }
}

impl Index<DeviceId> for Ledger {
    type Output = Device;

    fn index(&self, id: DeviceId) -> &Device {
        &self.devices[id.0 as usize]
    }
}

// === impl Ledger: reading ===

impl Ledger {
    /// An executor that somebody outside has named, if it is attached.
    pub(crate) fn find(&self, id: ExecutorId) -> Option<&Executor> {
        self.executors.get(id)
    }

    /// The attached executors, in attach order.
    pub(crate) fn executors(&self) -> impl Iterator<Item = &Executor> {
        self.executors.iter()
    }

    pub(super) fn devices(&self) -> &[Device] {
        &self.devices
    }

    pub(crate) fn find_device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id.0 as usize)
    }

    pub(super) fn device_of(&self, executor: ExecutorId) -> &Device {
        &self[self[executor].spec.device]
    }

    /// The executors of a device, in attach order.
    pub(super) fn executors_on(&self, device: DeviceId) -> impl Iterator<Item = &Executor> {
        self[device].executors.iter().map(|id| &self[*id])
    }

    /// The blocks of a request that is placed on `executor`, in the order of its tokens.
    pub(super) fn block_table(&self, request: RequestId, executor: ExecutorId) -> &[BlockId] {
        let pool = self.device_of(executor).pool();
        pool.map_or(&[], |pool| pool.lease(request))
    }

    pub(super) fn sets(&self) -> &Sets {
        &self.sets
    }
}

// === impl Ledger: writing, with the rows that change by it ===

impl Ledger {
    fn device_mut(&mut self, id: DeviceId) -> &mut Device {
        &mut self.devices[id.0 as usize]
    }

    fn executor_mut(&mut self, id: ExecutorId) -> &mut Executor {
        self.executors.get_mut(id).expect(ATTACHED)
    }

    /// Changes an executor in a way that may open or close it for new requests.
    fn book<R>(&mut self, id: ExecutorId, change: impl FnOnce(&mut Executor) -> R) -> R {
        let executor = self.executor_mut(id);
        let changed = change(executor);
        if executor.is_open() {
            self.sets.open.insert(id);
        } else {
            self.sets.open.remove(&id);
        }
        changed
    }

    /// Marks the row of an executor's load. A queue that has become saturated, or is so no longer, is
    /// a fact.
    pub(super) fn touch_load(&mut self, id: ExecutorId, out: &mut Outbox) {
        let executor = self.executor_mut(id);
        out.mark(RowKey::Load(id), &mut executor.load_stamp);
        let is_saturated = executor.is_saturated();
        if std::mem::replace(&mut executor.saturated, is_saturated) != is_saturated {
            out.fact(if is_saturated {
                Fact::Saturated(id)
            } else {
                Fact::Relieved(id)
            });
        }
    }

    /// Marks the row of a device whose blocks came or went by the machine's own books; where others
    /// keep them, the row changes with their report, with a placement and its end, only.
    pub(super) fn touch_blocks(&mut self, id: DeviceId, out: &mut Outbox) {
        if self[id].pool().is_some() {
            self.touch_device(id, out);
        }
    }

    pub(super) fn touch_device(&mut self, id: DeviceId, out: &mut Outbox) {
        let device = self.device_mut(id);
        out.mark(RowKey::Device(id), &mut device.stamp);
    }
}

// === impl Ledger: keyframes ===

#[cfg(feature = "serde")]
impl Ledger {
    /// Checks that every device, executor and block that is named is there.
    pub(super) fn check_ids(&self) -> Result<(), String> {
        let devices = self.devices.len();
        for (idx, device) in self.devices.iter().enumerate() {
            if device.id.0 as usize != idx {
                return Err(format!("device {} is the {idx}th", device.id));
            }
            if let Some(id) = device.executors.iter().find(|id| self.find(**id).is_none()) {
                return Err(format!("executor {id} of device {idx} is not there"));
            }
            if let Some(pool) = device.pool() {
                pool.check_ids()?;
            }
        }
        let sets = [
            &self.sets.short,
            &self.sets.allot_due,
            &self.sets.allot_built_in,
        ];
        let mut listed = sets.into_iter().flatten();
        if listed.any(|id| id.0 as usize >= devices) {
            return Err("a device is listed that is not there".to_owned());
        }
        self.swapped.check_ids(devices)?;
        self.check_arenas()?;
        self.executors.check_ids(devices)
    }
}
