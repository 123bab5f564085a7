//! The text that is rendered after real decisions of a real machine, and after each fact.

use pointsman_core::rows::{Change, Extent, Health};
use pointsman_core::{
    Author, Bounds, Clock, Config, Decided, Effect, EvictHow, ExecutorId, ExecutorSpec, ExpiredWhy,
    Fact, FailedWhy, FaultKind, Hook, HookSet, Input, Micros, Moment, Needs, NewRequest, Outcome,
    PlacedIn, Progress, Question, RefusalCause, RefusedWhy, Reply, RequestId, RequeuedWhy, Round,
    ShortageCause, StartOrder, StepReport, fixture, routing,
};
use pointsman_policy::{
    Digest, Fault, Instance, Limits, Patience, PolicyDescription, PolicySource, start,
};

use super::*;

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

    /// Decides, tells the metrics, and returns the orders to start requests.
    fn decide(&mut self, at: u64) -> Vec<StartOrder> {
        self.machine.decide(Micros(at), &mut self.policies);
        while let Some(stamped) = self.machine.poll_fact() {
            self.metrics.fact(&stamped, &self.machine, &self.policies);
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
    let expected = [
        (
            "requests_arrived",
            "pointsman_requests_arrived_total{tenant=\"alice\",model=\"demo\"} 1\n\
             pointsman_requests_arrived_total{tenant=\"bob\",model=\"demo\"} 1\n",
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
            "requests_ended",
            "pointsman_requests_ended_total{tenant=\"alice\",outcome=\"finished\",why=\"\"} 1\n\
             pointsman_requests_ended_total{tenant=\"bob\",outcome=\"cancelled\",why=\"\"} 1\n",
        ),
        (
            "request_queue_time_seconds_sum",
            "pointsman_request_queue_time_seconds_sum 2.0\n",
        ),
        (
            "request_queue_time_seconds_count",
            "pointsman_request_queue_time_seconds_count 2\n",
        ),
        (
            "request_latency_seconds_sum",
            "pointsman_request_latency_seconds_sum{outcome=\"cancelled\"} 4.0\n\
             pointsman_request_latency_seconds_sum{outcome=\"finished\"} 3.0\n",
        ),
        (
            "executor_up",
            "pointsman_executor_up{executor=\"cpu0/demo\"} 1\n",
        ),
    ];
    for (family, lines) in expected {
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
        host.metrics.fact(&stamped, &host.machine, &host.policies);
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
    host.metrics.fact(&stamped, &host.machine, &host.policies);
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
        let line = format!("requests_ended_total{{tenant=\"alice\",{labels}}} 1");
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
            Fact::ExecutorDetached(EXECUTOR),
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
        host.metrics.fact(&stamped, &host.machine, &host.policies);
    }
    let text = host.metrics.render();
    assert!(
        text.contains("pointsman_request_queue_time_seconds_sum 4.0\n"),
        "{text}"
    );
    assert!(
        text.contains("pointsman_request_queue_time_seconds_count 2\n"),
        "{text}"
    );
}

// === The others ===

#[test]
fn states_replace_what_was_set_before() {
    let host = Host::new();
    let metrics = &host.metrics;
    metrics.policies_in_force(host.policies.status());
    metrics.load(&Load {
        queued: 9,
        slots_total: 8,
        slots_used: 3,
        ..Load::default()
    });
    metrics.load(&Load {
        slots_total: 8,
        ..Load::default()
    });
    let text = metrics.render();
    let in_force =
        "pointsman_policy_in_force{hook=\"routing\",policy=\"once\",digest=\"abababababab\"} 1\n";
    assert_eq!(samples(&text, "policy_in_force"), in_force);
    assert_eq!(
        samples(&text, "slots"),
        "pointsman_slots 8\npointsman_slots_used 0\n"
    );
    assert_eq!(
        samples(&text, "requests_queued"),
        "pointsman_requests_queued 0\n"
    );

    metrics.policies_in_force([]);
    assert_eq!(samples(&metrics.render(), "policy_in_force"), "");
}

#[test]
fn counters_follow_the_engine_they_tell_of() {
    let metrics = Metrics::default();
    for steps in [1, 3] {
        let totals = EngineTotals {
            steps,
            prefill_tokens: 100 * steps,
            decode_tokens: 8 * steps,
            busy: Duration::from_millis(500 * steps),
            sat_out: 0,
        };
        metrics.engine("cpu0/demo", totals);
    }
    let expected = "\
pointsman_engine_steps_total{executor=\"cpu0/demo\"} 3
pointsman_engine_tokens_total{executor=\"cpu0/demo\",phase=\"decode\"} 24
pointsman_engine_tokens_total{executor=\"cpu0/demo\",phase=\"prefill\"} 300
pointsman_engine_busy_seconds_total{executor=\"cpu0/demo\"} 1.5
pointsman_engine_sat_out_total{executor=\"cpu0/demo\"} 0
";
    assert_eq!(samples(&metrics.render(), "engine"), expected);
}

#[test]
fn responses_and_transactions_are_counted_by_how_they_went() {
    let metrics = Metrics::default();
    metrics.http_response("/v1/chat/completions", 200);
    metrics.http_response("/v1/chat/completions", 429);
    metrics.http_response("/v1/chat/completions", 200);
    metrics.time_to_first_token(Duration::from_millis(20));
    metrics.inter_token_latency(Duration::from_millis(3));
    let pause = Duration::from_micros(40);
    metrics.policy_committed(pause);
    metrics.policy_refused("configure");
    metrics.label_ignored();
    metrics.started(1_700_000_000);
    let text = metrics.render();
    for line in [
        "pointsman_http_responses_total{endpoint=\"/v1/chat/completions\",status=\"200\"} 2",
        "pointsman_http_responses_total{endpoint=\"/v1/chat/completions\",status=\"429\"} 1",
        "pointsman_time_to_first_token_seconds_bucket{le=\"0.025\"} 1",
        "pointsman_inter_token_latency_seconds_bucket{le=\"0.0025\"} 0",
        "pointsman_inter_token_latency_seconds_bucket{le=\"0.005\"} 1",
        "pointsman_policy_transactions_total{outcome=\"committed\",step=\"commit\"} 1",
        "pointsman_policy_transactions_total{outcome=\"refused\",step=\"configure\"} 1",
        "pointsman_policy_swap_pause_seconds_sum 0.00004",
        "pointsman_labels_ignored_total 1",
        "process_start_time_seconds 1700000000",
    ] {
        assert!(
            text.contains(&format!("\n{line}\n")),
            "{line} not in\n{text}"
        );
    }
    let version = concat!(
        "pointsman_build_info{version=\"",
        env!("CARGO_PKG_VERSION"),
        "\"} 1\n"
    );
    assert!(text.contains(version));
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn every_family_has_a_help_and_resident_memory_is_told_where_it_can_be_known() {
    let text = Metrics::default().render();
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        let name = line.split(' ').nth(2).unwrap();
        let help = text
            .lines()
            .find(|line| line.starts_with(&format!("# HELP {name} ")));
        assert!(
            help.is_some_and(|help| help.len() > name.len() + 16),
            "{name}"
        );
    }
    let line = |line: &str| line.starts_with("process_resident_memory_bytes 0");
    assert_eq!(text.lines().any(line), !cfg!(target_os = "linux"));
}
