//! Topology groups, and sessions hashed to an executor.

use pointsman_sdk::fixture::{at, cached, device, executor, load};
use pointsman_sdk::rendezvous::{node, weight};
use pointsman_sdk::wire::types::{
    Change, ExecutorInfo, ExecutorLoad, Health, Name, NameKind, Request,
};

use super::{Fleet, HELD, MEMORY, first, for_model, placed, slots};
use crate::reason::Reason;

/// So many executors, the even ones of group 0 and the odd ones of group 1, named `gpu-0` and so on.
fn fleet(executors: u32) -> Fleet {
    (0..executors).fold(Fleet::new(), |fleet, id| {
        let info = ExecutorInfo {
            device: id,
            group: id % 2,
            ..executor(id)
        };
        fleet
            .with(load(id), device(id))
            .and(Change::Executor(info))
            .and(Change::Name(Name {
                kind: NameKind::Executor,
                id,
                text: format!("gpu-{id}"),
            }))
    })
}

fn of_group(group: u32, session: Option<u64>) -> Vec<Request> {
    vec![Request {
        group: Some(group),
        session,
        ..for_model(1, 0)
    }]
}

#[test]
fn a_group_is_kept_to_while_one_of_it_is_live() {
    let full = |fleet: Fleet| {
        [1, 3]
            .map(|id| Change::Load(slots(id, 4)))
            .into_iter()
            .fold(fleet, Fleet::and)
    };
    assert_eq!(
        fleet(4).ask(MEMORY, of_group(1, None))[0].0,
        placed(&[1, 3])
    );
    let verdicts = full(fleet(4)).ask(MEMORY, of_group(1, None));
    assert_eq!(verdicts, [(HELD, Reason::NoSlot.index())]);

    let prefer = r#"{"group-hint": "prefer"}"#;
    assert_eq!(
        fleet(4).ask(prefer, of_group(1, None))[0].0,
        placed(&[1, 3])
    );
    assert_eq!(
        full(fleet(4)).ask(prefer, of_group(1, None))[0].0,
        placed(&[0, 2])
    );

    let ignore = r#"{"group-hint": "ignore"}"#;
    assert_eq!(
        fleet(4).ask(ignore, of_group(1, None))[0].0,
        placed(&[0, 1, 2])
    );

    let lost = |id| {
        Change::Load(ExecutorLoad {
            health: Health::Down,
            ..load(id)
        })
    };
    let gone = fleet(4).and(lost(1)).and(lost(3));
    assert_eq!(gone.ask(MEMORY, of_group(1, None))[0].0, placed(&[0, 2]));
    assert_eq!(
        fleet(4).ask(MEMORY, of_group(9, None))[0].0,
        placed(&[0, 1, 2])
    );
}

#[test]
fn a_group_and_a_pin_both_bind() {
    let pinned = Request {
        allowed: Some(vec![3, 2, 3]),
        ..of_group(1, None).remove(0)
    };
    assert_eq!(fleet(6).ask(MEMORY, vec![pinned])[0].0, placed(&[3]));
}

#[test]
fn an_executor_that_changes_its_group_is_looked_for_in_the_new_one() {
    let moved = ExecutorInfo {
        device: 0,
        group: 1,
        ..executor(0)
    };
    let fleet = || fleet(4).and(Change::Executor(moved.clone()));
    assert_eq!(
        fleet().ask(MEMORY, of_group(1, None))[0].0,
        placed(&[0, 1, 3])
    );
    assert_eq!(fleet().ask(MEMORY, of_group(0, None))[0].0, placed(&[2]));
    let gone = fleet().and(Change::ExecutorGone(3));
    assert_eq!(gone.ask(MEMORY, of_group(1, None))[0].0, placed(&[0, 1]));
}

fn home(fleet: Fleet, settings: &str, request: Vec<Request>) -> (u32, u16) {
    let verdict = fleet.ask(settings, request).remove(0);
    (first(&verdict.0), verdict.1)
}

#[test]
fn a_session_goes_to_the_greatest_claim_within_its_group() {
    for session in 0..200 {
        let claim = |id: &u32| weight(session, node(&format!("gpu-{id}")));
        let owner = [1, 3, 5, 7].into_iter().max_by_key(claim).unwrap();
        let found = home(fleet(8), MEMORY, of_group(1, Some(session)));
        assert_eq!(found, (owner, Reason::Hash.index()));
        // However loaded it is; only where it is full, to the next.
        let busy = fleet(8).and(Change::Load(slots(owner, 3)));
        assert_eq!(home(busy, MEMORY, of_group(1, Some(session))).0, owner);
        let full = fleet(8).and(Change::Load(slots(owner, 4)));
        let mut others = vec![1, 3, 5, 7];
        others.retain(|id| *id != owner);
        let next = others.into_iter().max_by_key(claim).unwrap();
        assert_eq!(home(full, MEMORY, of_group(1, Some(session))).0, next);
    }
}

#[test]
fn one_more_executor_takes_sessions_over_and_moves_no_others() {
    let mut moved = 0;
    for session in 0..400 {
        let (before, _) = home(fleet(8), MEMORY, of_group(1, Some(session)));
        let (after, _) = home(fleet(10), MEMORY, of_group(1, Some(session)));
        assert!(after == before || after == 9);
        moved += u32::from(after != before);
    }
    // A fifth of 400, within four standard deviations of 8.
    assert!((48..=112).contains(&moved), "{moved}");
}

#[test]
fn which_sessions_are_hashed_is_set() {
    let session = || {
        vec![Request {
            session: Some(5),
            ..for_model(1, 0)
        }]
    };
    let hash = Reason::Hash.index();
    let load = Reason::LeastPressed.index();
    let always = r#"{"rendezvous": "always"}"#;
    let never = r#"{"rendezvous": "never"}"#;
    assert_eq!(home(fleet(4), MEMORY, session()).1, load);
    assert_eq!(home(fleet(4), always, session()).1, hash);
    assert_eq!(home(fleet(4), never, of_group(1, Some(5))), (1, load));
}

#[test]
fn the_executor_that_served_the_session_last_goes_before_the_one_it_is_hashed_to() {
    for preferred in [1, 3] {
        let request = Request {
            preferred: Some(preferred),
            ..of_group(1, Some(5)).remove(0)
        };
        let found = home(fleet(4), MEMORY, vec![request]);
        assert_eq!(found, (preferred, Reason::Session.index()));
    }
    // It is of another group.
    let request = Request {
        preferred: Some(0),
        ..of_group(1, Some(5)).remove(0)
    };
    assert_eq!(
        home(fleet(4), MEMORY, vec![request]).1,
        Reason::Hash.index()
    );
}

#[test]
fn a_session_is_not_hashed_to_a_degraded_executor_while_another_is_up() {
    for degraded in [1, 3] {
        let row = ExecutorLoad {
            health: Health::Degraded,
            ..load(degraded)
        };
        let found = home(
            fleet(4).and(Change::Load(row)),
            MEMORY,
            of_group(1, Some(5)),
        );
        assert_eq!(found, (4 - degraded, Reason::Hash.index()));
    }
}

#[test]
fn an_explanation_names_the_group_of_those_outside_and_the_hash() {
    let mut policy = fleet(4).policy(MEMORY, Vec::new());
    let rows = policy.explain(at(100), of_group(1, Some(5)).remove(0), cached(1));
    let eligible: Vec<bool> = rows.iter().map(|row| row.eligible).collect();
    assert_eq!(eligible, [false, true, false, true]);
    assert_eq!(rows[0].note, "it is of group 0");
    let first = rows.iter().find(|row| row.cost == 0).unwrap();
    assert!(
        first.note.starts_with("its session is hashed to it; up"),
        "{}",
        first.note
    );
}
