//! Sessions over fleets, by the hash computed independently.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{at, bounds, cached, device, executor, load, request};
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Health, Name, NameKind, Request,
};

use super::instance;

/// The homes of the sessions 0 to 9, by the hash written down in another language.
const HOMES_OF_THREE: [u32; 10] = [0, 2, 2, 0, 0, 2, 1, 1, 1, 2];
/// With one more executor: those it took over are all that changed.
const HOMES_OF_FOUR: [u32; 10] = [3, 2, 2, 3, 0, 3, 1, 1, 3, 3];

/// Executors `gpu-0`, `gpu-1` and so on with room for everything, and whoever asks.
fn policy(executors: &[u32], requests: Vec<Request>) -> Box<dyn Instance> {
    let mut policy = instance();
    policy.configure("{}", bounds()).unwrap();
    let rows = executors.iter().flat_map(|&id| {
        let mut info = executor(id);
        info.slots_total = 10_000;
        info.tokens_per_block = None;
        let name = Name {
            kind: NameKind::Executor,
            id,
            text: format!("gpu-{id}"),
        };
        [
            Change::Name(name),
            Change::Executor(info),
            Change::Load(load(id)),
        ]
    });
    let waiting = requests.into_iter().map(Change::Waiting);
    policy.observe(0, Extent::Everything, rows.chain(waiting).collect());
    policy
}

fn of_session(session: u64) -> Request {
    Request {
        session: Some(session),
        ..request(session)
    }
}

fn route(policy: &mut Box<dyn Instance>, requests: std::ops::Range<u64>) -> Vec<u32> {
    let verdicts = policy.route(at(0), requests.map(cached).collect());
    let placed = verdicts.into_iter().map(|verdict| match verdict.choice {
        Choice::Place(executors) => executors[0],
        Choice::Hold(_) | Choice::GiveUp => panic!("not placed: {verdict:?}"),
    });
    placed.collect()
}

/// The executors that the sessions 0 to 9 go to.
fn homes(executors: &[u32]) -> Vec<u32> {
    let mut policy = policy(executors, (0..10).map(of_session).collect());
    route(&mut policy, 0..10)
}

#[test]
fn sessions_go_where_the_named_hash_says() {
    assert_eq!(homes(&[0, 1, 2]), HOMES_OF_THREE);
    assert_eq!(homes(&[0, 1, 2, 3]), HOMES_OF_FOUR);
    // The order of attachment is no part of it.
    assert_eq!(homes(&[2, 0, 1]), HOMES_OF_THREE);
}

#[test]
fn only_the_sessions_of_an_executor_that_is_down_move() {
    let mut policy = policy(&[0, 1, 2], (0..10).map(of_session).collect());
    let mut down = load(1);
    down.health = Health::Down;
    policy.observe(0, Extent::SinceLast, vec![Change::Load(down)]);
    for (home, now) in HOMES_OF_THREE.into_iter().zip(route(&mut policy, 0..10)) {
        assert_eq!(home == 1, now != home);
    }
}

#[test]
fn whose_turn_it_is_survives_a_reload() {
    let requests = || (0..4).map(request).collect();
    let mut before = policy(&[0, 1, 2], requests());
    assert_eq!(route(&mut before, 0..2), [0, 1]);
    let mut after = policy(&[0, 1, 2], requests());
    after.restore(before.snapshot()).unwrap();
    assert_eq!(route(&mut after, 2..4), [2, 0]);
}

/// Tests a group whose executor is full, on a device that never has room for the first request and the last.
#[test]
fn a_group_serves_a_request_or_not_by_its_length_whichever_was_asked_about_before() {
    let of_length = |id, prompt_tokens| Request {
        prompt_tokens,
        group: Some(5),
        ..request(id)
    };
    let requests = vec![of_length(0, 400), of_length(1, 100), of_length(2, 400)];
    let mut policy = policy(&[0, 1, 2], requests);
    let full_and_small = vec![
        Change::Executor(ExecutorInfo {
            group: 5,
            ..executor(0)
        }),
        Change::Load(ExecutorLoad {
            slots_used: 4,
            ..load(0)
        }),
        Change::Device(Device {
            blocks_total: 20,
            blocks_free: 20,
            ..device(0)
        }),
    ];
    policy.observe(0, Extent::SinceLast, full_and_small);
    let verdicts = policy.route(at(0), (0..3).map(cached).collect());
    let held = verdicts.iter();
    let held: Vec<bool> = held
        .map(|verdict| matches!(verdict.choice, Choice::Hold(_)))
        .collect();
    assert_eq!(held, [false, true, false]);
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::Sticky>();
}
