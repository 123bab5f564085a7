//! The text that is rendered after real decisions of a real machine, and after each fact.

mod states;

use pointsman_component::{Digest, Fault, Instance, Limits, PolicyDescription};
use pointsman_core::rows::{Change, Extent, Health, RequestClass};
use pointsman_core::{
    Author, Bounds, Clock, Config, Decided, Effect, EvictHow, ExecutorId, ExecutorSpec,
    ExecutorUpdate, ExpiredWhy, Fact, FailedWhy, FaultKind, Hook, HookSet, Input, Micros, Moment,
    Needs, NewRequest, Outcome, PlacedIn, Progress, Question, RefusalCause, RefusedWhy, Reply,
    RequestId, RequeuedWhy, Round, ShortageCause, StartOrder, StepReport, TenantId, fixture,
    routing,
};
use pointsman_policy::{Patience, PolicySource, start};

use super::*;
use crate::lives::Lives;
use crate::message::{ByClass, Load};

const SECOND: u64 = 1_000_000;

// === A host ===

/// A policy that places the first request, then breaks.
#[derive(Default)]
struct Once {
    asked: bool,
}

impl Instance for Once {
    fn hooks(&self) -> HookSet {
        [Hook::Routing].into_iter().collect()
    }

    fn describe(&mut self) -> Result<PolicyDescription, Fault> {
        Ok(PolicyDescription {
            name: "once".to_owned(),
            version: "1".to_owned(),
            summary: String::new(),
            needs: Needs::default(),
            reasons: vec!["first".to_owned()],
            state_version: 0,
            orders_one: false,
            settings: Vec::new(),
        })
    }

    fn configure(&mut self, _: &str, _: &Bounds) -> Result<Result<(), String>, Fault> {
        Ok(Ok(()))
    }

    fn observe(&mut self, _: Micros, _: Extent, _: &[Change]) -> Result<(), Fault> {
        Ok(())
    }

    fn ask(&mut self, _: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        if std::mem::replace(&mut self.asked, true) {
            return Err(Fault::new(FaultKind::Trap, "asked twice"));
        }
        let verdict = |_| routing::Verdict {
            choice: routing::Choice::Place(vec![EXECUTOR]),
            reason: 0,
        };
        Ok(Reply::Routing(question.requests().map(verdict).collect()))
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<Result<(), String>, Fault> {
        Ok(Ok(()))
    }
}

/// A machine with one slot, its policies, and the metrics of both.
struct Host {
    machine: Machine,
    policies: PolicyHost,
    lives: Lives,
    metrics: Metrics,
}

impl Host {
    fn new() -> Self {
        let mut machine = Machine::new(Config::default()).unwrap();
        let now = Micros(0);
        let device = machine
            .handle(now, Input::DeviceAttached(fixture::device_spec("cpu0")))
            .device()
            .unwrap();
        let executor = ExecutorSpec {
            slots_total: 1,
            ..fixture::executor_spec("cpu0/demo", device)
        };
        machine
            .handle(now, Input::ExecutorAttached(executor))
            .executor()
            .unwrap();
        let make = || Box::new(Once::default()) as Box<dyn Instance>;
        let settings = serde_json::Map::new();
        let digest = Digest([0xab; 32]);
        let source = PolicySource::native(digest, make, &settings, Limits::default());
        let mut policies = PolicyHost::new(Patience::default());
        let once = policies.add(start(source).unwrap()).unwrap();
        let hooks = [Hook::Routing].into_iter().collect();
        policies.bind(now, once, hooks).unwrap();
        Self {
            machine,
            policies,
            lives: Lives::default(),
            metrics: Metrics::default(),
        }
    }

    fn arrive(&mut self, at: u64, tenant: &str) -> RequestId {
        let now = Micros(at);
        let tenant = self.machine.intern(now, tenant);
        let model = self.machine.intern(now, "demo");
        let new = NewRequest {
            model: Some(model),
            ..NewRequest::new(tenant, 20, 5)
        };
        self.machine.handle(now, Input::arrival(new)).request()
    }

    /// The load of the executor, under that name.
    fn row(&self, name: &str) -> LoadRow {
        LoadRow {
            name: name.to_owned(),
            slots_total: 1,
            load: self.machine.executor_load(EXECUTOR).unwrap(),
        }
    }

    fn tell(&mut self, stamped: &Stamped) {
        let life = self.lives.fold(stamped);
        let texts = (&self.machine, &self.policies);
        self.metrics.fact(stamped, life, texts);
    }

    /// Decides, tells the metrics, and returns the orders to start requests.
    fn decide(&mut self, at: u64) -> Vec<StartOrder> {
        self.machine.decide(Micros(at), &mut self.policies);
        while let Some(stamped) = self.machine.poll_fact() {
            self.tell(&stamped);
        }
        let effects = std::iter::from_fn(|| self.machine.poll_effect());
        effects
            .filter_map(|effect| match effect {
                Effect::Start(order) => Some(order),
                Effect::Grant { .. }
                | Effect::Evict { .. }
                | Effect::Cancel { .. }
                | Effect::SetBudget { .. }
                | Effect::Arrange { .. }
                | Effect::Finish { .. }
                | Effect::Detached { .. } => None,
            })
            .collect()
    }

    /// Serves an order in one step, in the engine's place.
    fn serve(&mut self, at: u64, order: &StartOrder) {
        let now = Micros(at);
        let sequence = order.sequence;
        self.machine.handle(now, Input::SequenceStarted(sequence));
        let progress = Progress {
            request: sequence.request,
            prefilled: 20,
            generated: 5,
        };
        let report = StepReport {
            executor: sequence.executor,
            incarnation: sequence.incarnation,
            progress: vec![progress],
        };
        self.machine.handle(now, Input::StepFinished(report));
        self.machine.handle(now, Input::SequenceFinished(sequence));
    }
}

/// The samples of one family, without its help.
fn samples(text: &str, family: &str) -> String {
    let name = format!("pointsman_{family}");
    let lines = text.lines().filter(|line| line.starts_with(&name));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The samples of a request that was served, and of one whose client left.
const SERVED_AND_LEFT: [(&str, &str); 13] = [
    (
        "requests_arrived",
        "pointsman_requests_arrived_total{model=\"demo\",class=\"latency-critical\"} 2\n",
    ),
    (
        "requests_decided",
        "pointsman_requests_decided_total{decision=\"admitted\",policy=\"built-in\"} 2\n",
    ),
    (
        "requests_placed",
        "pointsman_requests_placed_total{executor=\"cpu0/demo\",policy=\"built-in\",into=\"slot\"} 1\n\
             pointsman_requests_placed_total{executor=\"cpu0/demo\",policy=\"once\",into=\"slot\"} 1\n",
    ),
    (
        "policy_faults",
        "pointsman_policy_faults_total{hook=\"routing\",policy=\"once\",kind=\"trap\"} 1\n",
    ),
    (
        "requests_total",
        "pointsman_requests_total{model=\"demo\",class=\"latency-critical\",outcome=\"cancelled\",why=\"\"} 1\n\
             pointsman_requests_total{model=\"demo\",class=\"latency-critical\",outcome=\"finished\",why=\"\"} 1\n",
    ),
    (
        "tenant_requests",
        "pointsman_tenant_requests_total{tenant=\"alice\",outcome=\"finished\"} 1\n\
             pointsman_tenant_requests_total{tenant=\"bob\",outcome=\"cancelled\"} 1\n",
    ),
    (
        "prompt_tokens",
        "pointsman_prompt_tokens_total{model=\"demo\",executor=\"cpu0/demo\"} 20\n",
    ),
    (
        "output_tokens",
        "pointsman_output_tokens_total{model=\"demo\",executor=\"cpu0/demo\"} 5\n",
    ),
    (
        "tenant_tokens",
        "pointsman_tenant_tokens_total{tenant=\"alice\",kind=\"output\"} 5\n\
             pointsman_tenant_tokens_total{tenant=\"alice\",kind=\"prompt\"} 20\n",
    ),
    (
        "queue_wait_seconds_sum",
        "pointsman_queue_wait_seconds_sum{class=\"latency-critical\"} 2.0\n",
    ),
    (
        "queue_wait_seconds_count",
        "pointsman_queue_wait_seconds_count{class=\"latency-critical\"} 2\n",
    ),
    (
        "request_duration_seconds_sum",
        "pointsman_request_duration_seconds_sum{model=\"demo\",outcome=\"cancelled\"} 4.0\n\
             pointsman_request_duration_seconds_sum{model=\"demo\",outcome=\"finished\"} 3.0\n",
    ),
    (
        "executor_up",
        "pointsman_executor_up{executor=\"cpu0/demo\"} 1\n",
    ),
];

#[test]
fn what_became_of_requests_is_told_by_tenant_executor_and_policy() {
    let mut host = Host::new();
    host.arrive(0, "alice");
    let first = host.decide(0);
    host.arrive(SECOND, "bob");
    assert_eq!(host.decide(SECOND), []);
    host.serve(3 * SECOND, &first[0]);
    let second = host.decide(3 * SECOND);
    host.machine.handle(
        Micros(5 * SECOND),
        Input::RequestCancelled(second[0].sequence.request),
    );
    host.decide(5 * SECOND);

    let text = host.metrics.render();
    for (family, lines) in SERVED_AND_LEFT {
        assert_eq!(samples(&text, family), lines);
    }
}

#[test]
fn a_request_that_has_ended_is_forgotten() {
    let mut host = Host::new();
    let request = host.arrive(0, "alice");
    host.decide(0);
    let stamped = Stamped {
        now: Micros(SECOND),
        round: Round(1),
        fact: Fact::Ended(request, Outcome::Cancelled),
    };
    for _ in 0..2 {
        host.tell(&stamped);
    }
    let text = host.metrics.render();
    assert!(
        text.contains("outcome=\"cancelled\",why=\"\"} 1\n"),
        "{text}"
    );
}

#[test]
fn the_same_facts_give_the_same_text() {
    let told = || {
        let mut host = Host::new();
        for request in 0..20 {
            host.arrive(request, &format!("tenant-{}", request % 7));
            host.decide(request);
        }
        let text = host.metrics.render();
        let lines = text.lines().filter(|line| line.starts_with("pointsman_"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told(), told());
}

/// Checks that a host with one placed request shows `line` after one more fact.
fn told(fact: Fact, line: &str) {
    let mut host = Host::new();
    host.arrive(0, "alice");
    host.decide(0);
    let stamped = Stamped {
        now: Micros(1),
        round: Round(1),
        fact,
    };
    host.tell(&stamped);
    let text = host.metrics.render();
    let line = format!("\npointsman_{line}\n");
    assert!(text.contains(&line), "{line} not in\n{text}");
}

const REQUEST: RequestId = RequestId(7);
const EXECUTOR: ExecutorId = ExecutorId(0);

#[test]
fn decisions_are_counted_by_what_they_were_and_whose() {
    let by = Decided::BUILT_IN;
    let placed = Fact::Placed {
        request: REQUEST,
        executor: EXECUTOR,
        into: PlacedIn::Queue,
        by,
    };
    let evicted = Fact::Evicted {
        victim: REQUEST,
        executor: EXECUTOR,
        needy: RequestId(8),
        how: EvictHow::Recompute,
        blocks: 3,
        by,
    };
    for (fact, line) in [
        (
            Fact::Parked(REQUEST, by),
            "requests_decided_total{decision=\"parked\",policy=\"built-in\"} 1",
        ),
        (
            Fact::TurnedAway(REQUEST, by),
            "requests_decided_total{decision=\"turned-away\",policy=\"built-in\"} 1",
        ),
        (
            Fact::Held(REQUEST, None, by),
            "requests_decided_total{decision=\"held\",policy=\"built-in\"} 1",
        ),
        (
            placed,
            "requests_placed_total{executor=\"cpu0/demo\",policy=\"built-in\",into=\"queue\"} 1",
        ),
        (
            evicted.clone(),
            "kv_blocks_evicted_total{executor=\"cpu0/demo\",policy=\"built-in\"} 3",
        ),
        (
            evicted,
            "requests_evicted_total{executor=\"cpu0/demo\",policy=\"built-in\",how=\"recompute\"} 1",
        ),
        (
            Fact::Requeued(REQUEST, RequeuedWhy::Evicted),
            "requests_requeued_total{why=\"evicted\"} 1",
        ),
        (
            Fact::Short(REQUEST, ShortageCause::Blocks),
            "shortages_total{cause=\"blocks\"} 1",
        ),
    ] {
        told(fact, line);
    }
}

#[test]
fn endings_are_counted_by_their_reason() {
    for (outcome, labels) in [
        (
            Outcome::Refused(RefusedWhy::NoRoom { retry_after: 1 }),
            "outcome=\"refused\",why=\"no-room\"",
        ),
        (
            Outcome::Expired(ExpiredWhy::Wait),
            "outcome=\"expired\",why=\"wait\"",
        ),
        (
            Outcome::Failed(FailedWhy::AttemptsMax),
            "outcome=\"failed\",why=\"attempts-max\"",
        ),
    ] {
        let line =
            format!("requests_total{{model=\"demo\",class=\"latency-critical\",{labels}}} 1");
        told(Fact::Ended(RequestId(0), outcome), &line);
    }
}

#[test]
fn what_the_host_did_not_let_pass_is_counted_by_policy() {
    let no_slot = || RefusalCause::NoSlot.of(REQUEST);
    for (fact, line) in [
        (
            Fact::Refused(Author::Policy(0), Hook::Routing, no_slot()),
            "interlock_refusals_total{hook=\"routing\",policy=\"once\"} 1",
        ),
        (
            Fact::Refused(Author::Policy(99), Hook::Budget, no_slot()),
            "interlock_refusals_total{hook=\"budget\",policy=\"(retired)\"} 1",
        ),
        (
            Fact::Strike(Clock::Overtaken, Hook::Priority, REQUEST),
            "liveness_strikes_total{hook=\"priority\",clock=\"overtaken\"} 1",
        ),
    ] {
        told(fact, line);
    }
}

#[test]
fn executors_are_up_while_they_take_something_new() {
    for (fact, line) in [
        (
            Fact::HealthChanged(EXECUTOR, Health::Degraded),
            "executor_up{executor=\"cpu0/demo\"} 1",
        ),
        (
            Fact::HealthChanged(EXECUTOR, Health::Draining),
            "executor_up{executor=\"cpu0/demo\"} 0",
        ),
        (
            Fact::ExecutorLost(EXECUTOR),
            "executor_up{executor=\"cpu0/demo\"} 0",
        ),
        (
            Fact::ExecutorLost(EXECUTOR),
            "executors_lost_total{executor=\"cpu0/demo\"} 1",
        ),
    ] {
        told(fact, line);
    }
}

#[test]
fn a_return_to_the_queue_begins_a_new_wait() {
    let mut host = Host::new();
    let request = host.arrive(0, "alice");
    host.decide(0);
    let executor = EXECUTOR;
    let again = [
        (10, Fact::Requeued(request, RequeuedWhy::Evicted)),
        (
            14,
            Fact::Placed {
                request,
                executor,
                into: PlacedIn::Slot,
                by: Decided::BUILT_IN,
            },
        ),
    ];
    for (seconds, fact) in again {
        let stamped = Stamped {
            now: Micros(seconds * SECOND),
            round: Round(1),
            fact,
        };
        host.tell(&stamped);
    }
    let text = host.metrics.render();
    for (sample, value) in [("sum", "4.0"), ("count", "2")] {
        let line = format!(
            "pointsman_queue_wait_seconds_{sample}{{class=\"latency-critical\"}} {value}\n"
        );
        assert!(text.contains(&line), "{line}: {text}");
    }
}
