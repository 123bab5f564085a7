//! The limits of a probation, and the effects of a rollback.

use pointsman_core::{Clock, Policies, RefusalCause, Strike};

use super::*;

const TERMS: Probation = Probation {
    questions: 100,
    micros: 1000,
    faults_max: 0,
    refusals_permille: 50,
    fuel_percent: 400,
    fuel_floor: 1000,
    fuel_ceiling: 1_000_000,
};

/// Number of the old policy's questions before the swap, enough for a mean.
const BEFORE: u64 = 64;

/// Terms that forgive one fault: the displaced policy answers that question.
const FORGIVING: Probation = Probation {
    faults_max: 1,
    ..TERMS
};

/// A host in which `new` is on probation. It displaced `old`, which used `fuel` per question.
fn on_probation(old: &Handle, fuel: u64, new: &Handle) -> PolicyHost {
    on_probation_by(TERMS, (old, fuel), new)
}

/// [`on_probation`] by these terms.
fn on_probation_by(terms: Probation, (old, fuel): (&Handle, u64), new: &Handle) -> PolicyHost {
    old.set(|script| script.fuel = fuel);
    let mut host = host(&[old]);
    for now in 0..BEFORE {
        author(&mut host, now);
    }
    let number = host.add(start(new.source()).unwrap()).unwrap();
    host.swap(Micros(BEFORE), 0, number).unwrap();
    host.begin_probation(Micros(BEFORE), number, terms).unwrap();
    events(&mut host);
    old.calls();
    new.calls();
    host
}

/// Asks one question per unit of time until the probation is over; returns the number of questions.
fn asked_until_judged(host: &mut PolicyHost, count: u64) -> u64 {
    let questions = (1..=2000).find(|n| {
        order_of(host, &quiet(), (count, BEFORE + n));
        !host.is_on_probation(1)
    });
    questions.expect("it is judged")
}

fn why(host: &mut PolicyHost) -> (Vec<u32>, RollbackWhy) {
    let mut kinds = events(host).into_iter();
    let found = kinds.find_map(|(_, kind)| {
        if let PolicyEventKind::RolledBack { to, why } = kind {
            return Some((to, why));
        }
        None
    });
    found.expect("it was rolled back")
}

#[test]
fn one_fault_on_probation_brings_the_displaced_policy_back_as_it_was() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = on_probation(&old, 11, &new);
    assert!(host.is_on_probation(1));
    new.fail(&[Failing::Order]);
    assert_eq!(author(&mut host, 70), (Author::Policy(0), 1));
    assert_eq!(old.calls(), ["order"], "no fresh instance");
    assert_eq!(host.holder(Hook::Priority), Some(0));
    let (to, why) = why(&mut host);
    assert_eq!(to, [0]);
    assert!(
        matches!(why, RollbackWhy::Faults { faults: 1, .. }),
        "{why:?}"
    );
    assert_eq!(host.numbers().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_displaced_policy_that_was_asked_during_the_probation_comes_back_with_its_state_at_the_swap() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = on_probation_by(FORGIVING, (&old, 11), &new);
    new.fail(&[Failing::Order]);
    assert_eq!(author(&mut host, 70), (Author::Policy(0), 1));
    assert!(host.is_on_probation(1));
    // The rollback restores the state at the swap, not this one.
    old.set(|script| script.state = vec![9]);
    old.calls();
    assert_eq!(author(&mut host, 170), (Author::Policy(0), 1));
    assert_eq!(host.holder(Hook::Priority), Some(0));
    assert_eq!(old.calls(), ["configure {}", "restore [7]", "order"]);
}

#[test]
fn who_takes_over_from_one_that_fails_its_probation_is_told_to_have_begun_anew() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = on_probation_by(FORGIVING, (&old, 11), &new);
    new.fail(&[Failing::Order]);
    for now in [70, 170] {
        assert_eq!(author(&mut host, now), (Author::Policy(0), 1));
    }
    let began = |policy, state| Began {
        policy,
        generation: 2,
        state,
        was_briefed: false,
    };
    // The one that failed, too, was made anew for its last question.
    let began = [began(1, None), began(0, Some(vec![7]))];
    assert_eq!(host.last_asked().began, began);
    let now = counters(&host, 0);
    assert_eq!(host.last_asked().counters, Some(now));
}

#[test]
fn the_counters_of_a_policy_that_its_own_answer_took_out_are_told() {
    let (old, new) = (scripted("old"), scripted("new"));
    new.set(|script| script.fuel = 40_100);
    let mut host = on_probation(&old, 10_000, &new);
    asked_until_judged(&mut host, 2);
    assert!(host.runner(1).is_none());
    let counters = host.last_asked().counters.unwrap();
    assert_eq!((counters.generation, counters.fuel), (1, 40_100));
}

#[test]
fn what_was_rolled_back_is_not_added_again_before_it_is_released() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = on_probation(&old, 11, &new);
    let to = host.rollback(Micros(70), 1, "it smells").unwrap();
    assert_eq!(to, [0]);
    let entry = host.rolled_back().next().unwrap().clone();
    assert_eq!(
        (entry.cause, entry.detail.as_str()),
        (Cause::RolledBack, "it smells")
    );
    let again = || start(new.source()).unwrap();
    assert!(matches!(host.add(again()), Err(BindError::Quarantined(_))));
    assert!(host.release(entry.fingerprint));
    assert_eq!(host.add(again()), Ok(2));
}

#[test]
fn one_that_behaves_is_proven_once_questions_and_time_are_over() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = on_probation(&old, 11, &new);
    // With one question per unit of time, the time is over last.
    assert_eq!(asked_until_judged(&mut host, 2), 1000);
    let proven = PolicyEventKind::Proven { questions: 1000 };
    assert!(events(&mut host).contains(&(1, proven)));
    // After the probation a single fault has no such effect.
    new.fail(&[Failing::Order]);
    assert_eq!(author(&mut host, 3000), (Author::Policy(0), 1));
    assert_eq!(host.holder(Hook::Priority), Some(1));
}

#[test]
fn much_more_fuel_than_the_displaced_one_used_is_out_of_line() {
    let (old, new) = (scripted("old"), scripted("new"));
    new.set(|script| script.fuel = 40_100);
    let mut host = on_probation(&old, 10_000, &new);
    assert_eq!(asked_until_judged(&mut host, 2), 32);
    let expected = RollbackWhy::Fuel {
        questions: 32,
        used: 32 * 40_100,
        expected: 320_000,
        allowed: 1_280_000,
    };
    let (to, why) = why(&mut host);
    assert_eq!((to, &why), (vec![0], &expected));
    let told = "1283200 units of fuel in 32 questions, 320000 were to be expected; at most 1280000 are \
                allowed: fuel-percent, fuel-floor of [policies.probation]";
    assert_eq!(why.to_string(), told);
}

/// An order by lengths that were learnt takes far more than one by arrival, by its nature.
#[test]
fn by_default_a_dearer_order_of_a_short_queue_is_in_line() {
    let (old, new) = (scripted("old"), scripted("new"));
    old.set(|script| script.fuel = 35_000);
    new.set(|script| script.fuel = 700_000);
    let mut host = host(&[&old]);
    let ask = |host: &mut PolicyHost, now| order_of(host, &quiet(), (60, now));
    for now in 0..BEFORE {
        ask(&mut host, now);
    }
    let number = host.add(start(new.source()).unwrap()).unwrap();
    host.swap(Micros(BEFORE), 0, number).unwrap();
    let terms = Probation::default();
    host.begin_probation(Micros(BEFORE), number, terms).unwrap();
    for now in 1..=40 {
        ask(&mut host, BEFORE + now);
    }
    assert_eq!(host.holder(Hook::Priority), Some(number));
}

#[test]
fn more_fuel_within_the_terms_and_fuel_below_the_floor_are_in_line() {
    for (old_fuel, new_fuel) in [(10_000, 39_900), (10, 999)] {
        let (old, new) = (scripted("old"), scripted("new"));
        new.set(|script| script.fuel = new_fuel);
        let mut host = on_probation(&old, old_fuel, &new);
        asked_until_judged(&mut host, 2);
        assert_eq!(host.holder(Hook::Priority), Some(1), "{new_fuel}");
    }
}

#[test]
fn a_larger_question_is_not_held_against_a_policy() {
    let (old, new) = (scripted("old"), scripted("new"));
    new.set(|script| script.fuel = 900_000);
    let mut host = on_probation(&old, 10_000, &new);
    asked_until_judged(&mut host, 64);
    assert_eq!(host.holder(Hook::Priority), Some(1));
}

#[test]
fn there_is_an_end_to_fuel_where_nothing_can_be_compared() {
    let policy = scripted("a");
    policy.set(|script| script.fuel = 2_000_000);
    let mut host = host(&[&policy]);
    host.begin_probation(Micros(0), 0, TERMS).unwrap();
    for now in 1..=17 {
        author(&mut host, now);
    }
    let (to, why) = why(&mut host);
    assert!(to.is_empty(), "the built-in rule: {to:?}");
    assert!(
        matches!(why, RollbackWhy::FuelCeiling { questions: 17, .. }),
        "{why:?}"
    );
    assert_eq!(author(&mut host, 20), (Author::BuiltIn, 0));
}

/// Rows of which one is told before each question, in a list of this extent.
fn told(extent: Extent) -> Feeding {
    Feeding(RefCell::new(vec![(extent, 1)]))
}

#[test]
fn there_is_an_end_to_fuel_of_what_is_told_before_cheap_questions() {
    let policy = scripted("a");
    policy.set(|script| script.observe_fuel = 2_000_000 - script.fuel);
    let mut host = host(&[&policy]);
    host.begin_probation(Micros(0), 0, TERMS).unwrap();
    for now in 1..=17 {
        order_from(&mut host, &told(Extent::SinceLast), now);
    }
    let expected = RollbackWhy::FuelCeiling {
        questions: 17,
        used: 17 * 2_000_000,
    };
    assert_eq!(why(&mut host), (vec![], expected));
}

#[test]
fn to_be_told_everything_is_not_held_against_a_policy() {
    let policy = scripted("a");
    policy.set(|script| script.observe_fuel = 2_000_000);
    let mut host = host(&[&policy]);
    host.begin_probation(Micros(0), 0, TERMS).unwrap();
    for now in 1..=64 {
        order_from(&mut host, &told(Extent::Everything), now);
    }
    assert!(host.is_on_probation(0));
}

#[test]
fn fuel_of_what_is_told_is_not_compared() {
    let (old, new) = (scripted("old"), scripted("new"));
    new.set(|script| script.observe_fuel = 900_000);
    let mut host = on_probation(&old, 10_000, &new);
    for now in 1..=64 {
        // One that is asked more seldom is told more before each question.
        order_from(&mut host, &told(Extent::SinceLast), BEFORE + now);
    }
    assert!(host.is_on_probation(1));
}

/// Refuses one of the two rows of the last question.
fn refuse(host: &mut PolicyHost, policy: u32) {
    let refusal = RefusalCause::UnknownExecutor.of(RequestId(1));
    host.refused(Author::Policy(policy), Hook::Priority, &refusal);
}

#[test]
fn more_refusals_than_the_displaced_one_had_are_out_of_line() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = on_probation(&old, 11, &new);
    let judged = (1..100).find(|n| {
        author(&mut host, BEFORE + n);
        refuse(&mut host, 1);
        !host.is_on_probation(1)
    });
    // Four refusals of at least 64 rows are more than 50 per thousand; the next question judges
    // them.
    assert_eq!(judged, Some(5));
    let (_, why) = why(&mut host);
    assert!(
        matches!(
            why,
            RollbackWhy::Refusals {
                refused: 4,
                expected: 0,
                ..
            }
        ),
        "{why:?}"
    );
}

#[test]
fn refusals_that_the_displaced_one_had_as_well_are_in_line() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = host(&[&old]);
    for now in 0..BEFORE {
        author(&mut host, now);
        refuse(&mut host, 0);
    }
    let number = host.add(start(new.source()).unwrap()).unwrap();
    host.swap(Micros(BEFORE), 0, number).unwrap();
    host.begin_probation(Micros(BEFORE), number, TERMS).unwrap();
    for n in 1..=1000 {
        author(&mut host, BEFORE + n);
        refuse(&mut host, 1);
    }
    assert!(!host.is_on_probation(1), "its time is over");
    assert_eq!(host.holder(Hook::Priority), Some(1));
}

#[test]
fn a_strike_counts_as_a_fault() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = on_probation(&old, 11, &new);
    let strike = Strike {
        at: Micros(80),
        hook: Hook::Priority,
        clock: Clock::Overtaken,
        request: None,
    };
    host.strike(&strike, Arm::Steady);
    let kinds = events(&mut host);
    let struck = PolicyEventKind::Struck {
        hook: Hook::Priority,
        clock: Clock::Overtaken,
    };
    assert!(kinds.contains(&(1, struck)), "{kinds:?}");
    assert_eq!(host.holder(Hook::Priority), Some(0));
    // Without probation, strikes lead to quarantine as faults do.
    for at in [100, 300, 1000] {
        author(&mut host, at);
        host.strike(
            &Strike {
                at: Micros(at),
                ..strike
            },
            Arm::Steady,
        );
    }
    assert_eq!(host.holder(Hook::Priority), None);
    assert_eq!(host.quarantined().count(), 2);
}

#[test]
fn a_rollback_gives_back_the_hooks_that_the_new_one_does_not_have() {
    let (old, new) = (scripted("old"), scripted("new"));
    old.set(|script| script.hooks.insert(Hook::Routing));
    let mut host = host(&[&old]);
    host.bind(Micros(0), 0, HookSet::from_iter([Hook::Routing]))
        .unwrap();
    let number = host.add(start(new.source()).unwrap()).unwrap();
    host.swap(Micros(1), 0, number).unwrap();
    assert_eq!(host.holder(Hook::Routing), None);
    host.rollback(Micros(2), number, "no").unwrap();
    assert_eq!(host.holder(Hook::Routing), Some(0));
    assert_eq!(host.holder(Hook::Priority), Some(0));
}

#[test]
fn a_policy_that_went_on_deciding_elsewhere_keeps_its_state() {
    let (old, new) = (scripted("old"), scripted("new"));
    old.set(|script| script.hooks.insert(Hook::Routing));
    let mut host = host(&[&old]);
    host.bind(Micros(0), 0, HookSet::from_iter([Hook::Routing]))
        .unwrap();
    // Unlike a swap, a bind leaves the old policy its other hook.
    let number = bind(&mut host, &new);
    host.begin_probation(Micros(1), number, TERMS).unwrap();
    old.calls();
    host.rollback(Micros(2), number, "no").unwrap();
    author(&mut host, 3);
    assert_eq!(old.calls(), ["order"], "no fresh instance");
}
