//! A full batch of requests over a fleet of any size: the question to a policy that routes.
//!
//! The fuel of this question is the same on every machine, so a test can check it. Under the
//! default limits, a policy that looks at the whole fleet for each request cannot answer [`BATCH`]
//! of them over [`EXECUTORS_MAX`] executors; one with an index can.
//!
//! ```no_run
//! use pointsman_testkit::scale::check_batches;
//!
//! # fn batches() {
//! if let Err(problem) = check_batches("newest", "{}") {
//!     panic!("{problem}");
//! }
//! # }
//! ```
//!
//! # Not here
//! Time: `cargo xtask bench decide`.

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_component::{Instance, Limits};
use pointsman_core::rows::{
    Cached, Change, Device, ExecutorInfo, ExecutorLoad, Extent, Model, Name, NameKind, Overlap,
    Request, RequestClass,
};
use pointsman_core::{
    Config, DeviceId, ExecutorId, Micros, ModelId, Moment, Question, Round, SessionKey, fixture,
    routing,
};
use pointsman_policy::observe_all;
use pointsman_sdk::rendezvous::split_mix;

use crate::component::Components;

/// Requests of a batch, the host's default.
pub const BATCH: u32 = 64;
/// Number of executors in the largest fleet.
pub const EXECUTORS_MAX: u32 = 10_000;

const SECOND: u64 = 1_000_000;
/// Number of executors that share a device.
const PER_DEVICE: u32 = 8;
const SLOTS: u32 = 8;
const MODELS: u32 = 4;
/// Number of executors that hold a part of a prompt.
const HOLDERS: u32 = 8;
const TOKENS_PER_BLOCK: u32 = 16;

/// The part of the fleet that has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Room on every executor.
    Everywhere,
    /// Room on every other executor.
    OnHalf,
    /// Room in one slot of a full fleet, in which a sequence has ended.
    OneSlot,
    /// Room on one device: slots are free everywhere, but blocks only there.
    OneDevice,
}

impl Room {
    /// Every kind of room.
    pub const ALL: [Self; 4] = [
        Self::Everywhere,
        Self::OnHalf,
        Self::OneSlot,
        Self::OneDevice,
    ];

    /// The room in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Everywhere => "everywhere",
            Self::OnHalf => "on half",
            Self::OneSlot => "one slot",
            Self::OneDevice => "one device",
        }
    }
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Number of requests placed.
    pub placed: usize,
    /// Fuel of the question.
    pub fuel: u64,
    /// Number of executors in the explanation of the first request; `None` if the policy explains
    /// nothing.
    pub explained: Option<usize>,
}

/// Asks the component of policy `name` about a full batch over the largest fleet, under the default
/// limits, for each kind of room, and for an explanation of one request. `settings` is JSON.
///
/// # Errors
/// If the policy faults, places nothing where there is room, or leaves executors out of an
/// explanation.
pub fn check_batches(name: &str, settings: &str) -> Result<BTreeMap<&'static str, u64>, String> {
    let mut components = Components::default();
    let mut fuel = BTreeMap::new();
    for room in Room::ALL {
        let kind = room.as_str();
        let answered = ask_batch(&mut components, (name, settings), EXECUTORS_MAX, room)
            .map_err(|problem| format!("room {kind}: {problem}"))?;
        if answered.placed == 0 {
            return Err(format!("room {kind}: nothing is placed"));
        }
        if let Some(listed) = answered.explained
            && listed != usize::try_from(EXECUTORS_MAX).unwrap_or(usize::MAX)
        {
            return Err(format!("room {kind}: it explains {listed} executors"));
        }
        fuel.insert(kind, answered.fuel);
    }
    Ok(fuel)
}

/// Asks about a full batch over a fleet of `executors` with this room.
///
/// # Errors
/// If the policy gives no answer, with the reason.
pub fn ask_batch(
    components: &mut Components,
    (name, settings): (&str, &str),
    executors: u32,
    room: Room,
) -> Result<Answered, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let mut policy = components.instance(name).map_err(|error| told(&error))?;
    policy.describe().map_err(|fault| told(&fault))?;
    let configured = policy.configure(settings, &Config::default().bounds());
    configured.map_err(|fault| told(&fault))??;
    let fleet = Fleet { executors, room };
    let rows = fleet.rows();
    let when = (Micros(SECOND), Extent::Everything);
    let observed = observe_all(&mut policy, &Limits::default(), when, &rows);
    observed.map_err(|fault| format!("observe: {fault}"))?;
    let at = Moment {
        now: Micros(SECOND),
        round: Round(1),
    };
    let asked: Vec<Cached> = (0..BATCH).map(|n| fleet.cached(n)).collect();
    let reply = policy.ask(at, &Question::Routing(asked.as_slice().into()));
    let reply = reply.map_err(|fault| format!("route: {fault}"))?;
    let verdicts = reply.routing().unwrap_or_default();
    let placed = |verdict: &&routing::Verdict| matches!(verdict.choice, routing::Choice::Place(_));
    let fuel = policy.last_fuel().unwrap_or(0);
    let explained = if policy.explains() {
        let candidates = policy.explain(at, &request(0), &asked[0]);
        let candidates = candidates.map_err(|fault| format!("explain: {fault}"))?;
        Some(candidates.len())
    } else {
        None
    };
    Ok(Answered {
        placed: verdicts.iter().filter(placed).count(),
        fuel,
        explained,
    })
}

struct Fleet {
    executors: u32,
    room: Room,
}

// === impl Fleet ===

impl Fleet {
    /// All rows of the fleet and the batch.
    fn rows(&self) -> Vec<Change> {
        let mut rows = Vec::new();
        let running_max = None;
        rows.extend((0..MODELS).map(|id| {
            Change::Model(Model {
                id: ModelId(id),
                running_max,
                running: 0,
                waiting: BATCH / MODELS,
            })
        }));
        for id in 0..self.executors {
            if id % PER_DEVICE == 0 {
                rows.push(Change::Device(self.device(id / PER_DEVICE)));
            }
            let (kind, text) = (NameKind::Executor, format!("executor-{id}"));
            rows.push(Change::Name(Name { kind, id, text }));
            rows.push(Change::Executor(Box::new(info(id))));
            rows.push(Change::Load(self.load(id)));
        }
        rows.extend((0..BATCH).map(|n| Change::Waiting(Arc::new(request(n)))));
        rows
    }

    /// The executor that has room where only one place has room.
    fn middle(&self) -> u32 {
        // An executor that serves every model, in the group that requests ask for.
        self.executors / 2 / (2 * MODELS) * (2 * MODELS)
    }

    fn device(&self, id: u32) -> Device {
        let has_room = self.room != Room::OneDevice || id == self.middle() / PER_DEVICE;
        Device {
            blocks_total: 100_000,
            blocks_free: if has_room { 50_000 + id * 37 % 9000 } else { 2 },
            ..fixture::device(id)
        }
    }

    fn load(&self, id: u32) -> ExecutorLoad {
        let busy = id * 7 % SLOTS;
        let slots_used = match self.room {
            Room::Everywhere | Room::OneDevice => busy,
            Room::OnHalf if id.is_multiple_of(2) => busy,
            Room::OneSlot if id == self.middle() => SLOTS - 1,
            Room::OnHalf | Room::OneSlot => SLOTS,
        };
        ExecutorLoad {
            slots_used,
            prefill_tokens_pending: u64::from(id * 13 % 900),
            blocks_used: u64::from(busy * 100),
            placed_total: u64::from(id * 31 % 500),
            ttft_micros: Some(SECOND / 10 + u64::from(id * 17 % 1000) * 100),
            itl_micros: Some(20_000 + u64::from(id * 11 % 97) * 10),
            ..fixture::load(id)
        }
    }

    /// The row of a request. Some executors hold parts of every other prompt.
    fn cached(&self, n: u32) -> Cached {
        let holder = |at: u32| Overlap {
            executor: ExecutorId((n * 997 + at * 131) % self.executors),
            device_tokens: 16 * (HOLDERS - at) * 3,
            host_tokens: 16 * at,
            disk_tokens: 0,
        };
        let holders = if n.is_multiple_of(2) {
            0..HOLDERS.min(self.executors)
        } else {
            0..0
        };
        Cached {
            overlaps: holders.map(holder).collect(),
            floor_tokens: 16,
            ..fixture::cached(u64::from(n))
        }
    }
}

/// An executor. Half of them serve any model, the others one each.
fn info(id: u32) -> ExecutorInfo {
    let model = ModelId(id / 2 % MODELS);
    ExecutorInfo {
        device: DeviceId(id / PER_DEVICE),
        serves: (!id.is_multiple_of(2)).then(|| vec![model]),
        slots_total: SLOTS,
        tokens_per_block: Some(TOKENS_PER_BLOCK),
        ..fixture::executor(id)
    }
}

/// A request. Most have a session, half have a deadline, and all differ in size.
fn request(n: u32) -> Request {
    Request {
        model: Some(ModelId(n % MODELS)),
        session: (!n.is_multiple_of(4)).then(|| SessionKey(split_mix(u64::from(n)))),
        class: if n.is_multiple_of(3) {
            RequestClass::LatencyCritical
        } else {
            RequestClass::Throughput
        },
        deadline: n.is_multiple_of(2).then_some(Micros(60 * SECOND)),
        prompt_tokens: 512 - n,
        output_tokens_max: 512,
        output_tokens_expected: Some(100 + n),
        ..fixture::request(u64::from(n))
    }
}
