//! The order, by times computed by hand, and the bound on waiting.

use pointsman_sdk::fixture::{SECOND, asked, at, bounds, check_overtaken_first, request};
use pointsman_sdk::wire::types::{Change, Completion, Extent, Request, RequestClass};
use pointsman_sdk::{Bounds, Instance};

use super::{bent, instance};

/// 10 ms a token, 4096 tokens, no head start beyond 2 s, prompts do not count.
const SETTINGS: &str = r#"{"wait-per-token": 10, "head-start-max": 2, "wait-per-prompt-token": 0}"#;
const TOKEN: u64 = SECOND / 100;

fn policy(requests: Vec<Request>) -> Box<dyn Instance> {
    policy_with(SETTINGS, requests)
}

/// A policy by the settings alone: the host lets requests wait for years.
fn policy_with(settings: &str, requests: Vec<Request>) -> Box<dyn Instance> {
    let patient = Bounds {
        wait_max: 1 << 60,
        ..bounds()
    };
    policy_within(patient, settings, requests)
}

fn policy_within(bounds: Bounds, settings: &str, requests: Vec<Request>) -> Box<dyn Instance> {
    let mut policy = instance();
    policy.configure(settings, bounds).expect("valid settings");
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
fn what_is_not_cached_of_a_prompt_is_work_too() {
    let prompting = |id, prompt_tokens| Request {
        prompt_tokens,
        ..expecting(id, 0, 10)
    };
    // 100 ms of answer each; 200 ms, 100 ms and, but for what is cached, 300 ms of prompt.
    let requests = vec![prompting(1, 2000), prompting(2, 1000), prompting(3, 3000)];
    let settings = r#"{"wait-per-token": 10, "wait-per-prompt-token": 100}"#;
    let mut policy = policy_with(settings, requests);
    assert_eq!(policy.order(at(0), asked(&[1, 2, 3])), [2, 1, 3]);
    let mut asked = asked(&[1, 2, 3]);
    asked[2].cached_tokens = 2500;
    assert_eq!(policy.order(at(0), asked), [3, 2, 1]);
}

/// A request of a tenant that says nothing of the length of its answer.
fn silent(id: u64, tenant: u32) -> Request {
    Request {
        tenant,
        output_tokens_max: 5000,
        ..request(id)
    }
}

fn completed(of: &Request, output_tokens: u32) -> Change {
    Change::Completed(Completion {
        request: of.id,
        executor: 0,
        model: of.model,
        tenant: of.tenant,
        prompt_tokens: of.prompt_tokens,
        cached_tokens: 0,
        output_tokens,
        queued_micros: 0,
        ttft_micros: None,
        total_micros: 0,
        ok: true,
    })
}

/// Tells of twenty answers each to requests as these, which waited before.
fn teach(policy: &mut dyn Instance, of: &[(Request, u32)]) {
    for id in 1000..1020 {
        for (place, (request, output_tokens)) in (0..).zip(of) {
            let request = Request {
                id: 100 * id + place,
                ..request.clone()
            };
            let ended = completed(&request, *output_tokens);
            let rows = vec![
                Change::Waiting(request.clone()),
                Change::WaitingGone(request.id),
                ended,
            ];
            policy.observe(0, Extent::SinceLast, rows);
        }
    }
}

fn order(policy: &mut dyn Instance, requests: &[Request]) -> Vec<u64> {
    let rows = requests.iter().cloned().map(Change::Waiting);
    policy.observe(0, Extent::SinceLast, rows.collect());
    let ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
    policy.order(at(0), asked(&ids))
}

#[test]
fn lengths_are_learnt_by_tenant_and_label_where_nothing_is_hinted() {
    let labelled = |id, label| Request {
        labels: Some(vec![label]),
        ..silent(id, 3)
    };
    let lessons = [
        (silent(0, 1), 400),
        (silent(0, 2), 20),
        (labelled(0, 7), 100),
        (labelled(0, 8), 1000),
    ];
    let waiting = [
        silent(1, 1),
        silent(2, 2),
        labelled(3, 7),
        labelled(4, 8),
        // Hints are believed.
        Request {
            output_tokens_expected: Some(1),
            ..silent(5, 1)
        },
    ];
    let mut taught = policy(Vec::new());
    teach(&mut *taught, &lessons);
    assert_eq!(order(&mut *taught, &waiting), [5, 2, 3, 1, 4]);
    // A fresh instance knows it from the snapshot, and one that does not learn knows nothing.
    let mut fresh = policy(Vec::new());
    fresh.restore(taught.snapshot()).expect("it was made so");
    assert_eq!(order(&mut *fresh, &waiting), [5, 2, 3, 1, 4]);
    let mut untaught = policy_with(r#"{"learn": false}"#, Vec::new());
    teach(&mut *untaught, &lessons);
    assert_eq!(order(&mut *untaught, &waiting), [5, 1, 2, 3, 4]);
}

#[test]
fn a_request_that_comes_back_is_expected_to_be_one_of_the_longer_ones() {
    let mut policy = policy(Vec::new());
    // Of one tenant half the answers are short; all of the other's have 300 tokens.
    teach(
        &mut *policy,
        &[
            (silent(0, 1), 10),
            (silent(0, 1), 1000),
            (silent(0, 2), 300),
        ],
    );
    let first = silent(1, 1);
    let other = silent(2, 2);
    assert_eq!(order(&mut *policy, &[first.clone(), other.clone()]), [2, 1]);
    // With 200 generated it is one of the long ones, and about 700 are left; with 800, about 100.
    let back = |generated: u32, attempts| Request {
        attempts,
        output_tokens_max: first.output_tokens_max - generated,
        ..first.clone()
    };
    assert_eq!(order(&mut *policy, &[back(200, 1), other.clone()]), [2, 1]);
    assert_eq!(order(&mut *policy, &[back(800, 2), other]), [1, 2]);
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
fn no_request_gives_way_for_a_twentieth_of_the_longest_wait() {
    let most = bounds().wait_max / 20;
    let requests = vec![
        expecting(1, 0, 900_000),
        expecting(2, 0, 1000),
        // As late as that, the shortest goes after the longest.
        expecting(3, most, 0),
        expecting(4, most / 5, 0),
    ];
    let settings = r#"{"tokens-max": 1000000}"#;
    let mut policy = policy_within(bounds(), settings, requests);
    assert_eq!(policy.order(at(most), asked(&[1, 2, 3, 4])), [4, 2, 1, 3]);
}

#[test]
fn work_is_bent_and_stays_in_its_order() {
    let works = [0, 1, 1000, SECOND, 60 * SECOND, u64::MAX];
    assert_eq!(works.map(|work| bent(work, 1 << 60))[..5], works[..5]);
    let below = 30 * SECOND;
    let bent = works.map(|work| bent(work, below));
    assert!(bent.is_sorted(), "{bent:?}");
    assert_eq!((bent[3], bent[4], bent[5]), (967_742, 20 * SECOND, below));
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

#[test]
fn what_was_overtaken_nearly_as_often_as_the_host_allows_goes_first() {
    let requests = vec![expecting(1, 0, 4096), expecting(2, 1, 1)];
    let mut policy = policy_within(bounds(), SETTINGS, requests);
    check_overtaken_first(&mut *policy, [1, 2]);
}
