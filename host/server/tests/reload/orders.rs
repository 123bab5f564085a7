//! Operators' orders are carried out, all the way or not at all, and answered.

use pointsman_component::Digest;
use pointsman_core::{Hook, HookSet};
use pointsman_lifecycle::order::{Order, OrderError};
use pointsman_lifecycle::report::{Conflict, TransactionOutcome, Trigger};
use pointsman_policy::Mode;

use crate::stage::{Stage, component, version};
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
    stage.glance();
    stage.advance(crate::stage::SETTLE);
    stage.glance();
    assert!(stage.is_preparing());
    let answered = stage.order_now(eject());
    assert!(answered.is_ok());
    assert_eq!(stage.holders(), SMALL);
    stage.look();
    assert_eq!(stage.policy("slow").unwrap().held, HookSet::EMPTY);
}

/// The file is replaced while it is made ready.
#[test]
fn what_is_not_wanted_any_more_is_not_put_in_force() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.glance();
    stage.advance(crate::stage::SETTLE);
    stage.glance();
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
