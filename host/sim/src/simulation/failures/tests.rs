//! Failures by themselves, and as simulations under different policies see them.

use std::cell::RefCell;
use std::rc::Rc;

use pointsman_core::{
    Answer, Asked, ExecutorId, Input, NoPolicies, Policies, Question, Recorder, Reply, Round,
    Stamped, routing,
};

use super::*;
use crate::fleet::{ExecutorPlan, FleetPlan};
use crate::simulation::{Plan, Simulation};
use crate::workload::{Arrival, Listed, PromptText, Roll};

const EXECUTORS: u32 = 4;

/// Routing to the first executor that has room.
#[derive(Debug)]
struct InOrder;

impl Policies for InOrder {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Question::Routing(requests) = &asked.question else {
            return Answer::unbound();
        };
        let verdicts = requests.iter().map(|_| routing::Verdict {
            choice: routing::Choice::Place((0..EXECUTORS).map(ExecutorId).collect()),
            reason: 0,
        });
        Answer::by(0, Reply::Routing(verdicts.collect()))
    }
}

/// A recorder that notes losses of executors and clients that leave.
#[derive(Debug)]
struct Seen(Rc<RefCell<Vec<(Micros, Failure)>>>);

impl Recorder for Seen {
    fn input(&mut self, now: Micros, input: &Input) {
        let mut seen = self.0.borrow_mut();
        if let Input::ExecutorLost { executor, .. } = input {
            seen.push((now, Failure::Dies(executor.0 as usize)));
        } else if let Input::RequestCancelled(request) = input {
            seen.push((now, Failure::Leaves(*request)));
        }
    }

    fn round(&mut self, _: Micros, _: Round) {}

    fn fact(&mut self, _: &Stamped) {}
}

/// Failures of a run with these policies, as long as requests come.
fn seen(policies: impl Policies) -> Vec<(Micros, Failure)> {
    let ask = |n: u64| Arrival::new(Micros(n * 100_000), PromptText::unlike_others(500), 40);
    let workload = Listed::new(Roll::single(), (0..200).map(ask).collect());
    let often = Recurring {
        between: Micros(5_000_000),
        lasting: Micros(1_000_000),
    };
    let failures = FailurePlan {
        seed: 1,
        losses: Some(often),
        slowdowns: Some((often, 3.0)),
        failing_share: 0.2,
        leaving_share: 0.2,
        leaves_after: Micros(1_000_000),
        listed: Vec::new(),
    };
    let fleet = FleetPlan::of(ExecutorPlan::named("smg").unwrap(), EXECUTORS);
    let plan = Plan {
        failures,
        ..Plan::new(fleet, workload)
    };
    let mut simulation = Simulation::new(plan, policies).unwrap();
    let seen = Rc::new(RefCell::new(Vec::new()));
    simulation.record_with(Box::new(Seen(Rc::clone(&seen))));
    while simulation.advance().is_some() {}
    drop(simulation);
    let seen = Rc::into_inner(seen).expect("the recorder is gone");
    let mut seen = seen.into_inner();
    seen.retain(|(at, _)| *at < Micros(19_000_000));
    seen
}

#[test]
fn policies_at_one_seed_see_the_same_failures() {
    let built_in = seen(NoPolicies);
    let losses = built_in.iter();
    let losses = losses.filter(|(_, failure)| matches!(failure, Failure::Dies(_)));
    let losses = losses.count();
    assert!((5..built_in.len() - 20).contains(&losses), "{built_in:?}");
    assert_eq!(built_in, seen(InOrder));
}

#[test]
fn placements_fail_and_clients_leave_whoever_came_before() {
    let plan = FailurePlan {
        seed: 1,
        failing_share: 0.5,
        leaving_share: 0.5,
        leaves_after: Micros(1_000_000),
        ..FailurePlan::default()
    };
    let due = |requests: Vec<u64>| {
        let mut failures = Failures::new(plan.clone(), EXECUTORS);
        for request in requests.into_iter().map(RequestId) {
            failures.note_arrival(request, Micros(0));
            failures.note_start((request, 0), 0, Micros(0));
        }
        failures.due
    };
    let ascending = due((0..50).collect());
    assert!((20..80).contains(&ascending.len()), "{ascending:?}");
    assert_eq!(ascending, due((0..50).rev().collect()));
}

#[test]
fn executors_are_slow_at_the_same_times_whatever_is_placed() {
    let often = Recurring {
        between: Micros(5_000_000),
        lasting: Micros(1_000_000),
    };
    let plan = FailurePlan {
        seed: 1,
        slowdowns: Some((often, 3.0)),
        failing_share: 0.5,
        ..FailurePlan::default()
    };
    let slow = |placements: u64| {
        let mut failures = Failures::new(plan.clone(), EXECUTORS);
        let mut slow = Vec::new();
        while let Some(at) = failures.next_at()
            && at < Micros(100_000_000)
        {
            let failure = failures.pop_due(at);
            if matches!(failure, Some(Failure::Fails(..))) {
                continue;
            }
            slow.push((at, failure));
            for request in (0..placements).map(RequestId) {
                failures.note_start((request, 0), 0, at);
            }
        }
        slow
    };
    let alone = slow(0);
    assert!(alone.len() > 50, "{alone:?}");
    assert_eq!(alone, slow(3));
}

#[test]
fn executors_die_and_come_back_in_turn_at_the_mean_times() {
    let recurring = Recurring {
        between: Micros(9_000_000),
        lasting: Micros(1_000_000),
    };
    let mut failures = Failures::new(
        FailurePlan {
            losses: Some(recurring),
            ..FailurePlan::default()
        },
        2,
    );
    let end = Micros(4_000_000_000);
    let mut is_down = [false; 2];
    let mut deaths = 0;
    while let Some(failure) = failures.pop_due(end) {
        if let Failure::Dies(executor) = failure {
            assert!(!std::mem::replace(&mut is_down[executor], true));
            deaths += 1;
        } else if let Failure::Returns(executor) = failure {
            assert!(std::mem::replace(&mut is_down[executor], false));
        } else {
            panic!("{failure:?} was not planned");
        }
    }
    assert!((700..900).contains(&deaths), "{deaths} of about 800");
}

#[test]
fn a_plan_without_failures_has_none() {
    let mut failures = Failures::new(FailurePlan::default(), 100);
    failures.note_arrival(RequestId(0), Micros(0));
    failures.note_start((RequestId(0), 0), 0, Micros(0));
    assert_eq!(failures.next_at(), None);
}
