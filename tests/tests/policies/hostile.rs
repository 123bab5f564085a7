//! Guests that misbehave: every request that could be served is served within the liveness bounds,
//! and the facts show the misbehaviour.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and looks only for the facts it is about"
)]

use pointsman_component::{Limits, PolicyEngine};
use pointsman_core::HookSet;
use pointsman_core::{
    Author, Clock, Config, Decided, Fact, FaultKind, Hook, Micros, NewRequest, Outcome,
    RefusalCause, RefusedWhy, RequestId, TenantId, rows::NameKind,
};
use pointsman_policy::{Patience, PolicyHost, PolicySource, start};
use pointsman_sim::World;
use pointsman_testkit::Flavour;
use pointsman_tests::fleet::{self, Defaults};

const SECOND: u64 = 1_000_000;

/// The policies behind the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    BuiltIn,
    Defaults,
}

fn config() -> Config {
    Config {
        unplaced_max: Micros(2 * SECOND),
        held_max: Micros(2 * SECOND),
        tokenless_steps_max: 8,
        ..Config::default()
    }
}

/// A host with the guest on every hook, before the defaults or the built-in rules.
fn hostile_host(engine: &PolicyEngine, settings: &str, behind: Behind) -> (PolicyHost, u32) {
    let mut host = match behind {
        Behind::BuiltIn => PolicyHost::new(Patience::default()),
        Behind::Defaults => {
            let defaults = Defaults::load(engine).unwrap();
            defaults.host(Flavour::Component).unwrap()
        }
    };
    let component = fleet::load(engine, "test/hostile").unwrap();
    let settings = fleet::settings(settings);
    let source = PolicySource::component(&component, &settings, Limits::default());
    let policy = host.add(start(source).unwrap()).unwrap();
    let hooks: HookSet = Hook::ALL.into_iter().collect();
    host.bind(Micros(0), policy, hooks).unwrap();
    (host, policy)
}

/// Runs two engines with two slots each on one device. Requests of several priorities need more
/// slots and blocks than there are.
fn run(host: PolicyHost) -> World<PolicyHost> {
    let (mut world, executors) = fleet::small_world(config(), host, (2, 2, 24));
    world.input(pointsman_core::Input::NameInterned {
        kind: NameKind::Tenant,
        text: "default".into(),
    });
    for n in 0..24 {
        let mut new = NewRequest::new(TenantId(0), 20 + n % 7, 100);
        new.priority = i32::try_from(n % 5).unwrap();
        if n % 6 == 0 {
            new.allowed = Some(vec![executors[1]]);
        }
        world.arrive(new, 40 + 5 * (n % 4));
        let pause = world.now().after(Micros(u64::from(n) * 20_000));
        world.run_until(pause);
    }
    let end = world.now().after(Micros(50 * SECOND));
    let all = world.run_out(end);
    let left: Vec<RequestId> = world.unended().collect();
    assert!(all, "left without an outcome: {left:?}");
    world
}

fn outcomes(world: &World<PolicyHost>) -> Vec<(RequestId, Outcome)> {
    let ended = world
        .facts()
        .iter()
        .filter_map(|stamped| match stamped.fact {
            Fact::Ended(request, outcome) => Some((request, outcome)),
            _ => None,
        });
    ended.collect()
}

fn all_are_served(world: &World<PolicyHost>) {
    for (request, outcome) in outcomes(world) {
        let served = matches!(outcome, Outcome::Finished { .. });
        assert!(served, "request {request} ended as {outcome:?}");
    }
}

/// The fact that a case must leave.
enum ExpectedFact {
    Fault(FaultKind),
    Refusal(Hook, fn(RefusalCause) -> bool),
    Strike(Clock),
}

impl ExpectedFact {
    fn is_in(&self, world: &World<PolicyHost>, policy: u32) -> bool {
        world
            .facts()
            .iter()
            .any(|stamped| match (self, &stamped.fact) {
                (ExpectedFact::Fault(kind), Fact::Fault(_, fault)) => {
                    fault.kind == *kind && fault.policy == policy
                }
                (ExpectedFact::Refusal(hook, is_it), Fact::Refused(author, at, refusal)) => {
                    *author == Author::Policy(policy) && at == hook && is_it(refusal.cause)
                }
                (ExpectedFact::Strike(clock), Fact::Strike(struck, ..)) => clock == struck,
                _ => false,
            })
    }
}

/// Runs the guest before the built-in rules, and before the defaults.
fn check(settings: &str, expected: &ExpectedFact) {
    let engine = PolicyEngine::new().unwrap();
    for behind in [Behind::BuiltIn, Behind::Defaults] {
        let (host, policy) = hostile_host(&engine, settings, behind);
        let world = run(host);
        all_are_served(&world);
        assert!(
            expected.is_in(&world, policy),
            "nothing in the facts about {settings} before {behind:?}"
        );
    }
}

#[test]
fn a_guest_that_loops_in_any_call_harms_nobody() {
    for call in [
        "observe", "admit", "order", "route", "evict", "allot", "arrange",
    ] {
        let settings = format!(r#"{{"outrage": "loop", "calls": ["{call}"]}}"#);
        check(&settings, &ExpectedFact::Fault(FaultKind::Fuel));
    }
}

#[test]
fn a_guest_that_traps_in_any_call_harms_nobody() {
    for call in [
        "observe", "admit", "order", "route", "evict", "allot", "arrange",
    ] {
        let settings = format!(r#"{{"outrage": "trap", "calls": ["{call}"]}}"#);
        check(&settings, &ExpectedFact::Fault(FaultKind::Trap));
    }
}

#[test]
fn a_guest_that_allocates_without_end_harms_nobody() {
    check(
        r#"{"outrage": "allocate", "calls": ["route"]}"#,
        &ExpectedFact::Fault(FaultKind::Memory),
    );
}

#[test]
fn a_guest_that_recurses_without_end_harms_nobody() {
    check(
        r#"{"outrage": "recurse", "calls": ["order"]}"#,
        &ExpectedFact::Fault(FaultKind::Trap),
    );
}

#[test]
fn a_guest_that_returns_a_million_rows_harms_nobody() {
    check(
        r#"{"outrage": "million-rows", "calls": ["order"]}"#,
        &ExpectedFact::Fault(FaultKind::Oversize),
    );
    // Making these larger rows takes all the fuel.
    for call in ["admit", "route"] {
        let settings = format!(r#"{{"outrage": "million-rows", "calls": ["{call}"]}}"#);
        check(&settings, &ExpectedFact::Fault(FaultKind::Fuel));
    }
}

#[test]
fn a_guest_that_faults_after_good_answers_harms_nobody() {
    check(
        r#"{"outrage": "trap", "calls": ["route"], "good-calls": 5}"#,
        &ExpectedFact::Fault(FaultKind::Trap),
    );
}

#[test]
fn a_guest_whose_snapshot_or_restore_loops_harms_nobody() {
    for call in ["snapshot", "restore"] {
        let settings = format!(r#"{{"outrage": "loop", "calls": ["{call}", "evict"]}}"#);
        check(&settings, &ExpectedFact::Fault(FaultKind::Fuel));
    }
}

#[test]
fn executors_that_do_not_exist_are_refused() {
    let unknown = |cause| cause == RefusalCause::UnknownExecutor;
    check(
        r#"{"answers": "unknown-executors"}"#,
        &ExpectedFact::Refusal(Hook::Routing, unknown),
    );
    check(
        r#"{"answers": "no-executors"}"#,
        &ExpectedFact::Refusal(Hook::Routing, |cause| cause == RefusalCause::NamesNone),
    );
}

#[test]
fn a_placement_that_the_request_does_not_allow_is_refused() {
    check(
        r#"{"answers": "ignore-allowed"}"#,
        &ExpectedFact::Refusal(Hook::Routing, |cause| cause == RefusalCause::NotAllowed),
    );
}

#[test]
fn a_request_placed_twice_is_refused() {
    let counted = |cause| matches!(cause, RefusalCause::WrongCount { .. });
    check(
        r#"{"answers": "twice"}"#,
        &ExpectedFact::Refusal(Hook::Routing, counted),
    );
    check(
        r#"{"answers": "twice"}"#,
        &ExpectedFact::Refusal(Hook::Priority, |cause| cause == RefusalCause::NamedTwice),
    );
}

#[test]
fn a_victim_more_urgent_than_the_needy_is_refused() {
    check(
        r#"{"answers": "evict-most-urgent"}"#,
        &ExpectedFact::Refusal(Hook::Preemption, |cause| cause == RefusalCause::MoreUrgent),
    );
}

#[test]
fn a_guest_that_orders_nothing_leaves_the_order_of_arrival() {
    let engine = PolicyEngine::new().unwrap();
    let (host, policy) = hostile_host(&engine, r#"{"answers": "order-nothing"}"#, Behind::BuiltIn);
    let world = run(host);
    all_are_served(&world);
    let placed = world
        .facts()
        .iter()
        .filter_map(|stamped| match &stamped.fact {
            Fact::Placed { request, by, .. } if by.author == Author::Policy(policy) => {
                Some(*request)
            }
            _ => None,
        });
    let first: Vec<RequestId> = placed.take(4).collect();
    assert_eq!(first, [0, 1, 2, 3].map(RequestId));
}

#[test]
fn a_guest_that_allots_nothing_leaves_every_sequence_a_token_a_step() {
    let engine = PolicyEngine::new().unwrap();
    let (host, policy) = hostile_host(&engine, r#"{"answers": "allot-nothing"}"#, Behind::BuiltIn);
    let world = run(host);
    all_are_served(&world);
    let lowest = world
        .facts()
        .iter()
        .filter_map(|stamped| match stamped.fact {
            Fact::Allotted {
                tokens_max, author, ..
            } if author == Author::Policy(policy) => Some(tokens_max),
            _ => None,
        });
    let most = lowest.max();
    assert!(most.is_some(), "it was asked");
    assert!(
        most <= Some(2),
        "a token for each of two slots, not {most:?}"
    );
}

#[test]
fn a_guest_that_allots_too_much_is_refused() {
    let over = |cause| matches!(cause, RefusalCause::OverTotal { .. });
    check(
        r#"{"answers": "allot-too-much"}"#,
        &ExpectedFact::Refusal(Hook::Budget, over),
    );
}

#[test]
fn a_guest_that_holds_for_ever_is_overruled_in_time() {
    check(
        r#"{"answers": "hold-for-ever"}"#,
        &ExpectedFact::Strike(Clock::Unplaced),
    );
}

#[test]
fn displacing_what_does_not_exist_is_refused() {
    check(
        r#"{"answers": "displace-unknown"}"#,
        &ExpectedFact::Refusal(Hook::Admission, |cause| cause == RefusalCause::NotQueued),
    );
}

/// Tests answers that a policy may give: they take effect, are counted, and name the policy.
#[test]
fn shedding_and_giving_up_are_attributed_to_the_policy() {
    let engine = PolicyEngine::new().unwrap();
    let shed = Outcome::Refused(RefusedWhy::NoRoom { retry_after: 7 });
    let gave_up = Outcome::Refused(RefusedWhy::GaveUp);
    for (answers, expected) in [("shed", shed), ("give-up", gave_up)] {
        let settings = format!(r#"{{"answers": "{answers}"}}"#);
        let (host, policy) = hostile_host(&engine, &settings, Behind::Defaults);
        let world = run(host);
        let outcomes = outcomes(&world);
        assert_eq!(outcomes.len(), 24);
        for (request, outcome) in outcomes {
            assert_eq!(outcome, expected);
            let by = Decided {
                author: Author::Policy(policy),
                reason: 0,
            };
            let attributed = world.facts().iter().any(|stamped| match &stamped.fact {
                Fact::TurnedAway(id, decided) => *id == request && decided.author == by.author,
                _ => false,
            });
            assert!(attributed, "who turned request {request} away?");
        }
    }
}

/// Tests that the next policy answers after a fault, and that a fresh instance is asked later.
#[test]
fn a_fault_is_answered_by_the_one_behind() {
    let engine = PolicyEngine::new().unwrap();
    let settings = r#"{"outrage": "trap", "calls": ["route"]}"#;
    let (host, policy) = hostile_host(&engine, settings, Behind::Defaults);
    let world = run(host);
    all_are_served(&world);
    let routers: Vec<Author> = world
        .facts()
        .iter()
        .filter_map(|stamped| match &stamped.fact {
            Fact::Placed { by, .. } => Some(by.author),
            _ => None,
        })
        .collect();
    assert!(!routers.contains(&Author::Policy(policy)));
    assert!(
        !routers.contains(&Author::BuiltIn),
        "the default stood behind"
    );
    let in_quarantine = world.policies.quarantined().any(|q| q.name == "hostile");
    assert!(in_quarantine, "it faulted again and again");
}
