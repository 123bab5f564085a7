//! Obstacles, and the words for them.

use pointsman_sdk::fixture::{at, bounds, cached, device, executor, load, residency};
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{Change, ExecutorInfo, Name, NameKind, Request, Residency};

use super::{Fleet, HELD, MEMORY, for_model, instance, placed, slots, used};
use crate::reason::Reason;

const WAIT: &str = r#"{"affinity-bonus": 0}"#;

fn warm(executor: u32, model: u32, until: u64) -> Change {
    Change::Residency(Residency {
        sequences: 0,
        warm_until: Some(until),
        ..residency(executor, model)
    })
}

#[test]
fn a_warm_hold_is_waited_for_only_where_nobody_else_can_take_it() {
    Fleet::of_three()
        .and(warm(0, 7, 500))
        .and(warm(2, 7, 400))
        .check(WAIT, placed(&[1]), Reason::LeastPressed);
    Fleet::new()
        .with(load(0), device(0))
        .with(slots(1, 4), device(1))
        .with(load(2), device(2))
        .and(warm(0, 7, 500))
        .and(warm(2, 7, 400))
        .check(WAIT, Choice::Hold(Some(400)), Reason::WarmHold);
    Fleet::new()
        .with(load(0), device(0))
        .and(warm(0, 7, 100))
        .check(WAIT, placed(&[0]), Reason::LeastPressed);
}

#[test]
fn a_hold_on_an_executor_that_could_not_take_it_anyway_is_no_reason_to_wake() {
    Fleet::new()
        .with(slots(0, 4), device(0))
        .and(warm(0, 7, 500))
        .check(MEMORY, HELD, Reason::NoSlot);
}

#[test]
fn what_is_lacking_is_said() {
    let one = |info: ExecutorInfo| {
        Fleet::new()
            .with(load(0), device(0))
            .and(Change::Executor(info))
    };
    one(ExecutorInfo {
        serves: Some(vec![1]),
        ..executor(0)
    })
    .check(MEMORY, HELD, Reason::Nowhere);
    one(ExecutorInfo {
        models_max: Some(1),
        ..executor(0)
    })
    .and(Change::Residency(residency(0, 1)))
    .check(MEMORY, HELD, Reason::ModelsMax);
    Fleet::new()
        .with(load(0), used(0, 994))
        .check(MEMORY, HELD, Reason::NoBlocks);
    let verdicts = Fleet::new().ask(MEMORY, Vec::new());
    assert!(verdicts.is_empty());
    let mut policy = Fleet::of_three().policy(MEMORY, Vec::new());
    let unknown = policy.route(at(100), vec![cached(9)]);
    assert_eq!(unknown[0].choice, Choice::Hold(None));
    assert_eq!(unknown[0].reason, Reason::Unknown.index());
}

#[test]
fn pinned_requests_stay_and_failed_executors_are_avoided() {
    let pinned = Request {
        allowed: Some(vec![2, 1]),
        failed_on: Some(vec![1]),
        preferred: Some(1),
        ..for_model(1, 0)
    };
    let verdicts = Fleet::of_three().ask(MEMORY, vec![pinned]);
    assert_eq!(verdicts[0].0, placed(&[2]));
}

#[test]
fn as_many_candidates_as_set_are_named() {
    let fleet = || {
        (0..12).fold(Fleet::new(), |fleet, id| {
            fleet.with(slots(id, 11 % (id + 1) % 4), device(id))
        })
    };
    let all = fleet().ask(r#"{"candidates": 8}"#, vec![for_model(1, 0)]);
    let Choice::Place(all) = &all[0].0 else {
        panic!("not placed");
    };
    assert_eq!(all.len(), 8);
    for candidates in 1..8 {
        let settings = format!(r#"{{"candidates": {candidates}}}"#);
        let some = fleet().ask(&settings, vec![for_model(1, 0)]);
        assert_eq!(some[0].0, placed(&all[..candidates]));
    }
    let refused = instance().configure(r#"{"candidates": 9}"#, bounds());
    assert_eq!(
        refused,
        Err("`candidates`: 9 is not between 1 and 8".into())
    );
}

#[test]
fn tiers_begin_where_they_are_set() {
    let fleet = || {
        Fleet::new()
            .with(slots(0, 0), used(0, 100))
            .with(slots(1, 1), used(1, 99))
    };
    let first = |settings| fleet().ask(settings, vec![for_model(1, 0)]).remove(0).0;
    assert_eq!(first(MEMORY), placed(&[0, 1]));
    assert_eq!(
        first(r#"{"pressure-tiers": [100, 850, 950]}"#),
        placed(&[1, 0])
    );
    for tiers in ["[850, 700, 950]", "[700, 850, 1001]"] {
        let refused = instance().configure(&format!(r#"{{"pressure-tiers": {tiers}}}"#), bounds());
        let error = format!("`pressure-tiers`: {tiers} do not ascend to at most 1000 permille");
        assert_eq!(refused, Err(error));
    }
}

#[test]
fn as_many_looks_as_set_are_taken_to_say_why_nothing_fits() {
    let serves = ExecutorInfo {
        serves: Some(vec![9]),
        ..executor(0)
    };
    let fleet = || {
        let fleet = Fleet::new().with(load(0), device(0));
        fleet.and(Change::Executor(serves.clone()))
    };
    let requests = || (0_u32..3).map(|n| for_model(n.into(), 10 + n)).collect();
    let reasons = |settings| -> Vec<u16> {
        let verdicts = fleet().ask(settings, requests());
        verdicts.into_iter().map(|(_, reason)| reason).collect()
    };
    let (nowhere, no_slot) = (Reason::Nowhere.index(), Reason::NoSlot.index());
    assert_eq!(reasons(MEMORY), [nowhere; 3]);
    assert_eq!(reasons(r#"{"looks-max": 2}"#), [nowhere, nowhere, no_slot]);
}

#[test]
fn a_request_for_which_no_look_was_left_is_in_the_way_of_no_shorter_one() {
    let serves = ExecutorInfo {
        serves: Some(vec![0]),
        ..executor(0)
    };
    let fleet = Fleet::new()
        .with(load(0), used(0, 990))
        .and(Change::Executor(serves));
    let long = Request {
        prompt_tokens: 1000,
        ..for_model(2, 0)
    };
    let requests = vec![for_model(1, 10), long, for_model(3, 0)];
    let verdicts = fleet.ask(r#"{"looks-max": 1}"#, requests);
    let expected = [
        (HELD, Reason::Nowhere.index()),
        (HELD, Reason::NoSlot.index()),
        (placed(&[0]), Reason::LeastPressed.index()),
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn an_explanation_covers_every_executor_and_agrees_with_the_route() {
    let fleet = Fleet::new()
        .with(slots(0, 1), used(0, 712))
        .with(load(1), device(1))
        .with(slots(2, 4), device(2))
        .with(load(3), device(3))
        .and(warm(3, 7, 500))
        .and(Change::Name(Name {
            kind: NameKind::Model,
            id: 7,
            text: "llama".into(),
        }));
    let mut policy = fleet.policy(MEMORY, Vec::new());
    let asked = Request {
        preferred: Some(0),
        ..for_model(1, 0)
    };
    let rows = policy.explain(at(100), asked, cached(1));
    let found: Vec<_> = rows
        .iter()
        .map(|row| (row.executor, row.eligible, row.cost, row.note.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (
                0,
                true,
                0,
                "the session's; up, a slot is free; 1/4 slots, depth 1; tier 1 (712 permille), load 230 blocks, \
                 288 blocks free; 0 placed"
            ),
            (
                1,
                true,
                1,
                "up, a slot is free; 0/4 slots, depth 0; tier 0 (0 permille), load 0 blocks, 1000 blocks free; \
                 0 placed"
            ),
            (2, false, 2, "4/4 slots in use and no room in its queue"),
            (3, false, 2, "llama is kept warm there until 500us"),
        ]
    );
}
