//! The order, by hand-computed scores.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{
    SECOND, asked, at, bounds, executor, load, request, residency, tenant,
};
use pointsman_sdk::wire::types::{
    Change, ExecutorLoad, Extent, Health, Request, RequestClass, Residency, Tenant,
};

use super::instance;

/// FIFO but for affinity: what rule C4 says, and nothing else.
const AFFINITY_ONLY: &str = r#"{"class-lead": 0, "priority-step": 0, "head-start-max": 0}"#;
const PLAIN: &str =
    r#"{"affinity-bonus": 0, "class-lead": 0, "priority-step": 0, "head-start-max": 0}"#;

fn policy(settings: &str, changes: Vec<Change>) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    policy.observe(0, Extent::Everything, changes);
    policy
}

/// Asks for the order at 100 s of requests given in order of arrival.
fn check(settings: &str, fleet: Vec<Change>, requests: Vec<Request>, expected: &[u64]) {
    let ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
    let mut changes = fleet;
    changes.extend(requests.into_iter().map(Change::Waiting));
    let mut policy = policy(settings, changes);
    assert_eq!(policy.order(at(100 * SECOND), asked(&ids)), expected);
}

fn arrived(id: u64, seconds: u64) -> Request {
    Request {
        arrived: seconds * SECOND,
        ..request(id)
    }
}

fn of_model(id: u64, seconds: u64, model: u32) -> Request {
    Request {
        model: Some(model),
        ..arrived(id, seconds)
    }
}

/// One executor where model 0 runs in its only slot.
fn busy_with_model_0(health: Health) -> Vec<Change> {
    let mut info = executor(0);
    info.slots_total = 1;
    let load = ExecutorLoad {
        health,
        slots_used: 1,
        ..load(0)
    };
    vec![
        Change::Executor(info),
        Change::Load(load),
        Change::Residency(residency(0, 0)),
    ]
}

#[test]
fn without_bonus_it_is_first_come_first_served() {
    let requests = vec![of_model(1, 10, 1), of_model(2, 20, 0), arrived(3, 30)];
    check(PLAIN, busy_with_model_0(Health::Up), requests, &[1, 2, 3]);
}

#[test]
fn a_warm_model_is_worth_the_equalization_time() {
    // Waited 30 s against warm and just arrived: 10 points each; arrival decides.
    let equal = vec![of_model(1, 70, 1), of_model(2, 100, 0)];
    check(AFFINITY_ONLY, busy_with_model_0(Health::Up), equal, &[1, 2]);
    // Waited 29 s: 9.67 points.
    let younger = vec![of_model(1, 71, 1), of_model(2, 100, 0)];
    check(
        AFFINITY_ONLY,
        busy_with_model_0(Health::Up),
        younger,
        &[2, 1],
    );
}

#[test]
fn a_model_is_warm_on_any_live_executor_without_a_free_slot_too() {
    let requests = || vec![of_model(1, 90, 1), of_model(2, 100, 0)];
    for live in [Health::Up, Health::Degraded] {
        check(AFFINITY_ONLY, busy_with_model_0(live), requests(), &[2, 1]);
    }
    for dead in [Health::Draining, Health::Down] {
        check(AFFINITY_ONLY, busy_with_model_0(dead), requests(), &[1, 2]);
    }
}

#[test]
fn a_model_is_warm_until_its_hold_ends() {
    let fleet = |until| {
        let mut fleet = busy_with_model_0(Health::Up);
        fleet.push(Change::Residency(Residency {
            sequences: 0,
            warm_until: Some(until),
            ..residency(0, 0)
        }));
        fleet
    };
    let requests = || vec![of_model(1, 90, 1), of_model(2, 100, 0)];
    check(AFFINITY_ONLY, fleet(100 * SECOND + 1), requests(), &[2, 1]);
    check(AFFINITY_ONLY, fleet(100 * SECOND), requests(), &[1, 2]);
}

#[test]
fn a_request_without_a_model_is_never_warm() {
    let requests = vec![arrived(1, 90), arrived(2, 100)];
    check(
        AFFINITY_ONLY,
        busy_with_model_0(Health::Up),
        requests,
        &[1, 2],
    );
}

#[test]
fn class_priority_and_head_start_come_first() {
    let critical = Request {
        class: RequestClass::LatencyCritical,
        ..arrived(2, 99)
    };
    let urgent = Request {
        priority: 1,
        ..arrived(3, 99)
    };
    let granted = Request {
        head_start: 20 * SECOND,
        ..arrived(4, 99)
    };
    let minor = Request {
        priority: -1,
        ..arrived(5, 90)
    };
    // Seconds: 10; 1 + 120; 1 + 60; 1 + 20; 10 - 60.
    let requests = vec![arrived(1, 90), critical, urgent, granted, minor];
    check("{}", Vec::new(), requests, &[2, 3, 4, 1, 5]);
}

/// Tenants 0 and 1 with requests in hand, which were served so many tokens by now.
fn served(tokens: [u64; 2]) -> Vec<Change> {
    let row = |(id, output_tokens_total)| {
        Change::Tenant(Tenant {
            waiting: 1,
            output_tokens_total,
            ..tenant(id)
        })
    };
    (0..).zip(tokens).map(row).collect()
}

#[test]
fn a_tenant_beyond_its_share_is_behind() {
    let of = |tenant, id, second| Request {
        tenant,
        ..arrived(id, second)
    };
    let waiting = |later| vec![of(0, 1, 10), of(1, 2, 20), of(0, 3, 30), of(1, 4, later)];
    // All of the tokens: 300 s behind. Three quarters are half of the way to that.
    check("{}", served([600, 0]), waiting(99), &[2, 4, 1, 3]);
    check("{}", served([450, 150]), waiting(99), &[2, 4, 1, 3]);
    let half = r#"{"share-lag": 80}"#;
    check(half, served([600, 0]), waiting(95), &[2, 1, 4, 3]);
    check(half, served([450, 150]), waiting(95), &[2, 1, 3, 4]);
    // Nobody is beyond, the only one has all that there is, or it does not count.
    check("{}", served([300, 300]), waiting(99), &[1, 2, 3, 4]);
    check(
        "{}",
        vec![served([600, 0]).remove(0)],
        waiting(99),
        &[1, 2, 3, 4],
    );
    check(
        r#"{"share-lag": 0}"#,
        served([600, 0]),
        waiting(99),
        &[1, 2, 3, 4],
    );
}

#[test]
fn use_of_the_last_minute_outlives_a_reload() {
    let mut old = policy("{}", served([0, 600]));
    old.observe(1000 * SECOND, Extent::SinceLast, served([0, 600]));
    let order = |mut fresh: Box<dyn Instance>| {
        let mut changes = served([600, 600]);
        changes.push(Change::Waiting(arrived(1, 1001)));
        let of_other = Request {
            tenant: 1,
            ..arrived(2, 1002)
        };
        changes.push(Change::Waiting(of_other));
        fresh.observe(1010 * SECOND, Extent::Everything, changes);
        fresh.order(at(1010 * SECOND), asked(&[1, 2]))
    };
    let mut fresh = policy("{}", Vec::new());
    fresh.restore(old.snapshot()).expect("its own snapshot");
    // All of tenant 1's tokens are older than a minute.
    assert_eq!(order(fresh), [2, 1]);
    // Without a past both were served evenly since the host started.
    assert_eq!(order(policy("{}", Vec::new())), [1, 2]);
}

#[test]
fn waiting_outweighs_every_advantage() {
    // The greatest advantage there can be, against the least.
    let greatest = Request {
        class: RequestClass::LatencyCritical,
        priority: i32::MAX,
        head_start: u64::MAX,
        ..of_model(2, 100_000, 0)
    };
    let least = Request {
        priority: i32::MIN,
        tenant: 1,
        ..of_model(1, 0, 1)
    };
    // 120 + 2 × 10 × 60 + 300 + 30 + 300 seconds.
    let bound = 1950;
    let order = |arrived_second: u64| {
        let greatest = Request {
            arrived: arrived_second * SECOND,
            ..greatest.clone()
        };
        let mut changes = busy_with_model_0(Health::Up);
        changes.extend(served([0, 600]));
        changes.push(Change::Waiting(least.clone()));
        changes.push(Change::Waiting(greatest));
        let mut policy = policy("{}", Vec::new());
        policy.observe(3000 * SECOND, Extent::Everything, changes);
        policy.order(at(3000 * SECOND), asked(&[1, 2]))
    };
    assert_eq!(order(bound - 1), [2, 1]);
    assert_eq!(order(bound), [1, 2]);
    assert_eq!(order(bound + 1), [1, 2]);
}

/// Executors 0 and 1 with one free slot each, and number 2 where model 0 runs in its only one.
fn two_free_slots() -> Vec<Change> {
    let mut fleet = Vec::new();
    for (id, slots_used) in [(0, 0), (1, 0), (2, 1)] {
        let mut info = executor(id);
        info.slots_total = 1;
        let load = ExecutorLoad {
            slots_used,
            ..load(id)
        };
        fleet.extend([Change::Executor(info), Change::Load(load)]);
    }
    fleet.push(Change::Residency(residency(2, 0)));
    fleet
}

fn pinned(request: Request, executor: u32) -> Request {
    Request {
        allowed: Some(vec![executor]),
        ..request
    }
}

#[test]
fn one_request_of_each_cold_model_that_finds_room_goes_first() {
    // Points, in seconds: 90 + 30, 80, 10, 5, 4, 3.
    let requests = || {
        vec![
            of_model(1, 10, 0),
            arrived(2, 20),
            of_model(3, 90, 1),
            of_model(4, 95, 1),
            of_model(5, 96, 2),
            of_model(6, 97, 3),
        ]
    };
    // Models 1 and 2 take the two free slots; for model 3 there is none.
    let expected = [3, 5, 1, 2, 4, 6];
    check(AFFINITY_ONLY, two_free_slots(), requests(), &expected);
    // Without a bonus nothing is warm or cold.
    check(PLAIN, two_free_slots(), requests(), &[1, 2, 3, 4, 5, 6]);
    // The first of model 1 could go to the full executor only: the second one starts it.
    let mut pinned_to_full = requests();
    pinned_to_full[2] = pinned(of_model(3, 90, 1), 2);
    let expected = [4, 5, 1, 2, 3, 6];
    check(AFFINITY_ONLY, two_free_slots(), pinned_to_full, &expected);
    // Two first ones want the same slot.
    let mut rivals = requests();
    rivals[2] = pinned(of_model(3, 90, 1), 0);
    rivals[4] = pinned(of_model(5, 96, 2), 0);
    check(AFFINITY_ONLY, two_free_slots(), rivals, &[3, 6, 1, 2, 4, 5]);
}

#[test]
fn a_warm_hold_alone_does_not_keep_a_cold_model_from_going_first() {
    let kept = |slots_used, models_max| {
        let mut fleet = two_free_slots();
        fleet.truncate(2);
        let mut info = executor(0);
        info.models_max = models_max;
        info.slots_total = 2;
        let load = ExecutorLoad {
            slots_used,
            ..load(0)
        };
        let held = Residency {
            sequences: 0,
            warm_until: Some(200 * SECOND),
            ..residency(0, 0)
        };
        fleet.extend([Change::Executor(info), Change::Load(load)]);
        fleet.push(Change::Residency(held));
        fleet
    };
    let requests = || vec![of_model(1, 90, 0), of_model(2, 100, 1)];
    check(AFFINITY_ONLY, kept(1, Some(1)), requests(), &[2, 1]);
    check(AFFINITY_ONLY, kept(2, Some(1)), requests(), &[1, 2]);
    check(AFFINITY_ONLY, kept(0, Some(0)), requests(), &[1, 2]);
}

#[test]
fn only_so_many_executors_are_looked_at_for_a_question() {
    // 499 full ones and a free one.
    let mut fleet = Vec::new();
    for id in 0..500 {
        let load = ExecutorLoad {
            slots_used: if id == 499 { 0 } else { 4 },
            ..load(id)
        };
        fleet.extend([Change::Executor(executor(id)), Change::Load(load)]);
    }
    let order = |in_vain: u64| {
        let mut requests: Vec<Request> = (0..in_vain)
            .map(|id| pinned(of_model(id, 10, 1), 0))
            .collect();
        requests.push(of_model(in_vain, 20, 2));
        let ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
        let mut changes = fleet.clone();
        changes.extend(requests.into_iter().map(Change::Waiting));
        policy("{}", changes).order(at(100 * SECOND), asked(&ids))
    };
    // 500 each: the last one is number 100 that is looked at, or number 101.
    assert_eq!(order(99).first(), Some(&99));
    assert_eq!(order(100).last(), Some(&100));
}

#[test]
fn a_request_it_was_not_told_of_is_left_out() {
    let mut policy = policy("{}", vec![Change::Waiting(request(1))]);
    assert_eq!(policy.order(at(0), asked(&[9, 1])), [1]);
}

#[test]
fn settings_out_of_range_are_refused() {
    let check = |settings: &str, expected: &str| {
        assert_eq!(
            instance().configure(settings, bounds()),
            Err(expected.into())
        );
    };
    check(
        r#"{"queue-aging-equalization": 0}"#,
        "`queue-aging-equalization`: 0 is not between 1 and 86400",
    );
    check(
        r#"{"priority-max": 1001}"#,
        "`priority-max`: 1001 is not between 0 and 1000",
    );
    check(
        r#"{"class-lead": -1}"#,
        "`class-lead`: invalid value: integer `-1`, expected u32",
    );
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::Aging>();
}
