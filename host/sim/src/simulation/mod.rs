//! Simulations: the real machine and policies over executors and clients that are simulated.
//!
//! A [`Simulation`] goes from event to event. At each time, executors whose spell is over report;
//! then failures happen, requests arrive, and the machine decides; then executors begin new spells.
//! Nothing here reads a clock or draws at random but by seed, so the same inputs give the same
//! report, to the byte, on every machine.
//!
//! | module | owns |
//! |---|---|
//! | `requests` | requests, as their clients see them |
//! | `failures` | executors that die or slow down, and clients that leave, by seed |
//! | `carry` | the machine's orders, and what executors say |
//!
//! # Not here
//! [`crate::World`] is for tests that say themselves what happens, and check after each step.

mod carry;
mod failures;
mod requests;

use std::collections::BTreeSet;
use std::fmt;

use pointsman_core::rows::{Change, NameKind};
use pointsman_core::{
    AttachError, Config, DeviceSpec, ExecutorId, ExecutorSpec, HookSet, Input, InvalidConfig,
    KvSpec, Machine, Micros, ModelId, NewRequest, Policies, ReadableBlocks, RecordedMachine,
    Recorder, RowKind, RowKinds, SessionKey, Sessions, TenantId, rows,
};

use crate::executor::Station;
use crate::fleet::{ExecutorPlan, FleetPlan, KvKeeper};
use crate::measure::{ExecutorMeasures, Goodput, Measures, RequestRecord, RunReport, Sample};
use crate::workload::{Roll, Workload};
use failures::Failures;
pub use failures::{Failure, FailurePlan, Recurring};
use requests::SimulatedRequests;
pub use requests::{AnswerLengths, RequestPlan};

/// Sessions that are remembered, by the default of `hints.sessions-max`.
const SESSIONS_MAX: u32 = 65_536;
/// Time until a session is forgotten, by the default of `hints.session-idle-max`.
const SESSION_IDLE_MAX: Micros = Micros(300_000_000);

/// The memory of a simulation for sessions, which knows none yet.
pub(crate) fn no_sessions() -> Sessions {
    Sessions::new(SESSIONS_MAX, SESSION_IDLE_MAX)
}

/// The parts of a simulation that are not its policies.
#[derive(Debug)]
pub struct Plan<W> {
    /// The bounds of the machine.
    pub config: Config,
    /// The executors.
    pub fleet: FleetPlan,
    /// The requests.
    pub workload: W,
    /// Bounds and hints that clients give with their requests.
    pub requests: RequestPlan,
    /// The failures.
    pub failures: FailurePlan,
    /// The bounds that a good answer keeps.
    pub goodput: Goodput,
    /// The checks of the machine's whole state.
    pub checks: Checks,
}

impl<W> Plan<W> {
    /// A plan without failures, and with the defaults of all else.
    #[must_use]
    pub fn new(fleet: FleetPlan, workload: W) -> Self {
        Self {
            config: Config::default(),
            fleet,
            workload,
            requests: RequestPlan::default(),
            failures: FailurePlan::default(),
            goodput: Goodput::default(),
            checks: Checks::Never,
        }
    }
}

/// The times at which the machine's whole state is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Never: it takes longer than all else.
    #[default]
    Never,
    /// After each event.
    EachEvent,
}

/// A reason for which a simulation cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The machine refuses its configuration.
    #[error("the machine refuses its configuration")]
    Config(#[from] InvalidConfig),
    /// The machine refuses a device or an executor.
    #[error("the machine refuses {name}")]
    Attach {
        /// The name of the device or executor.
        name: String,
        /// The reason.
        source: AttachError,
    },
    /// There is no executor.
    #[error("there is no executor: nothing could be served")]
    NoExecutor,
}

/// A simulation that goes on.
pub struct Simulation<P, W> {
    machine: RecordedMachine<dyn Recorder>,
    policies: P,
    workload: W,
    stations: Vec<Station>,
    /// The next event of each station.
    agenda: BTreeSet<(Micros, usize)>,
    /// Stations that may have something to begin or another next event.
    touched: BTreeSet<usize>,
    requests: SimulatedRequests,
    sessions: Sessions,
    failures: Failures,
    measures: Measures,
    names: Ids,
    goodput: Goodput,
    checks: Checks,
    now: Micros,
}

/// The machine's ids of the workload's names, by their places.
#[derive(Debug, Default)]
struct Ids {
    tenants: Vec<TenantId>,
    models: Vec<ModelId>,
    labels: Vec<pointsman_core::LabelId>,
}

/// Progress of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progressed {
    /// The time in the simulation.
    pub now: Micros,
    /// Requests that have ended.
    pub ended: u64,
    /// Requests in all; absent: not known.
    pub total: Option<u64>,
}

impl<P, W> fmt::Debug for Simulation<P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("now", &self.now)
            .field("stations", &self.stations.len())
            .finish_non_exhaustive()
    }
}

// === impl Simulation: beginning ===

impl<P: Policies, W: Workload> Simulation<P, W> {
    /// Makes a simulation at time zero.
    ///
    /// # Errors
    /// If the machine refuses its configuration or the fleet.
    pub fn new(plan: Plan<W>, policies: P) -> Result<Self, PlanError> {
        if plan.fleet.is_empty() {
            return Err(PlanError::NoExecutor);
        }
        let mut machine = RecordedMachine::new(Machine::new(plan.config)?);
        let names = Ids::intern(&mut machine, plan.workload.roll());
        let mut simulation = Self {
            machine,
            policies,
            stations: Vec::new(),
            agenda: BTreeSet::new(),
            touched: BTreeSet::new(),
            requests: SimulatedRequests::new(plan.requests, plan.fleet.tokens_per_block()),
            sessions: no_sessions(),
            failures: Failures::new(plan.failures, plan.fleet.len()),
            measures: Measures::default(),
            names,
            goodput: plan.goodput,
            checks: plan.checks,
            now: Micros(0),
            workload: plan.workload,
        };
        for plan in &plan.fleet.executors {
            for number in 0..plan.count {
                let name = if plan.count > 1 {
                    format!("{}-{number}", plan.name)
                } else {
                    plan.name.clone()
                };
                simulation.attach(plan, name)?;
            }
        }
        Ok(simulation)
    }

    fn attach(&mut self, plan: &ExecutorPlan, name: String) -> Result<(), PlanError> {
        let refused = |name: &str| {
            let name = name.to_owned();
            move |source| PlanError::Attach { name, source }
        };
        let device = Input::DeviceAttached(device_spec(plan, &name));
        let device = self.machine.handle(self.now, device).device();
        let device = device.map_err(refused(&name))?;
        let spec = ExecutorSpec {
            serves: plan
                .serves
                .as_ref()
                .map(|places| self.names.models_at(places)),
            ..executor_spec(plan, &name, device)
        };
        let executor = self.machine.handle(self.now, Input::ExecutorAttached(spec));
        let executor = executor.executor().map_err(refused(&name))?;
        let station = Station::new((executor, device), plan);
        // A server is asked for its counts before it has work.
        if let Some(kv) = station.work.kv() {
            self.machine.handle(self.now, Input::KvReported(device, kv));
        }
        self.stations.push(station);
        self.measures.executors.push(ExecutorMeasures {
            name,
            ..ExecutorMeasures::default()
        });
        Ok(())
    }
}

fn device_spec(plan: &ExecutorPlan, name: &str) -> DeviceSpec {
    match plan.kv {
        KvKeeper::Server | KvKeeper::UntoldServer => DeviceSpec {
            name: name.to_owned(),
            kv: if plan.kv == KvKeeper::Server {
                KvSpec::Remote
            } else {
                KvSpec::Assumed
            },
            tokens_per_step: None,
        },
        KvKeeper::Host => DeviceSpec {
            name: name.to_owned(),
            kv: KvSpec::Owned {
                block_bytes: 1,
                blocks_total: plan.blocks_total,
                host_blocks: 0,
            },
            tokens_per_step: Some(plan.step_tokens.max(plan.slots_total())),
        },
    }
}

fn executor_spec(
    plan: &ExecutorPlan,
    name: &str,
    device: pointsman_core::DeviceId,
) -> ExecutorSpec {
    ExecutorSpec {
        name: name.to_owned(),
        device,
        kind: if plan.kv.is_server() {
            rows::ExecutorKind::Remote
        } else {
            rows::ExecutorKind::Simulated
        },
        role: plan.role,
        group: plan.group,
        share_weight: 1,
        serves: None,
        slots_total: plan.slots_total(),
        models_max: plan.models_max,
        queue_limit: plan.queue_limit,
        tokens_per_block: Some(plan.tokens_per_block.max(1)),
        preempts: plan.kv == KvKeeper::Host,
        reads: ReadableBlocks::Device,
        model_unload_delay: plan.model_unload_delay,
    }
}

impl Ids {
    fn intern(machine: &mut RecordedMachine<dyn Recorder>, roll: &Roll) -> Self {
        let mut ids = Self::default();
        for tenant in &roll.tenants {
            let id: TenantId = machine.intern(Micros(0), &tenant.name);
            let terms = Input::TenantSet(id, tenant.weight.max(1), tenant.tokens_per_minute);
            machine.handle(Micros(0), terms);
            ids.tenants.push(id);
        }
        let models = roll.models.iter();
        ids.models = models.map(|name| machine.intern(Micros(0), name)).collect();
        for (place, running_max) in &roll.running_max {
            for model in ids.models_at(&[*place]) {
                machine.handle(Micros(0), Input::ModelLimitSet(model, Some(*running_max)));
            }
        }
        let labels = roll.labels.iter();
        ids.labels = labels.map(|name| machine.intern(Micros(0), name)).collect();
        ids
    }

    fn models_at(&self, places: &[u32]) -> Vec<ModelId> {
        let ids = places.iter().map(|place| self.models.get(*place as usize));
        ids.flatten().copied().collect()
    }
}

// === impl Simulation: going on ===

impl<P: Policies, W: Workload> Simulation<P, W> {
    /// Has a recorder told of every input, round and fact from now on. It is told nothing of what was
    /// before: the fleet is there.
    pub fn record_with(&mut self, recorder: Box<dyn Recorder>) {
        self.carry_out();
        self.machine.record(Some(recorder));
    }

    /// The time, the machine and the policies, between two events.
    pub fn parts(&mut self) -> (Micros, &Machine, &mut P) {
        (self.now, &self.machine, &mut self.policies)
    }

    /// Tells the machine that other policies answer for these hooks from the next event on.
    pub fn policies_changed(&mut self, hooks: HookSet) {
        for hook in hooks.iter() {
            self.machine.handle(self.now, Input::PolicyChanged(hook));
        }
    }

    /// Runs to the end of the last request, and reports.
    pub fn run(mut self) -> RunReport {
        while self.advance().is_some() {}
        self.finish().0
    }

    /// Goes on to the next event; absent: nothing is left to happen.
    pub fn advance(&mut self) -> Option<Progressed> {
        let now = self.next_at()?.max(self.now);
        if self.measures.series.next_sample() < now {
            let lasts = self.sample();
            self.measures.series.sample_until(now, lasts);
        }
        self.now = now;
        self.end_spells();
        self.fail_due();
        self.arrive_due();
        self.settle();
        if self.measures.series.next_sample() <= self.now {
            let sample = self.sample();
            self.measures.series.sample(self.now, sample);
        }
        Some(Progressed {
            now: self.now,
            ended: self.requests.ended(),
            total: self.workload.total(),
        })
    }

    /// The report, and the policies, of what has happened so far.
    pub fn finish(mut self) -> (RunReport, P) {
        for (station, measures) in self.stations.iter().zip(&mut self.measures.executors) {
            measures.busy = station.busy(self.now);
            measures.swaps = station.swaps();
        }
        self.measures.records = self.requests.take_records();
        let report = RunReport::new(&self.measures, self.workload.roll(), self.goodput);
        (report, self.policies)
    }

    /// The measures so far; those of requests come with the report.
    pub fn measures(&self) -> &Measures {
        &self.measures
    }

    /// The time of the next event, while there is a request, or one to come. One that is past happens now.
    pub fn next_at(&self) -> Option<Micros> {
        let arrival = self.workload.next_at();
        if arrival.is_none() && self.requests.live() == 0 {
            return None;
        }
        let station = self.agenda.first().map(|(at, _)| *at);
        let failure = self.failures.next_at();
        let timeout = self.machine.next_timeout();
        let all = [arrival, station, failure, timeout];
        all.into_iter().flatten().min()
    }

    fn end_spells(&mut self) {
        while let Some((at, idx)) = self.agenda.first().copied()
            && at <= self.now
        {
            self.agenda.pop_first();
            self.touched.insert(idx);
            self.end_spell(idx);
        }
    }

    fn arrive_due(&mut self) {
        while self.workload.next_at().is_some_and(|at| at <= self.now) {
            let Some(arrival) = self.workload.pop() else {
                return;
            };
            let session = arrival.session.map(SessionKey);
            let allowed = arrival.allowed.as_deref();
            let new = NewRequest {
                allowed: allowed.map(|places| self.executors_at(places)),
                preferred: session.and_then(|it| self.sessions.executor(self.now, it)),
                ..self.requests.new_request(&arrival, &self.names, self.now)
            };
            let id = self.machine.handle(self.now, Input::arrival(new)).request();
            self.measures.series.arrived(self.now);
            self.failures.note_arrival(id, self.now);
            self.requests.arrive(id, arrival, &self.names, self.now);
        }
    }

    /// The executors at these places, as far as there are any.
    fn executors_at(&self, places: &[u32]) -> Vec<ExecutorId> {
        let stations = places.iter();
        let stations = stations.filter_map(|place| self.stations.get(*place as usize));
        stations.map(|station| station.id).collect()
    }

    /// Lets the machine decide and executors begin until nothing more happens at this time.
    fn settle(&mut self) {
        loop {
            self.decide();
            let touched = std::mem::take(&mut self.touched);
            if touched.is_empty() {
                return;
            }
            for idx in touched {
                self.begin_spell(idx);
            }
        }
    }

    /// Lets the machine decide for as long as something is due.
    ///
    /// # Panics
    /// If the machine is always due, or an invariant is broken.
    fn decide(&mut self) {
        let is_timeout =
            |machine: &Machine, now| machine.next_timeout().is_some_and(|at| at <= now);
        let mut rounds = 0;
        while self.machine.is_due() || (rounds == 0 && is_timeout(&self.machine, self.now)) {
            self.machine.decide(self.now, |_| &mut self.policies);
            self.carry_out();
            rounds += 1;
            assert!(rounds < 10_000, "the machine is always due");
        }
        self.carry_out();
        if self.checks == Checks::EachEvent {
            let checked = self.machine.check_invariants();
            let checked = checked.and_then(|()| self.machine.check_liveness());
            checked.unwrap_or_else(|broken| panic!("at {} us: {broken}", self.now));
        }
    }

    /// The course of every request so far, by its number.
    pub fn records(&self) -> &[RequestRecord] {
        self.requests.records()
    }

    /// The state of the host, for a part of the course.
    fn sample(&self) -> Sample {
        let (used, total) = self.blocks();
        Sample {
            queued: self.machine.queued_requests() as u64,
            running: self.requests.placed(),
            kv_permille: used * 1000 / total.max(1),
            largest_share: self.requests.largest_share(),
            jain_permille: self.requests.jain_permille(self.workload.roll()),
        }
    }

    /// KV blocks in use, of all.
    fn blocks(&self) -> (u64, u64) {
        let of_servers = self.stations.iter().filter_map(|it| it.work.kv());
        let of_servers = of_servers.map(|kv| {
            let idle = u64::from(kv.blocks_free) + u64::from(kv.blocks_cached);
            let total = u64::from(kv.blocks_total);
            (total.saturating_sub(idle), total)
        });
        let kinds = RowKinds::from_iter([RowKind::Device]);
        let is_hosted = self.stations.iter().any(|it| it.work.kv().is_none());
        let rows = if is_hosted {
            self.machine.view().rows(kinds)
        } else {
            Vec::new()
        };
        let hosted = self.stations.iter().filter(|it| it.work.kv().is_none());
        let hosted: BTreeSet<_> = hosted.map(|it| it.device).collect();
        let of_host = rows.into_iter().filter_map(|row| {
            let Change::Device(row) = row else {
                return None;
            };
            let idle = u64::from(row.blocks_free) + u64::from(row.blocks_cached);
            let total = u64::from(row.blocks_total);
            hosted
                .contains(&row.id)
                .then_some((total.saturating_sub(idle), total))
        });
        let all = of_servers.chain(of_host);
        all.fold((0, 0), |(used, total), more| {
            (used + more.0, total + more.1)
        })
    }

    /// Enters a station's next event in the agenda anew.
    fn reschedule(&mut self, idx: usize, before: Option<Micros>) {
        let next = self.stations[idx].next_at();
        if next == before {
            return;
        }
        if let Some(before) = before {
            self.agenda.remove(&(before, idx));
        }
        if let Some(next) = next {
            self.agenda.insert((next, idx));
        }
    }

    /// The name of an executor, for messages.
    pub fn executor_name(&self, executor: ExecutorId) -> &str {
        let name = self.machine.name(NameKind::Executor, executor.0);
        name.unwrap_or_default()
    }
}
