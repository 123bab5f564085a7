//! The fold of the machine's facts: the fate of requests, and of policies' decisions.
//!
//! # Bounds
//! A live request has one entry in [`RequestMetrics::lives`]; its end, which comes exactly once,
//! takes it out.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pointsman_core::rows::{Health, NameKind};
use pointsman_core::{
    Author, Clock, EvictHow, ExecutorId, ExpiredWhy, Fact, FailedWhy, FaultKind, Hook, Machine,
    Micros, Outcome, PlacedIn, RefusedWhy, RequestId, RequeuedWhy, ShortageCause, Stamped,
    TenantId,
};
use pointsman_policy::PolicyHost;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use super::builder::Builder;
use super::family::Family;
use crate::record;

/// The metrics that are folded from the facts.
#[derive(Debug)]
pub(super) struct FactMetrics {
    requests: RequestMetrics,
    interventions: InterventionMetrics,
    executors: ExecutorMetrics,
}

#[derive(Debug)]
struct ExecutorMetrics {
    up: Family<1, Gauge>,
    saturated: Family<1, Gauge>,
    lost: Family<1, Counter>,
}

#[derive(Debug)]
struct RequestMetrics {
    arrived: Family<2, Counter>,
    decided: Family<2, Counter>,
    placed: Family<3, Counter>,
    evicted: Family<3, Counter>,
    blocks_evicted: Family<2, Counter>,
    requeued: Family<1, Counter>,
    shortages: Family<1, Counter>,
    ended: Family<3, Counter>,
    queue_time: Histogram,
    latency: Family<1, Histogram>,
    /// The live requests. Behind a lock, since the metrics are shared; only the driver's thread,
    /// which tells the facts, ever takes the lock.
    lives: Mutex<BTreeMap<RequestId, Life>>,
}

/// Counters of the cases in which the host did not follow a policy, or the policy did not answer.
#[derive(Debug)]
struct InterventionMetrics {
    refusals: Family<2, Counter>,
    faults: Family<3, Counter>,
    strikes: Family<2, Counter>,
}

/// The data of a live request.
#[derive(Debug)]
struct Life {
    tenant: TenantId,
    arrived: Micros,
    /// The time since which the request has had no place.
    waiting_since: Micros,
}

/// The texts behind ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texts<'a> {
    pub(super) machine: &'a Machine,
    pub(super) policies: &'a PolicyHost,
}

const QUEUE_SECONDS: [f64; 11] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0,
];
const LATENCY_SECONDS: [f64; 13] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];

// === impl FactMetrics ===

impl FactMetrics {
    pub(super) fn new(to: &mut Builder<'_>) -> Self {
        Self {
            requests: RequestMetrics::new(to),
            interventions: InterventionMetrics::new(to),
            executors: ExecutorMetrics::new(to),
        }
    }

    pub(super) fn fact(&self, stamped: &Stamped, texts: Texts<'_>) {
        let (now, requests, executors) = (stamped.now, &self.requests, &self.executors);
        match &stamped.fact {
            Fact::Arrived {
                request,
                tenant,
                model,
            } => {
                let model = model.map_or("", |model| texts.name(NameKind::Model, model.0));
                let tenant_name = texts.name(NameKind::Tenant, tenant.0);
                requests.arrived.with([tenant_name, model]).inc();
                requests.born(*request, *tenant, now);
            }
            Fact::Admitted(_, by) => requests.decided("admitted", texts.author(by.author)),
            Fact::Parked(_, by) => requests.decided("parked", texts.author(by.author)),
            Fact::TurnedAway(_, by) => requests.decided("turned-away", texts.author(by.author)),
            Fact::Held(_, _, by) => requests.decided("held", texts.author(by.author)),
            Fact::Placed {
                request,
                executor,
                into,
                by,
            } => {
                let (at, by) = (texts.executor(*executor), texts.author(by.author));
                requests.placed.with([at, by, place(*into)]).inc();
                requests.found_a_place(*request, now);
            }
            Fact::Evicted {
                executor,
                how,
                blocks,
                by,
                ..
            } => {
                let labels = (texts.executor(*executor), texts.author(by.author));
                requests.gave_way(labels, *how, *blocks);
            }
            Fact::Requeued(request, why) => {
                requests.requeued.with([return_cause(*why)]).inc();
                requests.waits_again(*request, now);
            }
            Fact::Short(_, cause) => {
                requests.shortages.with([shortage(*cause)]).inc();
            }
            Fact::Ended(request, outcome) => requests.ended(*request, *outcome, now, texts),
            Fact::Refused(by, hook, _) => self.interventions.refused(*hook, texts.author(*by)),
            Fact::Fault(hook, fault) => {
                let policy = texts.author(Author::Policy(fault.policy));
                self.interventions.faulted(*hook, policy, fault.kind);
            }
            Fact::Strike(which, hook, _) => self.interventions.struck(*hook, *which),
            Fact::ExecutorAttached(executor, _) => executors.attached(texts.executor(*executor)),
            Fact::HealthChanged(executor, health) => {
                executors.healthy(texts.executor(*executor), *health);
            }
            Fact::Saturated(executor) => executors.busy(texts.executor(*executor), 1),
            Fact::Relieved(executor) => executors.busy(texts.executor(*executor), 0),
            Fact::ExecutorLost(executor) => executors.lost(texts.executor(*executor)),
            Fact::ExecutorDetached(executor) => executors.detached(texts.executor(*executor)),
            Fact::DeviceAttached(_)
            | Fact::Unparked(_)
            | Fact::Started(..)
            | Fact::Left(..)
            | Fact::Reserved(..)
            | Fact::ReservationDropped(..)
            | Fact::Allotted { .. }
            | Fact::Arranged { .. } => {}
        }
    }
}

// === impl ExecutorMetrics ===

impl ExecutorMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            up: to.gauges(
                "executor_up",
                "Whether an executor takes something new",
                ["executor"],
            ),
            saturated: to.gauges(
                "executor_saturated",
                "Whether a device queue of an executor is filled to 80 % of its bound",
                ["executor"],
            ),
            lost: to.counters("executors_lost", "Deaths of an executor", ["executor"]),
        }
    }

    fn attached(&self, executor: &str) {
        self.healthy(executor, Health::Up);
        self.busy(executor, 0);
    }

    fn healthy(&self, executor: &str, health: Health) {
        self.up.with([executor]).set(health.takes_new().into());
    }

    fn busy(&self, executor: &str, saturated: i64) {
        self.saturated.with([executor]).set(saturated);
    }

    fn lost(&self, executor: &str) {
        self.lost.with([executor]).inc();
        self.healthy(executor, Health::Down);
    }

    fn detached(&self, executor: &str) {
        self.healthy(executor, Health::Down);
        self.busy(executor, 0);
    }
}

// === impl RequestMetrics ===

impl RequestMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            arrived: to.counters("requests_arrived", "Requests taken in", ["tenant", "model"]),
            decided: to.counters(
                "requests_decided",
                "Decisions about requests that did not place them",
                ["decision", "policy"],
            ),
            placed: to.counters(
                "requests_placed",
                "Placements on an executor, in a slot or its queue",
                ["executor", "policy", "into"],
            ),
            evicted: to.counters(
                "requests_evicted",
                "Sequences that had to give way",
                ["executor", "policy", "how"],
            ),
            blocks_evicted: to.counters(
                "kv_blocks_evicted",
                "KV blocks that sequences gave back which had to give way",
                ["executor", "policy"],
            ),
            requeued: to.counters("requests_requeued", "Returns to the queue", ["why"]),
            shortages: to.counters(
                "shortages",
                "Requests that lacked room, so that preemption was asked",
                ["cause"],
            ),
            ended: to.counters(
                "requests_ended",
                "Requests that came to their end",
                ["tenant", "outcome", "why"],
            ),
            queue_time: to.times(
                "request_queue_time",
                "From arrival, or return to the queue, to a place",
                QUEUE_SECONDS,
            ),
            latency: to.measured(
                Unit::Seconds,
                "request_latency",
                "From arrival to the end",
                Family::new(["outcome"], || Histogram::new(LATENCY_SECONDS)),
            ),
            lives: Mutex::default(),
        }
    }

    fn decided(&self, decision: &str, by: &str) {
        self.decided.with([decision, by]).inc();
    }

    fn gave_way(&self, (executor, by): (&str, &str), how: EvictHow, blocks: u32) {
        self.evicted.with([executor, by, manner(how)]).inc();
        let blocks_evicted = self.blocks_evicted.with([executor, by]);
        blocks_evicted.inc_by(u64::from(blocks));
    }

    fn born(&self, request: RequestId, tenant: TenantId, now: Micros) {
        let life = Life {
            tenant,
            arrived: now,
            waiting_since: now,
        };
        self.lives().insert(request, life);
    }

    fn found_a_place(&self, request: RequestId, now: Micros) {
        if let Some(life) = self.lives().get(&request) {
            self.queue_time
                .observe(seconds(now.since(life.waiting_since)));
        }
    }

    fn waits_again(&self, request: RequestId, now: Micros) {
        if let Some(life) = self.lives().get_mut(&request) {
            life.waiting_since = now;
        }
    }

    fn ended(&self, request: RequestId, outcome: Outcome, now: Micros, texts: Texts<'_>) {
        let Some(life) = self.lives().remove(&request) else {
            return;
        };
        let Ending { outcome, why } = ending(outcome);
        let tenant = texts.name(NameKind::Tenant, life.tenant.0);
        self.ended.with([tenant, outcome, why]).inc();
        let latency = seconds(now.since(life.arrived));
        self.latency.with([outcome]).observe(latency);
    }

    fn lives(&self) -> MutexGuard<'_, BTreeMap<RequestId, Life>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl InterventionMetrics ===

impl InterventionMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            refusals: to.counters(
                "interlock_refusals",
                "Actions of policies that the interlock refused",
                ["hook", "policy"],
            ),
            faults: to.counters(
                "policy_faults",
                "Questions that a policy failed at",
                ["hook", "policy", "kind"],
            ),
            strikes: to.counters(
                "liveness_strikes",
                "Bounds that ran out on a policy, so that the built-in rule stepped in",
                ["hook", "clock"],
            ),
        }
    }

    fn refused(&self, hook: Hook, by: &str) {
        self.refusals.with([hook.as_str(), by]).inc();
    }

    fn faulted(&self, hook: Hook, policy: &str, kind: FaultKind) {
        let labels = [hook.as_str(), policy, fault_kind(kind)];
        self.faults.with(labels).inc();
    }

    fn struck(&self, hook: Hook, which: Clock) {
        self.strikes.with([hook.as_str(), clock(which)]).inc();
    }
}

// === impl Texts ===

impl<'a> Texts<'a> {
    fn name(self, kind: NameKind, id: u32) -> &'a str {
        self.machine.name(kind, id).unwrap_or("")
    }

    fn executor(self, id: ExecutorId) -> &'a str {
        self.name(NameKind::Executor, id.0)
    }

    fn author(self, author: Author) -> &'a str {
        record::author(self.policies, author)
    }
}

// === Labels ===

/// The end of a request, as labels.
struct Ending {
    outcome: &'static str,
    why: &'static str,
}

fn ending(outcome: Outcome) -> Ending {
    let (outcome, why) = match outcome {
        Outcome::Finished { .. } => ("finished", ""),
        Outcome::Cancelled => ("cancelled", ""),
        Outcome::Refused(RefusedWhy::NoRoom { .. }) => ("refused", "no-room"),
        Outcome::Refused(RefusedWhy::Displaced { .. }) => ("refused", "displaced"),
        Outcome::Refused(RefusedWhy::Closed { .. }) => ("refused", "closed"),
        Outcome::Refused(RefusedWhy::GaveUp) => ("refused", "gave-up"),
        Outcome::Refused(RefusedWhy::NeverFits { .. }) => ("refused", "never-fits"),
        Outcome::Refused(RefusedWhy::Unserved { .. }) => ("refused", "unserved"),
        Outcome::Expired(ExpiredWhy::Deadline) => ("expired", "deadline"),
        Outcome::Expired(ExpiredWhy::Wait) => ("expired", "wait"),
        Outcome::Failed(FailedWhy::NotRetryable) => ("failed", "not-retryable"),
        Outcome::Failed(FailedWhy::AttemptsMax) => ("failed", "attempts-max"),
        Outcome::Failed(FailedWhy::NowhereLeft) => ("failed", "nowhere-left"),
    };
    Ending { outcome, why }
}

fn place(into: PlacedIn) -> &'static str {
    match into {
        PlacedIn::Slot => "slot",
        PlacedIn::Queue => "queue",
    }
}

fn manner(how: EvictHow) -> &'static str {
    match how {
        EvictHow::Recompute => "recompute",
        EvictHow::Swap => "swap",
    }
}

fn return_cause(why: RequeuedWhy) -> &'static str {
    match why {
        RequeuedWhy::Evicted => "evicted",
        RequeuedWhy::Failed => "failed",
        RequeuedWhy::Lost => "lost",
    }
}

fn shortage(cause: ShortageCause) -> &'static str {
    match cause {
        ShortageCause::Slots => "slots",
        ShortageCause::Blocks => "blocks",
        ShortageCause::Models => "models",
    }
}

fn fault_kind(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Trap => "trap",
        FaultKind::Fuel => "fuel",
        FaultKind::Deadline => "deadline",
        FaultKind::Memory => "memory",
        FaultKind::Oversize => "oversize",
        FaultKind::Start => "start",
        FaultKind::Struck => "struck",
    }
}

fn clock(clock: Clock) -> &'static str {
    match clock {
        Clock::Unplaced => "unplaced",
        Clock::Overtaken => "overtaken",
        Clock::Tokenless => "tokenless",
        Clock::Stalled => "stalled",
    }
}

fn seconds(micros: Micros) -> f64 {
    Duration::from_micros(micros.0).as_secs_f64()
}
