//! The order, by times computed by hand, and the bound on waiting.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{SECOND, asked, at, bounds, request};
use pointsman_sdk::wire::types::{Change, Extent, Request, RequestClass};

use super::instance;

/// 10 ms a token, 4096 tokens, no head start beyond 2 s.
const SETTINGS: &str = r#"{"head-start-max": 2}"#;
const TOKEN: u64 = SECOND / 100;

fn policy(requests: Vec<Request>) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(SETTINGS, bounds())
        .expect("valid settings");
    let changes = requests.into_iter().map(Change::Waiting).collect();
    policy.observe(0, Extent::Everything, changes);
    policy
}

fn check(requests: &[Request], expected: &[u64]) {
    // Whatever order rows and questions come in, and whenever it is asked, the answer is the same.
    for (now, reversed) in [(0, false), (1000 * SECOND, true)] {
        let mut requests = requests.to_vec();
        if reversed {
            requests.reverse();
        }
        let ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
        assert_eq!(policy(requests).order(at(now), asked(&ids)), expected);
    }
}

fn expecting(id: u64, arrived: u64, tokens: u32) -> Request {
    Request {
        arrived,
        output_tokens_max: 1_000_000,
        output_tokens_expected: Some(tokens),
        ..request(id)
    }
}

#[test]
fn the_shortest_expected_answer_goes_first() {
    check(
        &[
            expecting(1, 0, 500),
            expecting(2, 0, 20),
            expecting(3, 0, 100),
        ],
        &[2, 3, 1],
    );
}

#[test]
fn without_a_hint_the_bound_counts_and_a_hint_beyond_it_counts_as_it() {
    let bounded = Request {
        output_tokens_max: 60,
        ..request(1)
    };
    let boastful = Request {
        output_tokens_max: 40,
        output_tokens_expected: Some(9000),
        ..request(2)
    };
    check(&[bounded, boastful, expecting(3, 0, 50)], &[2, 3, 1]);
}

#[test]
fn each_token_is_worth_its_time_of_waiting() {
    // Due 0 + 5 s; 4 s + 1 s, a tie; 4 s less a micro + 1 s; 3 s + 1 s.
    check(
        &[
            expecting(1, 0, 500),
            expecting(2, 4 * SECOND, 100),
            expecting(3, 4 * SECOND - 1, 100),
            expecting(4, 3 * SECOND, 100),
        ],
        &[4, 3, 1, 2],
    );
}

#[test]
fn a_head_start_is_waiting_granted_in_advance() {
    let granted = |id, head_start| Request {
        head_start,
        ..expecting(id, 0, 300)
    };
    // Due 3 s less 1.5 s; 3 s less 2 s, as no more counts; 1.2 s.
    check(
        &[
            granted(1, 3 * SECOND / 2),
            granted(2, u64::MAX),
            expecting(3, 0, 120),
        ],
        &[2, 3, 1],
    );
}

#[test]
fn class_and_priority_do_not_matter() {
    let loud = Request {
        class: RequestClass::LatencyCritical,
        priority: 9,
        ..expecting(1, 0, 2)
    };
    check(&[loud, expecting(2, 0, 1)], &[2, 1]);
}

/// The longest request against an endless stream of the shortest ones with the greatest head
/// start: one comes with each token's time, and one is served.
#[test]
fn the_wait_of_the_longest_request_is_bounded() {
    let bound = 4096 * TOKEN + 2 * SECOND;
    let mut policy = policy(vec![expecting(0, 0, u32::MAX)]);
    let mut served_at = None;
    for id in 1..2 * bound / TOKEN {
        let now = id * TOKEN;
        let best = Request {
            head_start: u64::MAX,
            ..expecting(id, now, 0)
        };
        policy.observe(now, Extent::SinceLast, vec![Change::Waiting(best)]);
        let first = policy.order(at(now), asked(&[0, id]))[0];
        if first == 0 {
            served_at = Some(now);
            break;
        }
        policy.observe(now, Extent::SinceLast, vec![Change::WaitingGone(first)]);
    }
    assert_eq!(served_at, Some(bound));
}

#[test]
fn the_greatest_times_do_not_overflow() {
    check(
        &[expecting(1, u64::MAX, u32::MAX), expecting(2, 0, 1)],
        &[2, 1],
    );
}

#[test]
fn a_request_it_was_not_told_of_is_left_out() {
    assert_eq!(policy(vec![request(1)]).order(at(0), asked(&[9, 1])), [1]);
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
        r#"{"wait-per-token": 60001}"#,
        "`wait-per-token`: 60001 is not between 0 and 60000",
    );
    check(
        r#"{"tokens-max": 0}"#,
        "`tokens-max`: 0 is not between 1 and 10000000",
    );
    check(
        r#"{"head-start-max": 86401}"#,
        "`head-start-max`: 86401 is not between 0 and 86400",
    );
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::ShortestFirst>();
}
