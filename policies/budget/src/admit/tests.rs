//! Tenants at the door, by hand-computed use.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{SECOND, asked, at, bounds, executor, load, request, tenant};
use pointsman_sdk::wire::admission::Choice;
use pointsman_sdk::wire::types::{Change, ExecutorLoad, Extent, Health, Request, Stage, Tenant};

use super::CHECKS_MAX;
use crate::instance;
use crate::tests::displace;

/// Ten tokens a second, and two without a limit.
const GREEDY: u32 = 1;
const MODEST: u32 = 2;
const THIRD: u32 = 3;

fn row(id: u32, total: u64) -> Tenant {
    Tenant {
        tokens_per_minute: (id == GREEDY).then_some(600),
        output_tokens_total: total,
        waiting: 1,
        ..tenant(id)
    }
}

fn of(tenant: u32, row: Request) -> Request {
    Request { tenant, ..row }
}

fn queued(tenant: u32, id: u64, arrived: u64) -> Request {
    Request {
        arrived,
        ..of(tenant, request(id))
    }
}

fn arrival(tenant: u32, id: u64) -> Request {
    Request {
        stage: Stage::Arrived,
        ..queued(tenant, id, 100)
    }
}

fn pinned(executor: u32, row: Request) -> Request {
    Request {
        allowed: Some(vec![executor]),
        ..row
    }
}

/// A policy told at 10 s that these tenants were served nothing yet, and so many tokens.
fn policy(settings: &str, tenants: &[Tenant], requests: &[Request]) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    let fresh = |told: &Tenant| {
        Change::Tenant(Tenant {
            output_tokens_total: 0,
            ..*told
        })
    };
    policy.observe(
        10 * SECOND,
        Extent::Everything,
        tenants.iter().map(fresh).collect(),
    );
    policy.observe(10 * SECOND, Extent::SinceLast, rows(tenants, requests));
    policy
}

fn rows(tenants: &[Tenant], requests: &[Request]) -> Vec<Change> {
    let mut rows: Vec<Change> = tenants.iter().copied().map(Change::Tenant).collect();
    for id in 0..2 {
        rows.extend([Change::Executor(executor(id)), Change::Load(load(id))]);
    }
    rows.extend(requests.iter().cloned().map(Change::Waiting));
    rows
}

/// Asks, at a time, about all that arrived.
fn ask(policy: &mut dyn Instance, now: u64, requests: &[Request], room: u32) -> Vec<Choice> {
    let arrivals = requests.iter().filter(|row| row.stage == Stage::Arrived);
    let arrivals: Vec<u64> = arrivals.map(|row| row.id).collect();
    let verdicts = policy.admit(at(now), asked(&arrivals), room);
    verdicts.into_iter().map(|row| row.choice).collect()
}

/// Asks with room for all, the greedy one 300 tokens over its 600.
fn check_overdrawn(modest_total: u64, requests: &[Request], expected: &[Choice]) {
    let tenants = [row(GREEDY, 900), row(MODEST, modest_total)];
    let mut policy = policy("{}", &tenants, requests);
    assert_eq!(ask(&mut *policy, 10 * SECOND, requests, 9), expected);
}

#[test]
fn over_its_tokens_per_minute_a_tenant_is_refused_while_others_want_the_room() {
    let wanted = [
        queued(MODEST, 1, 0),
        arrival(GREEDY, 11),
        arrival(MODEST, 12),
    ];
    // 300 tokens at ten a second, and the microsecond after.
    check_overdrawn(0, &wanted, &[Choice::Shed(31), Choice::Admit]);
    // However much the other one used: it has no limit.
    check_overdrawn(9_000, &wanted, &[Choice::Shed(31), Choice::Admit]);
}

#[test]
fn over_its_tokens_per_minute_a_tenant_gets_what_nobody_else_wants() {
    let check = |requests: &[Request]| check_overdrawn(0, requests, &[Choice::Admit]);
    // Nobody waits, or only its own; or one who has only just come, whom there may be room for.
    check(&[arrival(GREEDY, 11)]);
    check(&[queued(GREEDY, 1, 0), arrival(GREEDY, 11)]);
    let both = [arrival(GREEDY, 11), arrival(MODEST, 12)];
    check_overdrawn(0, &both, &[Choice::Admit; 2]);
    // The other one waits for another executor, or for a model that is not served there.
    let elsewhere = pinned(0, queued(MODEST, 1, 0));
    check(&[elsewhere, pinned(1, arrival(GREEDY, 11))]);
}

#[test]
fn an_executor_that_cannot_take_both_is_not_contended_for() {
    let requests = [
        queued(MODEST, 1, 0),
        Request {
            model: Some(7),
            ..arrival(GREEDY, 11)
        },
    ];
    let tenants = [row(GREEDY, 900), row(MODEST, 0)];
    let mut policy = policy("{}", &tenants, &requests);
    let mut answer = |changes: Vec<Change>| {
        policy.observe(10 * SECOND, Extent::SinceLast, changes);
        ask(&mut *policy, 10 * SECOND, &requests, 9)
    };
    assert_eq!(answer(Vec::new()), [Choice::Shed(31)]);
    let mut other = executor(0);
    other.serves = Some(vec![8]);
    assert_eq!(answer(vec![Change::Executor(other)]), [Choice::Shed(31)]);
    let down = ExecutorLoad {
        health: Health::Down,
        ..load(1)
    };
    assert_eq!(answer(vec![Change::Load(down)]), [Choice::Admit]);
}

#[test]
fn past_the_bound_on_executors_looked_at_nobody_is_refused() {
    const EXECUTORS: u32 = 1000;
    let last = EXECUTORS - 1;
    // What waits differs by model. Only what is looked at last could go where the arrival could.
    let answer = |elsewhere: u32| {
        let waits = |model: u32, on: u32| Request {
            model: Some(model),
            ..pinned(on, queued(MODEST, u64::from(model), 0))
        };
        let mut requests: Vec<_> = (0..elsewhere).map(|model| waits(model, 0)).collect();
        requests.push(waits(elsewhere, last));
        let arrived = pinned(last, arrival(GREEDY, 5000));
        requests.push(arrived);
        let tenants = [row(GREEDY, 900), row(MODEST, 0)];
        let mut policy = policy("{}", &tenants, &requests);
        let fleet =
            (0..EXECUTORS).flat_map(|id| [Change::Executor(executor(id)), Change::Load(load(id))]);
        policy.observe(10 * SECOND, Extent::SinceLast, fleet.collect());
        ask(&mut *policy, 10 * SECOND, &requests, 9)
    };
    let enough = CHECKS_MAX / EXECUTORS - 1;
    assert_eq!(answer(enough), [Choice::Shed(31)]);
    assert_eq!(answer(enough + 1), [Choice::Admit]);
}

#[test]
fn those_who_are_over_themselves_want_no_room() {
    let limited = |id, total| Tenant {
        tokens_per_minute: Some(600),
        ..row(id, total)
    };
    let requests = [queued(MODEST, 1, 0), arrival(GREEDY, 11)];
    let answer = |modest_total| {
        let tenants = [limited(GREEDY, 900), limited(MODEST, modest_total)];
        let mut policy = policy("{}", &tenants, &requests);
        ask(&mut *policy, 10 * SECOND, &requests, 9)
    };
    assert_eq!(answer(599), [Choice::Shed(31)]);
    assert_eq!(answer(600), [Choice::Admit]);
}

#[test]
fn a_tenant_is_let_in_again_when_its_bucket_has_flowed_back() {
    let requests = [queued(MODEST, 1, 0), arrival(GREEDY, 11)];
    let tenants = [row(GREEDY, 900), row(MODEST, 0)];
    let mut policy = policy("{}", &tenants, &requests);
    let mut answer = |now| ask(&mut *policy, now, &requests, 9);
    assert_eq!(answer(25 * SECOND), [Choice::Shed(16)]);
    assert_eq!(answer(40 * SECOND), [Choice::Shed(1)]);
    assert_eq!(answer(40 * SECOND + 1), [Choice::Admit]);
}

#[test]
fn a_fault_resets_no_budget() {
    let requests = [queued(MODEST, 1, 0), arrival(GREEDY, 11)];
    let tenants = [row(GREEDY, 500), row(MODEST, 0)];
    let mut faulted = policy("{}", &tenants, &requests);
    let state = faulted.snapshot();
    // 400 more were served after the snapshot.
    let tenants = [row(GREEDY, 900), row(MODEST, 0)];
    let answer = |state: Option<Vec<u8>>| {
        let mut fresh = instance();
        fresh.configure("{}", bounds()).expect("valid settings");
        if let Some(state) = state {
            fresh.restore(state).expect("its own snapshot");
        }
        fresh.observe(20 * SECOND, Extent::Everything, rows(&tenants, &requests));
        ask(&mut *fresh, 20 * SECOND, &requests, 9)
    };
    // 500 and 400, of which 100 flowed back in ten seconds: 200 over.
    assert_eq!(answer(Some(state)), [Choice::Shed(21)]);
    // Without a snapshot: 900, 200 of them flowed back since the start: 100 over.
    assert_eq!(answer(None), [Choice::Shed(11)]);
}

/// Asks without room, at 10 s, what becomes of those who arrive.
fn check_full(settings: &str, tenants: &[Tenant], requests: &[Request], expected: &[Choice]) {
    let mut policy = policy(settings, tenants, requests);
    assert_eq!(ask(&mut *policy, 10 * SECOND, requests, 0), expected);
}

/// Three of the greedy one's queued, and one of a third tenant, the oldest.
fn full_queue() -> Vec<Request> {
    vec![
        queued(THIRD, 4, 5),
        queued(GREEDY, 1, 10),
        queued(GREEDY, 2, 20),
        queued(GREEDY, 3, 30),
    ]
}

#[test]
fn within_its_share_a_tenant_takes_the_place_of_the_one_furthest_beyond() {
    let tenants = [row(GREEDY, 500), row(MODEST, 0), row(THIRD, 100)];
    let mut requests = full_queue();
    requests.extend([arrival(MODEST, 11), arrival(MODEST, 12)]);
    // 200 tokens each are due, and of four places one and a third: two, then no more.
    let expected = [displace(3), displace(2)];
    check_full("{}", &tenants, &requests, &expected);
    requests.push(arrival(MODEST, 13));
    let expected = [expected[0], expected[1], Choice::Park];
    check_full("{}", &tenants, &requests, &expected);
    // Urgent requests of a tenant beyond its share leave after its others.
    requests.truncate(5);
    requests[3].priority = 9;
    check_full("{}", &tenants, &requests, &[displace(2)]);
    // The newest of the others came back from an executor.
    requests[2].attempts = 1;
    check_full("{}", &tenants, &requests, &[displace(1)]);
    // Background work takes nobody's place.
    requests[4].may_wait = false;
    check_full("{}", &tenants, &requests, &[Choice::Shed(1)]);
}

#[test]
fn beyond_its_share_a_tenant_takes_no_place_but_its_own() {
    let tenants = [row(MODEST, 500), row(GREEDY, 0), row(THIRD, 0)];
    let mut requests = full_queue();
    requests.push(arrival(MODEST, 11));
    let drop_oldest = r#"{"overflow": "drop-oldest"}"#;
    check_full("{}", &tenants, &requests, &[Choice::Park]);
    check_full(drop_oldest, &tenants, &requests, &[Choice::Shed(1)]);
    requests.push(queued(MODEST, 5, 40));
    check_full(drop_oldest, &tenants, &requests, &[displace(5)]);
}

#[test]
fn shares_are_by_weight_and_with_a_tolerance() {
    let check = |settings: &str, weight, modest_total, expected| {
        let modest = Tenant {
            weight,
            ..row(MODEST, modest_total)
        };
        let requests = [
            queued(GREEDY, 1, 10),
            queued(GREEDY, 2, 20),
            arrival(MODEST, 11),
        ];
        check_full(
            settings,
            &[row(GREEDY, 500), modest],
            &requests,
            &[expected],
        );
    };
    // 500 of 900 are a ninth more than half of it; of 800 a quarter; of 799 more than that.
    check("{}", 1, 400, Choice::Park);
    check("{}", 1, 300, Choice::Park);
    check("{}", 1, 299, displace(2));
    check(r#"{"share-tolerance": 0}"#, 1, 400, displace(2));
    // Two thirds of 1500 are due to the other one, who has no more; of 1503 it has more.
    check(r#"{"share-tolerance": 0}"#, 2, 999, displace(2));
    check(r#"{"share-tolerance": 0}"#, 2, 1000, Choice::Park);
}
