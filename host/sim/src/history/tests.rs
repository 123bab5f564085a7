//! Simulations whose history is told: whatever binds requests, tenants and models comes out again, or is counted.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pointsman_core::rows::Health;
use pointsman_core::{
    DeviceId, ExecutorId, ExecutorUpdate, Fact, Incarnation, Input, Micros, NewRequest, NoPolicies,
    Recorder, RequestId, Round, SequenceRef, Stamped, TenantId,
};

use super::{Basis, History, Lacks};
use crate::fleet::{ExecutorPlan, FleetPlan, KvKeeper};
use crate::latency::{LatencyProfile, LinearCost};
use crate::measure::Goodput;
use crate::simulation::{Plan, Simulation};
use crate::workload::{Arrival, Listed, PromptText, Roll, TenantEntry, Workload};

/// A recorder whose history hears of the run.
#[derive(Debug)]
struct Told(Rc<RefCell<History>>);

impl Recorder for Told {
    fn input(&mut self, now: Micros, input: &Input) {
        self.0.borrow_mut().input(now, input);
    }

    fn round(&mut self, _: Micros, _: Round) {}

    fn fact(&mut self, stamped: &Stamped) {
        self.0.borrow_mut().fact(stamped);
    }
}

/// A simulation of two engines, and its history.
struct Run {
    simulation: Simulation<NoPolicies, Listed>,
    history: Rc<RefCell<History>>,
}

impl Run {
    fn new(workload: Listed) -> Self {
        let engine = |name: &str| ExecutorPlan {
            name: name.to_owned(),
            profile: LatencyProfile::Linear(LinearCost {
                step_ms: 3.0,
                prefill_token_ms: 0.05,
                prefill_pair_ms: 0.0,
                decode_ms: 0.4,
                decode_context_ms: 0.0,
            }),
            kv: KvKeeper::Host,
            step_tokens: 1024,
            ..ExecutorPlan::named("polynomial").unwrap()
        };
        let fleet = FleetPlan {
            executors: vec![engine("first"), engine("second")],
        };
        let plan = Plan::new(fleet, workload);
        let mut simulation = Simulation::new(plan, NoPolicies).unwrap();
        let (_, machine, _) = simulation.parts();
        let history = Rc::new(RefCell::new(History::new(machine)));
        simulation.record_with(Box::new(Told(Rc::clone(&history))));
        Self {
            simulation,
            history,
        }
    }

    /// Goes on to the end.
    fn end(&mut self) {
        while self.simulation.advance().is_some() {}
    }

    /// Has the history hear what does not happen in a simulation.
    fn hears(&mut self, input: &Input) {
        let (now, _, _) = self.simulation.parts();
        self.history.borrow_mut().input(now, input);
    }

    /// Has the history hear a fact that does not happen in a simulation.
    fn hears_fact(&mut self, fact: Fact) {
        let (now, _, _) = self.simulation.parts();
        let round = Round(0);
        let stamped = Stamped { now, round, fact };
        self.history.borrow_mut().fact(&stamped);
    }

    fn told(self) -> Basis {
        drop(self.simulation);
        let history = Rc::into_inner(self.history).expect("the recorder is gone");
        history.into_inner().told(Goodput::default()).unwrap()
    }
}

/// Twenty requests, each changed.
fn requests(change: impl Fn(u32, Arrival) -> Arrival) -> Vec<Arrival> {
    let request = |n: u32| {
        let prompt = PromptText::unlike_others(100 + 10 * n);
        change(n, Arrival::new(Micros(u64::from(n) * 50_000), prompt, 8))
    };
    (0..20).map(request).collect()
}

/// The bounds of each request.
fn bounds(mut workload: Listed) -> Vec<(Option<Vec<u32>>, Option<u32>)> {
    let arrivals = std::iter::from_fn(|| workload.pop());
    arrivals
        .map(|arrival| (arrival.allowed, arrival.group))
        .collect()
}

/// Lacks of such a run, in which every answer has the same length.
fn with_length(lacks: Lacks) -> Lacks {
    Lacks {
        guessed_tokens: 8,
        ..lacks
    }
}

fn kept_to_the_second(request: u64) -> Input {
    let sequence = SequenceRef {
        request: RequestId(request),
        executor: ExecutorId(0),
        incarnation: Incarnation(0),
    };
    Input::KeptTo(sequence, vec![ExecutorId(1)])
}

#[test]
fn bounds_of_requests_tenants_and_models_are_told_and_simulated() {
    let roll = Roll {
        tenants: vec![
            TenantEntry::new("free"),
            TenantEntry {
                weight: 3,
                tokens_per_minute: Some(5000),
                ..TenantEntry::new("bound")
            },
        ],
        models: vec!["a".to_owned(), "b".to_owned()],
        running_max: BTreeMap::from([(1, 2)]),
        ..Roll::default()
    };
    let asked = requests(|n, arrival| Arrival {
        tenant: n % 2,
        model: Some(n % 2),
        allowed: (n > 0).then(|| vec![1]),
        group: (n % 3 > 0).then_some(n % 3),
        ..arrival
    });
    let asked = Listed::new(roll.clone(), asked);
    let mut run = Run::new(asked.clone());
    run.end();
    let basis = run.told();
    assert_eq!(*basis.workload.roll(), roll);
    assert_eq!(bounds(basis.workload), bounds(asked));
    assert_eq!(basis.lacks, with_length(Lacks::default()));
    assert!(
        basis.report.executors[1].requests >= 19,
        "all but one were kept to the second: {:?}",
        basis.report.executors
    );
}

#[test]
fn a_tenant_that_was_never_served_counts_in_the_course_of_fairness() {
    // No engine has room for the prompts of the second tenant.
    let asked = requests(|n, arrival| Arrival {
        tenant: n % 2,
        prompt: PromptText::unlike_others(if n.is_multiple_of(2) { 100 } else { 2_000_000 }),
        at: Micros(u64::from(n) * 200_000),
        ..arrival
    });
    let roll = Roll::of_tenants(["served", "starved"]);
    let mut run = Run::new(Listed::new(roll, asked));
    run.end();
    let report = run.told().report;
    assert_eq!((report.finished, report.jain), (10, 0.5));
    assert_eq!(report.course.jain.last(), Some(&report.jain));
}

#[test]
fn what_lasts_is_in_every_part_of_the_course() {
    let asked = Listed::new(Roll::single(), requests(|_, arrival| arrival));
    let mut run = Run::new(asked);
    // The first has arrived and runs, and nothing is heard for a while.
    run.simulation.advance();
    let mut history = run.history.borrow_mut();
    history.input(Micros(4_500_000), &Input::TimePassed);
    assert_eq!(history.measures.series.course().running, [1.0; 5]);
}

#[test]
fn a_request_found_too_long_is_kept_from_there_and_a_broken_answer_is_counted() {
    let asked = Listed::new(Roll::single(), requests(|_, arrival| arrival));
    let mut run = Run::new(asked);
    // The first has arrived and has no token yet.
    run.simulation.advance();
    run.hears(&kept_to_the_second(0));
    run.end();
    run.hears(&kept_to_the_second(1));
    let basis = run.told();
    let lacks = Lacks {
        too_long: 1,
        broken_off: 1,
        ..Lacks::default()
    };
    assert_eq!(basis.lacks, with_length(lacks));
    let bounds = bounds(basis.workload);
    assert_eq!(bounds[0], (Some(vec![1]), None));
    assert!(bounds[1..].iter().all(|it| *it == (None, None)));
}

#[test]
fn executors_that_came_left_or_were_drained_are_counted() {
    let asked = Listed::new(Roll::single(), requests(|_, arrival| arrival));
    let mut run = Run::new(asked);
    run.end();
    run.hears_fact(Fact::ExecutorAttached(ExecutorId(2), DeviceId(2)));
    for update in [
        ExecutorUpdate::Health(Health::Draining),
        ExecutorUpdate::Health(Health::Up),
        ExecutorUpdate::Health(Health::Draining),
        ExecutorUpdate::Detach,
    ] {
        run.hears(&Input::ExecutorUpdated(ExecutorId(1), update));
    }
    let lacks = Lacks {
        joined: 1,
        detached: 1,
        drained: 2,
        ..Lacks::default()
    };
    assert_eq!(run.told().lacks, with_length(lacks));
}

#[test]
fn returns_to_an_executor_are_counted_where_no_session_tells_of_it() {
    let asked = requests(|n, arrival| Arrival {
        session: Some(u64::from(n % 2)),
        ..arrival
    });
    let mut run = Run::new(Listed::new(Roll::single(), asked));
    run.end();
    run.hears(&Input::arrival(NewRequest {
        preferred: Some(ExecutorId(0)),
        ..NewRequest::new(TenantId(0), 100, 8)
    }));
    let lacks = Lacks {
        returns: 1,
        ..Lacks::default()
    };
    assert_eq!(run.told().lacks, with_length(lacks));
}
