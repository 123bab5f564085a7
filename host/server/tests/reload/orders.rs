//! Operators' orders are carried out, all the way or not at all, and answered.

use std::time::Duration;

use pointsman_component::Digest;
use pointsman_core::{Hook, HookSet, Micros};
use pointsman_lifecycle::order::{Order, OrderError};
use pointsman_lifecycle::report::{Conflict, ReloadStep, TransactionOutcome, Trigger};
use pointsman_policy::Mode;

use crate::stage::{HeldCompiler, Stage, compilations_noted, component, version};
use crate::{HELD, SMALL};

fn bind(hook: Hook, policy: Option<&str>) -> Order {
    let policy = policy.map(str::to_owned);
    Order::Bind { hook, policy }
}

fn rollback(policy: &str) -> Order {
    let policy = policy.to_owned();
    Order::Rollback { policy }
}

fn eject() -> Order {
    let hooks = Hook::ALL.into_iter().collect();
    Order::Eject { hooks }
}

#[test]
fn a_hook_is_bound_by_order_and_given_back() {
    let mut stage = Stage::new();
    stage.write("one.wasm", component("aging"));
    stage.settle();
    stage.write("two.wasm", version(&component("aging"), 2));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("one"));
    stage.order(bind(Hook::Priority, Some("two"))).unwrap();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("two"));
    assert_eq!(stage.last().cause, Trigger::Order);
    assert_eq!(stage.report().conflicts, [], "an order settles it");
    // Without the order two files contest it, and the one in force stays.
    stage.order(bind(Hook::Priority, None)).unwrap();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("two"));
    assert_eq!(stage.report().conflicts.len(), 1);
}

#[test]
fn what_cannot_be_bound_is_refused_and_changes_nothing() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("aging"));
    stage.write("shade.wasm", version(&component("aging"), 1));
    stage.write("shade.toml", "mode = 'shadow'");
    stage.settle();
    let policy = |name: &str| name.to_owned();
    let hook = Hook::Routing;
    for (order, error) in [
        (
            bind(hook, Some("gone")),
            OrderError::NoPolicy(policy("gone")),
        ),
        (
            bind(hook, Some("mine")),
            OrderError::NotExported {
                policy: policy("mine"),
                hook,
            },
        ),
        (
            bind(Hook::Priority, Some("shade")),
            OrderError::NotEnforced {
                policy: policy("shade"),
                mode: Mode::Shadow,
            },
        ),
        (rollback("aging"), OrderError::Embedded(policy("aging"))),
        (
            Order::Promote {
                policy: policy("mine"),
            },
            OrderError::InForce(policy("mine")),
        ),
        (
            Order::Mode {
                policy: policy("mine"),
                mode: "canary 5%".parse().unwrap(),
            },
            OrderError::NoCanary(policy("mine")),
        ),
        (
            Order::Release {
                fingerprint: Digest::of(b"nothing"),
            },
            OrderError::NotQuarantined(Digest::of(b"nothing")),
        ),
    ] {
        let before = stage.holders();
        assert_eq!(stage.order(order).unwrap_err(), error);
        assert_eq!(stage.holders(), before);
    }
    assert!(stage.report().ordered.is_empty());
}

#[test]
fn ejected_hooks_are_the_embedded_defaults_and_nobody_stands_behind_them() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("test/hostile"));
    stage.write("memory-aware.wasm", version(&component("memory-aware"), 1));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    stage.order(eject()).unwrap();
    assert_eq!(stage.holders(), HELD);
    let embedded = Digest::of(&component("memory-aware"));
    assert_eq!(stage.holder(Hook::Routing).unwrap().1, embedded);
    assert!(stage.statuses().iter().all(|it| it.behind.is_empty()));
    // The files are there and hold nothing, whatever becomes of them, until a hook is given back.
    stage.write("mine.wasm", version(&component("test/hostile"), 1));
    stage.settle();
    stage.poll();
    assert_eq!(stage.holders(), HELD);
    stage.order(bind(Hook::Priority, None)).unwrap();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    stage
        .order(Order::Eject {
            hooks: [Hook::Priority].into_iter().collect(),
        })
        .unwrap();
    assert_eq!(stage.holders(), HELD);
}

#[test]
fn a_version_that_is_rolled_back_gives_way_to_the_one_before_and_is_not_tried_again() {
    let mut stage = Stage::small();
    let good = component("test/hostile");
    stage.write("mine.wasm", &good);
    stage.settle();
    let next = version(&good, 1);
    stage.write("mine.wasm", &next);
    stage.settle();
    stage.order(rollback("mine")).unwrap();
    let (_, digest) = stage.holder(Hook::Routing).unwrap();
    assert_eq!(digest, Digest::of(&good));
    let outcomes = stage.report().transactions.clone();
    let rolled_back = outcomes.iter().any(
        |it| matches!(&it.outcome, TransactionOutcome::RolledBack { why } if why.contains("order")),
    );
    assert!(rolled_back, "{outcomes:?}");
    stage.touch(&stage.path("mine.wasm"));
    stage.settle();
    let (_, digest) = stage.holder(Hook::Routing).unwrap();
    assert_eq!(digest, Digest::of(&good));
    // Released, the file is tried at once.
    let listed = stage.report().quarantine.clone();
    let fingerprint = listed[0].fingerprint;
    stage.order(Order::Release { fingerprint }).unwrap();
    stage.look();
    let (_, digest) = stage.holder(Hook::Routing).unwrap();
    assert_eq!(digest, Digest::of(&next));
    assert_eq!(stage.report().quarantine, []);
    assert_eq!(stage.refusal("mine"), None);
}

#[test]
fn an_order_that_fails_leaves_the_version_in_force_where_it_is() {
    let mut stage = Stage::small();
    for n in 1..=4 {
        stage.write(&format!("shade-{n}.wasm"), version(&component("aging"), n));
        stage.write(&format!("shade-{n}.toml"), "mode = 'shadow'");
    }
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    let before = stage.policy("mine");
    let order = Order::Mode {
        policy: "mine".to_owned(),
        mode: Mode::Shadow,
    };
    let OrderError::Failed { step, why } = stage.order(order).unwrap_err() else {
        panic!("there are four shadows");
    };
    assert_eq!(step, ReloadStep::Bind, "{why}");
    assert!(why.contains("shadows"), "{why}");
    assert_eq!(stage.policy("mine"), before);
    assert_eq!(stage.refusal("mine"), None);
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    let outcome = stage.last().outcome;
    assert_eq!(outcome, TransactionOutcome::Refused { step, why });
}

#[test]
fn a_policy_that_holds_nothing_cannot_be_rolled_back() {
    let mut stage = Stage::small();
    stage.write("one.wasm", component("aging"));
    stage.settle();
    stage.write("two.wasm", version(&component("aging"), 2));
    stage.settle();
    let error = stage.order(rollback("two")).unwrap_err();
    assert_eq!(error, OrderError::Idle("two".to_owned()));
}

/// An order that comes while a policy is compiled does not wait for the compiler.
#[test]
fn an_order_goes_before_what_is_being_prepared() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    stage.write("slow.wasm", component("test/hostile"));
    stage.glance_settled();
    assert!(stage.is_preparing());
    let answered = stage.order_now(eject());
    assert!(answered.is_ok());
    assert_eq!(stage.holders(), SMALL);
    stage.look();
    assert_eq!(stage.policy("slow").unwrap().held, HookSet::EMPTY);
}

/// A stage whose compiler is `held` by the test.
fn compiling(held: &HeldCompiler) -> Stage {
    Stage::with(&["aging"], |_, config| config.compiler = held.compiler())
}

#[test]
fn a_file_that_takes_long_holds_up_no_other_change() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    held.hold();
    stage.write("slow.wasm", component("test/hostile"));
    stage.glance_settled();
    stage.remove("mine.wasm");
    stage.glance_settled();
    assert!(stage.is_preparing());
    assert_eq!(stage.holders(), SMALL);
    // Its bytes are at hand.
    stage.write("other.wasm", component("aging"));
    stage.glance_settled();
    stage.look_until(|stage| stage.holder_name(Hook::Priority).as_deref() == Some("other"));
    stage.write("other.toml", "mode = 'shadow'");
    stage.glance_settled();
    assert_eq!(stage.holders(), SMALL);
    assert!(stage.is_preparing());
    held.let_go();
    stage.look();
    assert_eq!(stage.holders(), ["slow"; 5]);
}

#[test]
fn files_that_settle_together_come_together_unless_one_of_them_is_late() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    held.hold();
    stage.write("mine.wasm", component("aging"));
    stage.write("slow.wasm", component("test/hostile"));
    stage.glance_settled();
    // It is ready,
    stage.glance_woken();
    assert_eq!(stage.policy("mine"), None, "and is no version of use yet");
    assert_eq!(stage.holders(), SMALL, "and waits for the other");
    stage.advance(Duration::from_secs(60));
    stage.glance();
    assert!(stage.is_preparing());
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    held.let_go();
    stage.look();
    assert_eq!(stage.holders(), ["slow", "mine", "slow", "slow", "slow"]);
}

#[test]
fn files_that_settle_together_are_not_parted_by_other_changes() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    held.hold();
    stage.write("mine.wasm", component("aging"));
    stage.write("slow.wasm", component("test/hostile"));
    stage.glance_settled();
    // The first of them is ready.
    stage.glance_woken();
    stage.write("shade.wasm", component("aging"));
    stage.write("shade.toml", "mode = 'shadow'");
    stage.glance_settled();
    stage.look_until(|stage| stage.policy("shade").is_some());
    assert_eq!(stage.holders(), SMALL);
    stage.order_now(bind(Hook::Priority, None)).unwrap();
    assert_eq!(stage.holders(), SMALL);
    assert!(stage.is_preparing());
    held.let_go();
    stage.look();
    assert_eq!(stage.holders(), ["slow", "aging", "slow", "slow", "slow"]);
    let contested = Conflict::Contested {
        hook: Hook::Priority,
        claimants: vec!["mine".to_owned(), "slow".to_owned()],
    };
    assert_eq!(stage.report().conflicts, [contested], "neither was first");
}

#[test]
fn a_file_that_goes_decides_until_those_that_settled_with_it_are_ready() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    held.hold();
    stage.remove("mine.wasm");
    stage.write("slow.wasm", component("test/hostile"));
    stage.glance_settled();
    assert!(stage.is_preparing());
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    held.let_go();
    stage.look();
    assert_eq!(stage.holders(), ["slow"; 5]);
    assert_eq!(stage.policy("mine"), None);
}

#[test]
fn a_file_that_changes_while_it_is_compiled_takes_no_thread_from_others() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    held.hold();
    // More often than there are threads.
    for number in 1..=5 {
        stage.write("slow.wasm", version(&component("test/hostile"), number));
        stage.glance_settled();
    }
    stage.write("other.wasm", component("aging"));
    stage.glance_settled();
    let state = stage.home().join("state");
    stage.look_until(|stage| {
        let holder = stage.holder_name(Hook::Priority);
        holder.as_deref() == Some("other") && compilations_noted(&state) <= 1
    });
    assert!(stage.is_preparing());
    held.let_go();
    stage.look();
    assert_eq!(stage.holders(), ["slow", "other", "slow", "slow", "slow"]);
}

#[test]
fn files_with_the_same_code_are_compiled_once_and_none_is_refused() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    let compiled = stage.report().compiled;
    held.hold();
    let code = version(&component("aging"), 1);
    // One more than compilations of a file may be ended before it is given up.
    for (name, bonus) in [("w", 1), ("x", 2), ("y", 3), ("z", 4)] {
        stage.write(&format!("{name}.wasm"), &code);
        let settings = format!("[settings]\naffinity-bonus = {bonus}");
        stage.write(&format!("{name}.toml"), settings);
    }
    stage.glance_settled();
    let state = stage.home().join("state");
    while compilations_noted(&state) == 0 {
        std::thread::yield_now();
    }
    held.let_go();
    stage.look();
    assert_eq!(stage.report().refused, []);
    assert_eq!(stage.report().compiled, compiled + 1);
    for name in ["w", "x", "y", "z"] {
        assert_eq!(stage.policy(name).unwrap().digest, Digest::of(&code));
    }
}

#[test]
fn a_start_does_not_wait_for_a_file_that_takes_long() {
    let held = HeldCompiler::new();
    let stage = Stage::with(&["aging"], |_, config| {
        config.compiler = held.compiler();
        config.start_wait = Micros(0);
    });
    let mut stage = stage.restart(|stage| {
        held.hold();
        stage.write("slow.wasm", component("test/hostile"));
    });
    assert!(stage.report().begun && stage.is_preparing());
    assert_eq!(stage.holders(), SMALL);
    held.let_go();
    stage.look();
    assert_eq!(stage.holders(), ["slow"; 5]);
}

/// The file is replaced while it is made ready.
#[test]
fn what_is_not_wanted_any_more_is_not_put_in_force() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.glance_settled();
    assert!(stage.is_preparing());
    stage.write("mine.wasm", version(&component("aging"), 1));
    stage.settle();
    stage.settle();
    assert_eq!(stage.holders(), ["-", "mine", "-", "-", "-"]);
    let mine = version(&component("aging"), 1);
    assert_eq!(stage.policy("mine").unwrap().digest, Digest::of(&mine));
}

#[test]
fn a_hook_bound_to_a_file_that_goes_is_told_of() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    stage.order(bind(Hook::Priority, Some("mine"))).unwrap();
    stage.remove("mine.wasm");
    stage.settle();
    assert_eq!(stage.holders(), SMALL);
    let absent = Conflict::Absent {
        hook: Hook::Priority,
        policy: "mine".to_owned(),
    };
    assert_eq!(stage.report().conflicts, [absent]);
}
