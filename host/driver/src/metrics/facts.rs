//! The fold of the machine's facts: the fate of requests, and of policies' decisions.

use std::time::Duration;

use pointsman_core::rows::{Health, NameKind};
use pointsman_core::{
    Author, Clock, Decided, EvictHow, ExecutorId, Fact, FaultKind, Hook, Machine, Micros, ModelId,
    Outcome, Stamped, Stay, TenantId,
};
use pointsman_metrics::{Builder, Family};
use pointsman_policy::PolicyHost;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::labels::{self, Ending};
use crate::lives::Life;
use crate::record;

/// The metrics that are folded from the facts.
#[derive(Debug)]
pub(super) struct FactMetrics {
    requests: RequestMetrics,
    tokens: TokenMetrics,
    interventions: InterventionMetrics,
    executors: ExecutorMetrics,
}

#[derive(Debug)]
struct ExecutorMetrics {
    up: Family<1, Gauge>,
    saturated: Family<1, Gauge>,
    lost: Family<1, Counter>,
    sessions: Family<2, Counter>,
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
    ended: Family<4, Counter>,
    of_tenants: Family<2, Counter>,
    queue_wait: Family<1, Histogram>,
    duration: Family<2, Histogram>,
}

/// The tokens of stays, counted when they end.
#[derive(Debug)]
struct TokenMetrics {
    prompt: Family<2, Counter>,
    cached: Family<2, Counter>,
    output: Family<2, Counter>,
    of_tenants: Family<2, Counter>,
}

/// Counters of the cases in which the host did not follow a policy, or the policy did not answer.
#[derive(Debug)]
struct InterventionMetrics {
    refusals: Family<2, Counter>,
    faults: Family<3, Counter>,
    strikes: Family<2, Counter>,
}

/// The texts behind ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Texts<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) policies: &'a PolicyHost,
}

const QUEUE_SECONDS: [f64; 14] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];
const DURATION_SECONDS: [f64; 14] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

// === impl FactMetrics ===

impl FactMetrics {
    pub(super) fn new(to: &mut Builder<'_>) -> Self {
        Self {
            requests: RequestMetrics::new(to),
            tokens: TokenMetrics::new(to),
            interventions: InterventionMetrics::new(to),
            executors: ExecutorMetrics::new(to),
        }
    }

    /// Folds in a fact. `life` is that of its request before it.
    pub(super) fn fact(&self, stamped: &Stamped, life: Option<Life>, texts: Texts<'_>) {
        let (now, requests) = (stamped.now, &self.requests);
        match &stamped.fact {
            Fact::Arrived { model, class, .. } => {
                let labels = [texts.model(*model), class.as_str()];
                requests.arrived.with(labels).inc();
            }
            Fact::Admitted(_, by) => requests.decided("admitted", texts.author(by.author)),
            Fact::Parked(_, by) => requests.decided("parked", texts.author(by.author)),
            Fact::TurnedAway(_, by) => requests.decided("turned-away", texts.author(by.author)),
            Fact::Held(_, _, by) => requests.decided("held", texts.author(by.author)),
            Fact::Placed {
                executor, into, by, ..
            } => {
                let (at, by) = (texts.executor(*executor), texts.author(by.author));
                requests.placed.with([at, by, labels::place(*into)]).inc();
                if let Some(life) = life {
                    requests.found_a_place(life, now);
                    self.executors.session(life, *executor, texts);
                }
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
            Fact::Requeued(_, why) => {
                requests.requeued.with([labels::return_cause(*why)]).inc();
            }
            Fact::Short(_, cause) => {
                requests.shortages.with([labels::shortage(*cause)]).inc();
            }
            Fact::Ended(_, outcome) => {
                if let Some(life) = life {
                    requests.ended(life, *outcome, now, texts);
                }
            }
            Fact::StayEnded(stay) => self.tokens.spent(stay, texts),
            Fact::Refused(by, hook, _) => self.interventions.refused(*hook, texts.author(*by)),
            Fact::Fault(hook, fault) => {
                let policy = texts.author(Author::Policy(fault.policy));
                self.interventions.faulted(*hook, policy, fault.kind);
            }
            Fact::Strike(which, hook, _) => self.interventions.struck(*hook, *which),
            Fact::ExecutorAttached(executor, _)
            | Fact::HealthChanged(executor, _)
            | Fact::Saturated(executor)
            | Fact::Relieved(executor)
            | Fact::ExecutorLost(executor)
            | Fact::ExecutorDetached(executor) => {
                let executor = texts.executor(*executor);
                self.executors.fact(executor, &stamped.fact);
            }
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

    /// Drops the series of an executor that is gone.
    pub(super) fn forget_executor(&self, executor: &str) {
        let (requests, tokens, executors) = (&self.requests, &self.tokens, &self.executors);
        requests.placed.forget("executor", executor);
        requests.evicted.forget("executor", executor);
        requests.blocks_evicted.forget("executor", executor);
        for family in [&tokens.prompt, &tokens.cached, &tokens.output] {
            family.forget("executor", executor);
        }
        executors.up.forget("executor", executor);
        executors.saturated.forget("executor", executor);
        executors.lost.forget("executor", executor);
        executors.sessions.forget("executor", executor);
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
                "Whether an executor says that it has no room, or a device queue of it is filled to 80 % of its bound",
                ["executor"],
            ),
            lost: to.counters("executors_lost", "Deaths of an executor", ["executor"]),
            sessions: to.counters(
                "session_requests",
                "First placements of requests whose session an executor had served: there, or elsewhere",
                ["executor", "result"],
            ),
        }
    }

    /// Folds in a fact about an executor.
    fn fact(&self, executor: &str, fact: &Fact) {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "other facts are not about the state of an executor"
        )]
        match fact {
            Fact::ExecutorAttached(..) => {
                self.healthy(executor, Health::Up);
                self.busy(executor, 0);
            }
            Fact::HealthChanged(_, health) => self.healthy(executor, *health),
            Fact::Saturated(_) => self.busy(executor, 1),
            Fact::Relieved(_) => self.busy(executor, 0),
            Fact::ExecutorLost(_) => {
                self.lost.with([executor]).inc();
                self.healthy(executor, Health::Down);
            }
            _ => {}
        }
    }

    fn healthy(&self, executor: &str, health: Health) {
        self.up.with([executor]).set(health.takes_new().into());
    }

    fn busy(&self, executor: &str, saturated: i64) {
        self.saturated.with([executor]).set(saturated);
    }

    /// Counts a placement for the executor that served the request's session last, if there is one and it
    /// is not gone.
    fn session(&self, life: Life, executor: ExecutorId, texts: Texts<'_>) {
        let is_there = |id: &ExecutorId| texts.machine.executor_spec(*id).is_some();
        if let Some(expected) = life.expected().filter(is_there) {
            let result = if expected == executor { "hit" } else { "miss" };
            let labels = [texts.executor(expected), result];
            self.sessions.with(labels).inc();
        }
    }
}

// === impl RequestMetrics ===

impl RequestMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        Self {
            arrived: to.counters("requests_arrived", "Requests taken in", ["model", "class"]),
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
                "requests",
                "Requests that came to their end",
                ["model", "class", "outcome", "why"],
            ),
            of_tenants: to.counters(
                "tenant_requests",
                "Requests of a tenant that came to their end",
                ["tenant", "outcome"],
            ),
            queue_wait: to.times_by(
                "queue_wait",
                "From arrival, or return to the queue, to a place",
                ["class"],
                || Histogram::new(QUEUE_SECONDS),
            ),
            duration: to.times_by(
                "request_duration",
                "From arrival to the end",
                ["model", "outcome"],
                || Histogram::new(DURATION_SECONDS),
            ),
        }
    }

    fn decided(&self, decision: &str, by: &str) {
        self.decided.with([decision, by]).inc();
    }

    fn gave_way(&self, (executor, by): (&str, &str), how: EvictHow, blocks: u32) {
        self.evicted.with([executor, by, labels::manner(how)]).inc();
        let blocks_evicted = self.blocks_evicted.with([executor, by]);
        blocks_evicted.inc_by(u64::from(blocks));
    }

    fn found_a_place(&self, life: Life, now: Micros) {
        let waited = seconds(now.since(life.waiting_since));
        let class = life.class.as_str();
        self.queue_wait.with([class]).observe(waited);
    }

    fn ended(&self, life: Life, outcome: Outcome, now: Micros, texts: Texts<'_>) {
        let Ending { outcome, why } = labels::ending(outcome);
        let (model, class) = (texts.model(life.model), life.class.as_str());
        self.ended.with([model, class, outcome, why]).inc();
        let tenant = texts.tenant(life.tenant);
        self.of_tenants.with([tenant, outcome]).inc();
        let duration = seconds(now.since(life.arrived));
        self.duration.with([model, outcome]).observe(duration);
    }
}

// === impl TokenMetrics ===

impl TokenMetrics {
    fn new(to: &mut Builder<'_>) -> Self {
        let labels = ["model", "executor"];
        Self {
            prompt: to.counters(
                "prompt_tokens",
                "Tokens of prompts, computed or cached, again after each preemption",
                labels,
            ),
            cached: to.counters(
                "cached_tokens",
                "Tokens of prompts that were cached; at servers elsewhere as they count them",
                labels,
            ),
            output: to.counters("output_tokens", "Tokens generated", labels),
            of_tenants: to.counters(
                "tenant_tokens",
                "Tokens of a tenant's prompts and answers",
                ["tenant", "kind"],
            ),
        }
    }

    fn spent(&self, stay: &Stay, texts: Texts<'_>) {
        let labels = [texts.model(stay.model), texts.executor(stay.executor)];
        let (prompt, output) = (stay.prompt_tokens.into(), stay.output_tokens.into());
        self.prompt.with(labels).inc_by(prompt);
        self.cached.with(labels).inc_by(stay.cached_tokens.into());
        self.output.with(labels).inc_by(output);
        let tenant = texts.tenant(stay.tenant);
        self.of_tenants.with([tenant, "prompt"]).inc_by(prompt);
        self.of_tenants.with([tenant, "output"]).inc_by(output);
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
        let labels = [hook.as_str(), policy, kind.as_str()];
        self.faults.with(labels).inc();
    }

    fn struck(&self, hook: Hook, which: Clock) {
        let labels = [hook.as_str(), which.as_str()];
        self.strikes.with(labels).inc();
    }
}

// === impl Texts ===

impl<'a> Texts<'a> {
    fn name(self, kind: NameKind, id: u32) -> &'a str {
        self.machine.name(kind, id).unwrap_or("")
    }

    pub(crate) fn executor(self, id: ExecutorId) -> &'a str {
        self.name(NameKind::Executor, id.0)
    }

    fn tenant(self, id: TenantId) -> &'a str {
        self.name(NameKind::Tenant, id.0)
    }

    /// The name of a model; empty where the client left it open.
    fn model(self, id: Option<ModelId>) -> &'a str {
        id.map_or("", |model| self.name(NameKind::Model, model.0))
    }

    pub(crate) fn author(self, author: Author) -> &'a str {
        record::author(self.policies, author)
    }

    /// The reason of a decision, in its policy's words; empty for the built-in rule.
    pub(crate) fn reason(self, by: Decided) -> &'a str {
        match by.author {
            Author::BuiltIn => "",
            Author::Policy(number) => self.policies.reason(number, by.reason).unwrap_or(""),
        }
    }
}

fn seconds(micros: Micros) -> f64 {
    Duration::from_micros(micros.0).as_secs_f64()
}
