//! Slots that are kept free of tenants beyond their share.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{at, cached, device, executor, request, tenant};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Change, ExecutorInfo, ExecutorLoad, Extent, Request, Tenant};

use super::{Fleet, MEMORY, placed, slots};
use crate::reason::Reason;

const FLOOD: u32 = 1;
const CALM: u32 = 2;
const MINUTE: u64 = 60_000_000;

fn of(id: u64, tenant: u32) -> Request {
    Request {
        tenant,
        ..request(id)
    }
}

fn served(id: u32, tokens: u64) -> Change {
    Change::Tenant(Tenant {
        prompt_tokens_total: tokens,
        ..tenant(id)
    })
}

/// An executor of ten slots, of which so many are used.
fn ten(used: u32) -> Fleet {
    Fleet::new()
        .with(slots(0, used), device(0))
        .and(Change::Executor(ExecutorInfo {
            slots_total: 10,
            ..executor(0)
        }))
}

/// The same with all slots free, and so many tokens of prompts to be prefilled.
fn prefilling(tokens: u64) -> Fleet {
    ten(0).and(Change::Load(ExecutorLoad {
        prefill_tokens_pending: tokens,
        ..slots(0, 0)
    }))
}

fn check(settings: &str, fleet: Fleet, tokens: [u64; 2], reasons: &[(u32, Reason)]) {
    let fleet = fleet
        .and(served(FLOOD, tokens[0]))
        .and(served(CALM, tokens[1]));
    let requests = (1..).zip(reasons);
    let requests = requests.map(|(id, &(tenant, _))| of(id, tenant)).collect();
    let verdicts = fleet.ask(settings, requests);
    let found: Vec<u16> = verdicts.into_iter().map(|(_, reason)| reason).collect();
    let expected: Vec<u16> = reasons.iter().map(|(_, reason)| reason.index()).collect();
    assert_eq!(found, expected, "{settings} {tokens:?}");
}

#[test]
fn a_fifth_of_the_slots_is_kept_free_of_a_tenant_beyond_its_share() {
    let [best, kept] = [Reason::LeastPressed, Reason::Reserved];
    // The third of three is free, and the two after it are kept. What is known of one tenant is not said of another.
    let batch = [(FLOOD, best), (FLOOD, kept), (CALM, best), (CALM, best)];
    check(MEMORY, ten(7), [900, 100], &batch);
    check(MEMORY, ten(10), [900, 100], &[(FLOOD, Reason::NoSlot)]);
    // A quarter more than its half is tolerated.
    check(MEMORY, ten(9), [625, 375], &[(FLOOD, best)]);
    check(MEMORY, ten(9), [626, 374], &[(FLOOD, kept)]);
    // Nobody else was served anything.
    check(MEMORY, ten(9), [900, 0], &[(FLOOD, best)]);
    check(
        r#"{"share-reserve": 0}"#,
        ten(9),
        [900, 100],
        &[(FLOOD, best)],
    );
    check(
        r#"{"share-reserve": 1000}"#,
        ten(0),
        [900, 100],
        &[(FLOOD, kept)],
    );
    check(
        r#"{"share-reserve": 99}"#,
        ten(9),
        [900, 100],
        &[(FLOOD, best)],
    );
}

#[test]
fn more_than_a_thousand_tokens_of_pending_prefill_are_kept_free_of_a_tenant_beyond_its_share() {
    let [best, kept] = [Reason::LeastPressed, Reason::Reserved];
    // The first prompt of the batch makes it more.
    let batch = [(FLOOD, best), (FLOOD, kept), (CALM, best)];
    check(MEMORY, prefilling(1024), [900, 100], &batch);
    check(MEMORY, prefilling(1025), [900, 100], &[(FLOOD, kept)]);
    // Within its share, and alone.
    check(MEMORY, prefilling(1025), [500, 500], &[(FLOOD, best)]);
    check(MEMORY, prefilling(1025), [900, 0], &[(FLOOD, best)]);
    let more = r#"{"share-prefill-max": 1025}"#;
    check(more, prefilling(1025), [900, 100], &[(FLOOD, best)]);
}

fn asked(policy: &mut Box<dyn Instance>, now: u64) -> Verdict {
    policy.observe(now, Extent::SinceLast, Vec::new());
    policy.route(at(now), vec![cached(1)]).remove(0)
}

#[test]
fn the_use_of_tenants_survives_a_reload() {
    let fleet = || ten(9).and(served(FLOOD, 900)).and(served(CALM, 100));
    let told = |mut policy: Box<dyn Instance>| {
        policy.observe(
            11 * MINUTE,
            Extent::SinceLast,
            vec![served(FLOOD, 900), served(CALM, 101)],
        );
        policy
    };
    // At eleven minutes what was served in the first is over.
    let mut policy = told(fleet().policy(MEMORY, vec![of(1, FLOOD)]));
    assert_eq!(asked(&mut policy, 11 * MINUTE).choice, placed(&[0]));
    let fresh = || ten(9).policy(MEMORY, vec![of(1, FLOOD)]);
    let mut successor = fresh();
    assert_eq!(successor.restore(policy.snapshot()), Ok(()));
    let mut successor = told(successor);
    assert_eq!(asked(&mut successor, 11 * MINUTE).choice, placed(&[0]));
    // One that does not know when it was served takes it for served evenly.
    let mut stranger = told(fresh());
    let held = asked(&mut stranger, 11 * MINUTE);
    assert_eq!(held.reason, Reason::Reserved.index());
    assert!(matches!(held.choice, Choice::Hold(Some(_))), "{held:?}");
}

#[test]
fn a_snapshot_that_is_cut_off_is_refused() {
    let fleet = ten(9).and(served(FLOOD, 900));
    let whole = fleet.policy(MEMORY, vec![of(1, FLOOD)]).snapshot();
    for length in 0..whole.len() {
        let mut successor = ten(9).policy(MEMORY, Vec::new());
        assert!(
            successor.restore(whole[..length].to_vec()).is_err(),
            "{length} of {} bytes",
            whole.len()
        );
    }
}
