//! The three orders, by scores computed by hand.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{SECOND, asked, at, bounds, request};
use pointsman_sdk::wire::types::{Change, Extent, Request, RequestClass};

use super::instance;

fn check(discipline: &str, requests: &[Request], expected: &[u64]) {
    // Whatever order rows and questions come in, the answer is the same.
    for reversed in [false, true] {
        let mut requests = requests.to_vec();
        if reversed {
            requests.reverse();
        }
        let ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
        let mut policy = policy(discipline, requests);
        assert_eq!(policy.order(at(1000 * SECOND), asked(&ids)), expected);
    }
}

/// The policy, once these requests wait.
fn policy(discipline: &str, requests: Vec<Request>) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(&format!(r#"{{"discipline": "{discipline}"}}"#), bounds())
        .expect("valid settings");
    let changes = requests.into_iter().map(Change::Waiting).collect();
    policy.observe(0, Extent::Everything, changes);
    policy
}

/// A request by arrival and head start in seconds, and prompt tokens.
fn given(id: u64, arrived: u64, head_start: u64, prompt_tokens: u32) -> Request {
    Request {
        arrived: arrived * SECOND,
        head_start: head_start * SECOND,
        prompt_tokens,
        ..request(id)
    }
}

#[test]
fn fcfs_is_head_start_less_arrival() {
    // -10; -20; 25 - 30 = -5; 10 - 20 = -10, a tie with the first, which came first.
    let requests = [
        given(1, 10, 0, 900),
        given(2, 20, 0, 1),
        given(3, 30, 25, 900),
        given(4, 20, 10, 1),
    ];
    check("fcfs", &requests, &[3, 1, 4, 2]);
}

#[test]
fn lcfs_is_head_start_plus_arrival() {
    // 10; 20; 30; 10 + 25 = 35; 10 + 10 = 20, a tie with the second, but came before it.
    let requests = [
        given(1, 10, 0, 1),
        given(2, 20, 0, 900),
        given(3, 30, 0, 900),
        given(4, 10, 25, 1),
        given(5, 10, 10, 1),
    ];
    check("lcfs", &requests, &[4, 3, 5, 2, 1]);
}

#[test]
fn wspt_is_one_second_and_head_start_per_prompt_token() {
    // 1/100; 1/50; (1 + 9)/400 = 1/40; 1/1, as no prompt counts as one token; (1 + 1)/100 = 1/50,
    // a tie with the second, which came first.
    let requests = [
        given(1, 10, 0, 100),
        given(2, 20, 0, 50),
        given(3, 30, 9, 400),
        given(4, 40, 0, 0),
        given(5, 50, 1, 100),
    ];
    check("wspt", &requests, &[4, 3, 2, 5, 1]);
}

#[test]
fn wspt_tells_apart_what_differs_in_the_last_token() {
    let requests = [given(1, 0, 0, u32::MAX), given(2, 9, 0, u32::MAX - 1)];
    check("wspt", &requests, &[2, 1]);
    // 3/3e9 and 1/1e9 are equal: order of arrival.
    let requests = [given(1, 0, 2, 3_000_000_000), given(2, 9, 0, 1_000_000_000)];
    check("wspt", &requests, &[1, 2]);
}

#[test]
fn the_greatest_times_do_not_overflow() {
    let greatest = |id| Request {
        arrived: u64::MAX,
        head_start: u64::MAX,
        ..request(id)
    };
    let endless = Request {
        head_start: u64::MAX,
        ..request(3)
    };
    check(
        "fcfs",
        &[greatest(1), request(2), endless.clone()],
        &[3, 2, 1],
    );
    check(
        "lcfs",
        &[greatest(1), request(2), endless.clone()],
        &[1, 3, 2],
    );
    check("wspt", &[greatest(1), request(2), endless], &[3, 1, 2]);
}

#[test]
fn class_and_then_priority_are_strict_in_every_discipline() {
    let of = |id, class, priority| Request {
        class,
        priority,
        ..given(id, 0, 0, 1)
    };
    let requests = [
        of(1, RequestClass::Throughput, 9),
        Request {
            head_start: 900 * SECOND,
            ..of(2, RequestClass::LatencyCritical, -1)
        },
        given(5, 20, 0, 100),
        of(3, RequestClass::LatencyCritical, 0),
        given(4, 10, 0, 100),
    ];
    check("fcfs", &requests, &[3, 2, 1, 4, 5]);
    check("lcfs", &requests, &[3, 2, 1, 5, 4]);
    check("wspt", &requests, &[3, 2, 1, 4, 5]);
}

#[test]
fn a_request_it_was_not_told_of_is_left_out() {
    let mut policy = instance();
    policy
        .configure("{}", bounds())
        .expect("the defaults are valid");
    policy.observe(0, Extent::Everything, vec![Change::Waiting(request(1))]);
    assert_eq!(policy.order(at(0), asked(&[9, 1])), [1]);
}

#[test]
fn an_unknown_discipline_is_refused_with_the_known_ones() {
    let refused = instance().configure(r#"{"discipline": "sjf"}"#, bounds());
    assert_eq!(
        refused,
        Err("`discipline`: unknown variant `sjf`, expected one of `fcfs`, `lcfs`, `wspt`".into())
    );
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::QueueOrder>();
}

#[test]
fn what_was_overtaken_three_quarters_as_often_as_the_host_allows_goes_first_within_its_urgency() {
    let mut requests = [1, 2, 3, 4].map(|id| given(id, id, 0, 1));
    requests[1].priority = -1;
    let mut policy = policy("lcfs", requests.to_vec());
    let mut asked = asked(&[1, 2, 3, 4]);
    asked[1].overtaken = 200;
    asked[2].overtaken = 192;
    assert_eq!(policy.order(at(0), asked.clone()), [3, 4, 1, 2]);
    asked[2].overtaken = 191;
    assert_eq!(policy.order(at(0), asked), [4, 3, 1, 2]);
}
