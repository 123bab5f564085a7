//! Credit and cost against vectors worked out by hand.

use pointsman_sdk::fixture::{at, bounds, cached, device, executor, load};
use pointsman_sdk::wire::types::{
    Cached, Change, Device, ExecutorInfo, ExecutorLoad, Overlap, Request,
};
use pointsman_sdk::{Case, Executor, Mirror, Residencies};

use super::{Fleet, HELD, MEMORY, first, for_model, placed, slots, used};
use crate::credit::{self, Credit, cost};
use crate::reason::Reason;
use crate::settings::Settings;
use crate::waits::Waits;

/// Weights of 1: a block of prefill costs as much as one of decode, and requests nothing.
fn plain() -> Settings {
    Settings {
        device_credit: 1000,
        prefill_scale: 1000,
        active_cost: 0,
        stall_cost: 0,
        ..Settings::default()
    }
}

/// The same weights as an operator writes them, with this balance.
fn plain_text(balance: &str) -> String {
    let Settings {
        device_credit,
        prefill_scale,
        active_cost,
        stall_cost,
        ..
    } = plain();
    format!(
        r#"{{"balance": "{balance}", "device-credit": {device_credit}, "prefill-scale": {prefill_scale},
            "active-cost": {active_cost}, "stall-cost": {stall_cost}}}"#
    )
}

fn overlap(executor: u32, device_tokens: u32, host_tokens: u32, disk_tokens: u32) -> Overlap {
    Overlap {
        executor,
        device_tokens,
        host_tokens,
        disk_tokens,
    }
}

fn asked(overlaps: Vec<Overlap>) -> Cached {
    Cached {
        overlaps: Some(overlaps),
        ..cached(1)
    }
}

/// Runs `check` about a request with this cached, on executor 0 with blocks of so many tokens and
/// this load.
fn on<T>(
    tokens_per_block: u32,
    load: ExecutorLoad,
    asked: &Cached,
    check: impl Fn(&Case<'_>, &Executor<'_>) -> T,
) -> T {
    let (mirror, request) = (Mirror::default(), for_model(1, 0));
    let case = Case::new((&mirror).into(), &request, 100).with_cached(asked);
    let info = ExecutorInfo {
        tokens_per_block: Some(tokens_per_block),
        ..executor(0)
    };
    let executor = Executor {
        position: 0,
        info: &info,
        load: &load,
        residencies: Residencies::new(&[]),
    };
    check(&case, &executor)
}

#[test]
fn each_tier_counts_by_its_weight_and_tokens_are_rounded_half_up() {
    let credit = |asked: &Cached, tokens_per_block, settings| {
        let credit = on(tokens_per_block, load(0), asked, |case, executor| {
            Credit::of(&settings, case, executor)
        });
        (credit.permille, credit.tokens)
    };
    // 2 blocks on the device, 1 in host memory, 2 on disk: 2 + 0.75 + 0.5 = 3.25, 52 tokens.
    let example = asked(vec![overlap(0, 32, 16, 32)]);
    assert_eq!(credit(&example, 16, plain()), (3250, 52));
    // The same in blocks of 10: 2.4 + 0.75 x 1.2 + 0.25 x 2.4 = 3.9 of device 24, host 12, disk 24.
    let tenths = asked(vec![overlap(0, 24, 12, 24)]);
    assert_eq!(credit(&tenths, 10, plain()), (3900, 39));
    // 1.25 blocks of 2 tokens are 2.5 tokens: 3.
    let half = asked(vec![overlap(0, 2, 0, 2)]);
    assert_eq!(credit(&half, 2, plain()), (1250, 3));
    // A shared cache counts by its weight, for what it holds beyond the device: 6 - 2 = 4 blocks
    // by half.
    let shared = Cached {
        shared_tokens: 96,
        ..example
    };
    assert_eq!(credit(&shared, 16, plain()), (3250, 52));
    let hicache = Settings {
        shared_credit: 500,
        ..plain()
    };
    assert_eq!(credit(&shared, 16, hicache), (5250, 84));
    // What is not listed has the floor on its device.
    let unlisted = Cached {
        floor_tokens: 48,
        ..asked(vec![overlap(7, 64, 0, 0)])
    };
    assert_eq!(credit(&unlisted, 16, plain()), (3000, 48));
}

#[test]
fn the_cost_is_prefill_less_credit_and_decode_blocks_and_active_requests() {
    let cost = |asked: &Cached, load: ExecutorLoad, settings| {
        on(16, load, asked, |case, executor| {
            cost(&settings, &Waits::default(), case, executor, 0)
        })
    };
    let busy = ExecutorLoad {
        prefill_tokens_pending: 60,
        blocks_used: 7,
        slots_used: 3,
        ..load(0)
    };
    // (60 + 100) / 16 = 10 blocks, and 7 of decode.
    let nothing = cached(1);
    assert_eq!(cost(&nothing, busy, plain()), 17_000);
    // Less 3.25.
    let example = asked(vec![overlap(0, 32, 16, 32)]);
    assert_eq!(cost(&example, busy, plain()), 13_750);
    // Prefill twice as dear, and half a block for each of the three there.
    let weighted = Settings {
        prefill_scale: 2000,
        active_cost: 500,
        ..plain()
    };
    assert_eq!(cost(&example, busy, weighted), 2 * 6_750 + 7_000 + 1_500);
    // No credit beyond the prefill there is: 100 / 16 = 6.25 blocks, 8 of credit.
    let all = asked(vec![overlap(0, 128, 0, 0)]);
    assert_eq!(cost(&all, load(0), plain()), 0);
}

#[test]
fn by_default_prefill_is_dear_what_is_held_counts_beyond_it_and_requests_are_stalled() {
    let busy = ExecutorLoad {
        prefill_tokens_pending: 64,
        blocks_used: 7,
        slots_used: 3,
        ..load(0)
    };
    // 4 blocks are pending and 6.25 asked for, less 2 x 1.8. The three that are there wait for a 25th
    // of 2.65 blocks each. A block of prefill costs 64, a request 230, and there are 7 of decode.
    let held = asked(vec![overlap(0, 32, 0, 0)]);
    let (cost, standing) = on(16, busy, &held, |case, executor| {
        let settings = Settings::default();
        let standing = credit::load(&settings, &Waits::default(), case.fleet, executor);
        (
            cost(&settings, &Waits::default(), case, executor, 0),
            standing,
        )
    });
    assert_eq!(cost, 64 * (4_000 + 2_650 + 318) + 7_000 + 690_000);
    assert_eq!(standing, 64 * 4_000 + 7_000 + 690_000);
}

#[test]
fn credit_beyond_the_tokens_held_is_not_taken_for_prefill_that_was_spared() {
    let held = asked(vec![overlap(0, 32, 0, 0)]);
    let left = on(16, load(0), &held, |case, executor| {
        credit::prefill_tokens(&Settings::default(), case, executor)
    });
    assert_eq!(left, 100 - 32);
}

#[test]
fn to_a_session_what_is_held_on_the_device_is_worth_its_prefill_at_most() {
    let (mirror, held) = (Mirror::default(), asked(vec![overlap(0, 40, 16, 0)]));
    let (info, load) = (executor(0), load(0));
    let executor = Executor {
        position: 0,
        info: &info,
        load: &load,
        residencies: Residencies::new(&[]),
    };
    let credit = |session, settings: Settings| {
        let request = Request {
            session,
            ..for_model(1, 0)
        };
        let case = Case::new((&mirror).into(), &request, 100).with_cached(&held);
        let Credit { permille, tokens } = Credit::of(&settings, &case, &executor);
        (permille, tokens)
    };
    // 2.5 blocks on the device, and 0.75 in host memory.
    let own = |device_credit| Settings {
        device_credit,
        session_credit: 700,
        ..Settings::default()
    };
    assert_eq!(credit(None, own(1700)), (4_250 + 750, 52));
    assert_eq!(credit(Some(1), own(1700)), (1_750 + 750, 52));
    assert_eq!(credit(Some(1), own(500)), (1_250 + 750, 32));
}

fn blocks(id: u32, blocks_used: u64) -> ExecutorLoad {
    ExecutorLoad {
        blocks_used,
        ..load(id)
    }
}

fn route(fleet: Fleet, settings: &str, asked: Cached) -> Vec<(super::Choice, u16)> {
    let mut policy = fleet.policy(settings, vec![for_model(1, 0)]);
    let verdicts = policy.route(at(100), vec![asked]);
    verdicts
        .into_iter()
        .map(|verdict| (verdict.choice, verdict.reason))
        .collect()
}

#[test]
fn a_holder_goes_before_the_least_loaded_while_it_costs_less() {
    // 4 blocks of credit against 3 blocks of decode, then 4, then 5. At 4 the costs are equal and
    // the least loaded has its place: 2 is deeper, so that it has a place for rank too.
    let fleet = |decode| {
        let deeper = ExecutorLoad {
            slots_used: 1,
            ..blocks(2, decode)
        };
        Fleet::new()
            .with(load(0), device(0))
            .with(load(1), device(1))
            .with(deeper, device(2))
    };
    let held = || asked(vec![overlap(2, 64, 0, 0)]);
    for settings in ["memory", "slots"].map(plain_text) {
        let verdicts = route(fleet(3), &settings, held());
        assert_eq!(verdicts, [(placed(&[2, 0, 1]), Reason::Overlap.index())]);
        for decode in [4, 5] {
            let verdicts = route(fleet(decode), &settings, held());
            assert_eq!(verdicts[0].0, placed(&[0, 1, 2]));
        }
    }
    let off = r#"{"device-credit": 0, "active-cost": 0}"#;
    assert_eq!(route(fleet(3), off, held())[0].0, placed(&[0, 1, 2]));
}

#[test]
fn of_several_holders_the_cheapest_is_first() {
    // Costs less 6.25 blocks of prompt: -2 + 3, -4 + 1, -1 + 0; of the others 0.
    let fleet = Fleet::new()
        .with(load(0), device(0))
        .with(blocks(1, 3), device(1))
        .with(blocks(2, 1), device(2))
        .with(blocks(3, 0), device(3));
    let held = asked(vec![
        overlap(1, 32, 0, 0),
        overlap(2, 64, 0, 0),
        overlap(3, 16, 0, 0),
    ]);
    let verdicts = route(fleet, &plain_text("memory"), held);
    assert_eq!(verdicts, [(placed(&[2, 3, 0]), Reason::Overlap.index())]);
}

#[test]
fn a_higher_tier_is_not_outweighed_by_what_is_held_there() {
    let fleet = Fleet::new()
        .with(load(0), used(0, 699))
        .with(load(1), used(1, 700));
    let verdicts = route(fleet, MEMORY, asked(vec![overlap(1, 96, 0, 0)]));
    assert_eq!(verdicts, [(placed(&[0, 1]), Reason::LeastPressed.index())]);
}

#[test]
fn the_sessions_executor_goes_before_the_holder() {
    let mut policy = Fleet::of_three().policy(
        MEMORY,
        vec![Request {
            preferred: Some(1),
            ..for_model(1, 0)
        }],
    );
    let verdicts = policy.route(at(100), vec![asked(vec![overlap(2, 96, 0, 0)])]);
    assert_eq!(verdicts[0].choice, placed(&[1, 0, 2]));
    assert_eq!(verdicts[0].reason, Reason::Session.index());
}

#[test]
fn requests_of_one_batch_do_not_all_go_to_the_holder() {
    // Each adds the 36 tokens it does not find there and the 7 blocks of its sequence: 100 tokens
    // are 6.25 blocks, of which 4 are held. With one there: (36 + 100) / 16 - 4 + 7 = 11.5 > 6.25.
    let requests: Vec<Request> = (1..=2).map(|id| for_model(id, 0)).collect();
    let mut policy = Fleet::of_three().policy(&plain_text("memory"), requests);
    let held = |request| Cached {
        request,
        ..asked(vec![overlap(2, 64, 0, 0)])
    };
    let verdicts = policy.route(at(100), vec![held(1), held(2)]);
    let firsts: Vec<u32> = verdicts.iter().map(|row| first(&row.choice)).collect();
    assert_eq!(firsts, [2, 0]);
}

/// Tests an engine where others share the 500 blocks of a system prompt, and hold all but 348 of the rest.
#[test]
fn a_prompt_goes_where_others_hold_most_of_it_though_there_is_no_room_for_all_of_it() {
    let agent = |id: u64, prompt_tokens: u32| Request {
        prompt_tokens,
        ..for_model(id, 0)
    };
    let device = Device {
        blocks_total: 2048,
        blocks_free: 348,
        ..device(0)
    };
    // The first one begins otherwise, and is in nobody's way.
    let requests = vec![agent(1, 8100), agent(2, 8200)];
    let fleet = Fleet::new().with(slots(0, 3), device);
    let mut policy = fleet.policy(MEMORY, requests);
    let held = || Cached {
        request: 2,
        ..asked(vec![overlap(0, 8000, 0, 0)])
    };
    let explained = policy.explain(at(100), agent(2, 8200), held());
    assert!(explained[0].eligible, "{}", explained[0].note);
    let verdicts = policy.route(at(100), vec![cached(1), held()]);
    let said = verdicts
        .into_iter()
        .map(|verdict| (verdict.choice, verdict.reason));
    let expected = [
        (HELD, Reason::NoBlocks.index()),
        (placed(&[0]), Reason::Overlap.index()),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

#[test]
fn an_explanation_says_how_much_of_the_prompt_is_held() {
    let mut policy = Fleet::of_three().policy(MEMORY, Vec::new());
    let held = asked(vec![overlap(2, 32, 16, 32)]);
    let rows = policy.explain(at(100), for_model(1, 0), held);
    let costs: Vec<i64> = rows.iter().map(|row| row.cost).collect();
    assert_eq!(costs, [1, 2, 0]);
    assert!(
        rows[2]
            .note
            .ends_with("0 placed; holds 52 tokens of the prompt")
    );
    assert!(rows[0].note.ends_with("0 placed"));
}

#[test]
fn a_weight_that_is_a_mistake_of_unit_is_refused() {
    let refused = super::instance().configure(r#"{"host-credit": 1000001}"#, bounds());
    assert_eq!(
        refused,
        Err("`host-credit`: 1000001 is not between 0 and 1000000".into())
    );
    let fleet = Fleet::of_three().and(Change::Load(load(0)));
    assert_eq!(
        fleet
            .ask(r#"{"host-credit": 1000000}"#, vec![for_model(1, 0)])
            .len(),
        1
    );
}
