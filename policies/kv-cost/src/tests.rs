//! Costs and choices, computed by hand from the formula.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{SECOND, at, bounds, cached, executor, load, request};
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{
    Cached, Change, ExecutorInfo, ExecutorLoad, Extent, Health, Overlap, Request,
};

use super::instance;

/// Two executors on devices of their own, whose pools are not told; whoever asks.
fn policy(settings: &str, loads: &[ExecutorLoad], requests: Vec<Request>) -> Box<dyn Instance> {
    let mut policy = instance();
    policy.configure(settings, bounds()).unwrap();
    let rows = loads.iter().flat_map(|row| {
        let info = ExecutorInfo {
            device: row.id,
            slots_total: 20_000,
            ..executor(row.id)
        };
        [Change::Executor(info), Change::Load(*row)]
    });
    let waiting = requests.into_iter().map(Change::Waiting);
    policy.observe(SECOND, Extent::Everything, rows.chain(waiting).collect());
    policy
}

fn prompt(id: u64, prompt_tokens: u32) -> Request {
    Request {
        prompt_tokens,
        ..request(id)
    }
}

fn overlap(executor: u32, device: u32, host: u32, disk: u32) -> Overlap {
    Overlap {
        executor,
        device_tokens: device,
        host_tokens: host,
        disk_tokens: disk,
    }
}

fn first(choice: &Choice) -> u32 {
    match choice {
        Choice::Place(executors) => executors[0],
        Choice::Hold(_) | Choice::GiveUp => panic!("not placed: {choice:?}"),
    }
}

/// The cost of a request with this prompt on executor 0, in thousandths of a token.
fn cost_of(settings: &str, load: ExecutorLoad, prompt_tokens: u32, cached: Cached) -> i64 {
    let mut policy = policy(settings, &[load], vec![]);
    policy.explain(at(SECOND), prompt(1, prompt_tokens), cached)[0].cost
}

/// 320 tokens to be prefilled, 10 blocks of 16 tokens in use, two running and one queued.
fn busy() -> ExecutorLoad {
    ExecutorLoad {
        prefill_tokens_pending: 320,
        blocks_used: 10,
        slots_used: 2,
        queued_critical: 1,
        ..load(0)
    }
}

#[test]
fn credit_is_device_and_parts_of_host_and_disk() {
    // 2 + 0.75 x 1 + 0.25 x 2 = 3.25 blocks of 16 are 52 tokens; of 160 there remain 108.
    let held = Cached {
        overlaps: Some(vec![overlap(0, 32, 16, 32)]),
        ..cached(1)
    };
    assert_eq!(cost_of("{}", load(0), 160, held), 108_000);
}

#[test]
fn a_shared_cache_counts_for_what_the_device_does_not_hold() {
    let held = || Cached {
        overlaps: Some(vec![overlap(0, 32, 0, 0)]),
        shared_tokens: 96,
        ..cached(1)
    };
    assert_eq!(cost_of("{}", load(0), 160, held()), 128_000);
    // 160 - 32 - 0.5 x (96 - 32).
    assert_eq!(
        cost_of(r#"{"shared-credit": 500}"#, load(0), 160, held()),
        96_000
    );
}

#[test]
fn who_is_not_listed_holds_the_floor() {
    let held = Cached {
        overlaps: Some(vec![overlap(7, 160, 0, 0)]),
        floor_tokens: 48,
        ..cached(1)
    };
    assert_eq!(cost_of("{}", load(0), 160, held), 112_000);
}

#[test]
fn cost_is_prefill_less_credit_and_decode_and_requests() {
    let held = || Cached {
        overlaps: Some(vec![overlap(0, 32, 16, 32)]),
        ..cached(1)
    };
    // In blocks of 16: (320 + 160)/16 - 3.25 + 10 = 36.75, which are 588 tokens.
    assert_eq!(cost_of("{}", busy(), 160, held()), 588_000);
    // P = 2, A = 0.5 blocks: 2 x 26.75 + 10 + 0.5 x 3 = 65 blocks, which are 1040 tokens.
    let settings = r#"{"prefill-scale": 2000, "request-cost": 8}"#;
    assert_eq!(cost_of(settings, busy(), 160, held()), 1_040_000);
}

#[test]
fn credit_beyond_the_prompt_is_worth_nothing() {
    let all = Cached {
        overlaps: Some(vec![overlap(0, 160, 16, 0)]),
        ..cached(1)
    };
    assert_eq!(cost_of("{}", load(0), 160, all), 0);
}

#[test]
fn credit_over_one_outweighs_prefill_that_is_pending() {
    let busy = || ExecutorLoad {
        prefill_tokens_pending: 100,
        ..load(0)
    };
    let held = || Cached {
        overlaps: Some(vec![overlap(0, 80, 0, 0)]),
        ..cached(1)
    };
    // 100 + 160 - 80, and - 2 x 80.
    assert_eq!(cost_of("{}", busy(), 160, held()), 180_000);
    let settings = r#"{"device-credit": 2000}"#;
    assert_eq!(cost_of(settings, busy(), 160, held()), 100_000);
}

#[test]
fn extreme_numbers_saturate() {
    let huge = ExecutorLoad {
        prefill_tokens_pending: u64::MAX / 2,
        blocks_used: u64::MAX,
        ..load(0)
    };
    let settings = r#"{"prefill-scale": 100000}"#;
    assert_eq!(cost_of(settings, huge, u32::MAX, cached(1)), i64::MAX);
}

#[test]
fn the_cached_prefix_draws_a_request_until_load_outweighs_it() {
    let ask = |blocks_used| {
        let holder = ExecutorLoad {
            blocks_used,
            ..load(1)
        };
        let mut policy = policy("{}", &[load(0), holder], vec![prompt(1, 160)]);
        let held = Cached {
            overlaps: Some(vec![overlap(1, 96, 0, 0)]),
            ..cached(1)
        };
        first(&policy.route(at(SECOND), vec![held])[0].choice)
    };
    // It saves 96 tokens, which are 6 blocks; with as many in use there is a tie.
    assert_eq!([ask(5), ask(6), ask(7)], [1, 0, 0]);
}

/// Tests servers that tell of no blocks: what runs there costs nothing once its prompts are prefilled.
#[test]
fn of_equal_costs_the_executor_with_the_fewest_requests_is_chosen() {
    let loads = [(0, 5), (1, 4), (2, 4)].map(|(id, slots_used)| ExecutorLoad {
        slots_used,
        ..load(id)
    });
    let ask = |asked: Cached| {
        let mut policy = policy("{}", &loads, vec![prompt(1, 160)]);
        first(&policy.route(at(SECOND), vec![asked])[0].choice)
    };
    assert_eq!(ask(cached(1)), 1);
    // Every executor is looked at where the floor is credited beyond the prompt.
    let floor = Cached {
        floor_tokens: 320,
        ..cached(1)
    };
    assert_eq!(ask(floor), 1);
}

#[test]
fn a_batch_counts_its_own_placements() {
    // With its blocks of 16 a prompt of 100 adds 212, one of 20 adds 52. Executor 0 has 212, then
    // executor 1 has 52 and 264, then executor 0 has 264 too, and the last goes by attach order.
    let prompts = [100, 20, 100, 20, 100];
    let requests = prompts
        .iter()
        .zip(1..)
        .map(|(&tokens, id)| prompt(id, tokens));
    let mut policy = policy("{}", &[load(0), load(1)], requests.collect());
    let mut ask = |ids: std::ops::RangeInclusive<u64>| -> Vec<u32> {
        let verdicts = policy.route(at(SECOND), ids.map(cached).collect());
        verdicts
            .iter()
            .map(|verdict| first(&verdict.choice))
            .collect()
    };
    assert_eq!(ask(1..=5), [0, 1, 1, 0, 0]);
}

#[test]
fn what_a_batch_counted_is_void_at_the_next_observe() {
    let requests = || vec![prompt(1, 100), prompt(2, 100)];
    let mut policy = policy("{}", &[load(0), load(1)], requests());
    let mut ask = |id| first(&policy.route(at(SECOND), vec![cached(id)])[0].choice);
    assert_eq!([ask(1), ask(2)], [0, 1]);
    policy.observe(SECOND, Extent::SinceLast, Vec::new());
    assert_eq!(
        first(&policy.route(at(SECOND), vec![cached(2)])[0].choice),
        0
    );
}

#[test]
fn up_goes_before_degraded_whatever_it_costs() {
    let degraded = ExecutorLoad {
        health: Health::Degraded,
        ..load(1)
    };
    let mut policy = policy("{}", &[busy(), degraded], vec![prompt(1, 160)]);
    assert_eq!(
        first(&policy.route(at(SECOND), vec![cached(1)])[0].choice),
        0
    );
}

/// Numbers of 10,000 requests, each asked alone, that go to each of three executors that cost 100,
/// 200 and 300 tokens.
fn shares(settings: &str) -> [usize; 3] {
    let loads = [0, 1, 2].map(|id| ExecutorLoad {
        prefill_tokens_pending: 100 * u64::from(id),
        ..load(id)
    });
    let mut policy = policy(settings, &loads, (0..10_000).map(request).collect());
    let mut shares = [0; 3];
    for id in 0..10_000 {
        policy.observe(SECOND, Extent::SinceLast, Vec::new());
        let choice = &policy.route(at(SECOND), vec![cached(id)])[0].choice;
        shares[usize::try_from(first(choice)).unwrap()] += 1;
    }
    shares
}

#[test]
fn with_a_temperature_the_cheaper_is_the_likelier() {
    // At 0.5 the weights are 1, e^-1 and e^-2: 66.5 %, 24.5 % and 9.0 %.
    for settings in [
        r#"{"temperature": 500}"#,
        r#"{"temperature": 500, "seed": 9}"#,
    ] {
        let shares = shares(settings);
        for (share, expected) in shares.into_iter().zip([6652_usize, 2447, 900]) {
            // Four standard deviations.
            assert!(share.abs_diff(expected) < 190, "{shares:?}");
        }
    }
    assert_eq!(shares("{}"), [10_000, 0, 0]);
}

#[test]
fn a_draw_follows_from_seed_and_request() {
    let drawn = |seed: u64| {
        let settings = format!(r#"{{"ties": "seeded", "seed": {seed}}}"#);
        let mut policy = policy(
            &settings,
            &[load(0), load(1)],
            (0..64).map(request).collect(),
        );
        let mut ask = |id| {
            policy.observe(SECOND, Extent::SinceLast, Vec::new());
            first(&policy.route(at(SECOND), vec![cached(id)])[0].choice)
        };
        (0..64).map(&mut ask).collect::<Vec<u32>>()
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    let ones = drawn(1)
        .into_iter()
        .filter(|&executor| executor == 1)
        .count();
    assert!((16..=48).contains(&ones), "{ones} of 64");
}

#[test]
fn settings_out_of_range_are_named() {
    let refused = |settings| instance().configure(settings, bounds());
    assert_eq!(
        refused(r#"{"device-credit": 10001}"#),
        Err("`device-credit`: 10001 is not between 0 and 10000".to_owned())
    );
    assert!(refused(r#"{"temperature": 1000001}"#).is_err());
    assert_eq!(refused(r#"{"temperature": 1000000}"#), Ok(()));
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::KvCost>();
}
