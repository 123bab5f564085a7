//! [`Machine`]: its parts, and the ways to read it.
//!
//! | part | owns |
//! |---|---|
//! | `ledger` | slots, KV blocks, models' places, budgets, first claims, and all counts of them |
//! | `requests` | live requests, their phases, and the lists in which they wait |
//! | `outbox` | facts, effects, changed rows, and the time of the next call |
//! | `timers`, `names` | times at which something may fall due; the texts behind ids |
//!
//! | file | does |
//! |---|---|
//! | `inputs` | takes what happened outside: [`Machine::handle`] |
//! | `round` | decides: [`Machine::decide`] |
//! | `interlock` | checks every answer, and changes nothing |
//! | `moves` | moves requests from phase to phase, in the books and the lists at once |
//! | `rows`, `probe`, `wait` | shows what there is to policies and monitors |
//! | `check`, `keyframe` | checks the whole state; writes it down and reads it again |

mod check;
mod inputs;
mod interlock;
#[cfg(feature = "serde")]
mod keyframe;
mod ledger;
mod moves;
mod names;
mod outbox;
mod probe;
mod requests;
mod round;
mod rows;
mod timers;
mod unserved;
mod wait;

use crate::view::View;
use pointsman_events::changes::ChangeLog;
use pointsman_events::rows::{NameKind, RequestClass};
use pointsman_events::{
    BlockId, Config, DeviceId, DeviceSpec, Effect, Eviction, ExecutorId, ExecutorSnapshot,
    ExecutorSpec, InvalidConfig, Micros, QueueSnapshot, RequestId, Round, Shortage, Stamped, Walk,
};

pub use check::BrokenInvariant;
pub use wait::WaitReasons;

use interlock::Books;
use ledger::Ledger;
use names::Names;
use outbox::Outbox;
use requests::Requests;

/// The state machine of the host. See the crate's documentation for its four method families.
#[derive(Clone, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "keyframe::Unchecked")
)]
pub struct Machine {
    config: Config,
    names: Names,
    ledger: Ledger,
    requests: Requests,
    out: Outbox,
}

// === impl Machine: making and polling ===

impl Machine {
    /// A machine with nothing attached.
    ///
    /// # Errors
    /// A bound that is out of its range.
    pub fn new(config: Config) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self {
            names: Names::default(),
            ledger: Ledger::default(),
            requests: Requests::default(),
            out: Outbox::new(&config),
            config,
        })
    }

    /// The next thing the runtime must do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.effects.pop_front()
    }

    /// The next thing that happened.
    pub fn poll_fact(&mut self) -> Option<Stamped> {
        self.out.facts.pop_front()
    }

    /// Tells whether there is nothing to poll.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.out.effects.is_empty() && self.out.facts.is_empty()
    }

    /// Tells whether [`Self::decide`] has something to decide.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.out.due
    }

    /// The time at which [`Self::decide`] must be called at the latest, if nothing happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Micros> {
        self.out.timers.next()
    }
}

// === impl Machine: reading ===

impl Machine {
    /// The bounds that the machine keeps.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The round of the last [`Self::decide`].
    #[must_use]
    pub fn round(&self) -> Round {
        self.out.at.round
    }

    /// See [`View::walks`].
    pub(crate) fn walks<'p>(
        &self,
        placements: impl Iterator<Item = (RequestId, &'p [ExecutorId])>,
    ) -> Vec<Walk> {
        interlock::walks(self.books(), placements)
    }

    /// See [`View::spared`].
    pub(crate) fn spared(&self, shortage: &Shortage, eviction: &Eviction) -> Vec<RequestId> {
        self.books().spared(shortage, eviction)
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

    /// The number of live requests: those that have no outcome yet.
    #[must_use]
    pub fn live_requests(&self) -> usize {
        let live = self.requests.iter().filter(|request| !request.is_gone());
        live.count()
    }

    /// The blocks a request holds, in the order of its tokens.
    #[must_use]
    pub fn block_table(&self, request: RequestId) -> &[BlockId] {
        let placed = self.requests.find(request).and_then(|r| r.placed());
        placed.map_or(&[], |p| self.ledger.block_table(request, p.executor))
    }

    /// Tells whether the machine hands out the blocks of a device.
    #[must_use]
    pub fn owns_kv(&self, device: DeviceId) -> bool {
        let device = self.ledger.find_device(device);
        device.is_some_and(|device| device.pool().is_some())
    }

    /// The requests that wait, by the place where they do.
    #[must_use]
    pub fn queue_snapshot(&self) -> QueueSnapshot {
        let reserved = self.requests.queued().filter_map(|request| {
            let reservation = request.reservation()?;
            Some((request.id(), reservation.executor))
        });
        QueueSnapshot {
            queued: self.requests.queue().iter().copied().collect(),
            parked: self.requests.parking().iter().copied().collect(),
            reserved: reserved.collect(),
        }
    }

    /// The number of requests in the queue.
    #[must_use]
    pub fn queued_requests(&self) -> usize {
        self.requests.queue().len()
    }

    /// One executor, if it is attached.
    #[must_use]
    pub fn executor_snapshot(&self, id: ExecutorId) -> Option<ExecutorSnapshot> {
        let executor = self.ledger.find(id)?;
        let placed = executor.slots.keys().copied().chain(executor.queue.iter());
        let sequences = placed.filter_map(|request| {
            let row = self.sequence_row(request)?;
            Some((request, row.state))
        });
        Some(ExecutorSnapshot {
            id,
            name: executor.spec.name.clone(),
            device: executor.spec.device,
            health: executor.health_seen(),
            incarnation: executor.incarnation,
            slots_used: executor.slots_used(),
            slots_total: executor.spec.slots_total,
            tokens_max: executor.tokens_max,
            tokens_used: executor.tokens_used,
            arrangement: executor.arrangement.clone(),
            sequences: sequences.collect(),
        })
    }

    /// An executor as it was attached, with what was changed of it since; absent: there is none.
    #[must_use]
    pub fn executor_spec(&self, id: ExecutorId) -> Option<&ExecutorSpec> {
        self.ledger.find(id).map(|executor| &executor.spec)
    }

    /// A device as it was attached, with what was changed of it since; absent: there is none.
    #[must_use]
    pub fn device_spec(&self, id: DeviceId) -> Option<&DeviceSpec> {
        self.ledger.find_device(id).map(|device| &device.spec)
    }

    /// The ids of the attached executors, in attach order.
    pub fn executor_ids(&self) -> impl Iterator<Item = ExecutorId> + '_ {
        self.ledger.executors().map(|executor| executor.id)
    }

    pub(crate) fn log(&self) -> &ChangeLog {
        &self.out.log
    }

    fn books(&self) -> Books<'_> {
        Books {
            ledger: &self.ledger,
            requests: &self.requests,
        }
    }
}

/// Both classes, the more urgent one first.
const CLASSES: [RequestClass; 2] = [RequestClass::LatencyCritical, RequestClass::Throughput];

/// A length as the 32-bit count that rows and rules use; everything counted is bounded far below.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
