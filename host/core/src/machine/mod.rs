//! [`Machine`]: what it owns, what can be read from it, and which file does what.
//!
//! | file | owns |
//! |---|---|
//! | `handle` | the `handle_*` inputs about executors, devices, names and requests |
//! | `progress` | the inputs about sequences: started, step, finished, failed, left, lost |
//! | `place` | the interlock for placements, and the one way into and out of an executor |
//! | `round` | `decide`: admission, order, routing |
//! | `relieve` | shortages: who is asked about, and when |
//! | `evict` | the interlock for evictions |
//! | `reserve` | victims told to leave, and the room kept for the needy |
//! | `allot` | token budgets |
//! | `liveness` | timers and the clocks that bound a policy |
//! | `built_in` | the rules for when no policy answers |
//! | `rows` | what policies are told |
//! | `check` | the whole-state checker |
//! | `keyframe` | the whole state, written down and read again |
//! | `tiers` | what is held of prompts outside the pools, as reported |
//! | `pool`, `device`, `executor`, `request`, `names` | the records |

mod allot;
mod built_in;
mod check;
mod device;
mod evict;
mod executor;
mod handle;
#[cfg(feature = "serde")]
mod keyframe;
mod liveness;
mod names;
mod place;
mod pool;
mod probe;
mod progress;
mod relieve;
mod request;
mod reserve;
mod round;
mod rows;
mod tiers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::{Config, ConfigError};
use crate::effect::Effect;
use crate::fact::{Fact, Stamped};
use crate::ids::{
    BlockId, DeviceId, ExecutorId, Incarnation, Micros, ModelId, RequestId, Round, TenantId,
};
use crate::log::{ChangeLog, RowKey, Stamp};
use crate::rows::{Health, NameKind, Presence, RequestClass, SequenceState};
use crate::view::View;

pub use check::BrokenInvariant;
pub use handle::AttachError;
pub use probe::Probe;

use device::Device;
use executor::Executor;
use liveness::Timers;
use names::Names;
use request::{Request, Urgency};
use rows::Completions;
use tiers::SharedCache;

/// A model and how many requests of it are where.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Model {
    running_max: Option<u32>,
    running: u32,
    waiting: u32,
    stamp: Stamp,
}

/// A tenant and what it used.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Tenant {
    weight: u32,
    tokens_per_minute: Option<u64>,
    running: u32,
    waiting: u32,
    prompt_tokens_total: u64,
    output_tokens_total: u64,
    stamp: Stamp,
}

/// Attached executors by id. Ids count up, so a removed one leaves a hole.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Executors {
    by_id: Vec<Option<Box<Executor>>>,
    attached: u32,
}

impl Executors {
    fn push(&mut self, executor: Executor) {
        self.by_id.push(Some(Box::new(executor)));
        self.attached += 1;
    }

    fn remove(&mut self, id: ExecutorId) {
        if let Some(slot) = self.by_id.get_mut(id.0 as usize)
            && slot.take().is_some()
        {
            self.attached -= 1;
        }
    }

    fn next_id(&self) -> ExecutorId {
        ExecutorId(executor::count(self.by_id.len()))
    }

    fn get(&self, id: ExecutorId) -> Option<&Executor> {
        self.by_id.get(id.0 as usize)?.as_deref()
    }

    fn get_mut(&mut self, id: ExecutorId) -> Option<&mut Executor> {
        self.by_id.get_mut(id.0 as usize)?.as_deref_mut()
    }

    fn iter(&self) -> impl Iterator<Item = &Executor> {
        self.by_id.iter().filter_map(Option::as_deref)
    }

    #[cfg(feature = "serde")]
    fn check_ids(&self, devices: usize) -> Result<(), String> {
        let attached = self.iter().count();
        if attached != self.attached as usize {
            return Err(format!(
                "{attached} executors are counted as {}",
                self.attached
            ));
        }
        for (idx, executor) in self.by_id.iter().enumerate() {
            let Some(executor) = executor else { continue };
            let (id, device) = (executor.id, executor.spec.device);
            if id.0 as usize != idx || device.0 as usize >= devices {
                return Err(format!(
                    "executor {id} is the {idx}th and on device {device}"
                ));
            }
        }
        Ok(())
    }

    /// Ids of the attached executors, in attach order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ExecutorId> + '_ {
        self.iter().map(|executor| executor.id)
    }
}

/// The state machine of the host. See the crate's documentation for its four method families.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(remote = "Self"))]
pub struct Machine {
    config: Config,
    // Who there is.
    names: Names,
    devices: Vec<Device>,
    shared_cache: SharedCache,
    pub(crate) executors: Executors,
    models: BTreeMap<ModelId, Model>,
    tenants: BTreeMap<TenantId, Tenant>,
    // Requests, and where they wait.
    requests: BTreeMap<RequestId, Request>,
    next_request: u64,
    arrivals: Vec<RequestId>,
    parking: BTreeSet<RequestId>,
    queue: BTreeSet<RequestId>,
    /// Executors that could take something, as far as slots and device queue go.
    open: BTreeSet<ExecutorId>,
    /// Waiting requests for which a liveness clock runs.
    watched: BTreeSet<RequestId>,
    /// Placed sequences that could be evicted, least urgent first.
    preemptible: BTreeSet<(Urgency, RequestId)>,
    /// Devices on which a running sequence may lack a block.
    short_devices: BTreeSet<DeviceId>,
    // What the next round has to do.
    round: Round,
    due: bool,
    allot_due: BTreeSet<DeviceId>,
    /// Devices whose next allotment is the built-in one.
    allot_built_in: BTreeSet<DeviceId>,
    timers: Timers,
    // What others have to be told.
    pub(crate) log: ChangeLog,
    completions: Completions,
    effects: VecDeque<Effect>,
    facts: VecDeque<Stamped>,
    now: Micros,
}

/// An executor as monitors and tests see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExecutorSnapshot {
    /// Which.
    pub id: ExecutorId,
    /// Its name.
    pub name: String,
    /// Where its blocks are.
    pub device: DeviceId,
    /// Whether it serves.
    pub health: Health,
    /// Which life it is in.
    pub incarnation: Incarnation,
    /// Slots in use, leaving and reserved ones included.
    pub slots_used: u32,
    /// Slots there are.
    pub slots_total: u32,
    /// Tokens per step it was last allotted.
    pub tokens_max: Option<u32>,
    /// What is placed there.
    pub sequences: Vec<(RequestId, SequenceState)>,
}

/// The queue as monitors and tests see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueSnapshot {
    /// Queued requests, in order of arrival.
    pub queued: Vec<RequestId>,
    /// Parked requests, in order of arrival.
    pub parked: Vec<RequestId>,
    /// Those whose room is being made, and where.
    pub reserved: Vec<(RequestId, ExecutorId)>,
}

// === impl Machine: making and reading ===

impl Machine {
    /// A machine with nothing attached.
    ///
    /// # Errors
    /// A bound that is out of its range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            names: Names::default(),
            devices: Vec::new(),
            shared_cache: SharedCache::default(),
            executors: Executors::default(),
            models: BTreeMap::new(),
            tenants: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            arrivals: Vec::new(),
            parking: BTreeSet::new(),
            queue: BTreeSet::new(),
            open: BTreeSet::new(),
            watched: BTreeSet::new(),
            preemptible: BTreeSet::new(),
            short_devices: BTreeSet::new(),
            round: Round(0),
            due: false,
            allot_due: BTreeSet::new(),
            allot_built_in: BTreeSet::new(),
            timers: Timers::default(),
            log: ChangeLog::new(config.change_log_max),
            completions: Completions::new(config.completions_max),
            effects: VecDeque::new(),
            facts: VecDeque::new(),
            now: Micros(0),
            config,
        })
    }

    /// The bounds it keeps.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether [`Self::decide`] has something to decide.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// When [`Self::decide`] must be called at the latest, if nothing happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Micros> {
        self.timers.next()
    }

    /// The next thing the runtime must do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The next thing that happened.
    pub fn poll_fact(&mut self) -> Option<Stamped> {
        self.facts.pop_front()
    }

    /// Whether there is nothing to poll.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.effects.is_empty() && self.facts.is_empty()
    }

    /// The machine as policies are told of it.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::new(self)
    }

    /// The text behind an id.
    #[must_use]
    pub fn name(&self, kind: NameKind, id: u32) -> Option<&str> {
        self.names.text(kind, id)
    }

    /// The id behind a text, the newest of that name; absent: it was never used.
    #[must_use]
    pub fn id_of(&self, kind: NameKind, text: &str) -> Option<u32> {
        self.names.find(kind, text)
    }

    /// The round of the last [`Self::decide`].
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// Live requests: everything that has no outcome yet.
    #[must_use]
    pub fn live_requests(&self) -> usize {
        let live = self.requests.values().filter(|request| !request.is_gone());
        live.count()
    }

    /// The blocks a request holds, in the order of its tokens.
    #[must_use]
    pub fn block_table(&self, request: RequestId) -> &[BlockId] {
        self.requests
            .get(&request)
            .and_then(|request| self.pool_of(request.placed()?.executor))
            .map_or(&[], |pool| pool.lease(request))
    }

    /// Whether the machine hands out the blocks of a device.
    #[must_use]
    pub fn owns_kv(&self, device: DeviceId) -> bool {
        let device = self.devices.get(device.0 as usize);
        device.is_some_and(|device| device.pool().is_some())
    }

    /// What waits, and where.
    #[must_use]
    pub fn queue_snapshot(&self) -> QueueSnapshot {
        let reserved = self.queue.iter().filter_map(|id| {
            let waiting = self.requests.get(id)?.waiting()?;
            Some((*id, waiting.reservation.as_ref()?.executor))
        });
        QueueSnapshot {
            queued: self.queue.iter().copied().collect(),
            parked: self.parking.iter().copied().collect(),
            reserved: reserved.collect(),
        }
    }

    /// One executor, if it is attached.
    #[must_use]
    pub fn executor_snapshot(&self, id: ExecutorId) -> Option<ExecutorSnapshot> {
        let executor = self.executors.get(id)?;
        let placed = executor.slots.keys().copied().chain(executor.queue.iter());
        let sequences = placed.filter_map(|request| {
            let row = self.sequence_row(request)?;
            Some((request, row.state))
        });
        Some(ExecutorSnapshot {
            id,
            name: executor.spec.name.clone(),
            device: executor.spec.device,
            health: executor.health,
            incarnation: executor.incarnation,
            slots_used: executor.slots_used(),
            slots_total: executor.spec.slots_total,
            tokens_max: executor.tokens_max,
            sequences: sequences.collect(),
        })
    }

    /// The ids of the attached executors, in attach order.
    pub fn executor_ids(&self) -> impl Iterator<Item = ExecutorId> + '_ {
        self.executors.ids()
    }
}

// === impl Machine: small steps that several files take ===

impl Machine {
    fn fact(&mut self, fact: Fact) {
        self.facts.push_back(Stamped {
            now: self.now,
            round: self.round,
            fact,
        });
    }

    fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    fn device_of(&self, executor: ExecutorId) -> Option<&Device> {
        let device = self.executors.get(executor)?.spec.device;
        self.devices.get(device.0 as usize)
    }

    fn device_mut(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(id.0 as usize)
    }

    fn pool_of(&self, executor: ExecutorId) -> Option<&pool::BlockPool> {
        self.device_of(executor)?.pool()
    }

    fn touch_load(&mut self, id: ExecutorId) {
        if let Some(executor) = self.executors.get_mut(id) {
            self.log.mark(RowKey::Load(id), &mut executor.load_stamp);
            if executor.is_open() {
                self.open.insert(id);
            } else {
                self.open.remove(&id);
            }
        }
    }

    fn touch_info(&mut self, id: ExecutorId) {
        if let Some(executor) = self.executors.get_mut(id) {
            self.log
                .mark(RowKey::Executor(id), &mut executor.info_stamp);
        }
    }

    fn touch_presence(&mut self, executor: ExecutorId, model: ModelId) {
        let Some(record) = self.executors.get_mut(executor) else {
            return;
        };
        let key = RowKey::Residency(Presence { executor, model });
        if record.models.contains_key(&model) {
            let stamp = record.models_stamps.entry(model).or_default();
            self.log.mark(key, stamp);
        } else {
            record.models_stamps.remove(&model);
            self.log.note(key);
        }
    }

    /// The blocks of a device came or went by the machine's own books; where others keep them,
    /// the row changes with their report only.
    fn touch_blocks(&mut self, id: DeviceId) {
        if self.owns_kv(id) {
            self.touch_device(id);
        }
    }

    fn touch_device(&mut self, id: DeviceId) {
        if let Some(device) = self.devices.get_mut(id.0 as usize) {
            self.log.mark(RowKey::Device(id), &mut device.stamp);
        }
    }

    fn touch_model(&mut self, id: ModelId) {
        if let Some(model) = self.models.get_mut(&id) {
            self.log.mark(RowKey::Model(id), &mut model.stamp);
        }
    }

    fn touch_tenant(&mut self, id: TenantId) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            self.log.mark(RowKey::Tenant(id), &mut tenant.stamp);
        }
    }

    fn touch_waiting(&mut self, id: RequestId) {
        match self.requests.get_mut(&id) {
            Some(request) if request.waiting().is_some() => {
                self.log
                    .mark(RowKey::Waiting(id), &mut request.waiting_stamp);
            }
            Some(_) | None => self.log.note(RowKey::Waiting(id)),
        }
    }

    fn touch_sequence(&mut self, id: RequestId) {
        match self.requests.get_mut(&id) {
            Some(request) if request.placed().is_some() => {
                self.log
                    .mark(RowKey::Sequence(id), &mut request.sequence_stamp);
            }
            Some(_) | None => self.log.note(RowKey::Sequence(id)),
        }
    }

    /// Counts a request of this model and tenant in or out of the waiting ones.
    fn count_waiting(&mut self, id: RequestId, step: Step) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let (model, tenant) = (request.row.model, request.row.tenant);
        if let Some(model) = model
            && let Some(record) = self.models.get_mut(&model)
        {
            record.waiting = step.apply(record.waiting);
            self.touch_model(model);
        }
        if let Some(record) = self.tenants.get_mut(&tenant) {
            record.waiting = step.apply(record.waiting);
            self.touch_tenant(tenant);
        }
    }
}

/// One more or one fewer.
#[derive(Clone, Copy, Debug)]
enum Step {
    Up,
    Down,
}

impl Step {
    fn apply(self, n: u32) -> u32 {
        match self {
            Step::Up => n + 1,
            Step::Down => n - 1,
        }
    }
}

/// Both classes, the more urgent one first.
const CLASSES: [RequestClass; 2] = [RequestClass::LatencyCritical, RequestClass::Throughput];
