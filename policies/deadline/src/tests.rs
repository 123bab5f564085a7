//! Orders and places by times computed by hand.
//!
//! The fast executor takes 2 s to the first token and 0.1 s to each next one, the slow one 5 s and
//! 0.5 s. An answer of 11 tokens takes 3 s on the one and 10 s on the other.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{
    SECOND, asked, at, bounds, cached, check_overtaken_first, device, executor, load, request,
};
use pointsman_sdk::rendezvous::split_mix;
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{Change, Device, ExecutorLoad, Extent, Health, Request};

use super::instance;
use super::reason::Reason;

/// The verdict on what is asked at 0 and waits as long as it may.
const HELD: Choice = Choice::Hold(Some(30 * SECOND));
const FAST: u32 = 0;
const SLOW: u32 = 1;

fn measured(id: u32) -> ExecutorLoad {
    let (ttft, itl) = if id == FAST { (20, 1) } else { (50, 5) };
    ExecutorLoad {
        ttft_micros: Some(ttft * SECOND / 10),
        itl_micros: Some(itl * SECOND / 10),
        ..load(id)
    }
}

fn busy(id: u32) -> ExecutorLoad {
    ExecutorLoad {
        slots_used: 1,
        ..measured(id)
    }
}

fn full(id: u32) -> ExecutorLoad {
    ExecutorLoad {
        slots_used: 4,
        ..measured(id)
    }
}

fn policy(settings: &str, loads: &[ExecutorLoad]) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    let info = |load: &ExecutorLoad| Change::Executor(executor(load.id));
    let changes = loads.iter().map(info);
    let loads = loads.iter().cloned().map(Change::Load);
    policy.observe(0, Extent::Everything, changes.chain(loads).collect());
    policy
}

/// A request for 11 tokens that arrived at 0.
fn due(id: u64, deadline: u64) -> Request {
    Request {
        deadline: Some(deadline),
        output_tokens_max: 1000,
        output_tokens_expected: Some(11),
        ..request(id)
    }
}

fn check_order(policy: &mut dyn Instance, now: u64, requests: &[Request], expected: &[u64]) {
    let mut ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
    let changes = requests.iter().cloned().map(Change::Waiting).collect();
    policy.observe(now, Extent::SinceLast, changes);
    assert_eq!(policy.order(at(now), asked(&ids)), expected);
    ids.reverse();
    assert_eq!(policy.order(at(now), asked(&ids)), expected);
}

/// The fate of a request, and the reason.
fn check_route(
    policy: &mut dyn Instance,
    now: u64,
    request: Request,
    (choice, reason): (Choice, Reason),
) {
    let asked = cached(request.id);
    policy.observe(now, Extent::SinceLast, vec![Change::Waiting(request)]);
    let verdicts = policy.route(at(now), vec![asked]);
    assert_eq!(verdicts.len(), 1);
    assert_eq!(
        (&verdicts[0].choice, verdicts[0].reason),
        (&choice, reason.index())
    );
}

fn on(executor: u32) -> Choice {
    Choice::Place(vec![executor])
}

#[test]
fn where_nothing_is_measured_the_earliest_deadline_goes_first() {
    let mut policy = policy("{}", &[load(FAST)]);
    let requests = [
        due(1, 30 * SECOND),
        due(2, 10 * SECOND),
        due(3, 20 * SECOND),
    ];
    check_order(&mut *policy, 0, &requests, &[2, 3, 1]);
}

#[test]
fn a_longer_answer_has_to_start_earlier() {
    let of = |id, deadline, tokens| Request {
        output_tokens_expected: Some(tokens),
        ..due(id, deadline)
    };
    let mut policy = policy("{}", &[measured(FAST)]);
    // Latest start: 20 - 3 s; 30 - (2 + 19.9) = 8.1 s; 12 - 2 = 10 s, as an answer has a token.
    let requests = [
        due(1, 20 * SECOND),
        of(2, 30 * SECOND, 200),
        of(3, 12 * SECOND, 0),
    ];
    check_order(&mut *policy, 0, &requests, &[2, 3, 1]);
}

#[test]
fn what_cannot_make_it_gives_way_to_all_that_can() {
    let mut policy = policy("{}", &[measured(FAST)]);
    let requests = [due(1, 13 * SECOND), due(2, 40 * SECOND), request(3)];
    // Latest start: 10 s; 37 s; 30 s, by patience.
    check_order(&mut *policy, 10 * SECOND, &requests, &[1, 3, 2]);
    check_order(&mut *policy, 10 * SECOND + 1, &requests, &[3, 2, 1]);
}

#[test]
fn the_best_pace_of_a_live_executor_that_serves_the_model_counts() {
    let mut info = executor(FAST);
    info.serves = Some(vec![7]);
    let mut policy = policy("{}", &[measured(FAST), measured(SLOW)]);
    policy.observe(0, Extent::SinceLast, vec![Change::Executor(info)]);
    let of = |id, model| Request {
        model,
        ..due(id, 5 * SECOND)
    };
    // 3 s for model 7 and for any, 10 s for model 8.
    let requests = [of(1, Some(8)), of(2, Some(7)), of(3, None)];
    check_order(&mut *policy, 0, &requests, &[2, 3, 1]);
    // Without the fast one all are late alike: in order of arrival.
    let drains = ExecutorLoad {
        health: Health::Draining,
        ..measured(FAST)
    };
    policy.observe(0, Extent::SinceLast, vec![Change::Load(drains)]);
    check_order(&mut *policy, 0, &requests, &[1, 2, 3]);
}

#[test]
fn without_a_hint_the_operators_share_of_the_bound_counts() {
    let unhinted = Request {
        output_tokens_max: 100,
        output_tokens_expected: None,
        ..due(1, 20 * SECOND)
    };
    let requests = [unhinted, due(2, 20 * SECOND)];
    // 2 s against 3 s; 2 + 4.9 s against 3 s.
    check_order(&mut *policy("{}", &[measured(FAST)]), 0, &requests, &[2, 1]);
    let mut half = policy(r#"{"output-share": 500}"#, &[measured(FAST)]);
    check_order(&mut *half, 0, &requests, &[1, 2]);
}

/// Each second a request comes that must start at once, and the first in the order is served.
#[test]
fn a_request_without_a_deadline_waits_for_its_patience_at_most() {
    let mut policy = policy(r#"{"patience": 20}"#, &[measured(FAST)]);
    policy.observe(0, Extent::SinceLast, vec![Change::Waiting(request(0))]);
    let mut served_at = None;
    for second in 1..100 {
        let now = second * SECOND;
        let urgent = Request {
            arrived: now,
            ..due(second, now + 3 * SECOND)
        };
        policy.observe(now, Extent::SinceLast, vec![Change::Waiting(urgent)]);
        let first = policy.order(at(now), asked(&[0, second]))[0];
        if first == 0 {
            served_at = Some(second);
            break;
        }
        policy.observe(now, Extent::SinceLast, vec![Change::WaitingGone(first)]);
    }
    // The one that comes in second 20 has to start then, too, and the older goes first.
    assert_eq!(served_at, Some(20));
}

#[test]
fn it_goes_where_the_deadline_is_made_though_that_is_the_busier_executor() {
    let busier = ExecutorLoad {
        slots_used: 3,
        ..measured(FAST)
    };
    let mut policy = policy("{}", &[busier, measured(SLOW)]);
    let p = &mut *policy;
    let in_time = Reason::InTime;
    check_route(p, 0, due(1, 10 * SECOND - 1), (on(FAST), in_time));
    check_route(p, 0, due(2, 10 * SECOND), (on(SLOW), in_time));
    check_route(p, 0, request(3), (on(SLOW), Reason::NoDeadline));
}

#[test]
fn placements_of_one_answer_count_and_of_equally_used_ones_the_faster_is_taken() {
    let mut policy = policy("{}", &[measured(SLOW), measured(FAST)]);
    let waiting = (1..=9).map(|id| Change::Waiting(request(id))).collect();
    policy.observe(0, Extent::SinceLast, waiting);
    let verdicts = policy.route(at(0), (1..=9).map(cached).collect());
    let choices: Vec<Choice> = verdicts.into_iter().map(|verdict| verdict.choice).collect();
    let mut expected = [FAST, SLOW]
        .repeat(4)
        .into_iter()
        .map(on)
        .collect::<Vec<_>>();
    expected.push(HELD);
    assert_eq!(choices, expected);
}

#[test]
fn what_no_executor_can_end_in_time_is_given_up() {
    let mut policy = policy("{}", &[busy(FAST), full(SLOW)]);
    let p = &mut *policy;
    let now = 10 * SECOND;
    check_route(p, now, due(1, now + 3 * SECOND), (on(FAST), Reason::InTime));
    let too_late = (Choice::GiveUp, Reason::TooLate);
    check_route(p, now, due(2, now + 3 * SECOND - 1), too_late.clone());
    // Only the slow one may take it, and that has no room either.
    let pinned = Request {
        allowed: Some(vec![SLOW]),
        ..due(3, now + 9 * SECOND)
    };
    check_route(p, now, pinned, too_late);
}

#[test]
fn nothing_is_given_up_by_the_times_of_an_idle_executor() {
    let mut policy = policy("{}", &[busy(FAST), measured(SLOW)]);
    let p = &mut *policy;
    let tried = |executor| (on(executor), Reason::OldTimes);
    check_route(p, 0, due(1, SECOND), tried(SLOW));
    p.observe(0, Extent::SinceLast, vec![Change::Load(measured(FAST))]);
    // Of two idle ones the faster; it is late by the tokens after the first alone.
    check_route(p, 0, due(2, 3 * SECOND - 1), tried(FAST));
    // An executor that is tried is idle no more.
    let waiting = [3, 4, 5].map(|id| Change::Waiting(due(id, SECOND)));
    p.observe(0, Extent::SinceLast, waiting.to_vec());
    let verdicts = p.route(at(0), [3, 4, 5].map(cached).to_vec());
    let choices: Vec<Choice> = verdicts.into_iter().map(|verdict| verdict.choice).collect();
    assert_eq!(choices, [on(FAST), on(SLOW), Choice::GiveUp]);
    // No executor makes a deadline that has passed.
    let too_late = (Choice::GiveUp, Reason::TooLate);
    check_route(p, SECOND, due(6, SECOND - 1), too_late);
}

#[test]
fn it_is_held_where_an_idle_executor_has_no_room_for_it() {
    let mut policy = policy("{}", &[measured(FAST)]);
    let few = Device {
        blocks_free: 2,
        ..device(0)
    };
    policy.observe(0, Extent::SinceLast, vec![Change::Device(few)]);
    check_route(&mut *policy, 0, due(1, SECOND), (HELD, Reason::NoRoom));
}

#[test]
fn it_is_held_where_a_busy_executor_would_make_it() {
    let mut policy = policy("{}", &[full(FAST), busy(SLOW)]);
    let p = &mut *policy;
    let held = |reason| (HELD, reason);
    check_route(p, 0, due(1, 9 * SECOND), held(Reason::FasterIsBusy));
    check_route(
        p,
        7 * SECOND,
        due(1, 9 * SECOND),
        (Choice::GiveUp, Reason::TooLate),
    );
    p.observe(0, Extent::SinceLast, vec![Change::Load(full(SLOW))]);
    check_route(p, 0, due(2, 30 * SECOND), held(Reason::NoRoom));
    let unserved = Request {
        allowed: Some(vec![9]),
        ..due(3, 30 * SECOND)
    };
    check_route(p, 0, unserved, held(Reason::Nowhere));
    let verdicts = p.route(at(0), vec![cached(99)]);
    assert_eq!(verdicts[0].choice, Choice::Hold(None));
    assert_eq!(verdicts[0].reason, Reason::Unknown.index());
}

#[test]
fn what_is_late_may_run_where_the_operator_says_so() {
    let mut policy = policy(r#"{"late": "run-last"}"#, &[full(FAST), measured(SLOW)]);
    check_route(
        &mut *policy,
        0,
        due(1, 9 * SECOND),
        (on(SLOW), Reason::Late),
    );
}

#[test]
fn nothing_is_late_for_want_of_a_measurement() {
    let mut policy = policy("{}", &[measured(FAST), load(SLOW)]);
    let p = &mut *policy;
    check_order(p, 0, &[due(1, 2), due(2, 1)], &[2, 1]);
    check_route(p, 0, due(3, 1), (on(SLOW), Reason::InTime));
}

/// The explanation looks at the rows themselves, and not at how they are kept together.
#[test]
fn it_goes_where_it_explains_as_loads_change() {
    for settings in ["{}", r#"{"late": "run-last"}"#] {
        check_explained(settings);
    }
}

fn check_explained(settings: &str) {
    let loads: Vec<ExecutorLoad> = (0..12).map(load).collect();
    let mut policy = policy(settings, &loads);
    let draw = |seed: u64, below: u32| u32::try_from(split_mix(seed) % u64::from(below)).unwrap();
    let mut placed = 0;
    for round in 0..400 {
        let seed = round * 8;
        let healths = [Health::Up, Health::Degraded, Health::Down];
        let changed = ExecutorLoad {
            health: healths[draw(seed, 3) as usize],
            slots_used: draw(seed + 1, 5),
            ttft_micros: Some(u64::from(4 + draw(seed + 2, 9)) * SECOND),
            itl_micros: Some(u64::from(draw(seed + 3, 5)) * SECOND / 10),
            ..load(draw(seed + 4, 12))
        };
        let allowed = (draw(seed + 5, 4) == 0).then(|| vec![7, 3, 5, 3]);
        let asked = Request {
            allowed,
            output_tokens_expected: Some(draw(seed + 6, 40)),
            hold_end: (draw(seed + 7, 2) == 0).then_some(0),
            ..due(round, 5 * SECOND)
        };
        let rows = vec![Change::Load(changed), Change::Waiting(asked.clone())];
        policy.observe(0, Extent::SinceLast, rows);
        let explained = policy.explain(at(0), asked, cached(round));
        let eligible = explained.iter().filter(|candidate| candidate.eligible);
        let best = eligible.min_by_key(|candidate| candidate.cost);
        let verdicts = policy.route(at(0), vec![cached(round)]);
        let on = match &verdicts[0].choice {
            Choice::Place(executors) => executors.first().copied(),
            Choice::Hold(_) | Choice::GiveUp => None,
        };
        let expected = best.map(|best| best.executor);
        assert_eq!(on, expected, "{settings}, round {round}: {explained:?}");
        placed += u32::from(on.is_some());
        policy.observe(0, Extent::SinceLast, vec![Change::WaitingGone(round)]);
    }
    assert!((200..400).contains(&placed), "{placed} of 400 are placed");
}

#[test]
fn the_greatest_times_do_not_overflow() {
    let endless = ExecutorLoad {
        ttft_micros: Some(u64::MAX),
        itl_micros: Some(u64::MAX),
        ..load(FAST)
    };
    let mut policy = policy("{}", &[endless]);
    let never = Request {
        arrived: u64::MAX,
        ..request(2)
    };
    check_order(&mut *policy, u64::MAX, &[due(1, u64::MAX), never], &[1, 2]);
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
        r#"{"patience": 86401}"#,
        "`patience`: 86401 is not between 0 and 86400",
    );
    check(
        r#"{"output-share": 1001}"#,
        "`output-share`: 1001 is not between 0 and 1000",
    );
    check(
        r#"{"late": "drop"}"#,
        "`late`: unknown variant `drop`, expected `give-up` or `run-last`",
    );
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::Deadline>();
}

#[test]
fn what_was_overtaken_nearly_as_often_as_the_host_allows_goes_first() {
    let mut policy = policy("{}", &[measured(FAST)]);
    let by = |id, secs| Request {
        deadline: Some(secs * SECOND),
        ..request(id)
    };
    let waiting = [by(1, 100), by(2, 50)].map(Change::Waiting);
    policy.observe(0, Extent::SinceLast, waiting.to_vec());
    check_overtaken_first(&mut *policy, [1, 2]);
}
