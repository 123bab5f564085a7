//! Counters and turns by hand, what a snapshot carries over, and the bound on waiting.
//!
//! Unless a test says otherwise prompt tokens count 1, generated ones 2, and waiting nothing.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{SECOND, asked, at, bounds, check_overtaken_first, request, tenant};
use pointsman_sdk::wire::types::{Change, Extent, Request, Tenant};

use super::instance;

const UNAGED: &str = r#"{"aging": 0}"#;

fn policy(settings: &str) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    policy
}

fn observe(policy: &mut dyn Instance, extent: Extent, changes: impl IntoIterator<Item = Change>) {
    policy.observe(0, extent, changes.into_iter().collect());
}

fn tell(policy: &mut dyn Instance, changes: impl IntoIterator<Item = Change>) {
    observe(policy, Extent::SinceLast, changes);
}

/// A tenant's row: requests waiting, and tokens served.
fn row(id: u32, waiting: u32, prompt: u64, output: u64) -> Tenant {
    Tenant {
        waiting,
        prompt_tokens_total: prompt,
        output_tokens_total: output,
        ..tenant(id)
    }
}

/// A request with a hundred prompt tokens; its id says when it arrived.
fn of(tenant: u32, id: u64) -> Request {
    Request {
        tenant,
        arrived: id,
        ..request(id)
    }
}

/// Tenants 0, 1 and 2 begin to wait at the same time and are then served these tokens.
fn three_served(settings: &str, served: [(u64, u64); 3]) -> Box<dyn Instance> {
    let mut policy = policy(settings);
    let rows = [0, 1, 2].map(|id| Change::Tenant(row(id, 1, 0, 0)));
    observe(&mut *policy, Extent::Everything, rows);
    let rows = [0, 1, 2].into_iter().zip(served);
    let rows = rows.map(|(id, (prompt, output))| Change::Tenant(row(id, 1, prompt, output)));
    tell(&mut *policy, rows);
    policy
}

/// The order of requests, whatever order they are told and asked in.
fn check(policy: &mut dyn Instance, requests: &[Request], expected: &[u64]) {
    let mut ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
    tell(policy, requests.iter().cloned().map(Change::Waiting));
    assert_eq!(policy.order(at(100), asked(&ids)), expected);
    ids.reverse();
    assert_eq!(policy.order(at(100), asked(&ids)), expected);
}

#[test]
fn the_tenant_served_the_fewest_tokens_goes_first() {
    // 900; 100 + 2 × 100 = 300; 2 × 250 = 500.
    let mut policy = three_served(UNAGED, [(900, 0), (100, 100), (0, 250)]);
    check(&mut *policy, &[of(0, 1), of(1, 2), of(2, 3)], &[2, 3, 1]);
}

#[test]
fn tokens_count_as_the_operator_says() {
    // 3 × 100 + 100 = 400; 3 × 50 + 300 = 450; 3 × 120 = 360.
    let settings = r#"{"prompt-token-cost": 3, "output-token-cost": 1, "aging": 0}"#;
    let mut policy = three_served(settings, [(100, 100), (50, 300), (120, 0)]);
    check(&mut *policy, &[of(0, 1), of(1, 2), of(2, 3)], &[3, 1, 2]);
}

#[test]
fn a_turn_costs_the_prompt_so_that_turns_alternate() {
    let mut policy = three_served(UNAGED, [(0, 0), (150, 0), (1000, 0)]);
    // Of tenant 0 at 0, 100, then 200; of tenant 1 at 150, 250; ties by arrival.
    let requests = [of(0, 1), of(0, 2), of(0, 3), of(1, 4), of(1, 5), of(2, 6)];
    check(&mut *policy, &requests, &[1, 2, 4, 3, 5, 6]);
}

#[test]
fn a_longer_prompt_costs_more_turns() {
    let mut policy = three_served(UNAGED, [(0, 0); 3]);
    let long = Request {
        prompt_tokens: 250,
        ..of(0, 1)
    };
    // Tenant 0 at 0, then 250; tenant 1 at 0, 100, 200, 300.
    let requests = [long, of(0, 2), of(1, 3), of(1, 4), of(1, 5), of(1, 6)];
    check(&mut *policy, &requests, &[1, 3, 4, 5, 2, 6]);
}

#[test]
fn a_weight_divides_what_tokens_cost() {
    let mut policy = policy(UNAGED);
    let heavy = Tenant {
        weight: 3,
        ..row(0, 1, 0, 0)
    };
    let rows = [heavy, row(1, 1, 0, 0)].map(Change::Tenant);
    observe(&mut *policy, Extent::Everything, rows);
    // Tenant 0 at 0, 33, 67, 100; tenant 1 at 0, 100. Thirds are rounded down, so that 99.99… is
    // before 100.
    let requests = [of(0, 1), of(0, 2), of(0, 3), of(0, 4), of(1, 5), of(1, 6)];
    check(&mut *policy, &requests, &[1, 5, 2, 3, 4, 6]);
}

#[test]
fn between_equal_counters_the_tenant_with_fewer_running_goes_first() {
    let mut policy = policy(UNAGED);
    let running = |id, running| {
        Change::Tenant(Tenant {
            running,
            ..row(id, 1, 0, 0)
        })
    };
    observe(
        &mut *policy,
        Extent::Everything,
        [running(0, 2), running(1, 1)],
    );
    check(&mut *policy, &[of(0, 1), of(1, 2)], &[2, 1]);
}

#[test]
fn a_tenant_that_begins_to_wait_is_lifted_to_the_least_served_that_waits() {
    let mut policy = policy(UNAGED);
    let rows = [row(0, 1, 0, 0), row(1, 1, 0, 0), row(2, 0, 0, 0)];
    observe(&mut *policy, Extent::Everything, rows.map(Change::Tenant));
    // 0 is at 300 and 1 at 500 when 2 comes, which is lifted from 0 to 300.
    let rows = [row(0, 1, 300, 0), row(1, 1, 500, 0), row(2, 1, 0, 0)];
    tell(&mut *policy, rows.map(Change::Tenant));
    // 0 at 300, 400; 1 at 500; 2 at 300, 400, 500.
    let requests = [of(0, 1), of(0, 2), of(1, 3), of(2, 4), of(2, 5), of(2, 6)];
    check(&mut *policy, &requests, &[1, 4, 2, 5, 3, 6]);
}

#[test]
fn a_tenant_that_was_served_more_than_that_is_not_lowered() {
    let mut policy = policy(UNAGED);
    let rows = [row(0, 1, 0, 0), row(1, 1, 0, 0)];
    observe(&mut *policy, Extent::Everything, rows.map(Change::Tenant));
    tell(&mut *policy, [Change::Tenant(row(0, 0, 900, 0))]);
    tell(&mut *policy, [Change::Tenant(row(0, 1, 900, 0))]);
    check(&mut *policy, &[of(0, 1), of(1, 2)], &[2, 1]);
}

#[test]
fn a_tenant_that_comes_to_an_empty_queue_is_lifted_to_the_last_that_left_it() {
    let mut policy = policy(UNAGED);
    let rows = [row(0, 1, 0, 0), row(1, 1, 0, 0), row(2, 0, 0, 0)];
    observe(&mut *policy, Extent::Everything, rows.map(Change::Tenant));
    tell(&mut *policy, [Change::Tenant(row(0, 0, 700, 0))]);
    tell(&mut *policy, [Change::Tenant(row(1, 0, 400, 0))]);
    // The last one that left is 1, by now at 450.
    let rows = [row(1, 0, 450, 0), row(2, 1, 0, 0)];
    tell(&mut *policy, rows.map(Change::Tenant));
    let rows = [row(0, 1, 700, 0), row(1, 1, 450, 0)];
    tell(&mut *policy, rows.map(Change::Tenant));
    // 0 at 700; 1 at 450; 2 at 450, 550, 650, 750: without the lift it would have all its turns first.
    let requests = [of(0, 1), of(1, 2), of(2, 3), of(2, 4), of(2, 5), of(2, 6)];
    check(&mut *policy, &requests, &[2, 3, 4, 5, 1, 6]);
}

#[test]
fn of_several_that_left_at_once_the_one_served_most_is_the_last() {
    for swapped in [false, true] {
        let mut policy = policy(UNAGED);
        let rows = [row(0, 1, 0, 0), row(1, 1, 0, 0), row(2, 0, 0, 0)];
        observe(&mut *policy, Extent::Everything, rows.map(Change::Tenant));
        let mut rows = [row(0, 0, 700, 0), row(1, 0, 400, 0)];
        if swapped {
            rows.reverse();
        }
        tell(&mut *policy, rows.map(Change::Tenant));
        tell(&mut *policy, [Change::Tenant(row(2, 1, 0, 0))]);
        tell(&mut *policy, [Change::Tenant(row(0, 1, 700, 0))]);
        check(&mut *policy, &[of(0, 1), of(2, 2), of(2, 3)], &[1, 2, 3]);
    }
}

#[test]
fn another_weight_changes_no_counter() {
    let mut policy = three_served(UNAGED, [(600, 0), (500, 0), (590, 0)]);
    let heavier = Tenant {
        weight: 10,
        ..row(0, 1, 600, 0)
    };
    tell(&mut *policy, [Change::Tenant(heavier)]);
    check(&mut *policy, &[of(0, 1), of(1, 2), of(2, 3)], &[2, 3, 1]);
    // Another 200 tokens are 20 at the new weight: 620, against 500 and 625.
    let served = Tenant {
        prompt_tokens_total: 800,
        ..heavier
    };
    let rows = [served, row(2, 1, 625, 0)];
    tell(&mut *policy, rows.map(Change::Tenant));
    check(&mut *policy, &[of(0, 1), of(1, 2), of(2, 3)], &[2, 1, 3]);
}

/// Both tenants are at 600: one was served that many, and the other was lifted to it.
#[test]
fn other_costs_change_no_counter() {
    let rows = |output, prompt| [row(0, 1, 0, output), row(1, 1, prompt, 0)].map(Change::Tenant);
    let mut old = policy(UNAGED);
    let first = [row(0, 1, 0, 0), row(1, 0, 0, 0)];
    observe(&mut *old, Extent::Everything, first.map(Change::Tenant));
    tell(&mut *old, rows(300, 0));
    // Another 100 tokens of the one are 400 at the new cost, or 100.
    let dearer = (r#"{"output-token-cost": 4, "aging": 0}"#, 400);
    let cheaper = (r#"{"output-token-cost": 1, "aging": 0}"#, 100);
    for (settings, served) in [dearer, cheaper] {
        let mut new = policy(settings);
        new.restore(old.snapshot()).expect("its own snapshot");
        observe(&mut *new, Extent::Everything, rows(300, 0));
        let requests = [of(0, 1), of(1, 2), of(0, 3), of(1, 4)];
        check(&mut *new, &requests, &[1, 2, 3, 4]);
        tell(&mut *new, rows(400, served - 10));
        check(&mut *new, &requests[..2], &[2, 1]);
        tell(&mut *new, rows(400, served + 10));
        check(&mut *new, &requests[..2], &[1, 2]);
    }
}

#[test]
fn what_was_served_before_it_came_does_not_count() {
    let mut policy = policy(UNAGED);
    let rows = [row(0, 1, 1_000_000, 0), row(1, 1, 0, 0)];
    observe(&mut *policy, Extent::Everything, rows.map(Change::Tenant));
    check(&mut *policy, &[of(0, 1), of(1, 2)], &[1, 2]);
}

#[test]
fn a_fresh_instance_with_its_snapshot_goes_on_where_the_old_one_was() {
    let rows = [row(0, 1, 900, 0), row(1, 0, 100, 10), row(2, 1, 50, 0)];
    let requests = [of(0, 1), of(0, 2), of(2, 3), of(2, 4), of(1, 5)];
    let mut old = three_served(UNAGED, [(900, 0), (100, 10), (50, 0)]);
    tell(&mut *old, [Change::Tenant(row(1, 0, 100, 10))]);
    let mut fresh = policy(UNAGED);
    fresh.restore(old.snapshot()).expect("its own snapshot");
    observe(&mut *fresh, Extent::Everything, rows.map(Change::Tenant));
    assert_eq!(fresh.snapshot(), old.snapshot());
    // 0 at 900; 1, which returns, at 120; 2 at 50, 150.
    for policy in [&mut old, &mut fresh] {
        tell(&mut **policy, [Change::Tenant(row(1, 1, 100, 10))]);
        check(&mut **policy, &requests, &[3, 5, 4, 1, 2]);
    }
    // Cold, all are equal, and turns alternate.
    let mut cold = policy(UNAGED);
    let rows = [row(0, 1, 900, 0), row(1, 1, 100, 10), row(2, 1, 50, 0)];
    observe(&mut *cold, Extent::Everything, rows.map(Change::Tenant));
    check(&mut *cold, &requests, &[1, 3, 5, 2, 4]);
}

#[test]
fn a_snapshot_it_did_not_make_is_refused() {
    let check = |state: &[u8], expected: &str| {
        let refused = policy(UNAGED).restore(state.to_vec());
        assert_eq!(refused, Err(expected.into()));
    };
    check(&[], "a snapshot ends 1 bytes early");
    check(&[0, 0, 0], "a snapshot ends 2 bytes early");
    check(&[2, 0, 0, 0, 0], "a snapshot says 2 where 0 or 1 belongs");
    check(&[1, 0, 0, 0, 0, 7], "a snapshot ends 3 bytes early");
}

#[test]
fn waiting_counts_tokens_each_second() {
    // A hundred tokens each second: 1 is 500 tokens behind 0, whose request came 5 s later.
    let later = |id, seconds| Request {
        arrived: seconds * SECOND,
        ..of(0, id)
    };
    let of_1 = Request {
        arrived: 0,
        ..of(1, 9)
    };
    let mut policy = three_served("{}", [(0, 0), (500, 0), (0, 0)]);
    // 4 s × 100 = 400, and the turn costs 100: 6 s × 100 + 100.
    check(&mut *policy, &[later(1, 4), later(2, 6), of_1], &[1, 9, 2]);
}

/// Each second a new tenant comes, lifted to no more than the least served, and one request is
/// served: the one that was served most has to wait for the difference, and no longer.
fn served_after_seconds(settings: &str, ahead: u64, seconds_max: u64) -> Option<u64> {
    let mut policy = policy(settings);
    let rows = [row(0, 1, 0, 0), row(1, 1, 0, 0)].map(Change::Tenant);
    observe(&mut *policy, Extent::Everything, rows);
    let waiting = [of(0, 0), of(1, 1)].map(Change::Waiting);
    tell(&mut *policy, waiting);
    tell(&mut *policy, [Change::Tenant(row(0, 1, ahead, 0))]);
    let mut waiting = vec![0, 1];
    for second in 1..=seconds_max {
        let id = second + 1;
        let newcomer = u32::try_from(id).expect("few");
        let request = Request {
            arrived: second * SECOND,
            ..of(newcomer, id)
        };
        let rows = [
            Change::Tenant(row(newcomer, 1, 0, 0)),
            Change::Waiting(request),
        ];
        tell(&mut *policy, rows);
        waiting.push(id);
        let first = policy.order(at(second * SECOND), asked(&waiting))[0];
        if first == 0 {
            return Some(second);
        }
        waiting.retain(|&id| id != first);
        let tenant = u32::try_from(first).expect("few");
        let rows = [
            Change::WaitingGone(first),
            Change::Tenant(row(tenant, 0, 100, 0)),
        ];
        tell(&mut *policy, rows);
    }
    None
}

#[test]
fn the_wait_behind_ever_new_tenants_is_bounded_by_aging() {
    // 2000 tokens at 100 a second are 20 s, which the other one in second 21 came later: a tie.
    assert_eq!(served_after_seconds("{}", 2000, 200), Some(21));
    assert_eq!(
        served_after_seconds(r#"{"aging": 50}"#, 2000, 200),
        Some(41)
    );
    assert_eq!(served_after_seconds(UNAGED, 2000, 200), None);
}

/// Two tenants that always have requests, one of them with three times the prompt, the other with
/// three times the answer: however it goes, neither gets further ahead than one request of each.
#[test]
fn two_tenants_that_always_wait_stay_within_a_request_of_each_other() {
    let mut policy = policy("{}");
    let prompts = [300, 100];
    let outputs = [50, 150];
    let mut served = [(0_u64, 0); 2];
    let request = |tenant: u32, id: u64| Request {
        prompt_tokens: prompts[tenant as usize],
        ..of(tenant, id)
    };
    let rows = [0, 1].map(|id| Change::Tenant(row(id, 1, 0, 0)));
    observe(&mut *policy, Extent::Everything, rows);
    for round in 0..200 {
        let requests = [request(0, 2 * round), request(1, 2 * round + 1)];
        tell(&mut *policy, requests.map(Change::Waiting));
        let first = policy.order(at(2 * round + 1), asked(&[2 * round, 2 * round + 1]))[0];
        let tenant = usize::try_from(first % 2).expect("0 or 1");
        served[tenant].0 += u64::from(prompts[tenant]);
        served[tenant].1 += outputs[tenant];
        let rows = [0, 1].map(|id| {
            let (prompt, output) = served[id as usize];
            Change::Tenant(row(id, 1, prompt, output))
        });
        tell(&mut *policy, rows);
        let cost = served.map(|(prompt, output)| prompt + 2 * output);
        assert!(cost[0].abs_diff(cost[1]) <= 400, "{round}: {cost:?}");
    }
}

#[test]
fn a_request_it_was_not_told_of_is_left_out() {
    check(&mut *policy("{}"), &[of(0, 1)], &[1]);
    assert_eq!(policy("{}").order(at(0), asked(&[9])), [0; 0]);
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
        r#"{"prompt-token-cost": 0, "output-token-cost": 0}"#,
        "`prompt-token-cost` and `output-token-cost`: one must be above 0",
    );
    check(
        r#"{"output-token-cost": 1001}"#,
        "`output-token-cost`: 1001 is not between 0 and 1000",
    );
    check(
        r#"{"aging": 1000001}"#,
        "`aging`: 1000001 is not between 0 and 1000000",
    );
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::FairShare>();
}

#[test]
fn what_was_overtaken_nearly_as_often_as_the_host_allows_goes_first() {
    let mut policy = three_served(UNAGED, [(100, 0), (0, 0), (0, 0)]);
    tell(&mut *policy, [of(0, 1), of(1, 2)].map(Change::Waiting));
    check_overtaken_first(&mut *policy, [1, 2]);
}
