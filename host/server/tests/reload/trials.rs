//! Shadows, canaries, probation, closed hooks and pinned files.

use pointsman_component::Digest;
use pointsman_core::{Hook, HookSet};
use pointsman_lifecycle::order::{Order, OrderError};
use pointsman_lifecycle::report::{Conflict, ReloadStep, TransactionOutcome};
use pointsman_policy::{Mode, OnFailure, Probation, ShadowState};

use crate::stage::{DEFAULTS, Stage, StageConfig, TRAPS, component, version};
use crate::{HELD, SMALL};

fn hooks(hooks: &[Hook]) -> HookSet {
    hooks.iter().copied().collect()
}

fn outcomes(stage: &Stage, name: &str) -> Vec<TransactionOutcome> {
    let report = stage.report();
    let its = report.transactions.iter().filter(|it| it.policy == name);
    its.map(|made| made.outcome.clone()).collect()
}

// === Modes ===

#[test]
fn a_shadow_holds_nothing_and_a_change_of_its_sidecar_promotes_it() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("aging"));
    stage.write("mine.toml", "mode = 'shadow'");
    stage.settle();
    assert_eq!(stage.holders(), HELD);
    let priority = hooks(&[Hook::Priority]);
    assert_eq!(stage.last().outcome, TransactionOutcome::Shadow(priority));
    let mine = stage.policy("mine").unwrap();
    assert_eq!(mine.mode, Mode::Shadow);
    let number = mine.number.unwrap();
    let host = |stage: &Stage| {
        let driver = stage.port.driver.borrow();
        (
            driver.policies().mode(number),
            driver.policies().shadowed(number),
        )
    };
    assert_eq!(host(&stage), (Some(Mode::Shadow), priority));
    stage.write("mine.toml", "mode = 'enforce'");
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    assert_eq!(host(&stage).0, None, "the shadow has gone");
    assert_eq!(stage.made(), 3, "its bytes are a default's");
    stage.write("mine.toml", "mode = 'shadow'");
    stage.settle();
    assert_eq!(stage.holders(), HELD);
}

#[test]
fn a_file_called_like_a_default_leaves_it_in_force_while_it_is_tried() {
    let mut stage = Stage::new();
    let next = version(&component("memory-aware"), 1);
    stage.write("memory-aware.wasm", &next);
    stage.write("memory-aware.toml", "mode = 'canary 10%'");
    stage.settle();
    let embedded = Digest::of(&component("memory-aware"));
    let statuses = stage.statuses();
    let mut routing = statuses.iter();
    let routing = routing.find(|it| it.in_force.contains(Hook::Routing));
    assert_eq!(routing.unwrap().digest, embedded);
    let canary = |stage: &Stage| {
        let driver = stage.port.driver.borrow();
        driver
            .policies()
            .canary(Hook::Routing)
            .map(|it| (it.policy, it.share.percent.of_hundred()))
    };
    let number = stage.policy("memory-aware").unwrap().number.unwrap();
    assert_eq!(canary(&stage), Some((number, 10)));
    stage.write("memory-aware.toml", "mode = 'canary 50%'");
    stage.settle();
    assert_eq!(canary(&stage).unwrap().1, 50);
    let policy = "memory-aware".to_owned();
    stage.order(Order::Promote { policy }).unwrap();
    let expected = ("memory-aware".to_owned(), Digest::of(&next));
    assert_eq!(stage.holder(Hook::Routing), Some(expected));
    assert_eq!(canary(&stage), None);
}

#[test]
fn an_ordered_mode_holds_until_the_file_says_something_else() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    let order = Order::Mode {
        policy: "mine".to_owned(),
        mode: Mode::Shadow,
    };
    stage.order(order).unwrap();
    assert_eq!(stage.holders(), SMALL);
    stage.write("mine.toml", "[settings]\naffinity-bonus = 3");
    stage.settle();
    assert_eq!(stage.policy("mine").unwrap().mode, Mode::Shadow);
    assert_eq!(stage.policy("mine").unwrap().settings["affinity-bonus"], 3);
    stage.write("mine.toml", "mode = 'canary 1%'");
    stage.settle();
    let refusal = stage.refusal("mine").unwrap();
    assert_eq!(refusal.step, ReloadStep::Validate, "{refusal:?}");
    assert!(refusal.why.contains("neither admission nor routing"));
    stage.remove("mine.toml");
    stage.settle();
    assert_eq!(stage.policy("mine").unwrap().mode, Mode::Shadow);
}

#[test]
fn a_mode_alone_that_a_policy_cannot_have_is_refused_and_the_one_in_force_stays() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    let before = stage.policy("mine").unwrap();
    stage.write("mine.toml", "mode = 'canary 10%'");
    stage.settle();
    let refusal = stage.refusal("mine").unwrap();
    assert_eq!(refusal.step, ReloadStep::Validate, "{refusal:?}");
    assert!(refusal.why.contains("neither admission nor routing"));
    assert_eq!(stage.policy("mine"), Some(before));
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    stage.write("mine.toml", "mode = 'enforce'");
    stage.settle();
    assert_eq!(stage.refusal("mine"), None);
}

#[test]
fn a_promoted_policy_gets_every_hook_it_exports_even_contested_ones() {
    let mut stage = Stage::small();
    stage.write("one.wasm", component("aging"));
    stage.settle();
    stage.write("two.wasm", version(&component("aging"), 2));
    stage.write("two.toml", "mode = 'shadow'");
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("one"));
    let policy = "two".to_owned();
    stage.order(Order::Promote { policy }).unwrap();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("two"));
}

#[test]
fn one_shadow_more_than_there_may_be_is_refused() {
    let mut stage = Stage::small();
    for n in 1..=5 {
        stage.write(&format!("shade-{n}.wasm"), version(&component("aging"), n));
        stage.write(&format!("shade-{n}.toml"), "mode = 'shadow'");
    }
    stage.settle();
    let refused = stage.report().refused.clone();
    let [(_, refusal)] = refused.as_slice() else {
        panic!("{refused:?}");
    };
    assert_eq!(refusal.step, ReloadStep::Bind);
    assert!(refusal.why.contains("shadows"), "{refusal:?}");
}

#[test]
fn each_of_as_many_shadows_as_there_may_be_can_be_replaced() {
    let mut stage = Stage::small();
    for n in 1..=4 {
        stage.write(&format!("shade-{n}.wasm"), version(&component("aging"), n));
        stage.write(&format!("shade-{n}.toml"), "mode = 'shadow'");
    }
    stage.settle();
    let next = version(&component("aging"), 9);
    stage.write("shade-2.wasm", &next);
    stage.settle();
    assert_eq!(stage.report().refused, []);
    assert_eq!(stage.policy("shade-2").unwrap().digest, Digest::of(&next));
    // All at once, too.
    for n in 1..=4 {
        let sidecar = "mode = 'shadow'\n[settings]\naffinity-bonus = 3";
        stage.write(&format!("shade-{n}.toml"), sidecar);
    }
    stage.settle();
    assert_eq!(stage.report().refused, []);
    let report = stage.report();
    let shades = report.policies.iter().filter(|it| it.mode == Mode::Shadow);
    let numbers: Vec<u32> = shades
        .filter(|it| it.settings["affinity-bonus"] == 3)
        .filter_map(|it| it.number)
        .collect();
    let driver = stage.port.driver.borrow();
    let shadowed = |number: u32| !driver.policies().shadowed(number).is_empty();
    assert_eq!(numbers.iter().filter(|it| shadowed(**it)).count(), 4);
    let statuses = driver.policies().status();
    assert_eq!(statuses.filter(|it| it.mode == Mode::Shadow).count(), 4);
}

/// A stage where its faults have ended the shadow `mine`, and the shadow's number.
fn ended_shadow() -> (Stage, u32) {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("test/hostile"));
    stage.write("mine.toml", format!("mode = 'shadow'\n{TRAPS}"));
    stage.settle();
    let number = stage.policy("mine").unwrap().number.unwrap();
    // The question after its fault finds it ended.
    for _ in 0..302 {
        stage.ask();
        while stage.shadow(number).pending > 0 {
            std::thread::yield_now();
        }
    }
    let state = stage.shadow(number).state;
    assert!(matches!(state, ShadowState::Ended(_)), "{state:?}");
    stage.look();
    (stage, number)
}

#[test]
fn an_order_to_enforce_what_is_in_quarantine_fails_and_leaves_it_where_it_is() {
    let (mut stage, number) = ended_shadow();
    let before = stage.policy("mine");
    let (policy, mode) = ("mine".to_owned(), Mode::Enforce);
    let error = stage.order(Order::Mode { policy, mode }).unwrap_err();
    let OrderError::Failed { step, why } = error else {
        panic!("{error:?}");
    };
    assert_eq!(step, ReloadStep::Bind, "{why}");
    assert_eq!(stage.policy("mine"), before);
    assert_eq!(stage.refusal("mine"), None);
    let state = stage.shadow(number).state;
    assert!(matches!(state, ShadowState::Ended(_)), "{state:?}");
    assert_eq!(stage.holders(), HELD);
}

#[test]
fn an_order_to_shadow_or_promote_a_shadow_that_has_ended_says_to_release_it() {
    let (mut stage, number) = ended_shadow();
    let policy = || "mine".to_owned();
    let mode = Mode::Shadow;
    let orders = [
        Order::Mode {
            policy: policy(),
            mode,
        },
        Order::Promote { policy: policy() },
    ];
    for order in orders {
        let error = stage.order(order).unwrap_err();
        let OrderError::Failed { step, why } = error else {
            panic!("{error:?}");
        };
        assert_eq!(step, ReloadStep::Bind, "{why}");
        let says = "it is in quarantine until its code, settings or limits change, or \
                    `pointsman policy release mine` lets it be tried again: ";
        assert!(why.contains(says), "{why}");
        assert_eq!(stage.policy("mine").unwrap().number, Some(number));
        assert_eq!(stage.holders(), HELD);
    }
}

#[test]
fn a_shadow_that_its_faults_have_ended_begins_anew_once_it_is_released() {
    let (mut stage, number) = ended_shadow();
    let fingerprint = stage.report().quarantine[0].fingerprint;
    stage.order(Order::Release { fingerprint }).unwrap();
    let fresh = stage.policy("mine").unwrap().number.unwrap();
    assert_ne!(fresh, number);
    assert_eq!(stage.shadow(fresh).state, ShadowState::Running);
    assert_eq!(stage.report().quarantine, []);
    assert_eq!(stage.holders(), HELD);
}

// === Probation ===

fn on_probation(_: &std::path::Path, config: &mut StageConfig) {
    config.policies.probation = Probation {
        questions: 50,
        micros: 1_000_000,
        ..Probation::default()
    };
    config.patience.faults_max = 5;
}

#[test]
fn a_version_that_faults_on_probation_is_rolled_back_and_the_history_says_why() {
    let mut stage = Stage::with(&["aging"], on_probation);
    let good = component("test/hostile");
    stage.write("mine.wasm", &good);
    stage.settle();
    let number = stage.policy("mine").unwrap().number;
    stage.write("mine.toml", TRAPS);
    stage.settle();
    assert_ne!(stage.policy("mine").unwrap().number, number);
    stage.ask_often(301);
    stage.look();
    let mine = stage.policy("mine").unwrap();
    assert_eq!(mine.number, number);
    assert!(mine.settings.is_empty());
    assert_eq!(stage.holders(), ["mine"; 5]);
    let last = stage.last();
    assert!(
        matches!(&last.outcome, TransactionOutcome::RolledBack { why } if why.contains("fault"))
    );
    let refusal = stage.refusal("mine").unwrap();
    assert_eq!(refusal.step, ReloadStep::Serve);
    // It stays out.
    stage.poll();
    assert_eq!(stage.last().number, last.number);
}

#[test]
fn a_version_that_stands_its_probation_is_said_to_be_proven() {
    let mut stage = Stage::with(&["aging"], on_probation);
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    stage.ask_often(50);
    stage.look();
    assert!(
        !outcomes(&stage, "mine").contains(&TransactionOutcome::Proven),
        "too soon"
    );
    stage.advance(std::time::Duration::from_secs(2));
    stage.ask();
    stage.look();
    assert!(outcomes(&stage, "mine").contains(&TransactionOutcome::Proven));
}

#[test]
fn a_promoted_version_that_was_rolled_back_and_is_released_is_tried_as_its_file_says() {
    let mut stage = Stage::small();
    stage.write("another.wasm", version(&component("aging"), 2));
    stage.write("mine.wasm", version(&component("aging"), 1));
    stage.write("mine.toml", "mode = 'shadow'");
    stage.settle();
    let holder = |stage: &Stage| stage.holder_name(Hook::Priority);
    assert_eq!(holder(&stage).as_deref(), Some("another"));
    let policy = || "mine".to_owned();
    stage.order(Order::Promote { policy: policy() }).unwrap();
    assert_eq!(holder(&stage).as_deref(), Some("mine"));
    stage.order(Order::Rollback { policy: policy() }).unwrap();
    assert_eq!(holder(&stage).as_deref(), Some("another"));
    let fingerprint = stage.report().quarantine[0].fingerprint;
    stage.order(Order::Release { fingerprint }).unwrap();
    assert_eq!(stage.policy("mine").unwrap().mode, Mode::Shadow);
    assert_eq!(holder(&stage).as_deref(), Some("another"));
    assert_eq!(stage.report().conflicts, []);
    let priority = hooks(&[Hook::Priority]);
    assert_eq!(stage.last().outcome, TransactionOutcome::Shadow(priority));
}

#[test]
fn an_order_about_a_policy_in_quarantine_says_to_release_it() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", version(&component("aging"), 1));
    stage.settle();
    let policy = || "mine".to_owned();
    let rollback = || Order::Rollback { policy: policy() };
    stage.order(rollback()).unwrap();
    assert_eq!(stage.policy("mine"), None);
    let orders = [
        Order::Promote { policy: policy() },
        Order::Mode {
            policy: policy(),
            mode: Mode::Shadow,
        },
        Order::Bind {
            hook: Hook::Priority,
            policy: Some(policy()),
        },
        rollback(),
    ];
    for order in orders {
        let error = stage.order(order).unwrap_err();
        let OrderError::Failed { step, why } = error else {
            panic!("{error:?}");
        };
        assert_eq!(step, ReloadStep::Bind, "{why}");
        let says = "`pointsman policy release mine` lets it be tried again: ";
        assert!(why.contains(says), "{why}");
    }
    // One that was never in quarantine has its refusal for an answer.
    stage.write("bad.wasm", "no");
    stage.settle();
    // So has one whose settings are refused since.
    stage.write("mine.toml", "settings = 1");
    stage.settle();
    for name in ["bad", "mine"] {
        let refusal = stage.refusal(name).unwrap();
        let (step, why) = (refusal.step, refusal.why);
        assert!(!why.contains("pointsman policy release"), "{why}");
        let policy = name.to_owned();
        let error = stage.order(Order::Promote { policy }).unwrap_err();
        assert_eq!(error, OrderError::Failed { step, why });
    }
}

// === Closed hooks ===

fn is_closed(stage: &Stage) -> bool {
    let driver = stage.port.driver.borrow();
    driver.policies().closed().contains(Hook::Admission)
}

#[test]
fn a_hook_that_fails_closed_stays_closed_when_its_policy_goes_into_quarantine() {
    let mut stage = Stage::with(&DEFAULTS, |_, _| {});
    stage.write("mine.wasm", component("test/hostile"));
    let closed = format!("on-failure = {{ admission = 'closed' }}\n{TRAPS}");
    stage.write("mine.toml", closed);
    stage.settle();
    assert_eq!(stage.on_failure(), OnFailure::Closed);
    stage.ask_often(301);
    stage.poll();
    assert!(is_closed(&stage) && stage.on_failure() == OnFailure::Closed);
    let closed = Conflict::Closed {
        hook: Hook::Admission,
        policy: "mine".to_owned(),
    };
    assert_eq!(stage.report().conflicts, [closed]);
    let mut stage = stage.restart(|_| {});
    assert!(is_closed(&stage) && stage.on_failure() == OnFailure::Closed);
    // A version that is of use opens it again.
    stage.remove("mine.toml");
    stage.settle();
    assert_eq!(stage.holders(), ["mine"; 5]);
    assert!(!is_closed(&stage) && stage.on_failure() == OnFailure::Fallback);
    assert_eq!(stage.report().conflicts, []);
}

#[test]
fn what_happens_on_failure_changes_with_the_sidecar_alone() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    let number = stage.policy("mine").unwrap().number;
    stage.write("mine.toml", "on-failure = { admission = 'closed' }");
    stage.settle();
    assert_eq!(stage.on_failure(), OnFailure::Closed);
    assert_eq!(
        stage.policy("mine").unwrap().number,
        number,
        "it was not started again"
    );
}

#[test]
fn a_hook_stays_closed_where_its_policy_was_in_force_before_the_sidecar_said_so() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("test/hostile"));
    stage.write("mine.toml", TRAPS);
    stage.settle();
    let closed = format!("on-failure = {{ admission = 'closed' }}\n{TRAPS}");
    stage.write("mine.toml", closed);
    stage.settle();
    stage.ask_often(301);
    stage.poll();
    assert_eq!(stage.report().quarantine.len(), 1);
    assert!(is_closed(&stage) && stage.on_failure() == OnFailure::Closed);
}

// === Pins ===

#[test]
fn a_pin_that_does_not_match_yet_waits_for_its_file() {
    let mut stage = Stage::small();
    let (one, two) = (component("aging"), version(&component("aging"), 2));
    stage.write("mine.wasm", &one);
    stage.settle();
    let pinned = Digest::of(&two);
    stage.write(
        "mine.toml",
        format!("sha256 = '{pinned}'\n[settings]\naffinity-bonus = 9"),
    );
    stage.settle();
    let mine = stage.policy("mine").unwrap();
    assert_eq!(mine.waits_for, Some(pinned));
    assert_eq!((mine.digest, mine.settings.len()), (Digest::of(&one), 0));
    assert_eq!(stage.last().outcome, TransactionOutcome::Waits { pinned });
    assert_eq!(stage.refusal("mine"), None);
    stage.write("mine.wasm", &two);
    stage.settle();
    let mine = stage.policy("mine").unwrap();
    assert_eq!((mine.waits_for, mine.digest), (None, pinned));
    assert_eq!(mine.settings["affinity-bonus"], 9);
}
