//! Models that are warm nowhere: holds that are waived, executors that are kept free.

use pointsman_sdk::fixture::{at, cached, device, executor, load, model, residency};
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{
    Change, ExecutorInfo, ExecutorLoad, Extent, Health, Model, Presence, Request, Residency,
};

use super::{Fleet, HELD, MEMORY, SLOTS, for_model, placed, slots};
use crate::reason::Reason;

const WAIT: &str = r#"{"affinity-bonus": 0}"#;
const START: &str = r#"{"cold-models": "start"}"#;

fn kept_warm(executor: u32, model: u32) -> Change {
    Change::Residency(Residency {
        sequences: 0,
        warm_until: Some(500),
        ..residency(executor, model)
    })
}

#[test]
fn a_hold_is_waived_for_the_first_request_of_a_model_that_is_warm_nowhere() {
    let fleet = || {
        Fleet::new()
            .with(slots(0, 3), device(0))
            .with(slots(1, 3), device(1))
            .and(kept_warm(0, 7))
            .and(kept_warm(1, 7))
            .and(Change::Model(model(0)))
    };
    let requests = || vec![for_model(1, 0), for_model(2, 0)];
    let waits = (Choice::Hold(Some(500)), Reason::WarmHold.index());
    let waived = (placed(&[0]), Reason::Waiver.index());
    for settings in [MEMORY, SLOTS, START] {
        // The second finds the model warm on 0, which is full.
        assert_eq!(
            fleet().ask(settings, requests()),
            [waived.clone(), waits.clone()]
        );
    }
    assert_eq!(
        fleet().ask(WAIT, requests()),
        [waits.clone(), waits.clone()]
    );
    // Warm on a live executor, slots or not: nothing is waived. A lost one does not count.
    let elsewhere = |health| {
        let full = ExecutorLoad {
            health,
            ..slots(2, 4)
        };
        let warm = fleet().with(full, device(2));
        warm.and(Change::Residency(residency(2, 0)))
            .ask(MEMORY, vec![for_model(1, 0)])
    };
    assert_eq!(elsewhere(Health::Up), [waits]);
    assert_eq!(elsewhere(Health::Down), [waived]);
}

/// A round asks again without news where one question does not hold all that wait. Each has its own
/// looks, so that a fresh instance answers alike.
#[test]
fn what_one_question_did_not_look_at_the_next_one_does() {
    let info = ExecutorInfo {
        serves: Some(vec![0, 7]),
        ..executor(0)
    };
    let fleet = Fleet::new().with(slots(0, 3), device(0));
    let fleet = fleet.and(Change::Executor(info)).and(kept_warm(0, 7));
    // Of as many models, none of which is served, as one answer looks at the fleet for.
    let nowhere = (1..=4).map(|id| for_model(id, 10 + u32::try_from(id).unwrap_or(0)));
    let requests = nowhere.chain([for_model(5, 0)]).collect();
    let mut policy = fleet.policy(MEMORY, requests);
    let verdicts = policy.route(at(100), (1..=4).map(cached).collect());
    let reasons: Vec<u16> = verdicts.iter().map(|verdict| verdict.reason).collect();
    assert_eq!(reasons, [Reason::Nowhere.index(); 4]);
    let waived = policy.route(at(100), vec![cached(5)]);
    assert_eq!(waived[0].choice, placed(&[0]));
    assert_eq!(waived[0].reason, Reason::Waiver.index());
}

#[test]
fn a_hold_is_not_waived_for_a_place_in_a_queue() {
    let queue = ExecutorInfo {
        queue_limit: 4,
        ..executor(0)
    };
    Fleet::new()
        .with(slots(0, 4), device(0))
        .and(Change::Executor(queue))
        .and(kept_warm(0, 7))
        .check(MEMORY, Choice::Hold(Some(500)), Reason::WarmHold);
}

/// Executors that run one model at a time, in so many slots, some in use by this model.
fn limited(rows: &[(u32, u32, u32)]) -> Fleet {
    (0..).zip(rows).fold(
        Fleet::new(),
        |fleet, (id, &(slots_total, used, running))| {
            let info = ExecutorInfo {
                device: id,
                slots_total,
                models_max: Some(1),
                ..executor(id)
            };
            fleet
                .with(slots(id, used), device(id))
                .and(Change::Executor(info))
                .and(Change::Residency(residency(id, running)))
        },
    )
}

/// Routes request 100 of model 7, while these wait.
fn refill(fleet: Fleet, settings: &str, waiting: Vec<Request>) -> (Choice, u16) {
    let fleet = waiting.iter().fold(fleet, |fleet, request| {
        let waits = Model {
            waiting: 1,
            ..model(request.model.unwrap())
        };
        fleet.and(Change::Model(waits))
    });
    let mut policy = fleet.policy(settings, [waiting, vec![for_model(100, 7)]].concat());
    let verdict = policy.route(at(100), vec![cached(100)]).remove(0);
    (verdict.choice, verdict.reason)
}

#[test]
fn the_executor_with_the_most_free_slots_is_kept_free() {
    // 1, 3 and 2 slots free.
    let fleet = || limited(&[(4, 3, 7), (8, 5, 7), (4, 2, 7)]);
    let waiting = || vec![for_model(1, 0)];
    assert_eq!(refill(fleet(), MEMORY, waiting()).0, placed(&[2, 0]));
    assert_eq!(refill(fleet(), MEMORY, vec![]).0, placed(&[2, 0, 1]));
    for settings in [WAIT, START] {
        assert_eq!(refill(fleet(), settings, waiting()).0, placed(&[2, 0, 1]));
    }
}

/// At 100 µs: the model came at 30, and its first token at 50 took 20.
#[test]
fn a_model_stays_for_some_times_as_long_as_its_start_took() {
    let fleet = |first_token| {
        let stays = Residency {
            started: 30,
            first_token,
            ..residency(1, 7)
        };
        limited(&[(4, 3, 7), (8, 5, 7)]).and(Change::Residency(stays))
    };
    let waiting = || vec![for_model(1, 0)];
    let stay = |times| format!(r#"{{"model-tenure": {times}}}"#);
    let (drains, other) = (placed(&[0]), placed(&[1]));
    // 50 have passed since then, which is two starts and a half.
    for (times, choice) in [(0, &drains), (2, &drains), (3, &other)] {
        let refilled = refill(fleet(Some(50)), &stay(times), waiting());
        assert_eq!(refilled.0, *choice, "{times}");
    }
    // It is not drained while it may still be loaded, unless nothing is waited for.
    assert_eq!(refill(fleet(None), &stay(1), waiting()).0, other);
    assert_eq!(refill(fleet(None), &stay(0), waiting()).0, drains);
    assert_eq!(refill(fleet(Some(50)), MEMORY, waiting()).0, other);
}

#[test]
fn each_waiting_model_is_given_one_of_its_own() {
    let fleet = || limited(&[(8, 5, 7), (4, 2, 7), (4, 3, 7)]);
    let waiting = || vec![for_model(1, 0), for_model(2, 0), for_model(3, 1)];
    assert_eq!(refill(fleet(), MEMORY, waiting()).0, placed(&[2]));
    let all = [waiting(), vec![for_model(4, 2), for_model(5, 3)]].concat();
    let held = (HELD, Reason::Drain.index());
    assert_eq!(refill(fleet(), MEMORY, all), held);
}

#[test]
fn what_one_model_can_start_on_is_not_kept_free_for_the_next() {
    // 0 is idle, for model 0; 1 and 2 have 1 and 2 slots free.
    let fleet = limited(&[(8, 0, 7), (4, 3, 7), (4, 2, 7)]).and(Change::ResidencyGone(Presence {
        executor: 0,
        model: 7,
    }));
    let waiting = vec![for_model(1, 0), for_model(2, 1)];
    assert_eq!(refill(fleet, MEMORY, waiting).0, placed(&[0, 1]));
}

#[test]
fn nothing_is_kept_free_for_a_model_that_can_start_or_that_something_else_blocks() {
    let waiting = || vec![for_model(1, 0)];
    let two = || limited(&[(4, 2, 7), (4, 3, 7)]);
    let all = placed(&[0, 1]);
    assert_eq!(refill(two(), MEMORY, waiting()).0, placed(&[1]));
    // A third one takes it, for a waived hold too.
    let third = |fleet: Fleet| {
        fleet
            .with(load(2), device(2))
            .and(Change::Executor(ExecutorInfo {
                device: 2,
                serves: Some(vec![0, 9]),
                ..executor(2)
            }))
    };
    assert_eq!(refill(third(two()), MEMORY, waiting()).0, all);
    let held = third(two()).and(kept_warm(2, 9));
    assert_eq!(refill(held, MEMORY, waiting()).0, all);
    // The model is warm.
    let full = third(two()).and(Change::Load(slots(2, 4)));
    assert_eq!(refill(full, MEMORY, waiting()).0, placed(&[1]));
    let warm = third(two())
        .and(Change::Load(slots(2, 4)))
        .and(Change::Residency(residency(2, 0)));
    assert_eq!(refill(warm, MEMORY, waiting()).0, all);
    // Too long for its blocks, or for neither of the two.
    let long = Request {
        prompt_tokens: 16_000,
        ..for_model(1, 0)
    };
    assert_eq!(refill(two(), MEMORY, vec![long]).0, all);
    let pinned = Request {
        allowed: Some(vec![2]),
        ..for_model(1, 0)
    };
    assert_eq!(refill(two(), MEMORY, vec![pinned]).0, all);
}

/// An answer may take few looks at the fleet; those of the last one do not count for what is kept
/// free.
#[test]
fn what_is_kept_free_does_not_depend_on_the_last_question() {
    let takes = ExecutorInfo {
        device: 2,
        serves: Some(vec![0, 9]),
        ..executor(2)
    };
    let waits = Model {
        waiting: 1,
        ..model(0)
    };
    let fleet = limited(&[(4, 2, 7), (4, 3, 7)])
        .with(load(2), device(2))
        .and(Change::Executor(takes))
        .and(kept_warm(2, 9))
        .and(Change::Model(waits));
    let nowhere = (1..=4).map(|id| Request {
        allowed: Some(vec![50]),
        ..for_model(id, 7)
    });
    let requests = nowhere.chain([for_model(10, 0), for_model(100, 7)]);
    let mut policy = fleet.policy(MEMORY, requests.collect());
    let verdicts = policy.route(at(100), (1..=4).map(cached).collect());
    let reasons: Vec<u16> = verdicts.iter().map(|verdict| verdict.reason).collect();
    assert_eq!(reasons, [Reason::Nowhere.index(); 4]);
    policy.observe(100, Extent::SinceLast, Vec::new());
    let verdict = policy.route(at(100), vec![cached(100)]).remove(0);
    assert_eq!(verdict.choice, placed(&[0, 1]));
}

#[test]
fn as_many_models_as_set_are_kept_executors_free_for() {
    let fleet = || limited(&[(4, 3, 7), (8, 5, 7), (4, 2, 7)]);
    let waiting = || vec![for_model(1, 0), for_model(2, 1)];
    let with = |max| {
        refill(
            fleet(),
            &format!(r#"{{"cold-models-max": {max}}}"#),
            waiting(),
        )
        .0
    };
    assert_eq!(with(0), placed(&[2, 0, 1]));
    assert_eq!(with(1), placed(&[2, 0]));
    assert_eq!(with(2), placed(&[0]));
}

#[test]
fn nothing_is_kept_free_where_no_other_live_executor_serves_what_runs_there() {
    let waiting = || vec![for_model(1, 0)];
    let serving = |id, serves| {
        Change::Executor(ExecutorInfo {
            device: id,
            models_max: Some(1),
            serves,
            ..executor(id)
        })
    };
    // Two that run model 7 and one more that runs 8; only 0 takes model 0.
    let fleet = |health, others: Option<Vec<u32>>| {
        let other = ExecutorLoad {
            health,
            ..slots(1, 1)
        };
        limited(&[(4, 1, 7), (4, 1, 7)])
            .and(Change::Load(other))
            .and(serving(1, others))
    };
    let seven = Some(vec![7]);
    assert_eq!(
        refill(fleet(Health::Up, seven.clone()), MEMORY, waiting()).0,
        placed(&[1])
    );
    assert_eq!(
        refill(fleet(Health::Down, seven), MEMORY, waiting()).0,
        placed(&[0])
    );
    assert_eq!(
        refill(fleet(Health::Up, Some(vec![8])), MEMORY, waiting()).0,
        placed(&[0])
    );
}

#[test]
fn requests_without_a_model_and_those_it_is_kept_for_go_there() {
    let fleet = limited(&[(4, 2, 7), (4, 3, 7)]).and(Change::Model(Model {
        waiting: 1,
        ..model(0)
    }));
    let none = Request {
        model: None,
        ..for_model(2, 0)
    };
    let requests = vec![for_model(1, 0), none];
    let mut policy = fleet.policy(MEMORY, requests);
    let verdicts = policy.route(at(100), vec![cached(2), cached(1)]);
    assert_eq!(verdicts[0].choice, placed(&[0, 1]));
    assert_eq!(verdicts[1].reason, Reason::ModelsMax.index());

    let rows = policy.explain(at(100), for_model(9, 7), cached(9));
    assert_eq!(
        rows[0].note,
        "kept free for another model, which is warm nowhere"
    );
    assert!(!rows[0].eligible && rows[1].eligible);
}
