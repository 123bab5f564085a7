//! Admission and allotments.

use pointsman_sdk::fixture::{asked, at, bounds, executor, load, request};
use pointsman_sdk::wire::admission::{Choice, Displacement};
use pointsman_sdk::wire::budget::DeviceTokens;
use pointsman_sdk::wire::types::{
    Change, ExecutorInfo, ExecutorLoad, Extent, Health, Request, RequestClass, Stage,
};
use pointsman_sdk::{Bounds, Instance};

use super::instance;

fn policy(settings: &str, changes: Vec<Change>) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    policy.observe(0, Extent::Everything, changes);
    policy
}

/// The choice that refuses another request, by the setting's default.
pub(crate) fn displace(request: u64) -> Choice {
    Choice::Displace(Displacement {
        request,
        retry_after: 1,
    })
}

/// The tokens of device 0.
fn tokens(tokens_total: u32) -> DeviceTokens {
    DeviceTokens {
        device: 0,
        tokens_total,
        used: Vec::new(),
    }
}

/// Asks for the verdicts on all that arrived, in order of id.
fn check(settings: &str, requests: Vec<Request>, room: u32, expected: &[Choice]) {
    let arrivals = requests.iter().filter(|row| row.stage == Stage::Arrived);
    let arrivals: Vec<u64> = arrivals.map(|row| row.id).collect();
    let changes = requests.into_iter().map(Change::Waiting).collect();
    let verdicts = policy(settings, changes).admit(at(0), asked(&arrivals), room);
    let choices: Vec<Choice> = verdicts.into_iter().map(|row| row.choice).collect();
    assert_eq!(choices, expected);
}

fn arrival(id: u64) -> Request {
    Request {
        stage: Stage::Arrived,
        arrived: 100,
        ..request(id)
    }
}

const DROP_NEWEST: &str = r#"{"overflow": "drop-newest", "retry-after": 7}"#;
const DROP_OLDEST: &str = r#"{"overflow": "drop-oldest"}"#;

#[test]
fn room_is_counted_down_over_the_batch() {
    let arrivals = || vec![arrival(1), arrival(2), arrival(3)];
    let expected = [Choice::Admit, Choice::Admit, Choice::Park];
    check("{}", arrivals(), 2, &expected);
    let expected = [Choice::Admit, Choice::Admit, Choice::Shed(7)];
    check(DROP_NEWEST, arrivals(), 2, &expected);
}

#[test]
fn background_work_is_refused_when_there_is_no_room_whatever_the_overflow() {
    let background = |id| Request {
        may_wait: false,
        ..arrival(id)
    };
    let requests = || vec![request(1), background(2), background(3)];
    check("{}", requests(), 1, &[Choice::Admit, Choice::Shed(1)]);
    check(DROP_NEWEST, requests(), 0, &[Choice::Shed(7); 2]);
    check(DROP_OLDEST, requests(), 0, &[Choice::Shed(1); 2]);
}

#[test]
fn the_oldest_of_the_least_urgent_is_displaced_and_nobody_twice() {
    let queued = |id, arrived, priority| Request {
        arrived,
        priority,
        ..request(id)
    };
    let parked = Request {
        stage: Stage::Parked,
        ..queued(9, 0, -9)
    };
    let requests = vec![
        queued(1, 5, 0),
        queued(2, 10, -1),
        queued(3, 20, -1),
        queued(4, 0, 1),
        parked,
        arrival(11),
        arrival(12),
        arrival(13),
        arrival(14),
    ];
    let expected = [
        displace(2),
        displace(3),
        displace(1),
        // Only the more urgent is left.
        Choice::Shed(1),
    ];
    check(DROP_OLDEST, requests, 0, &expected);
}

#[test]
fn who_came_back_from_an_executor_is_not_displaced() {
    let returned = |id, arrived| Request {
        arrived,
        attempts: 1,
        priority: -1,
        ..request(id)
    };
    let fresh = Request {
        arrived: 10,
        ..request(3)
    };
    let requests = vec![
        returned(1, 0),
        returned(2, 5),
        fresh,
        arrival(11),
        arrival(12),
    ];
    let expected = [displace(3), Choice::Shed(1)];
    check(DROP_OLDEST, requests, 0, &expected);
}

#[test]
fn throughput_does_not_displace_latency_critical() {
    let critical = Request {
        class: RequestClass::LatencyCritical,
        ..request(1)
    };
    let urgent = Request {
        priority: 9,
        ..arrival(2)
    };
    check(DROP_OLDEST, vec![critical, urgent], 0, &[Choice::Shed(1)]);
}

#[test]
fn the_queue_follows_the_mirror() {
    let mut policy = policy(DROP_OLDEST, vec![Change::Waiting(request(1))]);
    let displaced = |policy: &mut Box<dyn Instance>| {
        let verdicts = policy.admit(at(0), asked(&[11]), 0);
        verdicts[0].choice
    };
    let arrived = vec![
        Change::Waiting(arrival(11)),
        Change::Waiting(request(2)),
        Change::WaitingGone(1),
        Change::WaitingGone(77),
    ];
    policy.observe(1, Extent::SinceLast, arrived);
    assert_eq!(displaced(&mut policy), displace(2));
    let raised = Request {
        priority: 1,
        ..request(2)
    };
    policy.observe(2, Extent::SinceLast, vec![Change::Waiting(raised)]);
    assert_eq!(displaced(&mut policy), Choice::Shed(1));
    let anew = vec![Change::Waiting(arrival(11)), Change::Waiting(request(3))];
    policy.observe(3, Extent::Everything, anew);
    assert_eq!(displaced(&mut policy), displace(3));
}

#[test]
fn nothing_is_parked_beyond_the_room_there() {
    let parked = |id| Request {
        stage: Stage::Parked,
        ..request(id)
    };
    let rows = [parked(1), parked(2), parked(3), arrival(11), arrival(12)];
    let mut policy = instance();
    let room_for_four = Bounds {
        parking_max: 4,
        ..bounds()
    };
    policy.configure("{}", room_for_four).expect("the defaults");
    let choices = |policy: &mut Box<dyn Instance>| {
        let verdicts = policy.admit(at(0), asked(&[11, 12]), 0);
        [verdicts[0].choice, verdicts[1].choice]
    };
    policy.observe(
        0,
        Extent::Everything,
        rows.map(Change::Waiting).into_iter().collect(),
    );
    assert_eq!(choices(&mut policy), [Choice::Park, Choice::Shed(1)]);
    // One enters the queue, another one goes.
    let later = vec![Change::Waiting(request(1)), Change::WaitingGone(2)];
    policy.observe(1, Extent::SinceLast, later);
    assert_eq!(choices(&mut policy), [Choice::Park; 2]);
    let anew = [1, 2, 3, 4].map(parked).into_iter();
    let anew = anew.chain([arrival(11), arrival(12)]);
    policy.observe(2, Extent::Everything, anew.map(Change::Waiting).collect());
    assert_eq!(choices(&mut policy), [Choice::Shed(1); 2]);
}

/// Engines of device 0 by weight and slots in use; asks for 1000 tokens.
fn check_allot(engines: &[(u32, u32)], expected: &[u32]) {
    let mut changes = Vec::new();
    for (id, &(share_weight, slots_used)) in (0..).zip(engines) {
        changes.push(Change::Executor(ExecutorInfo {
            share_weight,
            ..executor(id)
        }));
        changes.push(Change::Load(ExecutorLoad {
            slots_used,
            ..load(id)
        }));
    }
    let elsewhere = ExecutorInfo {
        device: 1,
        ..executor(99)
    };
    changes.push(Change::Executor(elsewhere));
    changes.push(Change::Load(load(99)));
    let allotments = policy("{}", changes).allot(at(0), tokens(1000));
    let found: Vec<(u32, u32)> = allotments
        .engines
        .iter()
        .map(|row| (row.executor, row.tokens_max))
        .collect();
    let expected: Vec<(u32, u32)> = (0..).zip(expected.iter().copied()).collect();
    assert_eq!(found, expected);
}

#[test]
fn busy_engines_share_by_weight_and_idle_ones_get_nothing() {
    check_allot(&[(1, 1), (3, 2), (4, 0)], &[250, 750, 0]);
    check_allot(&[(0, 1), (1, 1)], &[500, 500]);
}

#[test]
fn where_none_is_busy_all_share() {
    check_allot(&[(1, 0), (1, 0), (2, 0)], &[250, 250, 500]);
}

#[test]
fn the_only_busy_engine_gets_no_more_than_the_cap() {
    check_allot(&[(1, 1), (1, 0)], &[900, 0]);
}

#[test]
fn queued_work_is_work_and_an_engine_that_is_down_has_none() {
    let engine = |id, health, queued_throughput| {
        let load = ExecutorLoad {
            health,
            queued_throughput,
            ..load(id)
        };
        [Change::Executor(executor(id)), Change::Load(load)]
    };
    let rows = [
        engine(0, Health::Up, 1),
        engine(1, Health::Draining, 1),
        engine(2, Health::Down, 1),
    ];
    let mut policy = policy("{}", rows.into_iter().flatten().collect());
    let allotments = policy.allot(at(0), tokens(100));
    let tokens: Vec<u32> = allotments
        .engines
        .iter()
        .map(|row| row.tokens_max)
        .collect();
    assert_eq!(tokens, [50, 50, 0]);
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
        r#"{"max-single-engine": 99}"#,
        "`max-single-engine`: 99 is not between 100 and 1000",
    );
    check(
        r#"{"retry-after": 0}"#,
        "`retry-after`: 0 is not between 1 and 3600",
    );
    check(
        r#"{"share-tolerance": 1000001}"#,
        "`share-tolerance`: 1000001 is not between 0 and 1000000",
    );
    check(
        r#"{"overflow": "drop"}"#,
        "`overflow`: unknown variant `drop`, expected one of `block`, `drop-newest`, `drop-oldest`",
    );
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::Budget>();
}
